"""A certificate states which iterate was kept, and only what a run of its recipe can have kept; and its filter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.facts import NoisyFacts
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid
from dprecipe.release.facts import KeptIterate
from dprecipe.release.verify import verify

KEEP = ("training.keep={by: accuracy}", "training.filter={kind: kalman, gain: 0.25}")


@pytest.fixture
def release(
    tmp_path: Path, plan_of: Callable[..., Plan], facts_of: Callable[..., Any], finish: Callable[..., Any]
) -> Callable[..., Path]:
    """A release of a run with these facts."""

    def release(overrides: tuple[str, ...], **facts: Any) -> Path:
        path: Path = finish(tmp_path / "run", plan_of(overrides=overrides), facts_of(**facts)).path
        return path / "release"

    return release


def failures(path: Path) -> list[str]:
    try:
        verify(path)
    except CertificateInvalid as invalid:
        return list(invalid.failures)
    return []


def test_what_was_kept_and_filtered_is_stated_and_verifies(release: Callable[..., Path]) -> None:
    path = release(KEEP, kept=KeptIterate(42, 20))
    assert failures(path) == []
    stated = json.loads((path / "certificate.json").read_text("utf-8"))["predicate"]
    assert stated["data_access"]["evaluation"]["kept"] == {"by": "accuracy", "step": 42, "looked_at": 20}
    told = verify(path).statement.predicate
    assert told.data_access.evaluation.text.endswith("the score chose this iterate among several, and flatters it")
    assert isinstance(told.mechanism, NoisyFacts)
    assert (told.mechanism.aggregation.filter or "").startswith("noisy gradients pass a Kalman filter of gain 0.25")
    assert stated["sampling"]["steps_trained"] == stated["sampling"]["steps_charged"] == 60
    report, card = ((path / name).read_text("utf-8") for name in ("report.html", "card.md"))
    for page in (report, card):
        assert "after step 42, the best by accuracy of 20 iterates" in page
        assert "all steps are charged" in page
    assert "it reads released noisy sums and iterates alone, and costs no privacy" in report
    assert "filtered" in card


@pytest.mark.parametrize(
    ("overrides", "kept", "named"),
    [
        (KEEP, KeptIterate(61, 3), "data_access.evaluation.kept.step"),
        (KEEP, KeptIterate(60, 61), "data_access.evaluation.kept.looked_at"),
        (KEEP, None, "data_access.evaluation.kept: expected, since"),
    ],
)
def test_no_run_of_the_recipe_keeps_that(
    release: Callable[..., Path], overrides: tuple[str, ...], kept: KeptIterate | None, named: str
) -> None:
    found = failures(release(overrides, kept=kept))
    assert any(failure.startswith(named) for failure in found), found


def test_a_recipe_that_keeps_none_states_none(release: Callable[..., Path]) -> None:
    path = release((), kept=KeptIterate(42, 20))
    assert failures(path) == []
    assert '"kept"' not in (path / "certificate.json").read_text("utf-8")
    assert '"filter"' not in (path / "certificate.json").read_text("utf-8")


@pytest.mark.parametrize(
    ("key", "value"),
    [("by", "loss"), ("step", 1), ("looked_at", 2), ("kept", None), ("filter", "none"), ("added", None)],
)
def test_a_changed_statement_does_not_verify(release: Callable[..., Path], key: str, value: object) -> None:
    """Without the digests of a signature's files, what the recipe or another file says differs."""
    path = release(() if key == "added" else KEEP, kept=KeptIterate(42, 20))
    certificate = path / "certificate.json"
    content = json.loads(certificate.read_text("utf-8"))
    predicate = content["predicate"]
    evaluation = predicate["data_access"]["evaluation"]
    if key == "filter":
        predicate["mechanism"]["aggregation"]["filter"] = value
    elif key == "added":
        evaluation["kept"] = {"by": "accuracy", "step": 3, "looked_at": 3}
    elif key == "kept":
        del evaluation["kept"]
    else:
        evaluation["kept"][key] = value
    certificate.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    assert failures(path) != []
