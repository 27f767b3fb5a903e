"""The full set of scores of a finished model on held-out records, each beside the score that takes no model.

They go to `private/metrics.json`, for the run's owner; and into the certificate where the records are declared public,
without the confusion matrix. scikit-learn computes them, and is imported when they are asked for: once, at the end of a
run.

Axes: N records, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.targets import ClassTarget, CountTarget, Target

Floats = NDArray[np.float64]
BASELINE = "_baseline"
"""What ends the name of a score that takes no model: that of the commonest class, or of the mean label."""
BINS = 10
"""Of the calibration error."""
MAX_CONFUSION = 100
"""Classes of a confusion matrix, at most."""


def measure(predicted: Floats, labels: Floats, target: Target) -> dict[str, Any]:
    """Scores by name. `predicted`: of classes their probabilities, (N, C), else predictions (N, 1), in the label's
    units; `labels` (N,): class numbers, or numbers in these units.

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
    return _of_numbers(predicted[:, 0], labels, counts=isinstance(target, CountTarget))


def _of_classes(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, Any]:
    """The baseline says the commonest class of these records, with the probabilities that the classes have in them."""
    from sklearn import metrics

    count, classes = probabilities.shape
    shares = np.bincount(labels, minlength=classes) / count
    chosen, commonest = probabilities.argmax(1), np.full(count, shares.argmax())
    present = np.flatnonzero(shares)
    result: dict[str, Any] = {}

    def add(name: str, value: float, baseline: float) -> None:
        result[name], result[name + BASELINE] = min(float(value), 1.0), min(float(baseline), 1.0)  # rounding of means

    add("accuracy", (chosen == labels).mean(), shares.max())
    options = {"labels": present, "average": "macro", "zero_division": 0}
    add("balanced_accuracy", metrics.recall_score(labels, chosen, **options), 1 / len(present))
    f1 = [metrics.f1_score(labels, each, **options) for each in (chosen, commonest)]
    add("f1", f1[0], f1[1])
    if len(present) > 1:
        # Each class against all others; of two classes the second, as is usual.
        ranked = [1] if classes == 2 else present
        areas = [metrics.roc_auc_score(labels == each, probabilities[:, each]) for each in ranked]
        precisions = [metrics.average_precision_score(labels == each, probabilities[:, each]) for each in ranked]
        add("auc", np.mean(areas), 0.5)
        add("average_precision", np.mean(precisions), np.mean(shares[ranked]))
    result["calibration_error"] = find_calibration_error(probabilities.max(1), chosen == labels)
    if classes <= MAX_CONFUSION:
        result["confusion"] = metrics.confusion_matrix(labels, chosen, labels=np.arange(classes)).tolist()
    return result


def find_calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """The mean distance, weighted by records, of confidence and share of right answers in `BINS` equal parts of [0, 1].

    Source: C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(right))


def _of_numbers(predicted: Floats, labels: Floats, *, counts: bool) -> dict[str, Any]:
    """The baseline predicts the mean label of these records; of the absolute error, their median, which is better."""
    from sklearn import metrics

    mean, median = np.full(len(labels), labels.mean()), np.full(len(labels), np.median(labels))
    result = {
        "mean_absolute_error": metrics.mean_absolute_error(labels, predicted),
        "mean_absolute_error" + BASELINE: metrics.mean_absolute_error(labels, median),
        "root_mean_squared_error": metrics.mean_squared_error(labels, predicted) ** 0.5,
        "root_mean_squared_error" + BASELINE: metrics.mean_squared_error(labels, mean) ** 0.5,
    }
    if labels.min() < labels.max():
        result |= {"r2": metrics.r2_score(labels, predicted), "r2" + BASELINE: 0.0}
    if counts and (predicted > 0).all() and labels.max() > 0:
        result["poisson_deviance"] = metrics.mean_poisson_deviance(labels, predicted)
        result["poisson_deviance" + BASELINE] = metrics.mean_poisson_deviance(labels, mean)
    return {name: float(value) for name, value in result.items()}


def describe_metrics(scores: Mapping[str, Any], records: int) -> dict[str, Any]:
    """The content of `private/metrics.json`, JSON types only."""
    return {"schema": "dprecipe.private-metrics/v1", "records": records, **scores}
