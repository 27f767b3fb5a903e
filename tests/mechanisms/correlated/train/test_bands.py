"""Runs with banded noise: whole groups from parts in turn, through the gate; what the release says is verified."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy.ledger import read
from dprecipe.release.untrusted import to_bytes


@pytest.fixture(scope="module")
def release(bands: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release of a finished run."""
    out = tmp_path_factory.mktemp("bands") / "run"
    dprecipe.run(bands(), out)
    return out / "release"


def test_groups_are_charged_and_the_certificate_says_how_noise_is_correlated(
    release: Path, bands: Callable[..., Plan]
) -> None:
    plan = bands()
    predicate = json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]
    assert read(release.parent / "private" / "ledger.jsonl").charges == plan.events
    assert predicate["sampling"]["steps_charged"] == predicate["sampling"]["steps_trained"] == 18
    assert predicate["sampling"]["expected_batch"] == 240
    facts = predicate["mechanism"]["correlation"]
    assert (facts["form"], facts["groups"]) == ("banded", 6)
    assert facts["coefficients"] == pytest.approx([1, 0.8, 0.72])
    assert facts["sensitivity"] == pytest.approx(math.hypot(1, 0.8, 0.72), rel=1e-5)
    noise = predicate["mechanism"]["noise"]
    assert noise["standard_deviation"] > noise["scale"] == pytest.approx(0.3 * noise["multiplier"])
    assert {"noise_scale", "noise_correlation"} <= {check["id"] for check in predicate["checks"]}


def change_line(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda predicate: predicate["events"]["run_length"][0].update(values)


def change_facts(**values: object) -> Callable[[dict[str, Any]], object]:
    return lambda predicate: predicate["mechanism"]["correlation"].update(values)


FORGERIES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a lower rate": (change_line(part_rate=0.16), "events.run_length"),
    "fewer groups": (change_line(count=5), "events"),
    "smaller coefficients": (change_line(coefficients=[1.0, 0.2, 0.1]), "events.run_length"),
    "no bands": (change_line(coefficients=[1.0]), "events.run_length"),
    "more noise": (change_line(noise_multiplier=100.0), "events.run_length"),
    "other coefficients stated": (change_facts(coefficients=[1.0, 0.5, 0.4]), "mechanism"),
    "a smaller norm": (change_facts(sensitivity=1.0), "mechanism"),
    "another form": (change_facts(form="previous_step"), "mechanism"),
    "a smaller ε": (lambda predicate: predicate["claim"].update(epsilon=1.0), "claim"),
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
