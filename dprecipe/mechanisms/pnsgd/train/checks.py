"""Before a private record is seen: the engine that will descend is tried on synthetic records against the plan's
constants.

The gradients are those of `descent.Objective`, which the steps use, at points of the set that are random, on its rim
and opposite each other, on records that are random, of the largest norm and along the parameters. A constant that is
too small for the loss, a slope that is not the loss's, a projection that misses: each is found here.

Axes: N pairs of points, D features with the bias, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.plan import PlannedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.descent import Descent, Floats, Noise, Objective, State, Where
from dprecipe.mechanisms.pnsgd.train.losses import Softmax
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.training.noise_check import DRAWS, check_lattice
from dprecipe.training.probe.program import Check

PAIRS = 64
SLACK = 1e-9
"""Part of a bound that rounding may take."""
STEP, ERROR = 1e-6, 1e-7
"""Of a difference quotient, and what rounding may make of it, over the largest gradient."""
SCALES = 4
"""Noise scales that are drawn from, of however many a schedule has."""


def run_checks(
    objective: Objective,
    descent: PlannedDescent,
    contraction: float,
    stages: tuple[Stage, ...],
    where: Callable[[], Where],
    *,
    seed: int = 0,
) -> tuple[Check, ...]:
    """The checks of a plan's constants on synthetic records, all passed. `contraction` is that of its steps, `where`
    makes what will make the steps.

    Raises:
        RunFailed: one did not; says which, and what was measured.
    """
    proven = descent.proven
    result = _Made(objective, np.random.default_rng(seed))
    checks = [
        _gradient_bound(result, proven.lipschitz, proven.moved, Neighbouring(descent.neighbouring)),
        *_curvature(result, proven.smoothness, proven.strong_convexity),
        _contraction(result, stages, contraction),
        _projection(result, proven.largest_norm, proven.diameter),
        _batch_gradient(result, descent.batch_size, proven.smoothness, where()),
    ]
    failed = [check for check in checks if not check.passed]
    if failed:
        raise RunFailed(
            "the engine failed the probe on synthetic records; no private record was used:\n"
            + "\n".join(f"- expected: {check.text}; found: {check.measured}" for check in failed),
            "give mechanism.constants only numbers that are proved; if it gives none, don't trust this installation",
        )
    return (*checks, _noise_scale(objective, descent.family, stages))


@final
class _Made:
    """Made-up points of the set and records."""

    def __init__(self, objective: Objective, generator: np.random.Generator) -> None:
        self.objective = objective
        self.generator = generator
        directions = generator.standard_normal((2 * PAIRS, *objective.shape))
        sizes = generator.random(2 * PAIRS)
        sizes[::2] = 1.0  # on the rim
        self.points = [self.inside(w, size) for w, size in zip(directions, sizes, strict=True)]
        for number in range(0, PAIRS, 8):  # opposite each other
            self.points[2 * number + 1] = -self.points[2 * number]
        self.rows, self.targets = self._records()

    def inside(self, direction: Floats, size: float) -> Floats:
        """A point of the set in a direction: at its rim for size 1."""
        if self.objective.bound is not None:
            corner = np.sign(direction) if size == 1 else direction / float(np.abs(direction).max())
            return np.asarray(corner * size * self.objective.bound)
        return np.asarray(direction * (size * (self.objective.radius or 0.0) / np.linalg.norm(direction)))

    @property
    def pairs(self) -> list[tuple[Floats, Floats]]:
        return list(zip(self.points[::2], self.points[1::2], strict=True))

    def gradient(self, w: Floats, number: int) -> Floats:
        """Of one record, without the regulariser."""
        result: Floats = self.objective.gradient(w, self.rows[number][None], self.targets[number : number + 1])
        return result

    def _records(self) -> tuple[Floats, NDArray[Any]]:
        """Two for each pair of points: of the largest norm and along its first, up and down; or at random, and mirrored
        at it. Labels of either end of their range."""
        objective, generator = self.objective, self.generator
        features = generator.standard_normal((2 * PAIRS, objective.width))
        features *= 10 * objective.feature_norm  # the engine is to clip them
        if objective.width:
            for number in range(0, 2 * PAIRS, 4):
                along = self._along(number)
                features[number] = along * (10 * objective.feature_norm)
                features[number + 1] = -features[number]
                along = self._along(number + 2)
                mirrored = along * (2 * np.dot(features[number + 2], along))
                features[number + 3] = mirrored - features[number + 2]
            shrunk = generator.random((2 * PAIRS, 1)) / np.linalg.norm(features, axis=1, keepdims=True)
            features[2::16] *= objective.feature_norm * shrunk[2::16]
        return objective.rows(features, self.labels(2 * PAIRS))

    def _along(self, number: int) -> Floats:
        """The direction in which a point's predictor grows, or that of a class against another's; of length 1."""
        weights = np.atleast_2d(self.points[number])[:, : self.objective.width]
        along = weights[0] if len(weights) == 1 else weights[0] - weights[1]
        if not along.any():  # at a corner, between two classes that are alike
            along = self.generator.standard_normal(along.shape)
        return np.asarray(along / float(np.linalg.norm(along)))

    def labels(self, count: int) -> Floats:
        """Classes; or numbers far outside their range, which the engine is to clip."""
        loss = self.objective.loss
        if isinstance(loss, Softmax):
            return self.generator.integers(loss.classes, size=count).astype(np.float64)
        return self.generator.choice([-9.0, 9.0], count)


def _gradient_bound(made: _Made, lipschitz: float, moved: float, neighbouring: Neighbouring) -> Check:
    largest = farthest = 0.0
    for (w, _), first in zip(made.pairs, range(0, 2 * PAIRS, 2), strict=True):
        one, other = made.gradient(w, first), made.gradient(w, first + 1)
        norms = [float(np.linalg.norm(g)) for g in (one, other)]
        largest = max(largest, *norms)
        replaced = neighbouring is Neighbouring.REPLACE_ONE
        farthest = max(farthest, *((float(np.linalg.norm(one - other)),) if replaced else norms))
    return Check(
        "gradient_bound",
        "no record's gradient is longer than L, and none moves it farther than Δ, however far its features and its "
        "target lie outside their bounds",
        largest <= lipschitz * (1 + SLACK) and farthest <= moved * (1 + SLACK),
        f"up to {largest:.4g} of L = {lipschitz:.4g}, and {farthest:.4g} of Δ = {moved:.4g}",
    )


def _curvature(made: _Made, smoothness: float, strong_convexity: float) -> Iterator[Check]:
    steepest, flattest = 0.0, np.inf
    rounding = 0.0
    for number, (v, w) in enumerate(made.pairs):
        gap = v - w
        rise = made.gradient(v, number) - made.gradient(w, number) + made.objective.l2 * gap
        square = float(np.vdot(gap, gap))
        steepest = max(steepest, float(np.linalg.norm(rise)) / square**0.5)
        flattest = min(flattest, float(np.vdot(rise, gap)) / square)
        rounding = max(rounding, 1e-14 * (float(np.linalg.norm(made.gradient(v, number))) + 1.0) / square**0.5)
    yield Check(
        "smoothness",
        "between two points of the set a gradient moves by at most β times their distance",
        steepest <= smoothness * (1 + SLACK) + rounding,
        f"up to {steepest:.4g} of β = {smoothness:.4g}",
    )
    yield Check(
        "strong_convexity",
        "between two points of the set a gradient rises by at least ρ times their distance",
        flattest >= strong_convexity * (1 - SLACK) - rounding,
        f"at least {max(flattest, 0.0):.4g}, ρ = {strong_convexity:.4g}",
    )


def _contraction(made: _Made, stages: tuple[Stage, ...], contraction: float) -> Check:
    largest = 0.0
    rates = {stage.learning_rate for stage in stages}
    for rate, (number, pair) in itertools.product({min(rates), max(rates)}, enumerate(made.pairs)):
        after = []
        for w in pair:
            stepped = w * (1 - rate * made.objective.l2) - rate * made.gradient(w, number)
            made.objective.project(stepped)
            after.append(stepped)
        largest = max(largest, float(np.linalg.norm(after[0] - after[1]) / np.linalg.norm(pair[0] - pair[1])))
    return Check(
        "contraction",
        "a step without its noise brings two points no farther apart than M times their distance",
        largest <= contraction * (1 + SLACK),
        f"up to {largest:.6g}, M = {contraction:.6g}",
    )


def _projection(made: _Made, largest_norm: float, diameter: float) -> Check:
    """Inside stays; outside goes to the nearest point: no point of the set makes an acute angle with the way there."""
    objective, norms, wrong, turned = made.objective, [], 0.0, 0.0
    scale = largest_norm**2
    for inside in made.points:
        kept = inside * (1 - 1e-9)
        objective.project(kept)
        wrong = max(wrong, float(np.linalg.norm(kept - inside * (1 - 1e-9))) / largest_norm)
    for number, point in enumerate(made.points):
        outside = point * (1 + 10.0 ** (number % 7 - 3)) + made.generator.standard_normal(point.shape) * largest_norm
        projected = outside.copy()
        objective.project(projected)
        norms.append(float(np.linalg.norm(projected)))
        other = made.points[number - 1]
        way = outside - projected
        turned = max(
            turned, float(np.vdot(way, other - projected)) / (scale + largest_norm * float(np.linalg.norm(way)))
        )
    apart = max(float(np.linalg.norm(v - w)) for v, w in made.pairs)
    sound = max(norms) <= largest_norm and apart <= diameter * (1 + SLACK) and wrong == 0.0 and turned <= SLACK
    return Check(
        "projection",
        "every point is moved to the nearest one of the set, and those of the set stay",
        sound,
        f"norms up to {max(norms):.6g} of {largest_norm:.6g}; points of the set moved by {wrong:.1e}; {turned:.1e} "
        "past the nearest",
    )


def _batch_gradient(made: _Made, batch: int, smoothness: float, where: Where) -> Check:
    """Two steps of the engine itself, without noise, the second on a batch that is short where batches hold several:
    against difference quotients of the losses, record by record."""
    objective, rate = made.objective, 1e-3
    batch = min(batch, PAIRS)
    size = batch + (batch + 1) // 2
    source = _Rows(made.generator.standard_normal((size, objective.width)), made.labels(size))
    x_ND, y_N = objective.rows(source.features, source.labels)
    steps = -(-size // batch)
    start = made.points[2] * 0.5
    noise = Noise(Distribution("gaussian"), Secrets(), int(np.prod(objective.shape)))
    state = State(start, 0, steps, None)
    descent = Descent(objective, [Stage(steps, rate, 0.0)], batch, source, noise, state, where)
    worst, largest, losses = 0.0, 0.0, 0.0
    directions = made.generator.standard_normal((8, *objective.shape))
    while not state.finished:
        w, first = descent.state.iterate, state.step * batch
        descent.advance(1)
        moved = (w * (1 - rate * objective.l2) - descent.state.iterate) / rate
        x_BD, y_B = x_ND[first : first + batch], y_N[first : first + batch]
        for direction in directions / np.sqrt(directions[0].size):
            ends = [objective.loss.value(x_BD @ (w + way * STEP * direction).T, y_B).sum() for way in (1, -1)]
            quotient, losses = float(ends[0] - ends[1]) / (2 * STEP) / batch, max(losses, float(ends[0]))
            worst = max(worst, abs(quotient - float(np.vdot(moved, direction))))
        largest = max(largest, float(np.linalg.norm(moved)))
    # A quotient across a kink is off by as much as the gradient moves within it.
    allowed = smoothness * STEP + ERROR * (1.0 + largest) + 1e-15 * losses / STEP
    return Check(
        "batch_gradient",
        "a step follows the mean of its records' gradients, and a short batch keeps its divisor",
        worst <= allowed,
        f"{worst:.1e} from difference quotients of the losses, over {steps} steps",
    )


def _noise_scale(objective: Objective, family: str, stages: tuple[Stage, ...]) -> Check:
    """Noise as the engine draws it has the planned distribution, scale and symmetry."""
    distribution, parameters = Distribution(family), int(np.prod(objective.shape))
    scales = sorted({stage.noise_scale for stage in stages})
    chosen = [scales[i] for i in sorted({round(j) for j in np.linspace(0, len(scales) - 1, SCALES)})]

    def drawn() -> Iterator[tuple[Floats, Distribution, float]]:
        for scale in chosen:
            noise = Noise(distribution, Secrets(), parameters)
            blocks: list[Floats] = []
            while sum(map(len, blocks)) < DRAWS:
                step = noise.block * len(blocks)
                blocks.append(noise.scaled(step, noise.block, Stage(1, 1.0, scale)).ravel())
            yield np.concatenate(blocks)[:DRAWS], distribution, scale

    return check_lattice(drawn())


@final
class _Rows:
    """Made-up records."""

    def __init__(self, features: Floats, labels: Floats) -> None:
        self.features, self.labels = features.astype(np.float32), labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
        return self.features[indices], self.labels[indices]
