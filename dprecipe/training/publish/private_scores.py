"""The full set of scores in a run's private report: each beside a constant answer's, which errors there are, and how
far the model's probabilities can be believed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dprecipe import durable
from dprecipe.data.targets import ClassTarget, SeveralTarget, Target, name_classes
from dprecipe.page import escape_html, render_section, render_table, render_tiles
from dprecipe.release.scores import (
    BASELINE,
    SHARES,
    format_score,
    list_leading,
    make_tile,
    select_numbers,
    spell_score,
)
from dprecipe.training.program.evaluate import TRAINING_SAMPLE

MAX_SHOWN = 20
"""The largest number of classes whose confusion matrix is shown; the file has those of more."""
WITHOUT = (
    "Without a model: what one constant answer reaches on the same records. It is the commonest class, or the mean "
    "label; for the absolute error, the median."
)


def read_scores(path: Path) -> Mapping[str, Any]:
    """Reads `private/metrics.json`; returns nothing where there is none, or none of ours."""
    try:
        content = json.loads(durable.read_bytes(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_baseline(content: Mapping[str, Any], key: str) -> float | None:
    """Returns what a constant answer reaches on held-out records, in a score that is a share; None for others, whose
    curves may be far from it, and where it was not measured."""
    value = select_numbers(content).get(key + BASELINE) if key in SHARES else None
    return value if value is not None and math.isfinite(value) else None


def render_measured(content: Mapping[str, Any], held_out: str, target: Target) -> list[str]:
    """Returns a section for each set of records that was scored. `content`: of `private/metrics.json`; `held_out`: what
    these records are, in words."""
    sample = content.get(TRAINING_SAMPLE)
    sets = [(held_out, content)] if content.get("records") else []
    sets += [("a sample of training records", sample)] if isinstance(sample, dict) and sample.get("records") else []
    return [
        render_section(
            f"How good the model is, on {where}" if place == 0 else f"The same on {where}",
            _render_set(scores, where, target, is_first=place == 0),
        )
        for place, (where, scores) in enumerate(sets)
    ]


def _render_set(content: Mapping[str, Any], where: str, target: Target, *, is_first: bool) -> str:
    numbers = {key: value for key, value in select_numbers(content).items() if math.isfinite(value)}
    tiles = [make_tile(key, numbers, where) for key in list_leading(numbers)]
    rows = [
        (spell_score(key), _format_baseline(key, numbers), format_score(key, value))
        for key, value in numbers.items()
        if not key.endswith(BASELINE)
    ]
    body = render_tiles(tiles) + render_table(("score", "without a model", "this model"), rows)
    if is_first:
        body += f'<p class="small">{escape_html(WITHOUT)} All figures are in private/metrics.json.</p>'
        body += _render_confusion(content.get("confusion"), target)
        body += _render_calibration(content.get("calibration"), target)
    return body


def _format_baseline(key: str, numbers: Mapping[str, float]) -> str:
    return format_score(key, numbers[key + BASELINE]) if key + BASELINE in numbers else "–"


def _render_confusion(counts: Any, target: Target) -> str:
    """Renders how many records of each class are taken for each."""
    if not counts or not isinstance(target, ClassTarget) or target.classes > MAX_SHOWN:
        return ""
    names = name_classes(target)
    rows = [
        (name, *(f"{count:,}" for count in row), f"{row[place] / sum(row):.2%}" if sum(row) else "–")
        for place, (name, row) in enumerate(zip(names, counts, strict=True))
    ]
    head = ("records of class", *(f"taken for {name}" for name in names), "right")
    return f"<h3>Which classes are taken for which</h3>{render_table(head, rows)}"


def _render_calibration(parts: Sequence[Mapping[str, float]] | None, target: Target) -> str:
    """Renders how often what the model says comes true, by ten parts of its probabilities."""
    if not parts:
        return ""
    said, true, counted = "the class it predicts", "of these right", "records"
    if isinstance(target, ClassTarget) and target.classes == 2:
        name = name_classes(target)[1]
        said, true = f"class {name}", f"of these {name}"
    elif isinstance(target, SeveralTarget):
        said, true, counted = "a name", "of these it applies", "answers"
    rows = [
        (
            f"{part['from']:.0%} to {part['to']:.0%}",
            f"{part['count']:,}",
            f"{part['said']:.1%}",
            f"{part['true']:.1%}",
        )
        for part in parts
    ]
    head = (f"probability of {said}", counted, "the model says, on average", true)
    text = "The last two columns are equal where the model's probabilities can be taken at their word."
    return f'<h3>Calibration</h3>{render_table(head, rows)}<p class="small">{escape_html(text)}</p>'
