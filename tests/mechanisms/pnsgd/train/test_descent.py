"""The engine: what it computes, where it stays, what it visits, and the distribution of what it adds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train import descent as engine
from dprecipe.mechanisms.pnsgd.train.descent import Descent, Noise, Objective, State
from dprecipe.mechanisms.pnsgd.train.losses import Huber, Logistic, Loss, SmoothHinge, Softmax, Squared
from dprecipe.mechanisms.pnsgd.train.run import DeviceBackend
from dprecipe.mechanisms.pnsgd.train.sets import Ball, Box, Simplex
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from tests.sweeps import sweep

RECORDS, FEATURES = 47, 6


@dataclass
class Source:
    """Records in memory that remember which were asked for."""

    features: np.ndarray
    labels: np.ndarray
    asked: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Any) -> tuple[np.ndarray, np.ndarray]:
        self.asked += np.arange(len(self))[indices].tolist()
        return self.features[indices], self.labels[indices]


LOGISTIC = Logistic()


def source(loss: Loss = LOGISTIC, count: int = RECORDS, width: int = FEATURES, seed: int = 0) -> Source:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count, width)).astype(np.float32)
    regression = isinstance(loss, Squared | Huber)
    labels = generator.uniform(-1, 1, count) if regression else generator.integers(2, size=count)
    return Source(features, labels.astype(np.float32) if regression else labels)


def objective(loss: Loss = LOGISTIC, **changes: Any) -> Objective:
    known: dict[str, Any] = {"width": FEATURES, "bias": True, "feature_norm": 2.0, "l2": 0.1, "within": Ball(1.0)}
    return Objective(loss, **{**known, **changes})


def on_simplex(w: np.ndarray, total: float) -> np.ndarray:
    """By bisection on θ: max(w - θ, 0) adds up to the total."""
    low, high = w.min() - total, w.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(w - middle, 0).sum() > total else (low, middle)
    return np.maximum(w - high, 0)


def reference(
    to: Objective, records: Source, stages: list[Stage], batch: int, noise: Noise, order: np.ndarray, stop: int
) -> Iterator[np.ndarray]:
    """The algorithm as it is written down, on rows whose norm the objective's bound does not reach, step by step."""
    x = np.hstack([records.features.astype(np.float64)[:, : to.width], np.ones((len(records), int(to.bias)))])
    y, w = to.loss.targets(records.labels), to.start()
    batches = [order[first : first + batch] for first in range(0, len(order), batch)]
    for step, stage in enumerate([each for each in stages for _ in range(each.steps)][:stop]):
        slopes = [
            (to.loss.slope(np.dot(x[i : i + 1], w.T), y[i : i + 1])[0], x[i]) for i in batches[step % len(batches)]
        ]
        mean = sum(np.multiply.outer(slope, row) if np.ndim(slope) else slope * row for slope, row in slopes) / batch
        z = stage.noise_scale * noise.of(step, 1)[0].reshape(w.shape)
        w = w - stage.learning_rate * (mean + to.l2 * w + z)
        within = to.within
        if isinstance(within, Ball):
            centre = 0.0 if within.centre is None else within.centre
            w = centre + (w - centre) * min(1.0, within.radius / np.linalg.norm(w - centre))
        elif isinstance(within, Box):
            w = np.clip(w, within.low, within.high)
        else:
            w = on_simplex(w, within.total)
        yield w


CASES: list[tuple[Loss, int, dict[str, Any]]] = [
    (Logistic(), 1, {}),
    (Logistic(), 1, {"bias": False, "l2": 0.0, "within": Box(-0.3, 0.3)}),
    (Logistic(), 8, {}),
    (SmoothHinge(0.5), 1, {"within": Ball(5.0)}),
    (SmoothHinge(0.5), 47, {"within": Box(-0.2, 0.2)}),
    (Squared(), 1, {}),
    (Squared(), 10, {"bias": False}),
    (Huber(0.3), 1, {"l2": 0.0}),
    (Softmax(3), 1, {}),
    (Softmax(3), 9, {"within": Ball(0.5)}),
    (Squared(), 1, {"width": 0, "within": Box(-0.5, 0.5), "l2": 0.0}),
    (Huber(0.3), 5, {"width": 0, "within": Box(-0.5, 0.5), "l2": 0.0}),
    (Logistic(), 1, {"within": Ball(1.0, np.full(FEATURES + 1, 0.4))}),
    (Logistic(), 1, {"within": Simplex(0.7)}),
    (Logistic(), 8, {"within": Box(np.linspace(-0.2, 0.1, FEATURES + 1), np.linspace(-0.1, 0.5, FEATURES + 1))}),
    (Softmax(3), 9, {"within": Simplex(3.0)}),
]


@pytest.mark.parametrize("numbers", sweep([1 << 17, 60, 8], (0, 1)), ids=lambda n: f"blocks of {n}")
@pytest.mark.parametrize(("loss", "batch", "changes"), CASES, ids=lambda v: repr(v))
def test_every_step_is_the_one_written_down(
    loss: Loss, batch: int, changes: dict[str, Any], numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "NUMBERS", numbers)
    to, records = objective(loss, feature_norm=100.0, **changes), source(loss)
    batches = -(-RECORDS // batch)
    stages = [Stage(batches + 1, 0.5, 0.3), Stage(batches, 0.2, 0.3), Stage(batches, 0.2, 0.1)]
    steps, parameters = sum(stage.steps for stage in stages) - 1, math.prod(to.shape)
    state = State.fresh(to.start(), RECORDS, steps, Secrets(4), permuted=True, random_stop=False)
    assert state.order is not None
    expected = reference(
        to, records, stages, batch, Noise(Distribution("gaussian"), Secrets(1), parameters), state.order, steps
    )
    descents = {
        "numpy": Descent(to, stages, batch, records, Noise(Distribution("gaussian"), Secrets(1), parameters), state),
        "torch": Descent(
            to, stages, batch, records, Noise(Distribution("gaussian"), Secrets(1), parameters),
            State(to.start(), 0, steps, state.order), DeviceBackend(to, torch.device("cpu")),
        ),
    }  # fmt: skip
    for step, w in enumerate(expected, 1):
        for name, descent in descents.items():
            descent.advance(1)
            assert descent.step == step
            assert np.abs(descent.state.iterate - w).max() < 1e-10, (name, step)
    assert all(descent.state.finished for descent in descents.values())
    whole = State(to.start(), 0, steps, state.order)
    descent = Descent(to, stages, batch, records, Noise(Distribution("gaussian"), Secrets(1), parameters), whole)
    while not whole.finished:
        descent.advance()
    assert np.abs(descent.state.iterate - descents["numpy"].state.iterate).max() < 1e-10


@pytest.mark.parametrize(("loss", "batch"), [(Logistic(), 1), (Logistic(), 8), (Softmax(3), 4)])
@pytest.mark.parametrize("cut", [0, 1, 13, 40])
def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(
    loss: Loss, batch: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same noise for the same step, to the last bit: blocks of 5 steps and more, cut anywhere."""
    to, records, stages = objective(loss), source(loss), [Stage(40, 0.5, 0.3), Stage(40, 0.4, 0.2)]
    monkeypatch.setattr(engine, "NUMBERS", 5 * math.prod(to.shape))

    def run(state: State, until: int) -> State:
        descent = Descent(
            to, stages, batch, records, Noise(Distribution("gaussian"), Secrets(2), math.prod(to.shape)), state
        )
        while descent.step < until:
            descent.advance(until - descent.step)
        return descent.state

    order = np.random.default_rng(0).permutation(RECORDS)
    whole = run(State(to.start(), 0, 80, order), 80)
    part = run(State(to.start(), 0, 80, order), cut)
    again = run(State(part.iterate, part.step, 80, order), 80)
    assert (again.iterate == whole.iterate).all()


@pytest.mark.parametrize(
    ("batch", "changes"),
    [
        (1, {}),
        (1, {"within": Box(-0.1, 0.1)}),
        (1, {"within": Box(0.2, 0.5)}),
        (1, {"within": Simplex(2.0)}),
        (8, {"within": Simplex(0.5)}),
        (8, {}),
        (47, {}),
    ],
)
@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=repr)
def test_every_iterate_lies_in_the_set(loss: Loss, batch: int, changes: dict[str, Any]) -> None:
    to, stages = objective(loss, **changes), [Stage(200, 0.7, 1.0)]
    parameters = math.prod(to.shape)
    state = State(to.start(), 0, 200, None)
    descent = Descent(to, stages, batch, source(loss), Noise(Distribution("gaussian"), Secrets(3), parameters), state)
    reached = 0
    while not state.finished:
        descent.advance(1)
        w = descent.state.iterate
        within = to.within
        if isinstance(within, Box):
            assert ((w >= within.low) & (w <= within.high)).all()
            reached += bool(((w == within.low) | (w == within.high)).any())
        elif isinstance(within, Ball):
            distance = np.linalg.norm(w - (0.0 if within.centre is None else within.centre))
            assert distance <= within.radius
            reached += bool(distance > within.radius * (1 - 1e-9))
        else:
            assert (w >= 0).all()
            assert w.sum() == pytest.approx(within.total, rel=1e-12)
            reached += bool((w == 0).any())
    assert reached > 100  # the noise is large: it was the projection that kept it there


@settings(max_examples=200, deadline=None)
@given(
    w=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    size=st.floats(1e-3, 1e3),
    box=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_projection_is_the_nearest_point(w: list[float], size: float, box: bool, seed: int) -> None:
    to = objective(width=len(w), bias=False, within=Box(-size, size) if box else Ball(size))
    outside, inside = np.array(w), np.array(w)
    to.project(inside)
    norm = np.abs(inside).max() if box else np.linalg.norm(inside)
    assert norm <= size
    moved = float(np.linalg.norm(outside - inside))
    if (np.abs(outside).max() if box else np.linalg.norm(outside)) <= size * (1 - 1e-11):
        assert moved == 0.0
    other = np.random.default_rng(seed).normal(size=len(w))
    other *= size / (np.abs(other).max() if box else np.linalg.norm(other))
    assert float(np.dot(outside - inside, other - inside)) <= 1e-9 * size * (moved + size)


@pytest.mark.parametrize("permuted", [False, True])
@pytest.mark.parametrize("batch", [1, 8, 47])
def test_a_pass_visits_each_record_once(batch: int, permuted: bool) -> None:
    to, records, batches = objective(), source(), -(-RECORDS // batch)
    state = State.fresh(to.start(), RECORDS, 3 * batches, Secrets(), permuted=permuted, random_stop=False)
    descent = Descent(
        to,
        [Stage(3 * batches, 0.1, 0.1)],
        batch,
        records,
        Noise(Distribution("gaussian"), Secrets(), FEATURES + 1),
        state,
    )
    ends = 0
    while not state.finished:
        descent.advance()
        ends += descent.pass_ended
    order = list(range(RECORDS)) if state.order is None else state.order.tolist()
    assert records.asked == 3 * order
    assert sorted(order) == list(range(RECORDS))
    assert (state.order is not None) == permuted
    assert ends == 3


def test_orders_and_stops_are_uniform() -> None:
    """χ² of 6 orders of 3 records, and of 5 stops, over 6,000 draws: above these values once in 10^7 runs (5 and 4
    degrees of freedom)."""
    orders, stops = np.zeros(6), np.zeros(5)
    for _ in range(6000):
        state = State.fresh(np.zeros(1), 3, 5, Secrets(), permuted=True, random_stop=True)
        assert state.order is not None
        orders[2 * state.order[0] + (state.order[1] > state.order[2])] += 1
        assert 1 <= state.stop <= 5
        stops[state.stop - 1] += 1
    assert ((orders - 1000) ** 2 / 1000).sum() < 41.0
    assert ((stops - 1200) ** 2 / 1200).sum() < 38.2
    last = State.fresh(np.zeros((2, 3)), 3, 5, Secrets(), permuted=False, random_stop=False)
    assert (last.stop, last.order, last.iterate.shape) == (5, None, (2, 3))


@pytest.mark.parametrize("family", ["gaussian", "laplace"])
@pytest.mark.parametrize("batch", [1, 4])
def test_steps_get_independent_noise_of_their_stages_scale(
    family: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step moves beyond its gradient, over -ησ. The distance of the empirical distribution passes 3.3/√n once in
    10^9 runs; a correlation of n pairs passes 6/√n as seldom (Laplace: its products have heavier tails, so 8/√n)."""
    monkeypatch.setattr(engine, "NUMBERS", 70)  # blocks of some ten steps
    to, records, stages = objective(within=Ball(1e9)), source(), [Stage(1500, 0.5, 0.3), Stage(1500, 0.25, 2.0)]
    noise = Noise(Distribution(family), Secrets(), FEATURES + 1)
    state = State(to.start(), 0, 3000, None)
    descent = Descent(to, stages, batch, records, noise, state)
    drawn = []
    while not state.finished:
        w, step = descent.state.iterate, descent.step
        stage, batches = stages[step // 1500], -(-RECORDS // batch)
        first = step % batches * batch
        x, y = to.rows(*records.batch(slice(first, first + batch)))
        still = w * (1 - stage.learning_rate * to.l2) - stage.learning_rate / batch * to.gradient(w, x, y)
        descent.advance(1)
        drawn.append((descent.state.iterate - still) / (stage.learning_rate * stage.noise_scale))
    z = np.array(drawn)
    for half in (z[:1500], z[1500:]):
        values = np.sort(half.ravel())
        ranks = np.arange(len(values) + 1) / len(values)
        cdf = Distribution(family).cdf(values)
        assert max((cdf - ranks[:-1]).max(), (ranks[1:] - cdf).max()) < 3.3 / math.sqrt(len(values))
    scaled = z / Distribution(family).standard_deviation
    for gap in (1, noise.block, 1500):
        product = (scaled[gap:] * scaled[:-gap]).ravel()
        assert abs(product.mean()) < 8 / math.sqrt(len(product))


def test_rows_are_bounded_whatever_comes() -> None:
    to = objective(feature_norm=2.0)
    features = np.array([[1e30] * 6, [0.1] * 6, [np.nan, 0, 0, 0, 0, 1], [np.inf] * 6, [3.4e38] * 6], np.float32)
    rows, targets = to.rows(features, np.array([1, 0, 1, 0, 7]))
    norms = np.linalg.norm(rows[:, :-1], axis=1)
    assert (norms <= 2.0).all()
    assert np.allclose(norms[[0, 4]], 2.0)
    assert (norms[[2, 3]] == 0).all()
    assert (rows[1, :-1] == features[1].astype(np.float64)).all()
    assert (rows[:, -1] == 1).all()
    assert targets.tolist() == [1, -1, 1, -1, 1]


def test_the_mean_loss_is_over_all_records_with_the_regulariser(monkeypatch: pytest.MonkeyPatch) -> None:
    to, records = objective(), source()
    w = np.linspace(-0.3, 0.4, FEATURES + 1)
    x, y = to.rows(records.features, records.labels)
    expected = np.log1p(np.exp(-y * (x @ w))).mean() + 0.05 * w @ w
    monkeypatch.setattr(engine, "NUMBERS", 40)
    assert to.mean_loss(w, records) == pytest.approx(expected, rel=1e-12)
