"""Filters and the kept iterate are for mechanisms whose every iterate is covered; a choice is by public records."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.contract.table import list_kinds, mechanism_of
from dprecipe.planning import iterates, rules
from dprecipe.recipe.read import read

FOLDER = Path(__file__).parents[1] / "golden" / "rules"


def codes(name: str, *overrides: str) -> set[tuple[str, str]]:
    loaded = read(FOLDER / f"{name}.yaml", overrides)
    return {(finding.code, finding.path) for finding in rules.check(loaded.recipe) if finding.is_error}


def test_the_mechanisms_that_release_each_noisy_gradient_are_these() -> None:
    assert set(list_kinds(lambda mechanism: mechanism.covers_iterates)) == {"dpsgd", "encoded", "correlated"}
    for kind in list_kinds(lambda mechanism: mechanism.covers_iterates):
        assert not mechanism_of(kind).certificate.hides_iterates


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("data.test.access=public", set()),
        ("data.test.access=private_internal", {("P184", "training.keep")}),
        ("data.test=null", {("P184", "training.keep")}),
    ],
)
def test_no_iterate_is_chosen_by_records_that_are_not_declared_public(
    override: str, found: set[tuple[str, str]]
) -> None:
    assert codes("fine-keep", override) == found


def test_a_part_that_is_split_off_is_private() -> None:
    loaded = read(FOLDER / "fine-split.yaml", ("training.keep={by: accuracy}",))
    assert [finding.path for finding in iterates.check_kept(loaded.recipe)] == ["training.keep"]


@pytest.mark.parametrize("name", ["fine-pate", "fine-pnsgd"])
def test_other_mechanisms_have_neither(name: str) -> None:
    found = codes(name, "training.keep={by: accuracy}", "training.filter={kind: low_pass}")
    assert found >= {("R306", "training.filter"), ("R306", "training.keep")}


def test_encoded_has_both() -> None:
    assert codes("fine-encoded", "training.filter={kind: kalman}") == set()
