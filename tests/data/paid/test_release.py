"""What is released: noise of the claimed scale, constants that are near the truth, and lower bounds from many runs.

Bounds are two intervals of Clopper and Pearson, of 10,000 runs at 1e-6 each, of fewer at 1e-3 each. Seeds are fixed, so
that a test fails for good or never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dprecipe.data.paid import items, release
from dprecipe.data.paid.bounds import ColumnBounds
from dprecipe.data.paid.constants import ItemConstants, MomentConstants, StageConstants
from dprecipe.data.paid.release import (
    PrivateRows,
    release_count,
    release_items,
    release_moments,
    release_projection,
    release_quantiles,
)
from dprecipe.data.paid.rows import UnitRows
from dprecipe.data.paid.schema import DpCategories, DpPca, DpVocabulary
from dprecipe.noise.draws import draw_gaussian
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.noise.lattice import lattice_spacing
from dprecipe.privacy.stages.events import PartitionSelection

RUNS = [pytest.param(250, id="quick"), pytest.param(10_000, id="long", marks=pytest.mark.slow)]


def stream(run: int, seed: int = 0) -> Stream:
    return Secrets(seed).stream("noise", run)


def private(features: Sequence[Sequence[float]], units: Sequence[int] | None = None, **texts: list[str]) -> PrivateRows:
    x = np.array(features, np.float32)
    count = len(next(iter(texts.values()))) if texts else len(x)
    return PrivateRows(lambda i: x[i], UnitRows.of(None if units is None else np.array(units), count), texts)


def bounds(columns: int, low: float = -1.0, high: float = 1.0) -> ColumnBounds:
    return ColumnBounds(np.arange(columns), np.full(columns, low), np.full(columns, high))


def interval(count: int, runs: int) -> tuple[float, float]:
    error = 1e-6 if runs >= 10_000 else 1e-3
    low = stats.beta.ppf(error, count, runs - count + 1) if count else 0.0
    high = stats.beta.ppf(1 - error, count + 1, runs - count) if count < runs else 1.0
    return float(low), float(high)


Score = Callable[[PrivateRows, Stream], float]


def scores(score: Score, rows: PrivateRows, runs: int, seed: int) -> NDArray[np.float64]:
    return np.array([score(rows, stream(run, seed)) for run in range(runs)])


def rates(score: Score, one: PrivateRows, other: PrivateRows, threshold: float, runs: int) -> tuple[float, float]:
    """Of scores above the threshold: a lower bound of their share of `one`, an upper one of that of `other`."""
    above = [int((scores(score, rows, runs, seed) > threshold).sum()) for seed, rows in enumerate((one, other))]
    return interval(above[0], runs)[0], interval(above[1], runs)[1]


def lower_mu(score: Score, one: PrivateRows, other: PrivateRows, threshold: float, runs: int) -> float:
    true, false = rates(score, one, other, threshold, runs)
    return float(stats.norm.ppf(true) - stats.norm.ppf(false))


def check_bound(lower: float, claim: float, runs: int) -> None:
    """Below the claim, and above half of it; of few runs, above a quarter."""
    assert claim / (2 if runs >= 10_000 else 4) < lower < claim


@pytest.mark.parametrize("runs", RUNS)
def test_a_count_costs_what_is_claimed(runs: int) -> None:
    one, other = private([[0.0]] * 9), private([[0.0]] * 8)
    check_bound(lower_mu(lambda rows, s: release_count(rows, 1.0, s).units, one, other, 8.5, runs), 1.0, runs)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("relation", ["remove", "replace", "zero_out"])
def test_moments_cost_what_is_claimed(runs: int, relation: str) -> None:
    """Two columns, a unit of two rows at the bounds: √2 at noise √2 · 1, and twice that where it is replaced."""
    others = [[0.0, 0.0]] * 20
    units = [*range(20), 20, 20]
    one = private([*others, [1.0, 1.0], [1.0, 1.0]], units)
    other = {
        "remove": private(others),
        "replace": private([*others, [-1.0, -1.0], [-1.0, -1.0]], units),
        "zero_out": private([*others, [math.nan, 0.0], [math.nan, 0.0]], units),
    }[relation]
    weight = 1.665 if relation == "replace" else 1.0

    def score(rows: PrivateRows, s: Stream) -> float:
        return 40 * sum(release_moments(rows, bounds(2), 40.0, math.sqrt(2), weight, s).mean)

    replaced = relation == "replace"
    check_bound(lower_mu(score, one, other, 0.0 if replaced else 1.0, runs), 2.0 if replaced else 1.0, runs)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("relation", ["remove", "replace"])
def test_a_projection_costs_what_is_claimed(runs: int, relation: str) -> None:
    """All of the noisy matrix is in eigenvectors and eigenvalues; a unit moves it along (1, 0) or (1, 0) − (0, 1)."""
    step = DpPca(components=2)
    others = [[1.0, 0.0], [0.0, 1.0]] * 3
    one, other = private([*others, [1.0, 0.0]]), private(others if relation == "remove" else [*others, [0.0, 1.0]])

    def score(rows: PrivateRows, s: Stream) -> float:
        constants = release_projection(step, rows, 7.0, 1.0, s)
        basis = constants.matrix.astype(np.float64)
        noisy = 7.0 * basis @ np.diag(constants.eigenvalues) @ basis.T
        return float(noisy[0, 0] - (noisy[1, 1] if relation == "replace" else 0.0))

    replaced = relation == "replace"
    check_bound(lower_mu(score, one, other, 0.0 if replaced else 3.5, runs), math.sqrt(2) if replaced else 1.0, runs)


@pytest.mark.parametrize("runs", RUNS)
def test_a_quantile_costs_what_is_claimed(runs: int) -> None:
    """Of the median, ε₀ = β: no event's probability changes by more than tanh(ε₀/4), this one's by nearly as much."""
    one, other = private([[0.0]] * 20 + [[-1.0]]), private([[0.0]] * 20)
    beta = 1.0 if runs >= 10_000 else 3.0

    def score(rows: PrivateRows, s: Stream) -> float:
        # The other level is always drawn above 0, so the lower end is below 0 where the median is.
        return -release_quantiles(rows, bounds(1), (0.5, 0.999), (beta, 5.0), s).low[0]

    true, false = rates(score, one, other, 0.0, runs)
    check_bound(true - false, math.tanh(beta / 4), runs)


@pytest.mark.parametrize("runs", RUNS)
@pytest.mark.parametrize("relation", ["replace", "zero_out"])
def test_a_quantile_costs_what_is_claimed_where_units_stay(runs: int, relation: str) -> None:
    """A unit of three rows goes from -1 to 1 and the range is 2β, or is blanked out, as if it had left."""
    units = [*range(20), 20, 20, 20]
    one = private([[0.0]] * 20 + [[-1.0]] * 3, units)
    other = private([[0.0]] * 20 + [[1.0 if relation == "replace" else math.nan]] * 3, units)
    beta = 1.0 if runs >= 10_000 else 3.0

    def score(rows: PrivateRows, s: Stream) -> float:
        return -release_quantiles(rows, bounds(1), (0.5, 0.999), (beta, 5.0), s).low[0]

    true, false = rates(score, one, other, 0.0, runs)
    check_bound(true - false, math.tanh(beta / 2 if relation == "replace" else beta / 4), runs)


@pytest.mark.parametrize("runs", RUNS)
def test_words_of_a_unit_cost_what_is_claimed_however_many_rows_it_has(runs: int) -> None:
    """k = 4 words of a unit of five rows. Any of those that nobody else has is told with the leak of all four together.
    Of those that others use, four counts move by 1 under noise of √4: at least three reach the threshold more often."""
    step = DpVocabulary(column="t", width=16, max_items=4, noise_multiplier=1.0)
    event = PartitionSelection.with_leak(4, 0.2, 1.0)
    assert event.noise_scale == 2.0
    others, units = ["north east south west"] * 8, [*range(8), 8, 8, 8, 8, 8]

    def words(rows: PrivateRows, s: Stream, threshold: float) -> set[str]:
        return set(release_items(step, rows, event.noise_scale, threshold, s).items[0])

    own = private([], units, t=[*others, "ash", "birch ash", "cedar", "birch", "dogwood"])
    told = int(scores(lambda r, s: float(bool(words(r, s, event.threshold) & TREES)), own, runs, 0).sum())
    low, high = interval(told, runs)
    check_bound(low, 0.2, runs)
    assert high > 0.2
    shared = private([], units, t=[*others, "north", "east north", "south", "south", "west"])
    for other in (private([], t=others), own):  # it leaves, or has other words
        count = lower_mu(lambda r, s: len(words(r, s, 8.5) - TREES), shared, other, 2.5, runs)
        assert (0.5 if runs >= 10_000 else 0.1) < count < 1.0


TREES = {"ash", "birch", "cedar", "dogwood"}


@pytest.mark.parametrize("runs", RUNS)
def test_items_cost_what_is_claimed(runs: int) -> None:
    """An item that nobody else has is released with the chance of the leak; one of others moves its count by 1."""
    step = DpCategories(columns=("c",), width=4, noise_multiplier=1.0)

    def score(rows: PrivateRows, s: Stream, item: str, threshold: float) -> float:
        return float(item in release_items(step, rows, 1.0, threshold, s).items[0])

    leak = 0.2
    threshold = 1 + float(stats.norm.isf(leak))
    one, other = private([], c=["a"] * 8 + ["mine"]), private([], c=["a"] * 8)
    count = int(scores(lambda r, s: score(r, s, "mine", threshold), one, runs, 0).sum())
    low, high = interval(count, runs)
    check_bound(low, leak, runs)
    assert leak < high
    assert not scores(lambda r, s: score(r, s, "mine", threshold), other, 100, 1).any()
    more = private([], c=["a"] * 9)
    check_bound(lower_mu(lambda r, s: score(r, s, "a", 8.5), more, other, 0.5, runs), 1.0, runs)


def test_noise_has_the_scale_that_is_asked_for() -> None:
    """400 releases: standard deviations within 18 % are 5 of theirs; and normal, by Kolmogorov and Smirnov at 1e-6."""
    rows = private(np.zeros((10, 3)).tolist())
    result: dict[str, list[float]] = {"mean": [], "square": [], "diagonal": [], "off": [], "count": []}
    for run in range(400):
        moments = release_moments(rows, bounds(3, -1000.0, 1000.0), 1e4, 5.0, 1.665, stream(run))
        result["mean"].append(moments.mean[0] * 10 / 5)
        constants = release_projection(DpPca(components=3), rows, 1.0, 2.0, stream(run))
        basis = constants.matrix.astype(np.float64)
        noisy = basis @ np.diag(constants.eigenvalues) @ basis.T
        result["diagonal"].append(noisy[1, 1] / 2)
        result["off"].append(noisy[0, 2] / math.sqrt(2))
        result["count"].append((release_count(rows, 3.0, stream(run)).units - 10) / 3)
    for name in ("mean", "diagonal", "off", "count"):
        assert stats.kstest(result[name], "norm").pvalue > 1e-6, name
        assert abs(np.std(result[name]) - 1) < 0.18, name


def test_constants_are_near_the_truth_where_there_is_much_data() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(20_000, 3)) * [1.0, 2.0, 0.3] + [0.5, -1.0, 2.0]).astype(np.float32)
    rows = PrivateRows(lambda i: x[i], UnitRows.of(None, len(x)))
    moments = release_moments(rows, bounds(3, -10.0, 10.0), len(x), 4 * math.sqrt(3), 1.0, stream(0))
    np.testing.assert_allclose(moments.mean, x.mean(0), atol=0.02)
    np.testing.assert_allclose(np.square(moments.std), x.var(0), atol=0.25)
    ends = release_quantiles(rows, bounds(3, -100.0, 100.0), (0.1, 0.9), (0.05, 0.05), stream(1))
    np.testing.assert_allclose([ends.low, ends.high], np.quantile(x, [0.1, 0.9], axis=0), atol=0.05)
    constants = release_projection(DpPca(components=2, row_norm=9.0), rows, len(x), 4.0, stream(2))
    y = x / np.maximum(9.0, np.linalg.norm(x, axis=1))[:, None]
    values, vectors = np.linalg.eigh(y.T.astype(np.float64) @ y / len(x))
    np.testing.assert_allclose(constants.eigenvalues, values[::-1][:2], atol=0.005)
    assert (abs((vectors[:, ::-1][:, :2] * constants.matrix).sum(0)) > 0.99).all()


def test_columns_are_read_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = private(np.random.default_rng(0).uniform(-1, 1, (50, 5)).tolist())
    expected = release_quantiles(rows, bounds(5), (0.1, 0.9), (0.5, 0.5), stream(1))
    for columns in (1, 2, 4):
        monkeypatch.setattr(release, "COLUMN_BYTES", 4 * 50 * columns)
        assert release_quantiles(rows, bounds(5), (0.1, 0.9), (0.5, 0.5), stream(1)) == expected


def test_units_count_once_however_many_rows_they_have() -> None:
    x = np.concatenate([np.full((5000, 1), 1.0), np.full((500, 1), -1.0)]).astype(np.float32)
    units = np.concatenate([np.zeros(5000, np.int64), np.arange(1, 501)])
    rows = PrivateRows(lambda i: x[i], UnitRows.of(units, len(x)))
    assert release_moments(rows, bounds(1), 501.0, 1.0, 1.0, stream(0)).mean[0] < -0.9
    assert release_quantiles(rows, bounds(1), (0.5, 0.9), (1.0, 1.0), stream(0)).high[0] < 0.999999
    assert abs(release_count(rows, 1.0, stream(0)).units - 501) < 8


def test_explained_keeps_few_components_and_the_declared_width() -> None:
    x = np.zeros((4000, 5), np.float32)
    x[:2000, 0], x[2000:3500, 1], x[3500:, 2] = 1.0, 1.0, 1.0
    rows = PrivateRows(lambda i: x[i], UnitRows.of(None, len(x)))
    constants = release_projection(DpPca(components=4, explained=0.8), rows, len(x), 4.0, stream(0))
    assert constants.matrix.shape == (5, 4)
    assert [bool(column.any()) for column in constants.matrix.T] == [True, True, False, False]
    assert constants.eigenvalues[2:] == (0.0, 0.0)


@pytest.mark.parametrize("end", [0, 1])
def test_a_mean_at_a_bound_is_released_whatever_the_bounds_round_to(end: int) -> None:
    """A mean beyond its bound by rounding would be refused after the noise was drawn, and the budget lost."""
    rng = np.random.default_rng(0)
    for run in range(200):
        low = round(float(rng.normal(0, 5)), 2)
        ends = (low, low + round(float(rng.uniform(0.1, 5)), 3))
        rows = private([[ends[end]]] * 20)
        constants = release_moments(rows, bounds(1, *ends), 10.0, 0.01, 1.0, stream(run))
        assert isinstance(constants, MomentConstants)
        assert constants.mean == pytest.approx((ends[end],))


@pytest.mark.parametrize("outlier", [1e6, -3e38, math.inf, math.nan])
def test_an_outlier_moves_what_is_drawn_by_the_sensitivity_at_most(
    outlier: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise on sums of 1,000 short rows, and of one more that lies far outside of norm and bounds."""
    rows = np.random.default_rng(0).normal(size=(1000, 3))
    rows *= 0.1 / np.linalg.norm(rows, axis=1, keepdims=True)
    drawn: dict[str, list[NDArray[np.float64]]] = {"pca": [], "moments": []}

    def keep(kind: str, compute: Callable[..., tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Callable[..., Any]:
        def kept(noisy: NDArray[np.float64], *rest: Any) -> Any:
            drawn[kind].append(noisy)
            return compute(noisy, *rest)

        return kept

    monkeypatch.setattr(release.covariance, "top_components", keep("pca", release.covariance.top_components))
    monkeypatch.setattr(release.moments, "estimate_scale", keep("moments", release.moments.estimate_scale))
    for data in (rows, [*rows, [outlier, 0.0, 0.0]]):
        step = DpPca(components=2, row_norm=1.0, noise_multiplier=5.0)
        constants = release_projection(step, private(data), 1000, 5.0, stream(0))
        assert np.isfinite(constants.matrix).all()
        moved = release_moments(private(data), bounds(3), 1000, 5.0, 1.0, stream(0))
        assert np.isfinite([*moved.mean, *moved.std]).all()
    slack = 1e-6
    pca, moments = (float(np.linalg.norm(other - one)) for one, other in drawn.values())
    assert pca <= 1 + slack
    assert moments <= math.sqrt(3) + slack
    if math.isfinite(outlier):
        assert pca > 0.99
        assert moments > 0.99


def test_quantiles_that_meet_give_way_to_the_bounds() -> None:
    rows = private([[0.5]] * 3000)
    narrow = release_quantiles(private([[0.5]] * 3000), bounds(1), (0.4999999, 0.5), (1e-9, 1e-9), stream(0))
    assert narrow.low[0] < narrow.high[0]
    result = [release_quantiles(rows, bounds(1), (0.02, 0.98), (5.0, 5.0), stream(run)) for run in range(20)]
    assert all(constants.low[0] < constants.high[0] for constants in result)


def items_of(constants: StageConstants) -> tuple[tuple[str, ...], ...]:
    assert isinstance(constants, ItemConstants)
    return constants.items


def test_rounding_lifts_no_item_over_the_threshold() -> None:
    """The leak that is accounted is that of the number before it is rounded to the noise's lattice."""
    step, rows, scale = DpCategories(columns=("city",), width=9), private([], city=["Ghent"]), 300.0
    lifted = 0
    for run in range(20):
        source = stream(run, 7)
        source.words(items.KEY_BYTES // 8)
        number = 1.0 + scale * float(draw_gaussian(source, 1)[0])
        spacing = lattice_spacing(scale)
        rounded = round(number / spacing) * spacing
        if 0 < number < rounded:
            lifted += 1
            result = release_items(step, rows, scale, (number + rounded) / 2, stream(run, 7))
            assert result.items == ((),)
    assert lifted > 2


def test_items_are_in_the_order_of_their_text_and_at_most_the_width() -> None:
    values = [f"v{number:02}" for number in range(30) for _ in range(100 + 10 * number)]
    values += ["x" * 257, "", "\udcff"] * 500
    step = DpCategories(columns=("c",), width=10)
    (result,) = items_of(release_items(step, private([], c=values), 1.0, 50.0, stream(0)))
    assert result == tuple(f"v{number:02}" for number in range(20, 30))
    shuffled = np.random.default_rng(0).permutation(values).tolist()
    assert items_of(release_items(step, private([], c=shuffled), 1.0, 50.0, stream(0))) == (result,)


def test_words_of_a_vocabulary_and_several_columns() -> None:
    texts = ["Free money, free!", "hello"] * 200
    step = DpVocabulary(column="t", width=8, max_items=3)
    assert items_of(release_items(step, private([], t=texts), 1.0, 30.0, stream(0))) == (("free", "hello", "money"),)
    both = DpCategories(columns=("a", "b"), width=8)
    rows = private([], a=["x"] * 100, b=["y", "z"] * 50)
    assert items_of(release_items(both, rows, 1.0, 20.0, stream(0))) == (("x",), ("y", "z"))


def test_the_same_stream_gives_the_same_constants_and_another_one_others() -> None:
    rows = private([[0.1, 0.2], [0.3, 0.4]])
    first, again, other = (release_moments(rows, bounds(2), 2.0, 1.0, 1.0, stream(run)) for run in (0, 0, 1))
    assert first == again != other
