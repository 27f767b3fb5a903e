"""Dealt epochs whose batches have a maximum: golden figures, two units by enumeration, and the other library."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.privacy import accountants, cross_check, groups, screen
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.composition import Composition
from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian

ADD, REPLACE, BLANK = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "batches.json").read_text())["records"]
OFTEN, SELDOM, NEVER = (CappedDealtGaussian(3.0, 12, 1438, limit) for limit in (140, 160, 192))


def of(group: str) -> list[dict]:
    return [record for record in RECORDS if record["group"] == group]


def epsilon(event: CappedDealtGaussian | DealtGaussian, relation: Neighbouring = ADD, epochs: int = 10) -> float:
    return accountants.epsilon([Charge(event, epochs)], 1e-5, relation, "pld")


@pytest.mark.parametrize("record", of("alloc_capped"))
def test_epsilon_in_each_direction(record: dict) -> None:
    i, value = record["inputs"], record["value"]
    event = CappedDealtGaussian(i["sigma"], i["t"], i["N"], i["B"])
    epochs, delta = i["epochs"], i["delta"]
    step, tail = math.sqrt(3e-5 * value / (epochs + 1)) / 3, 1e-8 * delta / (3 * (epochs + 1))
    pair = event.losses(ADD, step, tail)
    loss = pair.removed if i["direction"] == "remove" else pair.added
    assert loss is not None
    found = Composition([loss], [epochs], 1 << 21).epsilon(delta, 10.0)
    assert found is not None
    assert value * (1 - record["tol"]) <= found <= value * (1 + 1e-3)
    if i["direction"] == "remove":
        claim = accountants.epsilon([Charge(event, epochs)], delta, ADD, "pld")
        assert value * (1 - record["tol"]) <= claim <= value * (1 + 1e-3)


@pytest.mark.parametrize("record", of("alloc_capped_full_probability"))
def test_the_chance_of_a_full_batch(record: dict) -> None:
    i = record["inputs"]
    found = CappedDealtGaussian(1.0, i["t"], i["N"], i["B"]).full_batch_chance
    assert record["value"] <= found <= record["value"] * (1 + 1e-3)


def test_it_costs_less_the_larger_the_limit_and_at_last_what_it_costs_without() -> None:
    limits = (120, 130, 140, 150, 160, 170, 192, 1438)
    costs = [epsilon(CappedDealtGaussian(3.0, 12, 1438, limit)) for limit in limits]
    assert all(more >= less * (1 - 1e-4) for more, less in itertools.pairwise(costs))
    assert costs[0] > 1.5 * costs[-1]
    assert costs[-1] == pytest.approx(epsilon(DealtGaussian(3.0, 12)), rel=1e-6)


@pytest.mark.parametrize("event", [OFTEN, CappedDealtGaussian(1.0, 200, 4000, 30), replace(OFTEN, taken=5)])
def test_cases_have_all_of_the_probability_and_no_fewer_full_batches_than_may_be(event: CappedDealtGaussian) -> None:
    mixed = event.mixed_ratio(1e-12)
    assert mixed.rest <= 1e-12
    assert math.fsum(chance for chance, _ in mixed.cases) + mixed.rest == pytest.approx(1.0, abs=1e-12)
    chance = float(stats.binom.sf(event.batch_limit - 1, event.size, 1 / event.batches))
    for least in range(1, 12):
        union = min(1.0, math.comb(event.steps, least) * chance**least)
        counted = math.fsum(part for part, case in mixed.cases if case.doubled >= least) + mixed.rest
        assert counted >= union * (1 - 1e-9) - 1e-15
    assert all(case.count == event.steps for _, case in mixed.cases)
    assert len(mixed.cases) < 14


def test_numbers_of_full_batches_are_below_the_bound_of_their_number() -> None:
    """By simulation: 20,000 epochs of 60 units in 6 batches; a batch of 12 is full with probability 0.27."""
    event, epochs = CappedDealtGaussian(1.0, 6, 60, 12), 20_000
    counts = np.random.default_rng(0).multinomial(60, [1 / 6] * 6, size=epochs)
    full = (counts >= 12).sum(axis=1)
    cases = event.mixed_ratio(0.0).cases
    for least in range(1, 4):
        bound = math.fsum(chance for chance, case in cases if case.doubled >= least)
        assert (full >= least).mean() <= bound + 5 * math.sqrt(0.25 / epochs)


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize(("others", "unit"), [(-1.0, 1.0), (0.0, 1.0), (0.5, -1.0)])
def test_all_deals_of_three_units_are_below_the_pair(relation: Neighbouring, others: float, unit: float) -> None:
    """Two steps of one unit at most, of three units and of two: every deal, every order of priorities."""
    sigma = 1.1
    x_N = np.arange(-8, 8, 0.04)
    first, second = np.meshgrid(x_N, x_N)

    def density(gradients: list[float]) -> NDArray:
        total: NDArray = np.zeros_like(first)
        units = range(len(gradients))
        deals = list(itertools.product((0, 1), repeat=len(gradients)))
        orders = list(itertools.permutations(units))
        for deal, order in itertools.product(deals, orders):
            sums = [0.0, 0.0]
            for step in (0, 1):
                dealt = [u for u in order if deal[u] == step]
                sums[step] = gradients[dealt[0]] if dealt else 0.0
            total += stats.norm.pdf(first, sums[0], sigma) * stats.norm.pdf(second, sums[1], sigma)
        return total / len(deals) / len(orders)

    larger = density([others, others, unit])
    other = density([others] * 2 + {ADD: [], BLANK: [0.0], REPLACE: [-unit]}[relation])
    charges = [Charge(CappedDealtGaussian(sigma, 2, 2, 1), 1)]
    for eps in (0.0, 0.3, 1.0):
        exact = max(
            float(np.maximum(p - math.exp(eps) * q, 0).sum()) * 16e-4 for p, q in ((larger, other), (other, larger))
        )
        assert exact <= accountants.delta(charges, eps, relation, "pld") + 2e-6


def test_a_step_that_is_always_full_costs_what_half_the_noise_costs() -> None:
    """With two units or more in one step of one: the unit displaces another surely."""
    event = CappedDealtGaussian(2.0, 1, 5, 1)
    assert event.full_batch_chance == 1
    assert epsilon(event, epochs=3) == pytest.approx(epsilon(Gaussian(1.0), epochs=3), rel=1e-3)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("event", [OFTEN, NEVER, replace(OFTEN, taken=5)])
@pytest.mark.parametrize("relation", Neighbouring)
def test_the_other_library_composes_the_other_law_to_the_same(
    event: CappedDealtGaussian, relation: Neighbouring
) -> None:
    charges = [Charge(event, 3)]
    answer = cross_check.ask_library(charges, 1e-5, relation)
    assert answer.name == "dp_accounting.pld"
    assert answer.epsilon == pytest.approx(accountants.epsilon(charges, 1e-5, relation, "pld"), rel=1e-3, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "epochs", "delta"),
    [
        (CappedDealtGaussian(1.1, 234, 60_000, 330), 5, 1e-6),
        (CappedDealtGaussian(0.7, 4, 1000, 290), 2, 1e-5),
        (CappedDealtGaussian(0.5, 100, 10_000, 140), 1, 1e-6),
        (CappedDealtGaussian(2.0, 50, 10_000, 260), 5, 1e-8),
    ],
)
def test_it_does_for_long_epochs_and_little_noise(event: CappedDealtGaussian, epochs: int, delta: float) -> None:
    charges = [Charge(event, epochs)]
    ours = accountants.epsilon(charges, delta, ADD, "pld")
    assert cross_check.ask_library(charges, delta, ADD).epsilon == pytest.approx(ours, rel=1e-3)
    assert epsilon(event.uncapped(), epochs=epochs) < epsilon(event, epochs=epochs)


@pytest.mark.slow
def test_a_unit_that_keeps_its_place_is_removed_and_added_unless_full_batches_count_as_a_failure() -> None:
    free = epsilon(DealtGaussian(3.0, 12), BLANK)
    assert epsilon(NEVER, BLANK) == pytest.approx(free, rel=1e-3)
    assert epsilon(SELDOM, BLANK) > 2 * free
    assert epsilon(OFTEN, BLANK) < epsilon(OFTEN, REPLACE)
    known = accountants.epsilon([Charge(Gaussian(0.5), 2)], 1e-5, BLANK, "pld")
    assert epsilon(CappedDealtGaussian(0.5, 3, 900, 330), BLANK, 2) <= known * (1 + 1e-9)


def test_a_part_of_an_epoch_costs_less_and_more_than_without_a_limit() -> None:
    part = replace(OFTEN, taken=5)
    assert (part.steps, part.participation, OFTEN.take(5)) == (5, 5 / 12, part)
    assert part.ratio == EpochRatio(1 / 3, 1 / 12, 5)
    assert epsilon(part.uncapped(), epochs=1) < epsilon(part, epochs=1) < epsilon(OFTEN, epochs=1)
    assert part.full_chance == pytest.approx(OFTEN.full_chance * 5 / 12)


def test_other_accountants_know_the_chance_of_a_full_batch() -> None:
    """As if everyone knew the steps: between one Gaussian an epoch and one of half the noise."""
    for event in (OFTEN, NEVER):
        ours = accountants.epsilon([Charge(event, 10)], 1e-5, ADD, "rdp")
        low, high = (accountants.epsilon([Charge(Gaussian(z), 10)], 1e-5, ADD, "rdp") for z in (3.0, 1.5))
        assert low <= ours < high
    assert not screen.surely_within([Charge(OFTEN, 10)], 5.1, 1e-5, ADD)
    assert screen.surely_within([Charge(OFTEN, 10)], 13.0, 1e-5, ADD)


@pytest.mark.slow
def test_a_group_that_joins_fills_more_batches() -> None:
    assert OFTEN.among_fewer(0, ADD) == OFTEN
    bigger = OFTEN.among_fewer(3, ADD)
    assert isinstance(bigger, CappedDealtGaussian)
    assert bigger.size >= OFTEN.size + 3
    assert bigger.full_batch_chance > OFTEN.full_batch_chance
    charges = [Charge(OFTEN, 1)]
    one = epsilon(OFTEN, epochs=1)
    ((_, two),) = groups.bound_groups(charges, 1e-5, ADD, "pld", one, (2,))
    assert 2 * one < two < math.inf


@pytest.mark.parametrize(
    "fields", [(0.0, 3, 9, 5), (1.0, 0, 9, 5), (1.0, 3, 9, 0), (1.0, 3, 9, 10), (1.0, 3, 9, 5, 4), (1.0, 3, 9, 5, 3)]
)
def test_impossible_epochs_are_refused(fields: tuple[float, int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        CappedDealtGaussian(*fields)
