"""Batches: the event that is accounted is the event that draws."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.noisy_sum.batches import (
    ORDER,
    UnitParts,
    deal_units,
    draw_batch,
    draw_order,
    draw_poisson,
    draw_subset,
    keep_highest,
    stream_number,
)
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)


def batches(event: object, units: int, index: int) -> list[np.ndarray]:
    return list(draw_batch(event, units, Secrets(3).stream("sampling", index)))  # type: ignore[arg-type]


def test_t2_a_poisson_event_draws_independent_inclusions() -> None:
    """Counts, pairs and sizes over 4,000 batches of 50 units at q = 0.1; five standard errors each (6e-7)."""
    q, units, repeats = 0.1, 50, 4000
    included = np.zeros((repeats, units))
    for i in range(repeats):
        (batch,) = batches(PoissonGaussian(q, 1.0), units, i)
        included[i, batch] = 1
    assert np.all(np.abs(included.mean(0) - q) < 5 * math.sqrt(q * (1 - q) / repeats))
    covariance = np.cov(included.T) - np.diag(included.var(0, ddof=1))
    assert np.max(np.abs(covariance)) < 5.5 * q * (1 - q) / math.sqrt(repeats)  # of 1,225 pairs: 5e-5
    # A fixed batch size would have no variance at all, a Poisson one has n q (1 - q).
    sizes = included.sum(1)
    assert abs(sizes.var() - units * q * (1 - q)) < 5 * units * q * (1 - q) * math.sqrt(2 / repeats) * 1.1
    steps = (included[1:] - q) * (included[:-1] - q)
    assert abs(steps.mean()) < 5 * q * (1 - q) / math.sqrt(steps.size)


@pytest.mark.parametrize("q", [1e-6, 0.003, 0.5, 0.999999, 1.0])
def test_batches_are_increasing_and_within_the_data(q: float) -> None:
    for i in range(20):
        batch = draw_poisson(q, 1000, Stream(i.to_bytes(32, "big")))
        assert batch.dtype == np.int64
        assert np.all(np.diff(batch) > 0)
        assert len(batch) == 0 or (batch[0] >= 0 and batch[-1] < 1000)
    if q == 1.0:
        assert len(batch) == 1000


def test_t10_an_empty_batch_stays_empty() -> None:
    sizes = [len(draw_poisson(1e-4, 100, Stream(i.to_bytes(32, "big")))) for i in range(200)]
    assert sizes.count(0) > 150


def test_the_cost_is_that_of_the_batch() -> None:
    """Ten billion units, a batch of about ten: a mask would not fit in memory."""
    assert len(draw_poisson(1e-9, 10**10, Stream(bytes(32)))) < 40


def test_t2_a_full_batch_holds_everyone() -> None:
    (batch,) = batches(Gaussian(1.0), 17, 0)
    assert batch.tolist() == list(range(17))


def test_t2_shuffling_deals_every_unit_to_exactly_one_batch() -> None:
    parts = batches(DealtGaussian(1.0, 8), 1000, 0)
    assert len(parts) == 8
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))
    first = batches(DealtGaussian(1.0, 8, 3), 1000, 0)
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in parts[:3]]
    other = batches(DealtGaussian(1.0, 8), 1000, 1)
    assert any(a.tolist() != b.tolist() for a, b in zip(parts, other, strict=True))


@pytest.mark.parametrize(("batches", "units"), [(7, 0), (7, 1), (7, 100), (7, 101), (300, 1003), (1, 250)])
def test_units_are_dealt_in_chunks_as_at_once(monkeypatch: pytest.MonkeyPatch, batches: int, units: int) -> None:
    monkeypatch.setattr("dprecipe.noisy_sum.batches._CHUNK", 100)
    order, ends = deal_units(batches, units, Stream(bytes(32)))
    batch_of = Stream(bytes(32)).integers(batches, units)
    assert order.tolist() == np.argsort(batch_of, kind="stable").tolist()
    assert np.diff(ends).tolist() == np.bincount(batch_of, minlength=batches).tolist()


def test_adding_a_unit_moves_no_other_unit_to_another_batch() -> None:
    fewer, more = batches(DealtGaussian(1.0, 8), 1000, 5), batches(DealtGaussian(1.0, 8), 1001, 5)
    assert [[u for u in batch if u < 1000] for batch in more] == [batch.tolist() for batch in fewer]


def passes(event: CycleGaussian, units: int, secrets: Secrets) -> list[list[list[int]]]:
    """The batches of the first three events of an attempt."""
    streams = [secrets.stream("sampling", stream_number(event, ticket)) for ticket in (1, 2, 3)]
    return [[batch.tolist() for batch in draw_batch(event, units, stream)] for stream in streams]


def test_units_keep_their_places_in_all_passes_of_an_attempt_and_get_new_ones_in_the_next() -> None:
    event = CycleGaussian(1.0, 0.9, 8, 0)
    first, *later = passes(event, 1000, Secrets(3))
    assert later == [first, first]
    assert len(first) == 8
    assert sorted(unit for batch in first for unit in batch) == list(range(1000))
    assert passes(event, 1000, Secrets(4))[0] != first
    assert stream_number(PoissonGaussian(0.1, 1.0), 2) == 2


def test_a_unit_more_moves_no_other_one_to_another_place() -> None:
    event = CycleGaussian(1.0, 0.9, 8, 0)
    before, after = passes(event, 1000, Secrets(3))[0], passes(event, 1001, Secrets(3))[0]
    assert [[unit for unit in batch if unit < 1000] for batch in after] == before


@pytest.mark.parametrize("units", [1000, 1003, 30, 0])
def test_blocks_stay_whole_and_keep_their_places(units: int) -> None:
    """Eight batches have every unit once, blocks of 16 together, nearly one size, and are new in each attempt."""
    event = CycleGaussian(1.0, 0.9, 8, 0, 16)
    first, *later = passes(event, units, Secrets(3))
    assert later == [first, first]
    assert len(first) == 8
    assert sorted(unit for batch in first for unit in batch) == list(range(units))
    place = {unit: number for number, batch in enumerate(first) for unit in batch}
    assert all(place[unit] == place[unit // 16 * 16] for unit in place)
    assert max(map(len, first)) - min(map(len, first)) <= 32
    assert all(batch == sorted(batch) for batch in first)
    if units >= 1000:
        assert passes(event, units, Secrets(4))[0] != first


def turns(event: BandedGaussian, units: int, secrets: Secrets, events: int) -> list[list[np.ndarray]]:
    """The batches of the first events of an attempt."""
    parts = UnitParts.deal(event, units, secrets.stream("sampling", ORDER))
    streams = [secrets.stream("sampling", stream_number(event, ticket)) for ticket in range(1, events + 1)]
    return [list(draw_batch(event, units, stream, parts)) for stream in streams]


def test_units_keep_their_part_and_join_at_its_turn_with_the_part_s_rate() -> None:
    """600 groups over 200 units in 4 parts: all within five standard errors (6e-7)."""
    event, repeats, units = BandedGaussian(1.0, 0.3, (1.0, 0.8, 0.7, 0.6)), 600, 200
    drawn = turns(event, units, Secrets(3), repeats)
    member = np.zeros((4, units))
    for group in drawn:
        assert len(group) == 4
        for part, batch in enumerate(group):
            assert np.all(np.diff(batch) > 0)
            member[part, batch] += 1
    assert np.all((member > 0).sum(axis=0) == 1)
    counts, spread = member.sum(axis=0), math.sqrt(repeats * 0.3 * 0.7)
    assert np.all(np.abs(counts - 0.3 * repeats) < 5 * spread)
    sizes = np.array([[len(batch) for batch in group] for group in drawn])
    assert abs(sizes.sum() - 0.3 * repeats * units) < 5 * spread * math.sqrt(units)
    first = [set(group[0].tolist()) for group in drawn]
    assert len({frozenset(batch) for batch in first}) == repeats


def test_parts_are_uniform_and_new_in_each_attempt() -> None:
    """Four parts of 20,000 units: within five standard errors."""
    event, units = BandedGaussian(1.0, 1.0, (1.0, 0.8, 0.7, 0.6)), 20_000
    part = np.zeros((2, units), dtype=int)
    for attempt in range(2):
        ((*batches,),) = turns(event, units, Secrets(attempt), 1)
        assert sorted(np.concatenate(batches).tolist()) == list(range(units))
        for number, batch in enumerate(batches):
            part[attempt, batch] = number
    spread = 5 * math.sqrt(units * 0.25 * 0.75)
    assert np.all(np.abs(np.bincount(part[0]) - units / 4) < spread)
    assert abs((part[0] == part[1]).sum() - units / 4) < spread
    assert abs((part[0, ::2] == part[0, 1::2]).sum() - units / 8) < spread


def test_a_unit_more_moves_no_other_one_to_another_part() -> None:
    event = BandedGaussian(1.0, 1.0, (1.0, 0.8, 0.7))
    before, after = (turns(event, units, Secrets(3), 1)[0] for units in (1000, 1001))
    assert [[unit for unit in batch.tolist() if unit < 1000] for batch in after] == [b.tolist() for b in before]


def test_a_batch_of_a_part_needs_the_parts_of_the_attempt() -> None:
    event = BandedGaussian(1.0, 0.5, (1.0, 0.8))
    for parts in (None, UnitParts(3, 10, Stream(bytes(32)))):
        with pytest.raises(TypeError, match="draws no batch"):
            list(draw_batch(event, 10, Stream(bytes(32)), parts))
    assert UnitParts.deal(PoissonGaussian(0.1, 1.0), 10, Stream(bytes(32))) is None


def test_of_a_dealt_batch_that_is_too_large_a_random_part_stays() -> None:
    """2,000 epochs of 30 units in 3 batches of 11 at most: as many as were dealt up to that, and every unit as often as
    any other, in every batch, within five standard errors (1e-4 for all)."""
    units, most, repeats = 30, 11, 2000
    included = np.zeros((repeats, 3, units))
    for i in range(repeats):
        cut = batches(CappedDealtGaussian(1.0, 3, units, most), units, i)
        whole = batches(DealtGaussian(1.0, 3), units, i)
        for step, (batch, dealt) in enumerate(zip(cut, whole, strict=True)):
            assert len(batch) == min(len(dealt), most)
            assert np.all(np.diff(batch) > 0)
            assert set(batch.tolist()) <= set(dealt.tolist())
            included[i, step, batch] = 1
    rate = included.mean()
    assert rate < 0.97 / 3
    assert np.all(np.abs(included.mean(0) - rate) < 5 * math.sqrt(rate * (1 - rate) / repeats))
    assert len(batches(CappedDealtGaussian(1.0, 3, units, most, 2), units, 0)) == 2


def test_a_unit_more_displaces_one_at_most() -> None:
    """Ties included: of 200 deals with few different priorities, with each unit and without it."""
    generator = np.random.default_rng(0)
    for _ in range(200):
        priorities = generator.integers(5, size=12).astype(np.uint64)
        more = keep_highest(np.arange(12), priorities, 6)
        assert len(more) == 6
        unit = int(generator.integers(12))
        rest = np.delete(np.arange(12), unit)
        fewer = rest[keep_highest(np.arange(11), priorities[rest], 6)]
        assert len(set(fewer.tolist()) - set(more.tolist())) == (unit in more)
        assert set(more.tolist()) - set(fewer.tolist()) <= {unit}
    assert keep_highest(np.array([3, 7]), priorities, 6).tolist() == [3, 7]
    assert keep_highest(np.array([1, 2, 3]), np.array([0, 9, 7, 8], np.uint64), 2).tolist() == [1, 3]


def test_a_random_order_is_cut_into_batches_of_one_size() -> None:
    parts = batches(PermutedGaussian(1000, 60, 16, 1.0), 1000, 0)
    assert [len(part) for part in parts] == [60] * 16
    assert len(set(np.concatenate(parts).tolist())) == 960
    assert all(np.all(np.diff(part) > 0) for part in parts)
    other = batches(PermutedGaussian(1000, 60, 16, 1.0), 1000, 1)
    assert any(a.tolist() != b.tolist() for a, b in zip(parts, other, strict=True))


def test_every_order_is_equally_likely() -> None:
    """24,000 orders of 4 units: 24 of them, each within five standard errors (2e-5 for all)."""
    repeats, stream = 24_000, Secrets(5).stream("sampling", 0)
    actual = Counter(tuple(draw_order(4, stream).tolist()) for _ in range(repeats))
    assert len(actual) == 24
    assert max(abs(count / repeats - 1 / 24) for count in actual.values()) < 5 * math.sqrt(1 / 24 * 23 / 24 / repeats)


def test_words_that_are_equal_are_drawn_again() -> None:
    class Repeating:
        def __init__(self) -> None:
            self.drawn = [np.array([7, 7, 1], np.uint64), np.array([3, 2, 1], np.uint64)]

        def words(self, count: int) -> np.ndarray:
            return self.drawn.pop(0)

    assert draw_order(3, Repeating()).tolist() == [2, 1, 0]  # type: ignore[arg-type]


def test_every_subset_of_one_size_is_equally_likely() -> None:
    """20,000 batches of 3 of 6 units: 20 subsets, each within five standard errors (1e-5 for all)."""
    repeats, actual = 20_000, Counter[tuple[int, ...]]()
    stream = Secrets(3).stream("sampling", 0)
    for _ in range(repeats):
        actual[tuple(draw_subset(3, 6, stream).tolist())] += 1
    assert len(actual) == 20
    assert all(list(batch) == sorted(set(batch)) for batch in actual)
    assert max(abs(count / repeats - 1 / 20) for count in actual.values()) < 5 * math.sqrt(0.05 * 0.95 / repeats)


def test_a_batch_of_a_fixed_size_has_it() -> None:
    for units in (100, 99, 101):  # whatever is declared: one unit more or less than the event speaks of
        (batch,) = batches(FixedSizeGaussian(100, 40, 1.0), units, units)
        assert len(batch) == 40
        assert np.all(np.diff(batch) > 0)
        assert 0 <= batch[0] <= batch[-1] < units
    assert draw_subset(0, 5, Secrets(3).stream("sampling", 1)).tolist() == []
    assert draw_subset(5, 5, Secrets(3).stream("sampling", 1)).tolist() == [0, 1, 2, 3, 4]


def test_a_cut_batch_keeps_a_random_part() -> None:
    """2,000 batches of 20 units at q = 0.5, cut to 8: no more than 8, as many as Poisson's below that, and every unit
    as often as any other, within five standard errors (1e-5 for all)."""
    q, units, most, repeats = 0.5, 20, 8, 2000
    included = np.zeros((repeats, units))
    for i in range(repeats):
        (batch,) = batches(TruncatedPoissonGaussian(q, 1.0, units, most), units, i)
        (whole,) = batches(PoissonGaussian(q, 1.0), units, i)
        assert len(batch) == min(len(whole), most)
        assert np.all(np.diff(batch) > 0)
        assert set(batch.tolist()) <= set(whole.tolist())
        included[i, batch] = 1
    rate = included.mean()
    assert np.all(np.abs(included.mean(0) - rate) < 5 * math.sqrt(rate * (1 - rate) / repeats))


def test_laplace_noise_draws_as_gaussian_noise_does() -> None:
    (batch,) = batches(PoissonLaplace(0.2, 1.0), 1000, 5)
    (same,) = batches(PoissonGaussian(0.2, 1.0), 1000, 5)
    assert np.array_equal(batch, same)
    (everybody,) = batches(PoissonLaplace(1.0, 1.0), 10, 5)
    assert everybody.tolist() == list(range(10))
