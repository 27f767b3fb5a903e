"""Counts of who takes part: none accuses the project's own draws, and each kind of fault is seen."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dprecipe.noise.entropy import Secrets
from dprecipe.noisy_sum.batches import ORDER, UnitNumbers, UnitParts, draw_batch, stream_number
from dprecipe.privacy.audit.verdicts import p_value
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.events import Event
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)
from dprecipe.training.audit.sampling import examine_batches

LEVEL = 1e-7
UNITS, STEPS, RATE = 1000, 200, 0.06
EVENTS: tuple[Event, ...] = (
    PoissonGaussian(RATE, 1.0),
    TruncatedPoissonGaussian(RATE, 1.0, UNITS, 200),
    FixedSizeGaussian(UNITS, 60, 1.0),
    Gaussian(1.0),
    DealtGaussian(1.0, 16),
    DealtGaussian(1.0, 16, 6),
    CappedDealtGaussian(1.0, 16, UNITS, 70),
    CappedDealtGaussian(1.0, 16, UNITS, 200),
    PermutedGaussian(UNITS, 60, 16, 1.0),
)
BANDS = BandedGaussian(1.0, 4 * RATE, (1.0, 0.8, 0.7, 0.6))


def draws(event: Event) -> list[UnitNumbers]:
    secrets = Secrets()
    return [batch for step in range(STEPS) for batch in draw_batch(event, UNITS, secrets.stream("sampling", step))][
        :STEPS
    ]


def failed(event: Event, batches: list[UnitNumbers]) -> set[str]:
    findings = list(examine_batches(event, UNITS, [batches]))
    assert findings
    return {each.id for each in findings if each.choices * p_value(each.evidence) <= LEVEL}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_the_projects_own_draws_are_not_accused(event: Event) -> None:
    assert failed(event, draws(event)) == set()


def shuffle(size: int = 60) -> Iterator[UnitNumbers]:
    generator = np.random.default_rng(0)
    while True:
        order = generator.permutation(UNITS)
        yield from (np.sort(order[start : start + size]) for start in range(0, UNITS - size + 1, size))


def test_faults_of_sampling_are_seen() -> None:
    event, sound = EVENTS[0], draws(EVENTS[0])
    in_turn = shuffle()
    assert {"batch_sizes", "sampling_steps"} <= failed(event, [next(in_turn) for _ in range(STEPS)])
    assert "sampling_steps" in failed(event, [sound[0]] * STEPS)
    assert "batch_sizes" in failed(event, draws(EVENTS[2]))
    assert "sampling_rate" in failed(PoissonGaussian(1.1 * RATE, 1.0), sound)
    paired = [np.unique(np.concatenate([batch // 2 * 2, batch // 2 * 2 + 1])) for batch in sound]
    assert "sampling_pairs" in failed(PoissonGaussian(2 * RATE, 1.0), paired)
    always = [np.union1d(batch, [0, 1, 2]) for batch in sound]
    assert "sampling_first" in failed(event, always)
    twice = [np.sort(np.concatenate([batch, batch[:1]])) for batch in sound]
    assert "units_once" in failed(event, twice)
    assert "batch_cap" in failed(TruncatedPoissonGaussian(RATE, 1.0, UNITS, 40), sound)
    assert "batch_size" in failed(EVENTS[2], sound)
    assert "batch_size" in failed(EVENTS[3], sound)
    dealt = next(event for event in EVENTS if event.kind == "dealt_gaussian")
    assert "partition" in failed(dealt, draws(PoissonGaussian(1 / 16, 1.0)))
    permuted = shuffle(UNITS // 16)
    assert "batch_sizes" in failed(dealt, [next(permuted) for _ in range(STEPS // 16 * 16)])
    cut = EVENTS[-1]
    assert "batch_size" in failed(cut, draws(dealt))
    assert "partition" in failed(cut, draws(EVENTS[2]))
    in_order = [np.arange(60 * k, 60 * k + 60) for k in range(16)] * (STEPS // 16)
    assert "sampling_last" in failed(cut, in_order)
    for limit in (70, 200):
        capped = CappedDealtGaussian(1.0, 16, UNITS, limit)
        assert "partition" in failed(capped, draws(PoissonGaussian(1 / 16, 1.0)))
    assert {"batch_cap", "sampling_first"} & failed(CappedDealtGaussian(1.0, 16, UNITS, 70), draws(dealt))
    last_first = [batch[-70:] for batch in draws(DealtGaussian(1.0, 8))]
    assert "sampling_last" in failed(CappedDealtGaussian(1.0, 8, UNITS, 70), last_first)
    whole = draws(dealt)[: STEPS // 16 * 16]
    assert "sampling_pairs" in failed(dealt, [np.unique(np.concatenate([b // 2 * 2, b // 2 * 2 + 1])) for b in whole])


@pytest.mark.parametrize("event", [event for event in EVENTS if event.kind != "gaussian"], ids=lambda event: event.kind)
def test_batches_that_come_again_are_seen(event: Event) -> None:
    """Of 200 batches: those of the first half again, after a resume or in a later pass."""
    sound = draws(event)
    half = STEPS // 2 // event.steps * event.steps
    for attempts in ([[*sound[:half], *sound[:half]]], [sound[:half], sound[:half]]):
        findings = list(examine_batches(event, UNITS, attempts))
        (again,) = (each for each in findings if each.id == "sampling_again")
        assert again.choices * p_value(again.evidence) <= LEVEL


def test_epochs_that_no_attempt_gets_through_are_looked_at_one_by_one() -> None:
    event = DealtGaussian(1.0, 16)
    attempts = [draws(event)[:10], draws(event)[:10]]
    assert {each.id for each in examine_batches(event, UNITS, attempts) if p_value(each.evidence) <= LEVEL} == set()


def draws_of_parts(secrets: Secrets, event: BandedGaussian = BANDS) -> list[UnitNumbers]:
    parts = UnitParts.deal(event, UNITS, secrets.stream("sampling", ORDER))
    streams = (secrets.stream("sampling", stream_number(event, ticket)) for ticket in range(1, STEPS // 4 + 1))
    return [batch for stream in streams for batch in draw_batch(event, UNITS, stream, parts)]


def failed_attempts(attempts: list[list[UnitNumbers]], event: Event = BANDS) -> set[str]:
    findings = examine_batches(event, UNITS, attempts)
    return {each.id for each in findings if each.choices * p_value(each.evidence) <= LEVEL}


def test_parts_that_take_turns_are_not_accused() -> None:
    sound = draws_of_parts(Secrets())
    assert failed_attempts([sound[: STEPS // 2], draws_of_parts(Secrets())[: STEPS // 2]]) == set()
    assert failed_attempts([sound[:-1], sound[:2]]) == set()


def test_faults_of_parts_are_seen() -> None:
    sound, secrets = draws_of_parts(Secrets()), Secrets()
    anew = [batch for number in range(STEPS // 4) for batch in draws_of_parts(Secrets())[4 * number : 4 * number + 4]]
    assert "parts_kept" in failed_attempts([anew])
    over_all = [batch for k in range(STEPS) for batch in draw_batch(EVENTS[0], UNITS, secrets.stream("sampling", k))]
    assert "parts_kept" in failed_attempts([over_all])
    own_rate = BandedGaussian(1.0, RATE, BANDS.coefficients)
    assert "sampling_rate" in failed_attempts([draws_of_parts(Secrets(), own_rate)])
    generator = np.random.default_rng(0)
    chance = BANDS.part_rate
    by_index = [
        np.flatnonzero((np.arange(UNITS) % 4 == k % 4) & (generator.random(UNITS) < chance)) for k in range(200)
    ]
    assert "parts_pairs" in failed_attempts([by_index])
    uneven = np.minimum(generator.integers(0, 5, UNITS), 3)
    too_many = [np.flatnonzero((uneven == 3 - k % 4) & (generator.random(UNITS) < chance)) for k in range(STEPS)]
    assert "parts_rate" in failed_attempts([too_many])
    half = STEPS // 2
    assert "parts_again" in failed_attempts([sound[:half], sound[half:]])
    assert "sampling_again" in failed_attempts([sound[:half], sound[:half]])


def test_blocks_are_whole_and_not_accused_of_the_size_they_have() -> None:
    event = CycleGaussian(1.0, 0.9, 8, 0, 5)
    attempts = [
        [*draw_batch(event, UNITS, Secrets(number).stream("sampling", ORDER))] * 2 for number in range(2)
    ]  # two passes each
    assert failed_attempts(attempts, event) == set()
    single = CycleGaussian(1.0, 0.9, 8, 0)
    apart = [*draw_batch(single, UNITS, Secrets(0).stream("sampling", ORDER))]
    assert "blocks_whole" in failed_attempts([apart], event)
    moved = [*attempts[0][:8], *attempts[1][:8]]
    assert "order_kept" in failed_attempts([moved], event)
    assert "sampling_again" in failed_attempts([attempts[0], attempts[0]], event)
