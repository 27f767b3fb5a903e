"""Capped batches, batches of one size and Laplace noise: golden figures, and all batches of a few units one by one."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import NoisyMax
from dprecipe.privacy import accountants, cross_check, curves
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
BLANK = Neighbouring.ZERO_OUT_ONE
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())["records"]
BATCHES = json.loads((Path(__file__).parents[1] / "golden" / "batches.json").read_text())["records"]
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0)


def of(kind: str) -> list[dict]:
    return [record for record in RECORDS if record["kind"] == kind]


def hockey_stick(p: dict[float, float], q: dict[float, float], sigma: float, epsilon: float) -> float:
    """E_γ between two mixtures of normal distributions, {mean: weight}, by the midpoint rule: 1e-6 here."""
    x_N = np.arange(-12 * sigma - 4, 12 * sigma + 4, 2e-3)

    def density(mixture: dict[float, float]) -> np.ndarray:
        return sum(weight * stats.norm.pdf(x_N, mean, sigma) for mean, weight in mixture.items())

    return float(np.maximum(density(p) - math.exp(epsilon) * density(q), 0).sum() * 2e-3)


def sums(values: tuple[float, ...], batches: dict[tuple[int, ...], float]) -> dict[float, float]:
    """Distribution of the sum over a random batch."""
    distribution: Counter[float] = Counter()
    for batch, probability in batches.items():
        distribution[sum(values[i] for i in batch)] += probability
    return dict(distribution)


def truncated(units: int, q: float, cap: int) -> dict[tuple[int, ...], float]:
    batches: Counter[tuple[int, ...]] = Counter()
    for joined in itertools.chain.from_iterable(itertools.combinations(range(units), k) for k in range(units + 1)):
        probability = q ** len(joined) * (1 - q) ** (units - len(joined))
        subsets = [joined] if len(joined) <= cap else list(itertools.combinations(joined, cap))
        for batch in subsets:
            batches[batch] += probability / len(subsets)
    return dict(batches)


def of_one_size(units: int, batch: int) -> dict[tuple[int, ...], float]:
    return {chosen: 1 / math.comb(units, batch) for chosen in itertools.combinations(range(units), batch)}


def claimed(event: Event, relation: Neighbouring, epsilon: float, accountant: str = "pld") -> float:
    return accountants.delta([Charge(event, 1)], epsilon, relation, accountant)


@pytest.mark.parametrize("others", [(0, 0, 0), (1, 1, 1), (-1, -1, -1), (1, -1, 0)])
@pytest.mark.parametrize(("q", "cap", "sigma"), [(0.3, 1, 0.8), (0.6, 2, 1.2), (0.1, 2, 0.5)])
def test_one_unit_more_or_another_one_where_batches_are_cut(
    others: tuple[float, ...], q: float, cap: int, sigma: float
) -> None:
    """All batches of three or four units: no hockey stick exceeds what is claimed."""
    without = sums(others, truncated(3, q, cap))
    event = TruncatedPoissonGaussian(q, sigma, 3, cap)
    plain = PoissonGaussian(q, sigma)
    worst = 0.0
    for own, epsilon in itertools.product((-1, 1), EPSILONS):
        one = sums((*others, own), truncated(4, q, cap))
        other = sums((*others, -own), truncated(4, q, cap))
        bound = claimed(event, ADD, epsilon)
        for pair in ((one, without), (without, one)):
            exact = hockey_stick(*pair, sigma, epsilon)
            assert exact <= bound + 2e-6
            worst = max(worst, exact - claimed(plain, ADD, epsilon))
        bigger = TruncatedPoissonGaussian(q, sigma, 4, cap)
        assert hockey_stick(one, other, sigma, epsilon) <= claimed(bigger, REPLACE, epsilon) + 2e-6
        assert bound <= claimed(event, ADD, epsilon, "rdp") + 1e-9
    if others == (-1, -1, -1) and q > 0.2:
        assert worst > 1e-3  # the Poisson number would be no bound: a full batch loses one of the others


@pytest.mark.parametrize("others", [(0, 0, 0), (1, 1, 1), (1, -1, 0)])
@pytest.mark.parametrize(("batch", "sigma"), [(1, 1.0), (2, 0.7), (3, 2.0)])
def test_another_unit_where_batches_have_one_size(others: tuple[float, ...], batch: int, sigma: float) -> None:
    """All batches of four units. With others that pull the other way, the bound of one step is attained."""
    batches = of_one_size(4, batch)
    event = FixedSizeGaussian(4, batch, sigma)
    closest = math.inf
    for own, epsilon in itertools.product((-1, 1), EPSILONS):
        p, q = sums((*others, own), batches), sums((*others, -own), batches)
        exact, bound = hockey_stick(p, q, sigma, epsilon), claimed(event, REPLACE, epsilon)
        assert exact <= bound + 2e-6
        assert bound <= claimed(event, REPLACE, epsilon, "rdp") + 1e-9
        closest = min(closest, bound - exact)
    if others == (1, 1, 1) and batch == 1:
        assert closest < 1e-3


@pytest.mark.parametrize("others", [(0, 0, 0), (1, 1, 1), (-1, -1, -1), (1, -1, 0)])
@pytest.mark.parametrize(("batch", "sigma"), [(1, 1.0), (2, 0.7), (2, 2.0)])
def test_one_unit_more_where_batches_have_one_size(others: tuple[float, ...], batch: int, sigma: float) -> None:
    """All batches of three and of four units. Where all others pull the other way, the bound is attained."""
    without, event = sums(others, of_one_size(3, batch)), FixedSizeGaussian(4, batch, sigma)
    closest = math.inf
    for own, epsilon in itertools.product((-1, 1), EPSILONS):
        used, bound = sums((*others, own), of_one_size(4, batch)), claimed(event, ADD, epsilon)
        assert bound <= claimed(event, ADD, epsilon, "rdp") + 1e-9
        for pair in ((used, without), (without, used)):
            exact = hockey_stick(*pair, sigma, epsilon)
            assert exact <= bound + 2e-6
            closest = min(closest, bound - exact)
    if others in ((1, 1, 1), (-1, -1, -1)):
        assert closest < 1e-4


@pytest.mark.parametrize("record", [r for r in BATCHES if r["group"] == "fixed_add_remove"])
def test_one_size_add_or_remove_golden(record: dict) -> None:
    i = record["inputs"]
    charges = [Charge(FixedSizeGaussian(i["N"], i["L"], i["sigma"]), i["T"])]
    ours = accountants.epsilon(charges, i["delta"], ADD, "pld")
    assert ours >= record["value"] * (1 - record["tol"])  # the larger of both directions
    if i["direction"] == "remove":
        assert ours <= record["value"] * 1.001
        assert cross_check.ask_library(charges, i["delta"], ADD).epsilon == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("others", [(-1.0, -1.0, -1.0), (-1.0, 1.0, 0.5), (0.0, 0.3, -0.7)])
@pytest.mark.parametrize("batch", [1, 2])
def test_one_unit_more_in_batches_of_one_size_is_poisson_at_half_the_noise(
    others: tuple[float, ...], batch: int
) -> None:
    """As the findings say of it, though no run is accounted so: at most, and for opposed gradients exactly."""
    sigma, units = 1.5, len(others) + 1
    smaller, larger = (sums(values, of_one_size(len(values), batch)) for values in (others, (*others, 1.0)))
    same = PoissonGaussian(batch / units, sigma / 2)
    for epsilon in EPSILONS:
        found = max(hockey_stick(larger, smaller, sigma, epsilon), hockey_stick(smaller, larger, sigma, epsilon))
        bound = claimed(same, ADD, epsilon)
        assert found <= bound + 1e-5
        if set(others) == {-1.0}:
            assert found == pytest.approx(bound, abs=1e-4)


def independent(units: int, q: float) -> dict[tuple[int, ...], float]:
    return truncated(units, q, units)


@pytest.mark.parametrize("others", [(0, 0, 0), (1, 1, 1), (-1, -1, -1), (1, -1, 0)])
@pytest.mark.parametrize(
    ("batches", "event"),
    [
        (independent(4, 0.3), PoissonGaussian(0.3, 0.8)),
        (independent(4, 1.0), Gaussian(1.3)),
        (truncated(4, 0.3, 1), TruncatedPoissonGaussian(0.3, 0.8, 4, 1)),
        (truncated(4, 0.6, 2), TruncatedPoissonGaussian(0.6, 1.2, 4, 2)),
        (truncated(4, 0.1, 2), TruncatedPoissonGaussian(0.1, 0.5, 4, 2)),
        (dict.fromkeys(itertools.combinations(range(4), 1), 1 / 4), FixedSizeGaussian(4, 1, 1.0)),
        (dict.fromkeys(itertools.combinations(range(4), 3), 1 / 4), FixedSizeGaussian(4, 3, 0.7)),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_blanking_out_a_unit_in_its_place(
    others: tuple[float, ...], batches: dict[tuple[int, ...], float], event: Event
) -> None:
    """All batches of four units, one of which adds nothing: no hockey stick exceeds what is claimed."""
    for own, epsilon in itertools.product((-1, 1), EPSILONS):
        one, blanked = sums((*others, own), batches), sums((*others, 0), batches)
        bound = claimed(event, BLANK, epsilon)
        for pair in ((one, blanked), (blanked, one)):
            assert hockey_stick(*pair, event.noise_multiplier, epsilon) <= bound + 2e-6
        assert bound <= claimed(event, BLANK, epsilon, "rdp") + 1e-9


def test_a_record_that_moves_in_costs_more_than_one_that_leaves() -> None:
    """The attack of docs/reference/findings/P119.md: record 2 leaves, record 3 comes into
    [0, 3); add-or-remove is no bound."""
    used, after = sums((1, 1, 1), independent(3, 0.5)), sums((1, 1, -1), independent(3, 0.5))
    event = PoissonGaussian(0.5, 1.0)
    assert hockey_stick(used, after, 1.0, 1.0) > claimed(event, ADD, 1.0) + 0.02
    assert hockey_stick(used, after, 1.0, 1.0) <= claimed(event, REPLACE, 1.0) + 2e-6


CODE = EncodedSum(0.05, 1.0, "laplace", None, ((0.05, 10),), False, "sha256:" + "0" * 64)


@pytest.mark.parametrize(
    ("event", "same_as"),
    [
        (PoissonGaussian(0.01, 1.0), ADD),
        (Gaussian(30.0), ADD),
        (DealtGaussian(30.0, 10), ADD),
        (PoissonLaplace(0.01, 1.0), ADD),
        (CODE, ADD),
        (NoisyMax("gaussian", 200.0), ADD),
        (replace(CODE, exchanged=True), REPLACE),
        (FixedSizeGaussian(10_000, 100, 1.0), REPLACE),
        pytest.param(TruncatedPoissonGaussian(0.01, 1.0, 10_000, 110), REPLACE, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "kind", value),
)
def test_what_blanking_out_costs(event: Event, same_as: Neighbouring) -> None:
    """As removing; or as replacing, where another unit could have had the place. The other library agrees."""
    charges = [Charge(event, 200)]
    for accountant in ("pld", "rdp"):
        epsilon = accountants.epsilon(charges, 1e-5, BLANK, accountant)
        assert epsilon == accountants.epsilon(charges, 1e-5, same_as, accountant) < math.inf
    epsilon = accountants.epsilon(charges, 1e-5, BLANK, "pld")
    assert cross_check.ask_library(charges, 1e-5, BLANK).epsilon == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("cap", [150, pytest.param(170, marks=pytest.mark.slow), 200])
def test_a_largest_batch_that_is_hardly_ever_reached_costs_no_replacement(cap: int) -> None:
    charges = [Charge(TruncatedPoissonGaussian(0.01, 1.0, 10_000, cap), 200)]
    plain = accountants.epsilon([Charge(PoissonGaussian(0.01, 1.0), 200)], 1e-5, BLANK, "pld")
    epsilon = accountants.epsilon(charges, 1e-5, BLANK, "pld")
    assert plain <= epsilon <= accountants.epsilon(charges, 1e-5, REPLACE, "pld") * (1 + 1e-9)
    assert cross_check.ask_library(charges, 1e-5, BLANK).epsilon == pytest.approx(epsilon, rel=1e-3)
    if cap == 200:
        assert epsilon == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("record", of("wor_replace_one_gaussian_rdp"))
def test_goldens_of_the_curve_without_replacement(record: dict) -> None:
    i = record["inputs"]
    (epsilon,) = curves.fixed_size_gaussian(i["q"], 2 * i["std_over_replace_sensitivity"], (float(i["alpha"]),))
    assert epsilon == pytest.approx(record["value"], rel=1e-9)


@pytest.mark.parametrize("record", of("wor_replace_one_training_eps"))
def test_goldens_of_training_without_replacement(record: dict) -> None:
    i = record["inputs"]
    charges = [Charge(FixedSizeGaussian(i["n"], i["batch"], i["sigma_over_clip"]), i["T"])]
    tight = accountants.epsilon_answer(charges, i["delta"], REPLACE, "pld")
    assert tight.accountant == "pld"
    assert tight.value == pytest.approx(record["fdp_symmetrised_pld_eps"], rel=2e-4)
    assert tight.value > record["lower_bound_eps_one_sided_pair"] * 1.1  # the one-sided distribution is no bound
    loose = accountants.epsilon(charges, i["delta"], REPLACE, "rdp")
    assert loose == pytest.approx(record["rdp_WBK_eps"], rel=1e-3)


@pytest.mark.parametrize("record", of("truncated_poisson_eps"))
def test_goldens_of_capped_batches(record: dict) -> None:
    i = record["inputs"]
    event = TruncatedPoissonGaussian(i["expected_batch"] / i["n"], i["sigma"], i["n"], i["max_batch"])
    epsilon = accountants.epsilon([Charge(event, i["T"])], i["delta"], ADD, "pld")
    assert record["untruncated_eps"] <= epsilon
    assert epsilon == pytest.approx(record["dp_accounting_truncated_pld_eps"], rel=2e-4)


def laplace_goldens() -> list[tuple[dict, str]]:
    accountant = {"pld_eps": "pld", "rdp_improved_eps": "rdp", "rdp_classic_eps": "rdp_classic"}
    return [(r, name) for kind, name in accountant.items() for r in of(f"laplace_l1_{kind}")]


@pytest.mark.parametrize(("record", "accountant"), laplace_goldens())
def test_goldens_of_laplace_noise(record: dict, accountant: str) -> None:
    i = record["inputs"]
    epsilon = accountants.epsilon(
        [Charge(PoissonLaplace(i["q"], i["b_over_l1_clip"]), i["T"])], i["delta"], ADD, accountant
    )
    pure = i["T"] * math.log1p(i["q"] * math.expm1(1 / i["b_over_l1_clip"]))
    want = min(record["value"], pure)
    assert want - 1e-6 <= epsilon or accountant != "pld"
    assert epsilon == pytest.approx(want, rel=3e-4)


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.9, 0.1), (1.5, 0.5), (0.2, 0.2, 0.2)])
def test_one_coordinate_with_all_of_the_norm_is_worst(split: tuple[float, ...]) -> None:
    """The loss of shifts τ_j is Σ (2 U_j - τ_j), U_j = min(max(x_j, 0), τ_j): all of it on a grid, by convolution."""
    h = 1e-3

    def distribution(tau: float) -> np.ndarray:
        masses_N = math.sinh(h / 2) * np.exp(-h * np.arange(round(tau / h) + 1))
        masses_N[0], masses_N[-1] = (1 - math.exp(-h / 2) / 2), math.exp(-tau + h / 2) / 2
        return masses_N

    whole, parts = distribution(sum(split)), np.ones(1)
    for tau in split:
        parts = np.convolve(parts, distribution(tau))
    losses_N = 2 * h * np.arange(len(whole)) - sum(split)
    for epsilon in np.linspace(0, sum(split), 30):
        gain_N = np.maximum(np.exp(losses_N) - math.exp(epsilon), 0)
        assert parts[: len(whole)] @ gain_N <= whole @ gain_N + 2 * h


def test_laplace_noise_costs_no_more_than_its_pure_sum() -> None:
    charges = [Charge(PoissonLaplace(1.0, 2.0), 2)]
    assert accountants.epsilon(charges, 1e-9, ADD, "pld") == pytest.approx(1.0, abs=1e-9)
    assert accountants.epsilon(charges, 1e-9, ADD, "rdp") == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("charges", "relation"),
    [
        ([Charge(FixedSizeGaussian(1438, 100, 5.0), 200), Charge(Gaussian(20.0), 2)], REPLACE),
        ([Charge(TruncatedPoissonGaussian(0.05, 3.0, 1438, 90), 9), Charge(PoissonGaussian(0.02, 3.0), 2)], ADD),
        pytest.param([Charge(TruncatedPoissonGaussian(0.05, 3.0, 1438, 90), 9)], REPLACE, marks=pytest.mark.slow),
        ([Charge(PoissonLaplace(0.05, 1.5), 100)], ADD),
    ],
)
def test_the_cross_check_agrees(charges: list[Charge], relation: Neighbouring) -> None:
    own = accountants.epsilon(charges, 1e-5, relation, "pld")
    assert cross_check.ask_library(charges, 1e-5, relation).epsilon == pytest.approx(own, rel=1e-3)
    assert own <= accountants.epsilon(charges, 1e-5, relation, "rdp")


@pytest.mark.parametrize(
    "event",
    [PoissonLaplace(0.1, 1.0), TruncatedPoissonGaussian(0.1, 1.0, 100, 20), FixedSizeGaussian(100, 20, 1.0)],
)
def test_profiles_fall(event: Event) -> None:
    relation = REPLACE if isinstance(event, FixedSizeGaussian) else ADD
    points = accountants.profile([Charge(event, 10)], relation, "pld", (0.1, 0.5, 1.0, 3.0))
    deltas = [delta for _, delta in points]
    assert deltas == sorted(deltas, reverse=True)
    epsilon = accountants.epsilon([Charge(event, 10)], deltas[1], relation, "pld")
    assert epsilon == pytest.approx(0.5, rel=5e-3)
