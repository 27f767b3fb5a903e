"""Permuted epochs: golden figures, all orders of a few units, and the other library."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.privacy import accountants, cross_check, groups
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import PermutedGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian

ADD, REPLACE, BLANK = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "batches.json").read_text())["records"]


def epsilon(event: PermutedGaussian, epochs: int, relation: Neighbouring = ADD) -> float:
    return accountants.epsilon([Charge(event, epochs)], 1e-5, relation, "pld")


def of(group: str) -> list[tuple[PermutedGaussian, int, dict]]:
    found = []
    for record in RECORDS:
        given = record["inputs"]
        if record["group"] == group:
            found.append(
                (PermutedGaussian(given["N"], given["B"], given["t"], given["sigma"]), given["epochs"], record)
            )
    return found


@pytest.mark.parametrize(("event", "epochs", "record"), of("shuffle_drop_last"))
def test_epochs_have_the_values_of_another_computation(event: PermutedGaussian, epochs: int, record: dict) -> None:
    found = accountants.epsilon([Charge(event, epochs)], record["inputs"]["delta"], ADD, "pld")
    assert found >= record["value"] * (1 - record["tol"])
    if record["inputs"]["direction"] == "remove":
        assert found <= record["value"] * (1 + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("relation", "event", "epochs", "record"),
    [(REPLACE, *case) for case in of("shuffle_triangle_replace")]
    + [(BLANK, *case) for case in of("shuffle_triangle_zero_out")],
)
def test_a_unit_that_keeps_its_place_is_removed_and_added(
    relation: Neighbouring, event: PermutedGaussian, epochs: int, record: dict
) -> None:
    """The golden is of two steps; a Gaussian an epoch may cost less."""
    found = epsilon(event, epochs, relation)
    known = accountants.epsilon([Charge(Gaussian(event.noise_multiplier), epochs)], 1e-5, relation, "pld")
    assert found <= known
    least = min(record["value"], known)
    assert least * (1 - record["tol"]) <= found <= least * (1 + 1e-3)
    at = accountants.delta([Charge(event, epochs)], found, relation, "pld")
    assert at == pytest.approx(1e-5, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("others", "unit"), [(-1.0, 1.0), (0.0, 1.0), (0.5, -1.0)])
def test_all_orders_of_four_units_are_below_the_pair(others: float, unit: float) -> None:
    """Two steps of one unit each, of four and of three units; attained where all others pull the other way."""
    sigma = 1.1
    x_N = np.arange(-8, 8, 0.02)
    first, second = np.meshgrid(x_N, x_N)

    def density(gradients: list[float]) -> NDArray:
        orders = list(itertools.permutations(gradients))
        total = sum(stats.norm.pdf(first, o[0], sigma) * stats.norm.pdf(second, o[1], sigma) for o in orders)
        return total / len(orders)  # type: ignore[no-any-return]

    larger = density([others] * 3 + [unit])
    changed = {
        ADD: density([others] * 3),
        BLANK: density([others] * 3 + [0.0]),
        REPLACE: density([others] * 3 + [-unit]),
    }
    charges = [Charge(PermutedGaussian(4, 1, 2, sigma), 1)]
    for relation, other in changed.items():
        for eps in (0.0, 0.3, 1.0):
            pairs = ((larger, other), (other, larger))
            exact = max(float(np.maximum(p - math.exp(eps) * q, 0).sum()) * 4e-4 for p, q in pairs)
            stated = accountants.delta(charges, eps, relation, "pld")
            assert exact <= stated + 2e-6
            if others == -1.0 and relation is ADD:
                assert stated == pytest.approx(exact, rel=2e-3)


def test_one_step_an_epoch_is_a_batch_of_a_fixed_size() -> None:
    one = [Charge(PermutedGaussian(500, 40, 1, 2.0), 9)]
    same = [Charge(FixedSizeGaussian(500, 40, 2.0), 9)]
    ours, theirs = (accountants.epsilon(each, 1e-5, ADD, "pld") for each in (one, same))
    assert ours == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("relation", Neighbouring)
def test_the_library_agrees(relation: Neighbouring) -> None:
    charges = [Charge(PermutedGaussian(1438, 128, 11, 3.0), 2)]
    answer = cross_check.ask_library(charges, 1e-5, relation)
    assert answer.name == "dp_accounting.pld"
    assert answer.epsilon == pytest.approx(accountants.epsilon(charges, 1e-5, relation, "pld"), rel=1e-3)


def test_the_batches_of_the_smaller_data_set_are_full() -> None:
    with pytest.raises(ValueError, match=r"batch \* batches < size"):
        PermutedGaussian(1280, 128, 10, 1.0)
    assert PermutedGaussian(1281, 128, 10, 1.0).among_fewer(1, ADD) is None
    assert PermutedGaussian(1300, 128, 10, 1.0).among_fewer(3, ADD) == PermutedGaussian(1297, 128, 10, 1.0)
    assert PermutedGaussian(1281, 128, 10, 1.0).among_fewer(1, REPLACE) is not None
    tight = [Charge(PermutedGaussian(1281, 128, 10, 3.0), 1)]
    assert groups.bound_groups(tight, 1e-5, ADD, "pld", 1.0, (2,)) == ((2, math.inf),)
