"""The full set of scores of a finished model on held-out records, each beside the score that takes no model.

They go to `private/metrics.json`, for the run's owner (of a run without privacy to `weights/metrics.json`), and into
the certificate where the records are declared public, without the confusion matrix. scikit-learn computes them, and is
imported when they are asked for: once, at the end of a run.

Axes: N records, C classes, K names, any of which may apply.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.targets import ClassTarget, CountTarget, SeveralTarget, Target, TokenTarget, name_classes
from dprecipe.libraries import importing_libraries, leaving_out
from dprecipe.release.scores import BASELINE

Floats = NDArray[np.float64]
PRIVATE, PUBLIC = "dprecipe.private-metrics/v1", "dprecipe.public-metrics/v1"
"""The schemas of the file in `private/`, and of the one beside weights without privacy."""
BINS = 10
"""The number of parts of [0, 1] for the calibration and its error."""
THRESHOLD = 0.5
"""The probability above which a name is said to apply."""
MAX_CONFUSION = 100
"""The largest number of classes in a confusion matrix."""


def measure(predicted: Floats, labels: Floats, target: Target) -> dict[str, Any]:
    """Scores by name. `predicted`: of classes their probabilities, (N, C), of names theirs, (N, K), else predictions
    (N, 1), in the label's units; `labels` (N,): class numbers, or numbers in these units; of names 0 and 1, (N, K).

    | records | result |
    |---|---|
    | none | empty |
    | a prediction that is not finite | empty |
    | the next token | empty |
    | a single class | no AUC and no average precision |
    """
    if not len(labels) or not np.isfinite(predicted).all() or isinstance(target, TokenTarget):
        return {}
    if isinstance(target, ClassTarget):
        return _of_classes(predicted, labels.astype(np.int64))
    if isinstance(target, SeveralTarget):
        return _of_names(predicted, labels.astype(np.bool_), name_classes(target))
    return _of_numbers(predicted[:, 0], labels, counts=isinstance(target, CountTarget))


def _import_metrics() -> Any:
    """Imports scikit-learn's metrics without pandas, which it would import where installed, and which nothing here
    needs."""
    with leaving_out("pandas"), importing_libraries():
        from sklearn import metrics
    return metrics


def _of_classes(probabilities: Floats, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Scores classes. The baseline says the commonest class of these records, with the probabilities that the classes
    have in them."""
    metrics = _import_metrics()
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
    result["loss" + BASELINE] = _find_entropy(shares)
    result["calibration_error"] = find_calibration_error(probabilities.max(1), chosen == labels)
    if classes == 2:
        result["calibration"] = list_calibration(probabilities[:, 1], labels == 1)
    else:
        result["calibration"] = list_calibration(probabilities.max(1), chosen == labels)
    if classes <= MAX_CONFUSION:
        result["confusion"] = metrics.confusion_matrix(labels, chosen, labels=np.arange(classes)).tolist()
    return result


def _of_names(probabilities: Floats, answers: NDArray[np.bool_], names: tuple[str, ...]) -> dict[str, Any]:
    """Scores each name by itself under `by_name`; of all, means over names (`macro`) and counts over all answers
    (`micro`).

    The baseline of F1 always says yes, which no other constant answer beats; of `accuracy` it is the commonest
    combination of these records. AUC and average precision are of names that have both answers here.
    """
    metrics = _import_metrics()
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
            found[key] = float(metrics.f1_score(truth, each[:, place], zero_division=0))
        if 0 < share < 1:
            chances = probabilities[:, place]
            found["auc"] = float(metrics.roc_auc_score(truth, chances))
            found["average_precision"] = min(float(metrics.average_precision_score(truth, chances)), 1.0)
        by_name.append(found)
    for key in ("f1", "f1" + BASELINE):
        result[key.replace("f1", "f1_macro")] = float(np.mean([found[key] for found in by_name]))
    for key, each in (("f1_micro", said), ("f1_micro" + BASELINE, yes)):
        result[key] = float(metrics.f1_score(answers.ravel(), each.ravel(), zero_division=0))
    both = [found for found in by_name if "auc" in found]
    if both:
        result |= {"auc": float(np.mean([found["auc"] for found in both])), "auc" + BASELINE: 0.5}
        result["average_precision"] = float(np.mean([found["average_precision"] for found in both]))
        result["average_precision" + BASELINE] = float(np.mean([found["share"] for found in both]))
    result["loss" + BASELINE] = float(
        np.mean([_find_entropy([found["share"], 1 - found["share"]]) for found in by_name])
    )
    result["calibration"] = list_calibration(probabilities.ravel(), answers.ravel())
    return {**result, "by_name": tuple(by_name)}


def find_calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """Returns the mean distance, weighted by records, of confidence and share of right answers in `BINS` equal parts of
    [0, 1].

    Source: C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, equation 3.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    gaps = np.bincount(bins, confidence - right, BINS)
    return float(np.abs(gaps).sum() / len(right))


def list_calibration(said: Floats, true: NDArray[np.bool_]) -> list[dict[str, float]]:
    """Returns, for each of `BINS` equal parts of [0, 1] that has some of the probabilities `said` (N,): their number,
    their mean, and the share of them that came `true` (N,).

    `said` has the probability of the second of two classes; of several, of the predicted class; of names, of each.
    """
    bins = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    counts, sums, hits = (np.bincount(bins, weights, BINS) for weights in (None, said, true))
    return [
        {
            "from": part / BINS,
            "to": (part + 1) / BINS,
            "count": int(counts[part]),
            "said": min(float(sums[part] / counts[part]), 1.0),
            "true": float(hits[part] / counts[part]),
        }
        for part in np.flatnonzero(counts).tolist()
    ]


def _find_entropy(shares: Sequence[float] | Floats) -> float:
    """Returns the cross entropy of an answer with the probabilities `shares`, which the records have themselves."""
    return float(-sum(share * math.log(share) for share in shares if share > 0)) + 0.0


def _of_numbers(predicted: Floats, labels: Floats, *, counts: bool) -> dict[str, Any]:
    """Scores numbers. The baseline predicts the mean label of these records; for the absolute error, their median,
    which is better."""
    metrics = _import_metrics()
    mean, median = np.full(len(labels), labels.mean()), np.full(len(labels), np.median(labels))
    result = {
        "mean_absolute_error": metrics.mean_absolute_error(labels, predicted),
        "mean_absolute_error" + BASELINE: metrics.mean_absolute_error(labels, median),
        "root_mean_squared_error": metrics.mean_squared_error(labels, predicted) ** 0.5,
        "root_mean_squared_error" + BASELINE: metrics.mean_squared_error(labels, mean) ** 0.5,
    }
    if labels.min() < labels.max():
        result |= {"r2": metrics.r2_score(labels, predicted), "r2" + BASELINE: 0.0}
    if not counts:
        result["loss" + BASELINE] = metrics.mean_squared_error(labels, mean)
    elif labels.max() > 0:
        result["loss" + BASELINE] = metrics.mean_poisson_deviance(labels, mean)
    if counts and (predicted > 0).all() and labels.max() > 0:
        result["poisson_deviance"] = metrics.mean_poisson_deviance(labels, predicted)
        result["poisson_deviance" + BASELINE] = metrics.mean_poisson_deviance(labels, mean)
    return {name: float(value) for name, value in result.items()}


def render_metrics(scores: Mapping[str, Any], records: int, schema: str = PRIVATE) -> bytes:
    """Returns `metrics.json`. JSON has no infinity: the scores of a diverged model are null."""
    content = {"schema": schema, "records": records, **scores}
    return json.dumps(_drop_infinities(content), indent=1, allow_nan=False).encode()


def _drop_infinities(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _drop_infinities(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_drop_infinities(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
