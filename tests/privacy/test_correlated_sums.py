"""Correlated noise: golden figures, equality with independent noise, groups, and the other library."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dprecipe.privacy import accountants, calibrate, cross_check, gdp, groups
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.charge_shapes import charge_model
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.correlation.strategies import Banded, PreviousStep, make_bands
from dprecipe.privacy.events import Charge, Event, charge_from_json
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.sampling import CyclicPoisson, FixedOrder
from dprecipe.privacy.screen import surely_within
from tests.privacy.correlation.families import of

ADD, REPLACE, BLANK = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE


def passes(noise: float, previous: float, batches: int, numbers: range) -> list[Charge]:
    return [Charge(CycleGaussian(noise, previous, batches, number), 1) for number in numbers]


def passes_of(inputs: dict, numbers: range) -> list[Charge]:
    return passes(inputs["noise_multiplier"], -inputs["inverse_taps"][1], inputs["batches"], numbers)


def of_events(group: str) -> list[Any]:
    """Golden records of the step before. Those of more taps, which are no event, are for the sensitivities."""
    found = [case for case in of(group) if len(case.values[0]["inverse_taps"]) == 2]
    assert found
    return found


def squared_mu(charges: list[Charge], relation: Neighbouring = ADD) -> float:
    return math.fsum(charge.event.squared_mu(charge.count, relation) or math.nan for charge in charges)


def epsilon(charges: list[Charge], relation: Neighbouring = ADD, accountant: str = "pld") -> float:
    return accountants.epsilon(charges, 1e-5, relation, accountant)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of_events("corr_event_cycle_squared_mu"))
def test_each_pass_is_a_gaussian(inputs: dict, value: list[float], tolerance: float) -> None:
    charges = passes_of(inputs, range(inputs["cycles"]))
    assert [squared_mu([charge]) for charge in charges] == pytest.approx(value, rel=tolerance)
    assert [squared_mu([charge], REPLACE) for charge in charges] == pytest.approx([4 * v for v in value], rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of_events("corr_event_cycle_eps"))
def test_what_passes_cost(inputs: dict, value: float, tolerance: float) -> None:
    charges = passes_of(inputs, range(inputs["done"]))
    for accountant in ("pld", "gdp"):
        found = accountants.epsilon(charges, inputs["delta"], ADD, accountant)
        assert value * (1 - tolerance) <= found <= value * (1 + 1e-8)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of_events("corr_event_two_attempts_squared_mu"))
def test_to_begin_again_costs_less_than_to_go_on(inputs: dict, value: float, tolerance: float) -> None:
    first, second = inputs["first_attempt_cycles"], inputs["second_attempt_cycles"]
    charges = passes_of(inputs, range(first))
    again = passes_of(inputs, range(second))
    assert squared_mu(charges + again) == pytest.approx(value, rel=tolerance)
    uninterrupted = passes_of(inputs, range(first + second))
    assert squared_mu(charges + again) < squared_mu(uninterrupted)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of_events("corr_event_lost_cycle_squared_mu"))
def test_a_lost_pass_is_charged_twice(inputs: dict, value: float, tolerance: float) -> None:
    charges = passes_of(inputs, range(inputs["first_attempt_cycles"]))
    again = passes_of(inputs, range(inputs["cycles"] - inputs["resumed_after"]))
    assert squared_mu(charges + again) == pytest.approx(value, rel=tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of_events("corr_event_lost_cycle_planned_numbers"))
def test_numbers_as_planned_are_sound_and_cost_more(inputs: dict, value: list[float], tolerance: float) -> None:
    lost, cycles = inputs["lost_number"], inputs["cycles"]
    charges = passes_of(inputs, range(cycles))
    extra = passes_of(inputs, range(lost, lost + 1))
    assert [squared_mu(charges + extra), epsilon(charges + extra)] == pytest.approx(value, rel=max(tolerance, 1e-8))
    renumbered = passes_of(inputs, range(lost + 1)) + passes_of(inputs, range(cycles - lost))
    assert squared_mu(renumbered) < squared_mu(charges + extra)


def test_a_run_is_the_sum_of_its_passes() -> None:
    noise = PreviousStep(0.97).sensitivity(58, 8) / gdp.mu_for(2.0, 1e-5)
    found = epsilon(passes(noise, 0.97, 58, range(8)))
    assert 2.0 * (1 - 1e-7) <= found <= 2.0 * (1 + 1e-9)
    solved = calibrate.noise_multiplier(lambda m: passes(m, 0.97, 58, range(8)), 2.0, 1e-5, ADD, "pld")
    assert solved == pytest.approx(noise, rel=1e-3)
    assert epsilon(passes(noise, 0.97, 58, range(8)), BLANK) == found
    doubled = epsilon(passes(2 * noise, 0.97, 58, range(8)), REPLACE)
    assert doubled == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("number", [0, 3, 10**15])
def test_nothing_taken_back_is_a_gaussian_a_pass(relation: Neighbouring, number: int) -> None:
    plain, event = Gaussian(1.7), CycleGaussian(1.7, 0.0, 12, number)
    for accountant in ("pld", "rdp", "gdp"):
        assert epsilon([Charge(event, 9)], relation, accountant) == epsilon([Charge(plain, 9)], relation, accountant)
    assert event.squared_mu(9, relation) == plain.squared_mu(9, relation)
    assert event.screening_bound(relation) == plain.screening_bound(relation)
    assert event.cross_check() == plain.cross_check()
    assert event.stand_in() == plain


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("rate", [0.03, 1.0])
def test_one_band_is_a_poisson_batch(relation: Neighbouring, rate: float) -> None:
    plain, event = PoissonGaussian(rate, 0.9), BandedGaussian(0.9, rate, (1.0,))
    for accountant in ("pld", "rdp"):
        assert epsilon([Charge(event, 90)], relation, accountant) == epsilon([Charge(plain, 90)], relation, accountant)
    assert event.squared_mu(9, relation) == plain.squared_mu(9, relation)
    assert event.screening_bound(relation) == plain.screening_bound(relation)
    assert event.together(3, relation) == plain.together(3, relation)
    assert event.cross_check() == plain.cross_check()
    assert event.stand_in() == plain


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_event_banded_eps"))
def test_what_bands_cost(inputs: dict, value: float, tolerance: float) -> None:
    event = BandedGaussian(inputs["noise_multiplier"], inputs["part_rate"], tuple(inputs["coefficients"]))
    charges = [Charge(event, inputs["events"])]
    found = accountants.epsilon(charges, inputs["delta"], Neighbouring(inputs["relation"]), "pld")
    assert found == pytest.approx(value, rel=1e-4)
    assert found >= value * (1 - tolerance)


@pytest.mark.parametrize(("inputs", "value", "tolerance"), of("corr_eps_cyclic_poisson", "corr_jax_cyclic_eps"))
def test_the_accounts_of_another_library(inputs: dict, value: float, tolerance: float) -> None:
    """There the noise is over the norm of a column."""
    bands = make_bands(min(inputs["bands"], 64), 0.8)
    steps = inputs["n"] if "n" in inputs else inputs["steps"]
    rate = inputs["rate"] if "rate" in inputs else inputs["rate_in_part"]
    event = BandedGaussian(inputs["multiplier"] * bands.norm, rate, bands.bands)
    count = math.ceil(steps / inputs["bands"])
    assert accountants.epsilon([Charge(event, count)], inputs["delta"], ADD, "pld") == pytest.approx(value, rel=1e-4)


def test_more_noise_costs_less_and_more_bands_cost_more() -> None:
    costs = [epsilon(passes(m, 0.9, 5, range(4))) for m in (2.0, 3.0, 9.0)]
    assert costs == sorted(costs, reverse=True)
    shares = [epsilon(passes(3.0, previous, 5, range(4))) for previous in (0.0, 0.3, 0.9, 1.0)]
    assert shares == sorted(shares)
    longer = [epsilon(passes(3.0, 0.9, 5, range(count))) for count in range(1, 6)]
    assert longer == sorted(longer)
    numbers = [squared_mu(passes(3.0, 0.9, 5, range(number, number + 1))) for number in range(6)]
    assert numbers == sorted(numbers)
    banded = [epsilon([Charge(BandedGaussian(2.0, 0.1, make_bands(b, 0.7).bands), 20)]) for b in (1, 2, 4, 8)]
    assert banded == sorted(banded)


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize("size", [2, 3])
def test_a_group_in_one_place_moves_a_pass_that_much_farther(relation: Neighbouring, size: int) -> None:
    charges = passes(60.0, 0.95, 20, range(5))
    mu = math.sqrt(squared_mu(charges, REPLACE if relation is REPLACE else ADD))
    ((_, found),) = groups.bound_groups(charges, 1e-5, relation, "pld", epsilon(charges, relation), (size,))
    assert found == pytest.approx(gdp.epsilon(size * mu, 1e-5), rel=1e-9)


def test_groups_in_several_parts_are_extended_along_single_units() -> None:
    """Members in different parts overlap in the noise: the pair of a group in one batch is no bound for them."""
    event = BandedGaussian(4.0, 0.1, make_bands(4, 0.8).bands)
    assert event.together(2, ADD) is None
    assert event.among_fewer(3, ADD) == event
    charges, joint = [Charge(event, 50)], [Charge(event.stand_in(), 50)]
    one = epsilon(charges)
    ((_, found),) = groups.bound_groups(charges, 1e-5, ADD, "pld", one, (2,))
    ((_, same_batch),) = groups.bound_groups(joint, 1e-5, ADD, "pld", one, (2,))
    assert 2 * one < found < math.inf
    assert same_batch < found
    known = BandedGaussian(4.0, 1.0, make_bands(4, 0.8).bands)
    assert known.together(2, ADD) == Gaussian(4.0 / make_bands(4, 0.8).norm / 2)


@pytest.mark.parametrize("relation", Neighbouring)
@pytest.mark.parametrize(
    "charges",
    [
        passes(42.7, 0.97, 58, range(10)),
        passes(2.0, 1.0, 3, range(2)),
        [*passes(30.0, 0.9, 31, range(4)), Charge(PoissonGaussian(0.01, 1.1), 300)],
        [Charge(BandedGaussian(3.0, 0.0683, make_bands(4, 0.82).bands), 118)],
        [Charge(BandedGaussian(9.0, 1.0, make_bands(8, 0.76).bands), 5)],
    ],
    ids=["passes", "whole", "mixed", "bands", "every_unit"],
)
def test_the_library_agrees(charges: list[Charge], relation: Neighbouring) -> None:
    answer = cross_check.ask_library(charges, 1e-5, relation)
    claim = epsilon(charges, relation)
    assert answer.name == "dp_accounting.pld"
    assert answer.epsilon == pytest.approx(claim, rel=1e-3)


def test_a_lowered_number_is_found_by_the_library() -> None:
    """The second computation does not take the first one's word."""

    class Understated(CycleGaussian):
        __slots__ = ()

        @property
        def energy(self) -> float:
            return CycleGaussian(self.noise_multiplier, self.previous, self.batches, 0).energy

    charges = [Charge(Understated(40.0, 0.97, 58, 5), 1)]
    assert cross_check.ask_library(charges, 1e-5, ADD).epsilon > 1.1 * epsilon(charges)


@pytest.mark.parametrize("relation", Neighbouring)
def test_the_quick_check_accepts_only_what_fits(relation: Neighbouring) -> None:
    for charges in (passes(40.0, 0.9, 31, range(3)), [Charge(BandedGaussian(3.0, 0.05, (1.0, 0.8)), 40)]):
        for share in (0.5, 0.99, 1.5, 4.0):
            claim = share * epsilon(charges, relation)
            if surely_within(charges, claim, 1e-5, relation):
                assert share > 1
    assert surely_within(passes(40.0, 0.9, 31, range(3)), 9.0, 1e-5, ADD)


def test_what_the_events_draw() -> None:
    cycle, banded = CycleGaussian(42.7, 0.97, 58, 2), BandedGaussian(3.0, 0.07, (1.0, 0.82, 0.7462))
    assert cycle.sampling() == FixedOrder(58)
    assert banded.sampling() == CyclicPoisson(3, 0.07)
    assert (cycle.steps, banded.steps) == (58, 3)
    assert cycle.strategy == PreviousStep(0.97)
    assert banded.strategy == Banded((1.0, 0.82, 0.7462))
    assert cycle.multipliers == (42.7,)
    assert cycle.scale_noise(2.0) == CycleGaussian(85.4, 0.97, 58, 2)
    assert (cycle.participation, banded.participation) == (1.0, 0.07)
    assert [BandedGaussian(1.0, 0.5, make_bands(b, 0.5).bands).line_weight for b in (1, 7, 8, 64)] == [1, 1, 2, 9]


def test_the_fields_are_written_in_full() -> None:
    """The compatibility contract: these names and meanings stay."""
    cycle = Charge(CycleGaussian(42.7, 0.97, 58, 0), 1).to_json()
    assert cycle == {
        "kind": "cycle_gaussian", "count": 1, "noise_multiplier": 42.7, "previous": 0.97, "batches": 58, "number": 0,
        "block_size": None,
    }  # fmt: skip
    banded = Charge(BandedGaussian(3.0, 0.06827, (1.0, 0.82)), 118).to_json()
    assert json.loads(json.dumps(banded)) == {
        "kind": "banded_gaussian", "count": 118, "noise_multiplier": 3.0, "part_rate": 0.06827,
        "coefficients": [1.0, 0.82],
    }  # fmt: skip
    for document in (cycle, json.loads(json.dumps(banded))):
        read = charge_from_json(document)
        assert read.to_json() == charge_from_json(read.to_json()).to_json()
        charge_model(document["kind"]).model_validate_json(json.dumps(document))


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": 0.0}, {"noise_multiplier": math.nan}, {"previous": -0.01}, {"previous": 1.01},
        {"previous": math.nan}, {"batches": 0}, {"number": -1},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_passes_are_refused(changed: dict) -> None:
    sound = {"noise_multiplier": 2.0, "previous": 0.9, "batches": 5, "number": 0}
    CycleGaussian(**sound)
    with pytest.raises(ValueError, match="expected"):
        CycleGaussian(**{**sound, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_multiplier": math.inf}, {"part_rate": 0.0}, {"part_rate": 1.2}, {"part_rate": math.nan},
        {"coefficients": ()}, {"coefficients": (0.9, 0.5)}, {"coefficients": (1.0, 0.5, 0.6)},
        {"coefficients": (1.0, -0.5)}, {"coefficients": (1.0,) * 65}, {"coefficients": (1.0, math.nan)},
    ],
    ids=str,
)  # fmt: skip
def test_bands_that_no_theorem_covers_are_refused(changed: dict) -> None:
    sound = {"noise_multiplier": 2.0, "part_rate": 0.1, "coefficients": (1.0, 0.5)}
    BandedGaussian(**sound)
    with pytest.raises(ValueError, match="expected"):
        BandedGaussian(**{**sound, **changed})


@pytest.mark.parametrize("coefficients", [1.0, "10", [[1.0]], [1.0, "0.5"], [1.0, None], [True], [1.0] * 5000])
def test_coefficients_of_wrong_types_are_refused(coefficients: object) -> None:
    document = {"kind": "banded_gaussian", "count": 1, "noise_multiplier": 3.0, "part_rate": 0.1}
    with pytest.raises(ValueError, match="coefficients"):
        charge_from_json({**document, "coefficients": coefficients})


def test_lists_of_numbers_become_floats() -> None:
    document = {"kind": "banded_gaussian", "count": 1, "noise_multiplier": 3, "part_rate": 1, "coefficients": [1, 0]}
    event: Event = charge_from_json(document).event
    assert event == BandedGaussian(3.0, 1.0, (1.0, 0.0))
