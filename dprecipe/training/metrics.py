"""The full set of scores of a finished model on held-out records, each beside the score that takes no model.

They go to `private/metrics.json`, for the run's owner; and into the certificate where the records are declared public,
without the confusion matrix. They are those of scikit-learn, whose import would take longer than a small run's steps.

Axes: N records, C classes, K names of which any may apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.targets import ClassTarget, CountTarget, SeveralTarget, Target, name_classes
from dprecipe.release.scores import BASELINE

Floats = NDArray[np.float64]
BINS = 10
"""Of the calibration error."""
THRESHOLD = 0.5
"""The probability above which a name is said to apply."""
MAX_CONFUSION = 100
"""Classes of a confusion matrix, at most."""


def measure(predicted: Floats, labels: Floats, target: Target) -> dict[str, Any]:
    """Scores by name. `predicted`: of classes their probabilities, (N, C), of names theirs, (N, K), else predictions
    (N, 1), in the label's units; `labels` (N,): class numbers, or numbers in these units; of names 0 and 1, (N, K).

    | records | result |
    |---|---|
    | none | empty |
    | a prediction that is not finite | empty |
    | a single class | no AUC and no average precision |
    """
    if not len(labels) or not np.isfinite(predicted).all():
        return {}
    if isinstance(target, ClassTarget):
        return _of_classes(predicted, labels.astype(np.int64))
    if isinstance(target, SeveralTarget):
        return _of_names(predicted, labels.astype(np.bool_), name_classes(target))
    with np.errstate(all="ignore"):  # squares of a wide range may be infinite
        return _of_numbers(predicted[:, 0], labels, counts=isinstance(target, CountTarget))


def _of_classes(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The baseline says the commonest class of these records, with the probabilities that the classes have in them."""
    count, classes = probabilities.shape
    records = np.bincount(labels, minlength=classes)
    shares, present = records / count, np.flatnonzero(records)
    chosen, commonest = probabilities.argmax(1), np.full(count, records.argmax())
    result: dict[str, Any] = {}

    def add(name: str, value: float, baseline: float) -> None:
        result[name], result[name + BASELINE] = min(float(value), 1.0), min(float(baseline), 1.0)  # rounding of means

    add("accuracy", (chosen == labels).mean(), shares.max())
    right = np.bincount(labels[chosen == labels], minlength=classes)
    add("balanced_accuracy", (right / np.maximum(records, 1))[present].mean(), 1 / len(present))
    add("f1", _find_f1(labels, chosen, present), _find_f1(labels, commonest, present))
    if len(present) > 1:
        # Each class against all others; of two classes the second, as is usual.
        ranked = [1] if classes == 2 else present
        found = [rank_scores(probabilities[:, each], labels == each) for each in ranked]
        areas, precisions = np.mean(found, axis=0)
        add("auc", areas, 0.5)
        add("average_precision", precisions, np.mean(shares[ranked]))
    result["calibration_error"] = find_calibration_error(probabilities.max(1), chosen == labels)
    if classes <= MAX_CONFUSION:
        pairs = np.bincount(labels * classes + chosen, minlength=classes**2)
        result["confusion"] = pairs.reshape(classes, classes).tolist()
    return result


def _of_names(probabilities: Floats, answers: NDArray[np.bool_], names: tuple[str, ...]) -> dict[str, Any]:
    """Each name by itself under `by_name`; of all, means over names (`macro`) and counts over all answers (`micro`).

    The baseline of F1 always says yes, which no other constant answer beats; of `accuracy` it is the commonest
    combination of these records. AUC and average precision are of names that have both answers here.
    """
    said = probabilities > THRESHOLD
    _, combinations = np.unique(answers, axis=0, return_counts=True)
    yes = np.ones_like(answers)
    result: dict[str, Any] = {
        "accuracy": float((said == answers).all(axis=1).mean()),
        "accuracy" + BASELINE: float(combinations.max() / len(answers)),
    }
    by_name = []
    for place, name in enumerate(names):
        truth, share = answers[:, place], float(answers[:, place].mean())
        found: dict[str, Any] = {"name": name, "share": share}
        for key, each in (("f1", said), ("f1" + BASELINE, yes)):
            found[key] = _find_f1_of_yes(truth, each[:, place])
        if 0 < share < 1:
            area, precision = rank_scores(probabilities[:, place], truth)
            found |= {"auc": area, "average_precision": min(precision, 1.0)}
        by_name.append(found)
    for key in ("f1", "f1" + BASELINE):
        result[key.replace("f1", "f1_macro")] = float(np.mean([found[key] for found in by_name]))
    for key, each in (("f1_micro", said), ("f1_micro" + BASELINE, yes)):
        result[key] = _find_f1_of_yes(answers, each)
    both = [found for found in by_name if "auc" in found]
    if both:
        result |= {"auc": float(np.mean([found["auc"] for found in both])), "auc" + BASELINE: 0.5}
        result["average_precision"] = float(np.mean([found["average_precision"] for found in both]))
        result["average_precision" + BASELINE] = float(np.mean([found["share"] for found in both]))
    return {**result, "by_name": tuple(by_name)}


def _find_f1_of_yes(truth: NDArray[np.bool_], said: NDArray[np.bool_]) -> float:
    """2 · right / (true + said); 0 where nothing is."""
    return float(2 * (truth & said).sum() / max(1, truth.sum() + said.sum()))


def _find_f1(labels: NDArray[np.int64], chosen: NDArray[np.int64], present: NDArray[np.int64]) -> float:
    """The mean over the classes `present` of 2 · right / (records + answers)."""
    size = int(max(labels.max(), chosen.max())) + 1
    right = np.bincount(labels[chosen == labels], minlength=size)
    both = np.bincount(labels, minlength=size) + np.bincount(chosen, minlength=size)
    return float((2 * right[present] / both[present]).mean())


def rank_scores(scores: Floats, positive: NDArray[np.bool_]) -> tuple[float, float]:
    """The area under the ROC curve, and the average precision, of `scores` (N,) for records of which some are
    `positive` and some are not. Records of equal scores have no order: they count together.
    """
    _, places = np.unique(-scores, return_inverse=True)
    alike, hits = np.bincount(places), np.bincount(places, positive)
    above, found = np.cumsum(alike), np.cumsum(hits)  # of this score and higher ones
    positives, others = found[-1], above[-1] - found[-1]
    higher = found - hits / 2  # positives of higher scores, and half of those alike
    area = float((higher * (alike - hits)).sum() / (positives * others))
    return area, float((hits * found / above).sum() / positives)


def find_calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """The mean distance, weighted by records, of confidence and share of right answers in `BINS` equal parts of [0, 1].

    Source: C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(right))


def _of_numbers(predicted: Floats, labels: Floats, *, counts: bool) -> dict[str, Any]:
    """The baseline predicts the mean label of these records; of the absolute error, their median, which is better."""
    mean, median = labels.mean(), np.median(labels)
    squares, spread = ((labels - predicted) ** 2).mean(), ((labels - mean) ** 2).mean()
    result = {
        "mean_absolute_error": np.abs(labels - predicted).mean(),
        "mean_absolute_error" + BASELINE: np.abs(labels - median).mean(),
        "root_mean_squared_error": squares**0.5,
        "root_mean_squared_error" + BASELINE: spread**0.5,
    }
    if labels.min() < labels.max():
        result |= {"r2": 1 - squares / spread, "r2" + BASELINE: 0.0}
    if counts and (predicted > 0).all() and labels.max() > 0:
        result["poisson_deviance"] = _find_deviance(labels, predicted)
        result["poisson_deviance" + BASELINE] = _find_deviance(labels, np.full(len(labels), mean))
    return {name: float(value) for name, value in result.items()}


def _find_deviance(labels: Floats, rates: Floats) -> float:
    """The mean Poisson deviance: 2 (y log(y / rate) - y + rate), where 0 log 0 is 0."""
    logs = np.log(np.where(labels > 0, labels, 1.0) / np.where(labels > 0, rates, 1.0))
    return float(2 * (labels * logs - labels + rates).mean())


def describe_metrics(scores: Mapping[str, Any], records: int) -> dict[str, Any]:
    """The content of `private/metrics.json`, JSON types only."""
    return {"schema": "dprecipe.private-metrics/v1", "records": records, **scores}
