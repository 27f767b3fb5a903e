"""Runs with correlated noise: whole passes in one order, through the gate; what the release says is verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy.ledger import read
from dprecipe.release.untrusted import to_bytes
from dprecipe.training.program.records import Store


@pytest.fixture(scope="module")
def release(cycles: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of a finished run."""
    out = tmp_path_factory.mktemp("cycles") / "run"
    dprecipe.run(cycles(), out)
    return out / "release"


def stated(release: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]
    return content


def test_passes_are_charged_and_the_certificate_says_how_noise_is_correlated(
    release: Path, cycles: Callable[..., Plan]
) -> None:
    plan, predicate = cycles(), stated(release)
    assert read(release.parent / "private" / "ledger.jsonl").charges == plan.events
    assert [line["number"] for line in predicate["events"]["run_length"]] == [0, 1, 2, 3]
    assert predicate["sampling"]["steps_charged"] == predicate["sampling"]["steps_trained"] == 20
    mechanism, m = predicate["mechanism"], plan.events[0].event.multipliers[0]
    assert (mechanism["noise"]["multiplier"], mechanism["noise"]["scale"]) == (m, 0.3 * m)
    assert mechanism["noise"]["standard_deviation"] == pytest.approx(0.3 * m * (1 + 0.8**2) ** 0.5)
    facts = mechanism["correlation"]
    assert (facts["form"], facts["previous"], facts["batches"], facts["passes"]) == ("previous_step", 0.8, 5, 4)
    assert predicate["claim"]["gdp"]["mu"] == pytest.approx(facts["sensitivity"] / m, rel=1e-4)
    assert facts["noise_in_iterates"] < facts["independent_noise"]
    assert {"noise_scale", "noise_correlation"} <= {check["id"] for check in predicate["checks"]}


def lower_numbers(predicate: dict[str, Any]) -> None:
    for line in predicate["events"]["run_length"]:
        line["number"] = 0


def lower_share(predicate: dict[str, Any]) -> None:
    for line in predicate["events"]["run_length"]:
        line["previous"] = 0.1


def merge_passes(predicate: dict[str, Any]) -> None:
    lines = predicate["events"]["run_length"]
    predicate["events"]["run_length"] = [{**lines[0], "count": 4}]


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a pass number lowered": (lambda p: p["events"]["run_length"][3].update(number=2), "events.run_length"),
    "all numbers lowered": (lower_numbers, "events.run_length"),
    "one event for all passes": (merge_passes, "events.run_length"),
    "a smaller share": (lower_share, "events.run_length"),
    "fewer steps of a pass": (lambda p: p["events"]["run_length"][0].update(batches=1), "events.run_length"),
    "more noise": (lambda p: p["events"]["run_length"][0].update(noise_multiplier=100.0), "events.run_length"),
    "another share stated": (lambda p: p["mechanism"]["correlation"].update(previous=0.5), "mechanism"),
    "a smaller sensitivity": (lambda p: p["mechanism"]["correlation"].update(sensitivity=1.0), "mechanism"),
    "less noise left": (lambda p: p["mechanism"]["correlation"].update(noise_in_iterates=1.0), "mechanism"),
    "a smaller ε": (lambda p: p["claim"].update(epsilon=1.0), "claim"),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_what_was_forged_is_found(what: str, release: Path, tmp_path: Path) -> None:
    change, path = FORGERIES[what]
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    change(content["predicate"])
    file = tmp_path / "certificate.json"
    file.write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid) as found:
        dprecipe.verify(file)
    assert any(path in failure for failure in found.value.failures)


@pytest.mark.slow
def test_every_pass_of_a_run_has_the_batches_of_the_first(
    cycles: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[NDArray[np.int64]] = []
    real = Store.batch

    def seeing(self: Store, units: NDArray[np.int64], seed: int) -> Any:
        if self.units == 1438:
            batches.append(units)
        return real(self, units, seed)

    monkeypatch.setattr(Store, "batch", seeing)
    for number in range(2):
        dprecipe.run(cycles(), tmp_path / str(number))
    passes = [[batch.tolist() for batch in batches[first : first + 5]] for first in range(0, 40, 5)]
    assert len(batches) == 40
    assert passes[:4] == passes[:1] * 4
    assert passes[4:] == passes[4:5] * 4
    assert passes[0] != passes[4]
    assert sorted(unit for batch in passes[0] for unit in batch) == list(range(1438))
