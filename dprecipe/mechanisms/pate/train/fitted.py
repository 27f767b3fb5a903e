"""Models that are fitted at once: scikit-learn grows or solves them, and a module of the zoo holds the result.

The result is a function of the part's own records, the recipe and the seed, whatever the part looks like: it may be
empty, hold one class, or hold records that are not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.libraries import ignoring_warnings, importing_libraries
from dprecipe.models.build import build
from dprecipe.models.schema import GradientBoosting, LogisticRegression, RandomForest
from dprecipe.models.zoo.forest import MAX_LEVELS

Fittable = RandomForest | GradientBoosting | LogisticRegression

ABSENT = -1e30
"""Score of a class that the part has no record of: finite in single precision, and below every other score."""
MAX_STEP = 1e24
"""Largest change of a score in one round of boosting: not even 10,000 rounds reach `ABSENT`."""
REGULARISATION = 1.0
"""C of the logistic regression: the weight of the records' loss against half the squared norm of the weights."""
ITERATIONS = 1_000
"""Largest number of iterations of the logistic regression."""


def fit_model(
    model: Fittable, features: NDArray[np.float32], labels: NDArray[np.int64], classes: int, seed: int
) -> nn.Module:
    """Fits `model` to one part; returns a module from features (B, …) to logits (B, classes).

    `features` are float32 (n, …) and are flattened, `labels` int64 (n,) in [0, classes); only the lower 32 bits of
    `seed` count. Records with a feature that is not finite are left out. A class without records gets a low, finite
    logit. If the records have only one class, the module always votes for it; if there are no records, for class 0.

    Guarantees: the module depends on the arguments alone. The class of the highest logit is the one that scikit-learn's
    own estimator predicts, except for ties and, in logistic regression, for rounding the weights to single precision.

    Raises:
        RunFailed: scikit-learn is not installed.
    """
    library = _import_scikit_learn()
    flat = features.reshape(len(features), math.prod(features.shape[1:]))
    finite = np.isfinite(flat).all(axis=1)
    flat, labels = flat[finite], labels[finite]
    present = np.unique(labels)
    module = build(model, features.shape[1:], classes, 0)
    if len(present) < 2:
        state = _constant_state(model, int(present[0]) if len(present) == 1 else 0, module)
    else:
        # One thread: the rounding of sums must not depend on the number of processors. Overflow is ignored because
        # scikit-learn sums the features to see if they are finite.
        with _limit_threads(), np.errstate(over="ignore", invalid="ignore"):
            state = _fit_state(library, model, flat, labels, classes, seed % 2**32)
    module.load_state_dict(state)
    return module.requires_grad_(False).eval()


def _fit_state(
    library: Any,
    model: Fittable,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    seed: int,
) -> dict[str, Tensor]:
    match model:
        case RandomForest():
            return _fit_forest(library, model, features, labels, classes, seed)
        case GradientBoosting():
            return _fit_boosting(library, model, features, labels, classes, seed)
        case LogisticRegression():
            return _fit_logistic(library, features, labels, classes)


def _import_scikit_learn() -> Any:
    with importing_libraries("fitting forests, boosting or logistic regression"):
        import sklearn.ensemble
        import sklearn.linear_model
    return sklearn


def _limit_threads() -> AbstractContextManager[object]:
    with importing_libraries("fitting forests, boosting or logistic regression"):
        from threadpoolctl import threadpool_limits  # comes with scikit-learn

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _constant_state(model: Fittable, winner: int, module: nn.Module) -> dict[str, Tensor]:
    """Returns the module's own tensors, changed so that class `winner` wins on every query."""
    state = module.state_dict()
    scores = state["1.bias" if isinstance(model, LogisticRegression) else "value"]
    scores[...] = 0 if isinstance(model, RandomForest) else ABSENT
    scores[..., winner] = 1 if isinstance(model, RandomForest) else 0
    return state


@dataclass(frozen=True, slots=True)
class _Tree:
    """The nodes of one tree, numbered from 0, its root; a leaf's children are -1."""

    left: NDArray[np.int64]
    right: NDArray[np.int64]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    value: NDArray[np.float64]
    """Value of each node for each of the recipe's classes, (nodes, classes)."""

    @staticmethod
    def of(grown: Any, value: NDArray[np.float64]) -> _Tree:
        return _Tree(grown.children_left, grown.children_right, grown.feature, grown.threshold, value)


def _fit_forest(
    library: Any,
    model: RandomForest,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    seed: int,
) -> dict[str, Tensor]:
    depth = MAX_LEVELS - 1  # edges from root to leaf
    estimator = library.ensemble.RandomForestClassifier(
        n_estimators=model.trees,
        max_depth=depth if model.max_depth is None else min(model.max_depth, depth),
        min_samples_leaf=model.min_leaf,
        max_features="sqrt" if model.max_features is None else model.max_features,
        n_jobs=1,
        random_state=seed,
    ).fit(features, labels)
    trees = []
    for member in estimator.estimators_:
        chances = np.zeros((member.tree_.node_count, classes))
        chances[:, estimator.classes_] = member.tree_.value[:, 0]  # chances since scikit-learn 1.4
        trees.append(_Tree.of(member.tree_, chances))
    return _join_trees(trees)


def _fit_boosting(
    library: Any,
    model: GradientBoosting,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    classes: int,
    seed: int,
) -> dict[str, Tensor]:
    estimator = library.ensemble.GradientBoostingClassifier(
        n_estimators=model.trees,
        max_depth=min(model.max_depth, MAX_LEVELS - 1),
        min_samples_leaf=model.min_leaf,
        learning_rate=model.learning_rate,
        random_state=seed,
    ).fit(features, labels)
    # With two classes only the second has a score: how far it is above the first.
    scored = estimator.classes_[1:] if len(estimator.classes_) == 2 else estimator.classes_
    start = next(estimator.staged_decision_function(features[:1])).reshape(-1)
    start -= [model.learning_rate * member.predict(features[:1])[0] for member in estimator.estimators_[0]]
    scores = np.full((1, classes), ABSENT)
    scores[:, estimator.classes_] = 0.0
    scores[:, scored] = start
    none = np.full(1, -1)
    trees = [_Tree(none, none, none, np.zeros(1), scores)]
    for member, number in ((member, number) for stage in estimator.estimators_ for number, member in enumerate(stage)):
        steps = np.zeros((member.tree_.node_count, classes))
        steps[:, scored[number]] = np.clip(model.learning_rate * member.tree_.value[:, 0, 0], -MAX_STEP, MAX_STEP)
        trees.append(_Tree.of(member.tree_, steps))
    return _join_trees(trees)


def _join_trees(trees: Sequence[_Tree]) -> dict[str, Tensor]:
    """Returns the tensors of `Forest`."""
    roots = np.cumsum([0, *(len(tree.feature) for tree in trees)])
    children = np.concatenate(
        [np.stack([tree.left, tree.right], 1) + root for tree, root in zip(trees, roots, strict=False)]
    )
    leaf = np.concatenate([tree.left for tree in trees]) < 0
    children[leaf] = np.flatnonzero(leaf)[:, None]
    feature = np.concatenate([tree.feature for tree in trees])
    threshold = np.concatenate([tree.threshold for tree in trees])
    arrays = {
        "root": roots[:-1],
        "child": children,
        "feature": np.where(leaf, 0, feature),
        "threshold": np.where(leaf, np.float32(0), _round_down(threshold)),
        "value": np.concatenate([tree.value for tree in trees]),
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _round_down(threshold: NDArray[np.float64]) -> NDArray[np.float32]:
    """Returns the largest single-precision number not above each threshold.

    Every single-precision feature is on the same side of it as of the threshold.
    """
    nearest = threshold.astype(np.float32)
    return np.where(nearest > threshold, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def _fit_logistic(
    library: Any, features: NDArray[np.float32], labels: NDArray[np.int64], classes: int
) -> dict[str, Tensor]:
    estimator = library.linear_model.LogisticRegression(C=REGULARISATION, max_iter=ITERATIONS)
    with ignoring_warnings():  # such as one that it has not converged: `ITERATIONS` is part of the definition
        estimator.fit(features.astype(np.float64), labels)
    # With two classes there is one row: how far the second is above the first.
    rows = estimator.classes_[1:] if len(estimator.classes_) == 2 else estimator.classes_
    weight, bias = np.zeros((classes, features.shape[1])), np.full(classes, ABSENT)
    bias[estimator.classes_] = 0.0
    weight[rows], bias[rows] = estimator.coef_, estimator.intercept_
    return {"1.weight": torch.from_numpy(weight).float(), "1.bias": torch.from_numpy(bias).float()}
