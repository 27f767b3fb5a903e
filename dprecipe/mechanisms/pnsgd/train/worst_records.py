"""Searches for the records and points that a declared constant suits least: the longest gradient of a record, two
records whose gradients are farthest apart, the steepest and the flattest change of a gradient.

All gradients are those of `descent.Objective`, which the steps use. A linear predictor sees a record by its product
with the parameters, so that the worst cases lie in a plane: records go round it in small angles, at points of the set
along one of its axes. Every value found is attained by records and points that a run may have, so a constant below it
is wrong; a search that stays below it shows nothing.

Axes: N records, D features with the bias, C classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.mechanisms.pnsgd.train.descent import Floats, Objective
from dprecipe.mechanisms.pnsgd.train.losses import Softmax

ANGLES = 192
"""Number of records on a circle: a worst case between two of them is missed by less than a thousandth."""
PLANES = 2
POINTS = 400
"""Number of points on a segment of the set, along which a gradient's change is measured."""
SIZES = (1.0, 0.85, 0.6, 0.3, 0.1, 0.0)
"""Distances from the middle of the set at which gradients are taken; 1 is its boundary."""
LARGE = 1e300
"""Substitute for the flattest slope where none was found."""
OUTSIDE = 10.0
"""Factor by which features are too long: the engine is to clip them."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class WorstPair:
    """Two records as they are declared, and the point at which their gradients are this far apart."""

    point: Floats
    features: NDArray[np.float32]
    """(2, features): longer than the norm that they are clipped to."""
    labels: Floats
    distance: float


@final
@dataclass(frozen=True, slots=True, eq=False)
class WorstCases:
    """The results of a search."""

    norm: float
    """Largest norm of a record's gradient."""
    pair: WorstPair
    """Two records, each of which may replace the other."""
    single: WorstPair
    """The record of the longest gradient, and any other."""
    steepest: float
    """Change of a gradient over the distance of two points."""
    flattest: float
    """The same in the direction of the points, at its least."""
    reach: float
    """The largest norm of a point of the set."""
    across: float
    """The largest distance of two points of the set."""


def find_worst_cases(objective: Objective, seed: int = 0) -> WorstCases:
    """Finds the worst records and points that can be found in about a second."""
    generator = np.random.default_rng(seed)
    pairs = list(_search_gradients(objective, generator))
    pair = max((pair for pair, _ in pairs), key=lambda found: found.distance)
    single = max((single for _, single in pairs), key=lambda found: found.distance)
    steepest, flattest = _search_curvature(objective, generator)
    reach, across = _measure_set(objective, generator)
    return WorstCases(single.distance, pair, single, steepest, flattest, reach, across)


def list_labels(objective: Objective) -> list[float]:
    """Lists labels as a source may give them: two classes; or numbers far outside their range, which the engine is to
    clip."""
    return [0.0, 1.0] if isinstance(objective.loss, Softmax) else [-9.0, 9.0]


def take_gradients(objective: Objective, w: Floats, features: NDArray[Any], labels: Floats) -> Floats:
    """Returns the gradient of each record, (N, parameters), without the regulariser."""
    x_ND, y_N = objective.rows(features, labels)
    rows = range(len(y_N))
    return np.stack([objective.gradient(w, x_ND[row : row + 1], y_N[row : row + 1]).reshape(-1) for row in rows])


def _search_gradients(objective: Objective, generator: np.random.Generator) -> Iterator[tuple[WorstPair, WorstPair]]:
    """Yields, at each point tried, the two records farthest apart, and the one with the longest gradient."""
    angles = np.linspace(0, 2 * np.pi, ANGLES, endpoint=False)[:, None]
    kinds = list_labels(objective)
    for first, second in _planes(objective, generator):
        for w in _points(objective, first):
            along, across = _axes(objective, w, first, second)
            circle = np.cos(angles) * along + np.sin(angles) * across
            features = (circle * (OUTSIDE * objective.feature_norm)).astype(np.float32)
            features_N, labels_N = np.tile(features, (len(kinds), 1)), np.repeat(kinds, len(features))
            gradients = take_gradients(objective, w, features_N, labels_N)
            squares = np.einsum("np,np->n", gradients, gradients)
            apart = squares[:, None] + squares - 2 * (gradients @ gradients.T)
            one, other = np.unravel_index(int(apart.argmax()), apart.shape)
            chosen, longest = np.array([one, other]), int(squares.argmax())
            distance = float(np.linalg.norm(gradients[one] - gradients[other]))
            alone = np.array([longest, (longest + 1) % len(squares)])
            yield (
                WorstPair(w, features_N[chosen], labels_N[chosen], distance),
                WorstPair(w, features_N[alone], labels_N[alone], float(np.linalg.norm(gradients[longest]))),
            )


def _axes(objective: Objective, w: Floats, first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Returns the plane in which records are tried at a point: the direction of features in which its predictor grows,
    or that of the first class against the second, and one across."""
    weights = np.atleast_2d(w)[:, : objective.width]
    along = weights[0] - weights[1] if len(weights) > 1 else weights[0]
    length = float(np.linalg.norm(along))
    if objective.width < 2 or not length > 0:
        return first, second
    along = along / length
    rests = [axis - along * float(along @ axis) for axis in (second, first)]
    rest = max(rests, key=lambda axis: float(np.linalg.norm(axis)))
    return along, rest / float(np.linalg.norm(rest))


def _planes(objective: Objective, generator: np.random.Generator) -> Iterator[tuple[Floats, Floats]]:
    """Yields orthonormal pairs of directions of features; for one feature, it and zero."""
    if objective.width < 2:
        yield np.ones(objective.width), np.zeros(objective.width)
        return
    for number in range(PLANES):
        chosen = generator.standard_normal((2, objective.width))
        if number == 0:  # two single features: corners of a box or a simplex lie there
            chosen = np.eye(2, objective.width)
        first, second = np.linalg.qr(chosen.T)[0].T[:2]
        yield first, second


def _points(objective: Objective, along: Floats) -> Iterator[Floats]:
    """Yields points of the set along a direction of features, either way, with and without the bias's share."""
    shares = (0.0, 1.0) if objective.bias and objective.width else (1.0,) if objective.bias else (0.0,)
    length = objective.feature_norm if objective.width else 1.0
    for share in shares:
        row = np.append(along * length, share) if objective.bias else along * length
        for way in (row, -row):
            direction = _of_classes(objective, way)
            for size in SIZES if way is row else SIZES[:-1]:
                yield objective.within.place(direction, size)


def _of_classes(objective: Objective, row: Floats) -> Floats:
    """Returns the direction of parameters by which a record's predictor grows most; for classes, that of the first
    against the second."""
    if not isinstance(objective.loss, Softmax):
        return row if row.any() else np.ones_like(row)
    direction = np.zeros(objective.shape)
    direction[0], direction[1] = row, -row
    return direction


def _search_curvature(objective: Objective, generator: np.random.Generator) -> tuple[float, float]:
    """Returns the largest change of a gradient over the distance of two points, and the least in the points'
    direction."""
    steepest, flattest = 0.0, LARGE
    for first, second in _planes(objective, generator):
        features = (np.stack([first, np.zeros_like(first)]) * (OUTSIDE * objective.feature_norm)).astype(np.float32)
        row = objective.rows(features[:1], np.zeros(1))[0][0]
        for start, end in _segments(objective, row, second):
            gap = (end - start) / POINTS
            distance = float(np.linalg.norm(gap))
            if distance == 0:
                continue
            for label in list_labels(objective):
                for record in range(len(features)):
                    x_1D, y_1 = objective.rows(features[record : record + 1], np.array([label]))
                    points = [start + gap * number for number in range(POINTS + 1)]
                    slopes = np.stack([objective.gradient(w, x_1D, y_1) for w in points])
                    rises = np.diff(slopes, axis=0) + objective.l2 * gap
                    norms = np.linalg.norm(rises.reshape(POINTS, -1), axis=1)
                    inward = (rises * gap).reshape(POINTS, -1).sum(axis=1)
                    noise = 1e-15 * float(np.abs(slopes).max() + 1)  # of a difference of two gradients
                    steepest = max(steepest, (float(norms.max()) - noise) / distance)
                    flattest = min(flattest, (float(inward.min()) + noise * distance) / distance**2)
    return steepest, flattest


def _segments(objective: Objective, row: Floats, across: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yields segments of the set in the direction of a record, and across it, where its predictor stays as it is; for
    classes, where two of them share all the probability, too. One is across the whole set, one a hundredth of it, whose
    points lie closer."""
    direction = _of_classes(objective, row)
    middles = [objective.within.middle(direction.shape)]
    if isinstance(objective.loss, Softmax) and objective.loss.classes > 2:
        shared = np.zeros_like(direction)
        shared[:2], shared[2:] = row, -2 * row / (objective.loss.classes - 2)
        middles.append(objective.within.place(shared, 0.9))
    directions = [direction]
    if across.any():
        directions.append(_of_classes(objective, np.append(across, 0.0) if objective.bias else across))
    for middle, way in itertools.product(middles, directions):
        ends = [objective.within.place(sign * way, 1.0) for sign in (1.0, -1.0)]
        if np.array_equal(ends[0], ends[1]):  # a vertex of a simplex
            ends[1] = objective.within.oppose(ends[0])
        for part in (1.0, 0.01):
            first, last = (middle + (end - middles[0]) * part for end in ends)
            for point in (first, last):
                objective.project(point)
            yield first, last


def _measure_set(objective: Objective, generator: np.random.Generator) -> tuple[float, float]:
    """Returns the largest norm of a point of the set, and the largest distance of two, of points on its boundary."""
    reach = across = 0.0
    directions = generator.standard_normal((16, *objective.shape))
    directions[0] = 1.0
    for direction in directions:
        point = objective.within.place(direction, 1.0)
        other = objective.within.oppose(point)
        for end in (point, other):
            objective.project(end)  # the engine's own idea of the set
        reach = max(reach, float(np.linalg.norm(point)), float(np.linalg.norm(other)))
        across = max(across, float(np.linalg.norm(point - other)))
    return reach, across
