"""The probe: before the engine reads a private record, it is checked on synthetic records against the plan's constants.

The gradients are those of `descent.Objective`, which the steps use: at points of the set that are random, on its
boundary and opposite each other, and for records that are random, of the largest norm and parallel to the parameters.
The probe detects a constant too small for the loss, a slope that is not the loss's, and a wrong projection.

Axes: N pairs of points, D features with the bias, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.certificate import CHECKS
from dprecipe.mechanisms.pnsgd.plan import PlannedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.descent import Backend, Descent, Floats, Noise, Objective, State
from dprecipe.mechanisms.pnsgd.train.losses import Softmax
from dprecipe.mechanisms.pnsgd.train.sets import ROUNDING, Simplex
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.training.checks.noise import DRAWS, check_lattice
from dprecipe.training.probe.program import Check

PAIRS = 64
SLACK = 1e-9
"""Relative allowance for rounding."""
STEP, ERROR = 1e-6, 1e-7
"""Step of a difference quotient, and its allowed rounding error over the largest gradient."""
SCALES = 4
"""Number of a schedule's noise scales that are tried."""


def run_checks(
    objective: Objective,
    descent: PlannedDescent,
    contraction: float,
    stages: tuple[Stage, ...],
    backend: Callable[[], Backend],
    *,
    seed: int = 0,
) -> tuple[Check, ...]:
    """Runs the checks of a plan's constants on synthetic records and returns them, all passed. `contraction` is the
    largest of the steps; `backend` makes a backend for the check of steps.

    Raises:
        RunFailed: a check failed; says which, and what was measured.
    """
    proven = descent.proven
    samples = _Samples(objective, np.random.default_rng(seed))
    checks = [
        _check_gradient_bound(
            samples, proven.lipschitz, proven.gradient_sensitivity, Neighbouring(descent.neighbouring)
        ),
        *_check_curvature(samples, proven.smoothness, proven.strong_convexity),
        _check_contraction(samples, stages, contraction),
        _check_projection(samples, proven.largest_norm, proven.diameter),
        _check_batch_gradient(
            samples,
            descent.batch_size,
            proven.smoothness,
            backend(),
            proven.lipschitz + objective.l2 * proven.largest_norm,
        ),
    ]
    failed = [check for check in checks if not check.passed]
    if failed:
        raise RunFailed(
            "the engine failed the probe on synthetic records; no private record was used:\n"
            + "\n".join(f"- expected: {check.text}; measured: {check.measured}" for check in failed),
            "state only proved numbers in mechanism.constants; without that block, do not use this installation",
        )
    return (*checks, _check_noise_scale(objective, descent.family, stages))


@final
class _Samples:
    """Synthetic points of the set, and synthetic records."""

    def __init__(self, objective: Objective, generator: np.random.Generator) -> None:
        self.objective = objective
        self.generator = generator
        directions = generator.standard_normal((2 * PAIRS, *objective.shape))
        sizes = generator.random(2 * PAIRS)
        sizes[::2] = 1.0  # on the boundary
        self.points = [self.place_in_set(w, size) for w, size in zip(directions, sizes, strict=True)]
        for number in range(0, PAIRS, 8):  # opposite each other
            self.points[2 * number + 1] = objective.within.oppose(self.points[2 * number])
        self.rows, self.targets = self._records()

    def place_in_set(self, direction: Floats, size: float) -> Floats:
        """Returns a point of the set in this direction; for size 1, on the boundary."""
        return self.objective.within.place(direction, size)

    @property
    def pairs(self) -> list[tuple[Floats, Floats]]:
        return list(zip(self.points[::2], self.points[1::2], strict=True))

    def gradient(self, w: Floats, number: int) -> Floats:
        """Returns the gradient of one record, without the regulariser."""
        result: Floats = self.objective.gradient(w, self.rows[number][None], self.targets[number : number + 1])
        return result

    def _records(self) -> tuple[Floats, NDArray[Any]]:
        """Returns two records for each pair of points: of the largest norm, parallel and antiparallel to the first
        point; or random, and its mirror image. Labels are at either end of their range."""
        objective, generator = self.objective, self.generator
        features = generator.standard_normal((2 * PAIRS, objective.width))
        features *= 10 * objective.feature_norm  # the engine is to clip them
        if objective.width:
            for number in range(0, 2 * PAIRS, 4):
                along = self._choose_direction(number)
                features[number] = along * (10 * objective.feature_norm)
                features[number + 1] = -features[number]
                along = self._choose_direction(number + 2)
                mirrored = along * (2 * np.dot(features[number + 2], along))
                features[number + 3] = mirrored - features[number + 2]
            shrunk = generator.random((2 * PAIRS, 1)) / np.linalg.norm(features, axis=1, keepdims=True)
            features[2::16] *= objective.feature_norm * shrunk[2::16]
        return objective.rows(features, self.draw_labels(2 * PAIRS))

    def _choose_direction(self, number: int) -> Floats:
        """Returns the direction in which a point's predictor grows, or that of a class against another's; of length
        1."""
        weights = np.atleast_2d(self.points[number])[:, : self.objective.width]
        along = weights[0] if len(weights) == 1 else weights[0] - weights[1]
        if not along.any():  # at a corner, between two classes that are alike
            along = self.generator.standard_normal(along.shape)
        return np.asarray(along / float(np.linalg.norm(along)))

    def draw_labels(self, count: int) -> Floats:
        """Draws classes; or numbers far outside their range, which the engine is to clip."""
        loss = self.objective.loss
        if isinstance(loss, Softmax):
            return self.generator.integers(loss.classes, size=count).astype(np.float64)
        return self.generator.choice([-9.0, 9.0], count)


def _judge(name: str, passed: bool, measured: str) -> Check:
    return Check(name, CHECKS[name], passed, measured)


def _check_gradient_bound(
    samples: _Samples, lipschitz: float, gradient_sensitivity: float, neighbouring: Neighbouring
) -> Check:
    largest = farthest = 0.0
    for (w, _), first in zip(samples.pairs, range(0, 2 * PAIRS, 2), strict=True):
        one, other = samples.gradient(w, first), samples.gradient(w, first + 1)
        norms = [float(np.linalg.norm(g)) for g in (one, other)]
        largest = max(largest, *norms)
        replaced = neighbouring is Neighbouring.REPLACE_ONE
        farthest = max(farthest, *((float(np.linalg.norm(one - other)),) if replaced else norms))
    return _judge(
        "gradient_bound",
        largest <= lipschitz * (1 + SLACK) and farthest <= gradient_sensitivity * (1 + SLACK),
        f"up to {largest:.4g} of L = {lipschitz:.4g}, and {farthest:.4g} of Δ = {gradient_sensitivity:.4g}",
    )


def _check_curvature(samples: _Samples, smoothness: float, strong_convexity: float) -> Iterator[Check]:
    steepest, flattest = 0.0, np.inf
    rounding = 0.0
    for number, (v, w) in enumerate(samples.pairs):
        gap = v - w
        rise = samples.gradient(v, number) - samples.gradient(w, number) + samples.objective.l2 * gap
        square = float(np.vdot(gap, gap))
        steepest = max(steepest, float(np.linalg.norm(rise)) / square**0.5)
        flattest = min(flattest, float(np.vdot(rise, gap)) / square)
        rounding = max(rounding, 1e-14 * (float(np.linalg.norm(samples.gradient(v, number))) + 1.0) / square**0.5)
    yield _judge(
        "smoothness",
        steepest <= smoothness * (1 + SLACK) + rounding,
        f"up to {steepest:.4g} of β = {smoothness:.4g}",
    )
    yield _judge(
        "strong_convexity",
        flattest >= strong_convexity * (1 - SLACK) - rounding,
        f"at least {max(flattest, 0.0):.4g}, ρ = {strong_convexity:.4g}",
    )


def _check_contraction(samples: _Samples, stages: tuple[Stage, ...], contraction: float) -> Check:
    largest = 0.0
    rates = {stage.learning_rate for stage in stages}
    for rate, (number, pair) in itertools.product({min(rates), max(rates)}, enumerate(samples.pairs)):
        after = []
        for w in pair:
            stepped = w * (1 - rate * samples.objective.l2) - rate * samples.gradient(w, number)
            samples.objective.project(stepped)
            after.append(stepped)
        largest = max(largest, float(np.linalg.norm(after[0] - after[1]) / np.linalg.norm(pair[0] - pair[1])))
    return _judge(
        "contraction",
        largest <= contraction * (1 + SLACK),
        f"up to {largest:.6g}, M = {contraction:.6g}",
    )


def _check_projection(samples: _Samples, largest_norm: float, diameter: float) -> Check:
    """Checks that a point inside stays, and that a point outside goes to the nearest one: no point of the set is at an
    acute angle to the move."""
    objective, norms, wrong, turned = samples.objective, [], 0.0, 0.0
    scale = largest_norm**2
    for inside in samples.points:
        middle = objective.within.middle(inside.shape)
        deeper = middle + (inside - middle) * (1 - 1e-9)
        projected = deeper.copy()
        objective.project(projected)
        wrong = max(wrong, float(np.linalg.norm(projected - deeper)) / largest_norm)
    for number, point in enumerate(samples.points):
        outside = point * (1 + 10.0 ** (number % 7 - 3)) + samples.generator.standard_normal(point.shape) * largest_norm
        projected = outside.copy()
        objective.project(projected)
        norms.append(float(np.linalg.norm(projected)))
        other = samples.points[number - 1]
        way = outside - projected
        turned = max(
            turned, float(np.vdot(way, other - projected)) / (scale + largest_norm * float(np.linalg.norm(way)))
        )
    max_distance = max(float(np.linalg.norm(v - w)) for v, w in samples.pairs)
    nearest = wrong <= ROUNDING and turned <= SLACK
    passed = nearest and max(norms) <= largest_norm and max_distance <= diameter * (1 + SLACK)
    return _judge(
        "projection",
        passed,
        f"norms up to {max(norms):.6g} of {largest_norm:.6g}; points of the set moved by {wrong:.1e}; {turned:.1e} "
        "past the nearest",
    )


def _check_batch_gradient(samples: _Samples, batch: int, smoothness: float, backend: Backend, steepest: float) -> Check:
    """Compares two steps of the engine itself, without noise, with difference quotients of the losses. The second batch
    is short if batches have several records."""
    objective = samples.objective
    within, count = objective.within, int(np.prod(objective.shape))
    middle = within.middle(objective.shape)
    rate = min(1e-3, 0.05 * within.distance_to_boundary(count) / steepest)  # so short that no step reaches the boundary
    batch = min(batch, PAIRS)
    size = batch + (batch + 1) // 2
    source = _SyntheticRecords(samples.generator.standard_normal((size, objective.width)), samples.draw_labels(size))
    x_ND, y_N = objective.rows(source.features, source.labels)
    steps = -(-size // batch)
    start = middle + (samples.points[2] - middle) * 0.5
    noise = Noise(Distribution("gaussian"), Secrets(), int(np.prod(objective.shape)))
    state = State(start, 0, steps, None)
    descent = Descent(objective, [Stage(steps, rate, 0.0)], batch, source, noise, state, backend)
    worst, largest, losses = 0.0, 0.0, 0.0
    directions = samples.generator.standard_normal((8, *objective.shape))
    if isinstance(within, Simplex):  # what leaves its plane is projected away
        directions -= directions.reshape(8, -1).mean(1).reshape(8, *([1] * len(objective.shape)))
    while not state.finished:
        w, first = descent.state.iterate, state.step * batch
        descent.advance(1)
        mean_gradient = (w * (1 - rate * objective.l2) - descent.state.iterate) / rate
        x_BD, y_B = x_ND[first : first + batch], y_N[first : first + batch]
        for direction in directions / np.sqrt(directions[0].size):
            ends = [objective.loss.value(x_BD @ (w + way * STEP * direction).T, y_B).sum() for way in (1, -1)]
            quotient, losses = float(ends[0] - ends[1]) / (2 * STEP) / batch, max(losses, float(ends[0]))
            worst = max(worst, abs(quotient - float(np.vdot(mean_gradient, direction))))
        largest = max(largest, float(np.linalg.norm(mean_gradient)))
    # A quotient across a kink is off by as much as the gradient moves within it.
    allowed = smoothness * STEP + ERROR * (1.0 + largest) + 1e-15 * losses / STEP
    return _judge(
        "batch_gradient",
        worst <= allowed,
        f"{worst:.1e} from difference quotients of the losses, over {steps} steps",
    )


def _check_noise_scale(objective: Objective, family: str, stages: tuple[Stage, ...]) -> Check:
    """Checks that the engine's noise has the planned distribution, scale and symmetry."""
    distribution, parameters = Distribution(family), int(np.prod(objective.shape))
    scales = sorted({stage.noise_scale for stage in stages})
    chosen = [scales[i] for i in sorted({round(j) for j in np.linspace(0, len(scales) - 1, SCALES)})]

    def draw_samples() -> Iterator[tuple[Floats, Distribution, float]]:
        for scale in chosen:
            noise = Noise(distribution, Secrets(), parameters)
            blocks: list[Floats] = []
            while sum(map(len, blocks)) < DRAWS:
                step = noise.block * len(blocks)
                blocks.append(noise.scaled(step, noise.block, Stage(1, 1.0, scale)).ravel())
            yield np.concatenate(blocks)[:DRAWS], distribution, scale

    return check_lattice(draw_samples())


@final
class _SyntheticRecords:
    """A source of synthetic records."""

    def __init__(self, features: Floats, labels: Floats) -> None:
        self.features, self.labels = features.astype(np.float32), labels

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
        return self.features[indices], self.labels[indices]
