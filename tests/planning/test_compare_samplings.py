"""Sampling schemes beside that of a plan."""

from __future__ import annotations

import pytest

from dprecipe.planning.compare_samplings import SamplingRow, compare_samplings
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from tests.recipe_texts import DIGITS, DPSGD

HEAD = "recipe: dprecipe/v1\nname: small\n" + DIGITS + "model: {kind: logistic_regression}\n"
TAIL = "training: {epochs: 5, optimizer: {kind: sgd, lr: 0.5}}\n"


def compare(text: str) -> dict[str, SamplingRow]:
    loaded = read_text(text)
    return {row.scheme: row for row in compare_samplings(loaded, plan(loaded))}


@pytest.mark.slow
def test_each_scheme_has_what_a_plan_of_its_own_says() -> None:
    rows = compare(HEAD + DPSGD + TAIL)
    own = plan(read_text(HEAD + DPSGD + TAIL))
    assert list(rows) == ["dealt", "dealt, batch_limit", "poisson", "permuted", "fixed_size", "truncated_poisson"]
    assert rows["poisson"].epsilon == pytest.approx(own.guarantee.epsilon, rel=1e-3)
    assert rows["poisson"].noise_multiplier == pytest.approx(own.solved["mechanism.noise.multiplier"], rel=1e-3)
    for better, worse in (
        ("dealt", "poisson"),
        ("dealt, batch_limit", "poisson"),
        ("poisson", "permuted"),
        ("permuted", "fixed_size"),
    ):
        assert rows[better].epsilon < rows[worse].epsilon
        assert rows[better].noise_multiplier < rows[worse].noise_multiplier


def test_a_scheme_without_a_plan_has_its_reason() -> None:
    laplace = DPSGD.replace("family: gaussian", "family: laplace")
    assert laplace != DPSGD
    rows = compare(HEAD + laplace + TAIL)
    assert rows["dealt"].epsilon is None
    assert "laplace noise is accounted for with scheme poisson" in rows["dealt"].reason
    assert rows["poisson"].epsilon is not None


def test_no_batch_size_no_table() -> None:
    full = DPSGD.replace("{scheme: poisson, batch_size: 64}", "{scheme: full_batch}")
    assert full != DPSGD
    assert compare(HEAD + full + TAIL) == {}
