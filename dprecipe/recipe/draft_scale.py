"""Measurements of a public sample: constants that scale its features, and what a first model is chosen by.

Nothing here may be used on private records: a mean or a deviation of theirs would be a release without a price.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from dprecipe.contract.starter import Measured
from dprecipe.data.columns import Columns
from dprecipe.data.counts import ColumnCounts
from dprecipe.data.encoders import ColumnReport, encode_column
from dprecipe.data.guess import guess_writing
from dprecipe.data.problems import Problems
from dprecipe.data.sample import is_missing
from dprecipe.data.writing import Writing
from dprecipe.text.dump import dump_inline

MAX_SCALED = 100
"""Features whose constants a recipe may list, so that it can still be read."""
INDICATOR = 0.5
"""Divisor of an indicator: by its own deviation, a rare one would be as long as all others together."""
LEAST = 0.02
"""Smallest deviation that a feature of a range of 1 is divided by."""
DIGITS = 3
RARE = 0.1
"""Share of a class below which a model is likely to answer without it."""
CLASS_WEIGHTS = "\n  # class_weights: {}    # {}: docs/how-to/imbalance.md"
_COLUMNS: TypeAdapter[Columns] = TypeAdapter(Columns)


@final
@dataclass(frozen=True, slots=True)
class Scaling:
    """The constants of a `scale` step, one a feature, and the measurements that follow from them."""

    means: tuple[float, ...]
    deviations: tuple[float, ...]
    measured: Measured


def measure_scaling(
    columns: Mapping[str, Mapping[str, Any]], sample: Mapping[str, Sequence[str]], label: Sequence[float]
) -> Scaling | None:
    """Measures the features that `columns` declare, as the readers of a run make them. `label`: numbers in the units
    of their loss, none of classes.

    Returns None where there are more features than a recipe should list.
    """
    blocks = _COLUMNS.validate_json(json.dumps(columns))
    width = sum(block.width for block in blocks.values())
    if width > MAX_SCALED:
        return None
    features = np.zeros((len(next(iter(sample.values()))), width), np.float32)
    problems, start = Problems(private=False), 0
    for name, block in blocks.items():
        report = ColumnReport(name, str, problems)
        part = features[:, start : start + block.width]
        encode_column(list(sample[name]), block, part, report, ColumnCounts(block.kind))
        start += block.width
    means = [round(float(mean), DIGITS) for mean in features.mean(axis=0, dtype=np.float64)]
    deviations = [_choose_deviation(features[:, place]) for place in range(width)]
    scaled = (features - np.array(means)) / np.array(deviations)
    norm = math.sqrt(1 + float(np.square(scaled).sum(axis=1).mean()))
    numbers = np.array(label, np.float64)
    mean, deviation = (float(numbers.mean()), float(numbers.std())) if len(numbers) else (0.0, 0.0)
    return Scaling(tuple(means), tuple(deviations), Measured(width, norm, mean, deviation))


def _choose_deviation(feature: NDArray[np.float32]) -> float:
    if not ((feature != 0) & (feature != 1)).any():
        return INDICATOR
    return max(LEAST, round(float(feature.std(dtype=np.float64)), DIGITS))


def weigh_classes(declared: Mapping[str, Any], texts: Sequence[str], public: bool) -> tuple[str, list[str]]:
    """Returns a comment of `training` that weighs rare classes, and a remark where a public sample has one.

    Weights are at first the square root of the ratio of the classes (docs/how-to/imbalance.md); of a private file
    nothing is measured, and its labels are not looked at.
    """
    if not {"values", "classes"} & set(declared):
        return "", []
    if not public:
        said = "of a common class where another is rare, from published shares"
        return CLASS_WEIGHTS.format("{CLASS: 0.2}", said), []
    counted = Counter(texts)
    counts = {name: counted[name] for name in declared.get("values") or map(str, range(declared["classes"]))}
    rarest = min(counts, key=lambda name: counts[name])
    share = counts[rarest] / sum(counts.values())
    if not 0 < share < RARE:
        return "", []
    ratios = {name: float(f"{math.sqrt(counts[rarest] / count):.1g}") for name, count in counts.items()}
    weights = {name: ratio for name, ratio in ratios.items() if ratio < 1}
    said = f"{dump_inline(rarest)} is {share:.2g} of the sample, and may not be learned"
    return CLASS_WEIGHTS.format(dump_inline(weights), said), [f"{said}: see training.class_weights in the draft"]


def read_label(texts: Sequence[str], declared: Mapping[str, Any]) -> list[float]:
    """Returns a label's numbers in the units of their loss: half of a range, or counts. Of classes, none."""
    if not {"range", "count"} & set(declared):
        return []
    writing = guess_writing([text for text in texts if not is_missing(text)]) or Writing()
    numbers = [number for text in texts if (number := writing.parse(text)) is not None]
    if "count" in declared:
        return numbers
    low, high = declared["range"]
    return [2 * (min(max(number, low), high) - low) / (high - low) - 1 for number in numbers]
