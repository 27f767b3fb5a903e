"""δ: written by the author, and held against the number of records."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.faults import RecipeError, Severity
from dprecipe.planning import rules
from dprecipe.recipe.read import read_text

TEXT = (Path(__file__).parents[2] / "recipes" / "quickstart.yaml").read_text(encoding="utf-8")
GIVEN = "delta: 1e-5"


def test_t21_there_is_no_default_delta() -> None:
    with pytest.raises(RecipeError) as refused:
        read_text(TEXT.replace(f", {GIVEN}", ""), "a.yaml")
    assert [(finding.code, finding.path) for finding in refused.value.findings] == [("R102", "budget.delta")]


@pytest.mark.parametrize(
    ("size", "delta", "severity"),
    [
        (1000, "1e-4", None),  # a tenth of a record: the limit itself
        (1000, "1.1e-4", Severity.WARNING),
        (1000, "0.0009", Severity.WARNING),
        (1000, "1e-3", Severity.ERROR),  # 1/n: publishing one whole record would be allowed
        (1000, "0.5", Severity.ERROR),
        (1438, "1e-5", None),
    ],
)
def test_t21_delta_is_held_against_the_declared_size(size: int, delta: str, severity: Severity | None) -> None:
    text = TEXT.replace(GIVEN, f"delta: {delta}").replace("size: 1438", f"size: {size}")
    findings = [finding for finding in rules.check(read_text(text, "a.yaml").recipe) if finding.code == "P103"]
    assert [finding.severity for finding in findings] == ([] if severity is None else [severity])


def test_a_delta_at_which_no_release_would_verify_is_refused() -> None:
    read_text(TEXT.replace(GIVEN, "delta: 1e-30"), "a.yaml")
    with pytest.raises(RecipeError) as refused:
        read_text(TEXT.replace(GIVEN, "delta: 1e-31"), "a.yaml")
    assert [(finding.code, finding.path) for finding in refused.value.findings] == [("R107", "budget.delta")]
