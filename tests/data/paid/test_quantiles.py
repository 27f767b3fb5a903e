from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.paid import quantiles
from dprecipe.data.paid.quantiles import (
    FARTHEST,
    GRID_BITS,
    Intervals,
    Ranks,
    draw_below,
    draw_quantile,
    rank_values,
)
from dprecipe.data.paid.rows import UnitRows
from dprecipe.noise.entropy import Secrets, Stream

GOLDEN = json.loads((Path(__file__).parent / "quantiles.json").read_text())


def stream(seed: int = 1) -> Stream:
    return Secrets(seed).stream("noise", 1)


def ranks_of(values: list[float], units: list[int] | None = None, low: float = 0.0, high: float = 10.0) -> Ranks:
    ids = None if units is None else np.array(units)
    return rank_values(np.array(values, np.float32), UnitRows.of(ids, len(values)), low, high)


def interval_weights(ranks: Ranks, level: float, rank_weight: float) -> tuple[list[int], list[int]]:
    """The first candidate of each interval, and its whole weight."""
    intervals = Intervals(ranks, level, rank_weight)
    return intervals.first.tolist(), intervals.weights(slice(0, len(intervals)))


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_probabilities_of_intervals(case: dict[str, object]) -> None:
    """Reference values of the continuous mechanism. Values in single precision move an interval's ends by 1e-7 of them,
    the grid by 1e-10, and β is smaller by 1e-6."""
    given = case["inputs"]
    first, weights = interval_weights(ranks_of(given["x"], None, given["lo"], given["hi"]), given["q"], given["beta"])
    total = sum(weights)
    np.testing.assert_allclose([weight / total for weight in weights], case["value"], rtol=2e-5)
    assert first == sorted(first)


def log_masses(ranks: Ranks, level: float, beta: float) -> list[tuple[int, float]]:
    """The first candidate of each piece, and the log probability of one candidate in it."""
    first, weights = interval_weights(ranks, level, beta)
    total = sum(weights)
    ends = [*first[1:], (1 << GRID_BITS) + 1]
    return [
        (start, math.log(weight / (end - start)) - math.log(total))
        for start, end, weight in zip(first, ends, weights, strict=True)
        if end > start
    ]


def loss_range(one: Ranks, other: Ranks, level: float, beta: float) -> tuple[float, float]:
    """The smallest and the largest log ratio over all candidates: both are constant on the common pieces."""
    p, q = log_masses(one, level, beta), log_masses(other, level, beta)
    losses = []
    for start in sorted({first for first, _ in p} | {first for first, _ in q}):
        (a,) = [mass for first, mass in p if first <= start][-1:]
        (b,) = [mass for first, mass in q if first <= start][-1:]
        losses.append(a - b)
    return min(losses), max(losses)


@pytest.mark.parametrize("level", [0.02, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("beta", [0.1, 2.0])
def test_the_range_of_losses_is_attained_and_never_exceeded(level: float, beta: float) -> None:
    rng = np.random.default_rng(int(100 * level) + int(beta))
    widest = {"remove": 0.0, "replace": 0.0}
    for trial in range(60):
        sizes = rng.choice([1, 1, 2, 5], rng.integers(1, 9))
        units = np.repeat(np.arange(len(sizes)), sizes)
        if trial % 3:
            values = rng.uniform(-1, 11, len(units))
        else:
            values = rng.choice([0.0, 5.0, 10.0, math.nan, math.inf], len(units))
        whole = ranks_of(list(values), list(units))
        mine = units == len(sizes) - 1
        removed = ranks_of(list(values[~mine]), list(units[~mine]))
        for place in (0.0, 10.0, math.nan, *rng.uniform(0, 10, 2)):
            changed = ranks_of(list(np.where(mine, place, values)), list(units))
            for kind, other in (("remove", removed), ("replace", changed)):
                low, high = loss_range(whole, other, level, beta)
                widest[kind] = max(widest[kind], high - low)
                allowed = 2 * beta * (max(level, 1 - level) if kind == "remove" else 1.0)
                assert high - low <= allowed
                assert low <= 1e-12 and high >= -1e-12  # noqa: PT018
    if level == 0.5:
        assert widest["remove"] > (2 * beta * 0.5) * (1 - 1e-5)
    crafted = loss_range(ranks_of([10.0]), ranks_of([0.0]), level, beta)
    assert crafted[1] - crafted[0] <= 2 * beta


def test_the_range_is_attained_by_a_unit_that_leaves() -> None:
    for level in (0.25, 0.5, 0.75):
        edge = 10.0 if level <= 0.5 else 0.0
        others = [5.0] * 40
        ranges = []
        for place in (0.0, 10.0, edge):
            low, high = loss_range(ranks_of([*others, place]), ranks_of(others), level, 0.1)
            ranges.append(high - low)
        assert max(ranges) <= 0.2 * max(level, 1 - level)
        assert max(ranges) > 0.2 * max(level, 1 - level) * 0.999


def test_every_candidate_can_be_drawn_of_every_data_set() -> None:
    first, weights = interval_weights(ranks_of([1.0] * 5000 + [9.0] * 5000), 0.5, 50.0)
    ends = [*first[1:], (1 << GRID_BITS) + 1]
    each = [weight / (end - start) for start, end, weight in zip(first, ends, weights, strict=True) if end > start]
    assert min(each) > 0
    assert max(each) / min(each) == pytest.approx(math.exp(FARTHEST), rel=1e-9)


def test_equal_values_have_no_interval_between_them() -> None:
    first, weights = interval_weights(ranks_of([3.0, 3.0, 3.0]), 0.5, 1.0)
    assert len(first) == 2
    assert all(weight > 0 for weight in weights)


def test_rows_of_a_unit_share_its_weight() -> None:
    one = ranks_of([1.0, 2.0, 4.0, 4.0], [0, 0, 0, 1])
    assert one.weights.tolist() == [(1 << 30) // 3, (1 << 30) // 3, (1 << 30) // 3 + (1 << 30)]
    assert ranks_of([math.nan, 4.0], [0, 0]).weights.tolist() == [1 << 29]


@pytest.mark.parametrize("units", [None, 30])
def test_parts_and_blocks_change_nothing(units: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.default_rng(0)
    values = np.round(drawn.normal(5, 4, 200), 1).tolist()
    ids = None if units is None else drawn.integers(0, units, 200).tolist()
    values[3], values[7] = math.nan, math.inf

    def draw() -> tuple[list[int], list[int], list[float]]:
        ranks, secret = ranks_of(values, ids), stream()
        draws = [
            draw_quantile(ranks, level, 0.1, 0.0, 10.0, secret) for level in (0.0, 0.3, 0.9, 1.0) for _ in range(9)
        ]
        return ranks.cells.tolist(), ranks.weights.tolist(), draws

    expected = draw()
    sizes = np.ones(200, int) if ids is None else np.bincount(ids)[ids]
    weights: dict[int, int] = {}
    for value, size in zip(values, sizes.tolist(), strict=True):
        if math.isfinite(value):
            cell = int(min(max(np.float32(value).item(), 0.0), 10.0) / 2 / 5 * 2**32)
            weights[cell] = weights.get(cell, 0) + (1 << 30) // size
    assert expected[:2] == (sorted(weights), [weights[cell] for cell in sorted(weights)])
    for rows, block in ((7, 3), (1, 1), (1000, 5)):
        monkeypatch.setattr(quantiles, "RANKED_ROWS", rows)
        monkeypatch.setattr(quantiles, "BLOCK", block)
        assert draw() == expected


def test_draws_follow_the_probabilities() -> None:
    """A χ² test of 4,000 draws over the intervals at 1e-6; the seed is fixed, so that it fails for good or never."""
    from scipy import stats

    values = [0.7, 1.9, 2.2, 6.5, 6.6, 8.0]
    ranks, source = ranks_of(values), stream(3)
    drawn = [draw_quantile(ranks, 0.3, 0.5, 0.0, 10.0, source) for _ in range(4000)]
    _, weights = interval_weights(ranks, 0.3, 0.5)
    expected = np.array([weight / sum(weights) for weight in weights]) * len(drawn)
    counts = np.histogram(drawn, [0.0, *np.float32(values), 10.0 + 1e-9])[0]
    assert stats.chisquare(counts, expected).pvalue > 1e-6
    inside = [x for x in drawn if 2.2 < x < 6.5]
    assert stats.kstest(inside, stats.uniform(2.2, 4.3).cdf).pvalue > 1e-6


def test_much_data_gives_the_quantile() -> None:
    values = np.random.default_rng(0).normal(50, 10, 20_000)
    ranks = ranks_of(list(values), None, 0.0, 1000.0)
    for level in (0.02, 0.5, 0.98):
        result = draw_quantile(ranks, level, 0.1, 0.0, 1000.0, stream())
        assert abs((values < result).mean() - level) < 0.01


def test_no_value_at_all_gives_any_candidate() -> None:
    drawn = [draw_quantile(ranks_of([math.nan]), 0.5, 1.0, -3.0, 5.0, stream(seed)) for seed in range(50)]
    assert min(drawn) < -1 < 3 < max(drawn)
    assert all(-3 <= x <= 5 for x in drawn)


def test_whole_numbers_below_a_bound_have_no_bias() -> None:
    """3,000 draws below 3 · 2^70: each third 1000, give or take 6 standard deviations of 25.8 (3 · 2e-9)."""
    source, bound = stream(5), 3 << 70
    drawn = [draw_below(bound, source) for _ in range(3000)]
    counts = np.bincount([x >> 70 for x in drawn], minlength=3)
    assert len(counts) == 3
    assert (abs(counts - 1000) < 6 * 25.9).all()
    assert draw_below(1, source) == 0
    with pytest.raises(ValueError, match="expected a bound"):
        draw_below(0, source)
