"""Dealt epochs: golden figures, exact small cases, adaptive programs by quadrature, and the other library."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.composition import Composition
from dprecipe.privacy.dealing.law import epoch_losses
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
BLANK = Neighbouring.ZERO_OUT_ONE
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "batches.json").read_text())["records"]


def of(*groups: str) -> list[dict]:
    return [
        pytest.param(
            record["inputs"], record["value"], record["tol"],
            marks=[pytest.mark.slow] if record["inputs"]["t"] > 90 else [],
        )
        for record in RECORDS
        if record["group"] in groups
    ]  # fmt: skip


def epoch(inputs: dict) -> DealtGaussian:
    taken = inputs.get("s", inputs["t"])
    return DealtGaussian(inputs["sigma"], inputs["t"], taken if taken < inputs["t"] else None)


def claim(event: DealtGaussian, epsilon: float, relation: Neighbouring = ADD) -> float:
    return accountants.delta([Charge(event, 1)], epsilon, relation, "pld")


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("alloc_epsilon", "alloc_truncated_epsilon"))
def test_epsilon_in_each_direction(inputs: dict, value: float, tolerance: float) -> None:
    """Each direction by itself: `max` of both hides a fault in the smaller one."""
    epochs, delta, ratio = inputs["epochs"], inputs["delta"], epoch(inputs).ratio
    step, tail = math.sqrt(3e-5 * value / (epochs + 1)) / 3, 1e-8 * delta / (3 * (epochs + 1))
    pair = epoch_losses(ratio, step, tail)
    loss = pair.removed if inputs["direction"] == "remove" else pair.added
    assert loss is not None
    found = Composition([loss], [epochs], 1 << 21).epsilon(delta, 10.0)
    assert found is not None
    assert value * (1 - tolerance) <= found <= value * 1.003


def by_case() -> list[tuple[tuple[float, int, int, float], float, float]]:
    cases: dict[tuple[float, int, int, float], list[dict]] = {}
    for record in RECORDS:
        if record["group"] == "alloc_epsilon":
            i = record["inputs"]
            cases.setdefault((i["sigma"], i["t"], i["epochs"], i["delta"]), []).append(record)
    both = {key: records for key, records in cases.items() if len(records) == 2 and key[1] <= 90}
    return [(key, max(r["value"] for r in rs), max(r["tol"] for r in rs)) for key, rs in both.items()]


@pytest.mark.parametrize(("case", "value", "tolerance"), by_case())
def test_the_claim_is_the_larger_direction(case: tuple[float, int, int, float], value: float, tolerance: float) -> None:
    sigma, steps, epochs, delta = case
    charges = [Charge(DealtGaussian(sigma, steps), epochs)]
    found = accountants.epsilon(charges, delta, ADD, "pld")
    assert value * (1 - tolerance) <= found <= value * 1.001
    assert found == accountants.epsilon(charges, delta, BLANK, "pld")
    assert found <= accountants.epsilon([Charge(Gaussian(sigma), epochs)], delta, ADD, "pld")


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("alloc_redrawn"))
def test_an_epoch_that_ends_early_and_a_whole_one(inputs: dict, value: float, tolerance: float) -> None:
    whole = DealtGaussian(inputs["sigma"], inputs["t"])
    found = accountants.epsilon([Charge(epoch(inputs), 1), Charge(whole, 1)], inputs["delta"], ADD, "pld")
    assert found >= value * (1 - tolerance)
    if inputs["direction"] == "remove":
        assert found <= value * (1 + 1e-3)


def test_an_epoch_costs_more_the_more_steps_it_takes() -> None:
    events = [DealtGaussian(2.0, 10, taken) for taken in (1, 4, 9)] + [DealtGaussian(2.0, 10)]
    costs = [accountants.epsilon([Charge(event, 3)], 1e-6, ADD, "pld") for event in events]
    assert sorted(set(costs)) == costs
    assert [event.steps for event in events] == [1, 4, 9, 10]
    one_step = accountants.epsilon([Charge(PoissonGaussian(0.1, 2.0), 3)], 1e-6, ADD, "pld")
    assert costs[0] == pytest.approx(one_step, rel=2e-3)
    for taken in (10, 11):
        with pytest.raises(ValueError, match="taken < batches"):
            DealtGaussian(2.0, 10, taken)
    answer = cross_check.ask_library((Charge(events[1], 3),), 1e-6, ADD)
    assert answer.epsilon == pytest.approx(costs[1], rel=1e-3)


@pytest.mark.slow
def test_noise_so_large_that_no_law_is_had_is_asked_about_as_a_known_batch() -> None:
    for event in (DealtGaussian(1e5, 12), PermutedGaussian(1438, 128, 11, 1e5)):
        charges = [Charge(event, 2)]
        claim = accountants.epsilon(charges, 1e-5, ADD, "pld")
        assert cross_check.ask_library(charges, 1e-5, ADD).epsilon <= claim * 1.001 + 2e-4


@pytest.mark.parametrize("sigma", [1e-3, 0.02, 0.04])
def test_noise_so_small_that_no_law_is_had_costs_what_a_known_batch_costs(sigma: float) -> None:
    """The likelihood ratio is beyond doubles there: no grid holds it."""
    for event in (DealtGaussian(sigma, 12), PermutedGaussian(1438, 128, 11, sigma)):
        known = accountants.epsilon([Charge(event.unamplified(ADD), 3)], 1e-5, ADD, "rdp")
        assert 0 < accountants.epsilon([Charge(event, 3)], 1e-5, ADD, "pld") <= known * (1 + 1e-12)
        assert event.stand_in().multipliers[0] > 0


def test_the_digits_of_the_page() -> None:
    """Ten epochs of 1,438 digits: cheaper than Poisson batches of the same size, and than a Gaussian an epoch."""
    dealt = accountants.epsilon([Charge(DealtGaussian(3.0, 12), 10)], 1e-5, ADD, "pld")
    poisson = accountants.epsilon([Charge(PoissonGaussian(128 / 1438, 3.0), 113)], 1e-5, ADD, "pld")
    assert dealt == pytest.approx(1.185, abs=1e-3)
    assert poisson == pytest.approx(1.303, abs=1e-3)
    assert accountants.epsilon([Charge(DealtGaussian(3.0, 12), 10)], 1e-5, ADD, "gdp") == pytest.approx(4.653, abs=1e-3)


@pytest.mark.parametrize(
    ("inputs", "value", "tolerance"), of("alloc_exact_two", "alloc_profile", "alloc_truncated_profile")
)
def test_delta_of_one_epoch(inputs: dict, value: float, tolerance: float) -> None:
    pair = epoch_losses(epoch(inputs).ratio, 1e-4, 1e-16)
    loss = pair.removed if inputs["direction"] == "remove" else pair.added
    assert loss is not None
    found = loss.infinity + float(
        np.maximum(loss.masses * -np.expm1(np.minimum(inputs["eps"] - loss.losses, 0.0)), 0.0).sum()
    )
    assert value * (1 - tolerance) - 1e-15 <= found <= value * 1.003 + 1e-12


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("alloc_mc"))
def test_no_claim_below_what_is_simulated(inputs: dict, value: float, tolerance: float) -> None:
    """Golden means of simulations: the true value is within `tolerance`, with probability 99.9 % each."""
    assert claim(epoch(inputs), inputs["eps"]) >= value - tolerance


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("alloc_replace_triangle"))
def test_replacing_is_removing_and_adding(inputs: dict, value: float, tolerance: float) -> None:
    charges = [Charge(DealtGaussian(inputs["sigma"], inputs["t"]), inputs["epochs"])]
    found = accountants.epsilon(charges, inputs["delta"], REPLACE, "pld")
    assert value * (1 - tolerance) <= found <= value * (1 + 1e-3)


def test_where_noise_is_small_adding_costs_little() -> None:
    charges = [Charge(DealtGaussian(0.5, 200), 1)]
    known = accountants.epsilon([Charge(Gaussian(0.5), 1)], 1e-6, REPLACE, "pld")
    removed = accountants.epsilon(charges, 1e-6, ADD, "pld")
    found = accountants.epsilon(charges, 1e-6, REPLACE, "pld")
    assert removed < found < min(known, 1.3 * removed)
    assert accountants.delta(charges, found, REPLACE, "pld") <= 1.01e-6


@pytest.mark.parametrize(
    ("sigma", "steps", "epochs", "delta", "relation"),
    [
        (3.0, 12, 10, 1e-5, ADD),
        (3.0, 12, 10, 1e-5, REPLACE),
        (1.1, 234, 20, 1e-6, BLANK),
        (0.7, 4, 2, 1e-5, ADD),
        pytest.param(0.5, 100, 3, 1e-6, ADD, marks=pytest.mark.slow),
        (10.0, 2, 400, 1e-6, ADD),
        pytest.param(2.0, 50, 200, 1e-10, ADD, marks=pytest.mark.slow),
        pytest.param(1.0, 10_000, 10, 1e-8, ADD, marks=pytest.mark.slow),
        pytest.param(5.901, 1854, 242, 3.3e-12, ADD, marks=pytest.mark.slow),
        pytest.param(20.9, 28, 766, 1.4e-8, ADD, marks=pytest.mark.slow),
    ],
)
def test_the_other_library_composes_the_other_law_to_the_same(
    sigma: float, steps: int, epochs: int, delta: float, relation: Neighbouring
) -> None:
    charges = [Charge(DealtGaussian(sigma, steps), epochs)]
    ours = accountants.epsilon(charges, delta, relation, "pld")
    answer = cross_check.ask_library(charges, delta, relation)
    assert answer.name == "dp_accounting.pld"
    assert answer.epsilon == pytest.approx(ours, rel=1e-3, abs=2e-4)


STEP = 0.04


def densities(moved: Callable[[NDArray], NDArray], sigma: float) -> tuple[NDArray, NDArray]:
    """Densities of both outputs of an epoch of two steps, with the unit and without it, at the points of a grid; its
    second gradient is `moved` of the first output. The first is 1."""
    x_N = np.arange(-8 * sigma, 8 * sigma + 1, STEP * sigma)
    first, second = np.meshgrid(x_N, x_N, indexing="ij")

    def normal(x: NDArray, mean: NDArray | float = 0.0) -> NDArray:
        return stats.norm.pdf(x, mean, sigma)

    without = normal(first) * normal(second)
    used = (normal(first, 1.0) * normal(second) + normal(first) * normal(second, moved(first))) / 2
    return used * (STEP * sigma) ** 2, without * (STEP * sigma) ** 2


@pytest.mark.parametrize("sigma", [0.8, 1.5])
@pytest.mark.parametrize(
    "moved",
    [
        pytest.param(lambda first: np.ones_like(first), id="constant"),
        pytest.param(lambda first: np.sign(first), id="sign"),
        pytest.param(lambda first: np.where(first > 0.5, 1.0, -1.0), id="threshold"),
        pytest.param(lambda first: np.tanh(first), id="smooth"),
        pytest.param(lambda first: np.where(np.abs(first) > 1, 1.0, 0.0), id="silent"),
    ],
)
def test_programs_that_adapt_within_an_epoch(moved: Callable[[NDArray], NDArray], sigma: float) -> None:
    """The second gradient may depend on what the first step released. The constant one attains the claim."""
    used, without = densities(moved, sigma)
    event, closest = DealtGaussian(sigma, 2), math.inf
    for epsilon in (0.05, 0.3, 1.0, 2.0):
        bound = claim(event, epsilon)
        for p, q in ((used, without), (without, used)):
            exact = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())
            assert exact <= bound * (1 + 1e-4) + 1e-5
            closest = min(closest, bound - exact)
    if (moved(np.array([-1.0, 1.0])) == 1).all():
        assert closest < 1e-4


def test_dealing_must_be_uniform_and_secret() -> None:
    """Batches that everyone knows cost a Gaussian's ε, far above the claim: the claim rests on the secret."""
    known = accountants.delta([Charge(Gaussian(1.0), 1)], 1.0, ADD, "pld")
    assert known > 3 * claim(DealtGaussian(1.0, 20), 1.0)


def test_an_epoch_of_one_step_is_a_gaussian() -> None:
    assert claim(DealtGaussian(2.0, 1), 0.5) == pytest.approx(
        accountants.delta([Charge(Gaussian(2.0), 1)], 0.5, ADD, "pld"), rel=1e-3
    )


@pytest.mark.parametrize(("noise", "batches"), [(0.0, 3), (math.nan, 3), (1.0, 0), (-1.0, 3)])
def test_impossible_epochs_are_refused(noise: float, batches: int) -> None:
    with pytest.raises(ValueError, match="expected a finite"):
        DealtGaussian(noise, batches)


@pytest.mark.slow
def test_epochs_so_long_that_transforms_would_lose_delta_have_an_account() -> None:
    found = accountants.epsilon([Charge(DealtGaussian(0.8, 100_000), 50)], 1e-10, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert found < 0.25


@pytest.mark.slow
def test_the_cross_check_of_a_replacement_follows_a_large_epsilon() -> None:
    charges = (Charge(DealtGaussian(0.8, 12), 6),)
    answer = cross_check.ask_library(charges, 1e-8, Neighbouring.REPLACE_ONE)
    assert answer.epsilon <= accountants.epsilon(charges, 1e-8, Neighbouring.REPLACE_ONE, "pld") * 1.001
