"""The figures of a sweep: scores against each swept key, and a heat map of each two.

A point is the mean over the seeds; its bar goes from the lowest to the highest of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from dprecipe.contract.drawing import SERIES, Axes, write_number
from dprecipe.contract.panels import Panel, render_panels
from dprecipe.release.scores import SMALLER_IS_BETTER, format_score, spell_score
from dprecipe.sweep.grid import Grid
from dprecipe.sweep.results import PointRow

MAX_MAPS = 3
"""Most heat maps of one sweep."""
MAX_TEXT = 8
"""Most squares of a row of a heat map whose scores are written in them."""
LEGEND_SHARE, LINE_SHARE = 0.12, 0.083
"""The height of a legend, and of each line in it, as shares of the axis."""


def draw_sweep(grid: Grid, rows: Sequence[PointRow], metric: str) -> str | None:
    """Returns all figures of a sweep as one SVG file; None where no run has a score."""
    scored = [row for row in rows if row.scores and all(map(math.isfinite, row.scores))]
    if not scored:
        return None
    bars = "; bars span the seeds" if any(len(row.scores) > 1 for row in scored) else ""
    panels = [
        Panel(f"{spell_score(metric)} against {each.short}{bars}", _draw_key(grid, index, scored, metric))
        for index, each in enumerate(grid.over)
    ]
    pairs = [
        pair
        for pair in itertools.combinations(range(len(grid.over)), 2)
        if all(len(grid.over[i].values) > 1 for i in pair)
    ]
    for first, second in pairs[:MAX_MAPS]:
        title = (
            f"{spell_score(metric)}, {'stronger is smaller' if metric in SMALLER_IS_BETTER else 'stronger is larger'}"
        )
        panels.append(Panel(title, _draw_map(grid, first, second, scored, metric)))
    return render_panels(f"{spell_score(metric)} of a sweep over {', '.join(grid.keys)}", panels)


def _draw_key(grid: Grid, index: int, rows: Sequence[PointRow], metric: str) -> Callable[[Axes], None]:
    """Draws one curve for each combination of the other values; of very many, one over all of them."""
    key, others = grid.over[index], [each for place, each in enumerate(grid.over) if place != index]
    combinations = list(itertools.product(*(each.values for each in others)))
    curves: list[tuple[str, list[PointRow]]] = [
        (
            ", ".join(f"{each.short} {value}" for each, value in zip(others, combination, strict=True)),
            [row for row in rows if _leave_out(row.values, index) == combination],
        )
        for combination in combinations
    ]
    if len(combinations) > len(SERIES):
        curves = [("over all other values", list(rows))]

    def draw(axes: Axes) -> None:
        drawn: list[float] = []
        for (label, own), color in zip(curves, (*SERIES[3:], *SERIES[:3]), strict=False):
            points = []
            for place, value in enumerate(key.values):
                scores = [score for row in own if row.values[index] == value for score in row.scores]
                if not scores:
                    continue
                points.append((float(place), math.fsum(scores) / len(scores)))
                axes.plot([(float(place), min(scores)), (float(place), max(scores))], color)
                drawn += scores
            axes.plot(points, color, dots=True, label=label)
        low, high = min(drawn), max(drawn)
        margin = 0.1 * (high - low) or 0.05 * abs(high) or 1.0
        lines = len(curves) if others else 0
        share = min(0.6, LEGEND_SHARE + LINE_SHARE * lines) if lines else 0.0
        above = margin + (high - low + 2 * margin) * share / (1 - share)
        limits = (-0.5, len(key.values) - 0.5)
        axes.set(key.key, spell_score(metric), limits, (low - margin, high + above), x_names=key.values)
        if lines:
            axes.add_legend()

    return draw


def _draw_map(grid: Grid, first: int, second: int, rows: Sequence[PointRow], metric: str) -> Callable[[Axes], None]:
    """Draws the mean score of each two values, over all other values and seeds."""
    across, up = grid.over[first], grid.over[second]
    means: dict[tuple[int, int], float] = {}
    for x, left in enumerate(across.values):
        for y, right in enumerate(up.values):
            pairs = [row for row in rows if (row.values[first], row.values[second]) == (left, right)]
            scores = [score for row in pairs for score in row.scores]
            if scores:
                means[x, y] = math.fsum(scores) / len(scores)
    low, high = min(means.values()), max(means.values())

    def draw(axes: Axes) -> None:
        for (x, y), mean in means.items():
            share = (mean - low) / (high - low) if high > low else 0.5
            share = 1 - share if metric in SMALLER_IS_BETTER else share
            text = format_score(metric, mean) if len(across.values) <= MAX_TEXT else write_number(round(mean, 2))
            axes.fill_cell(x, y, share, text if len(across.values) <= 2 * MAX_TEXT else "")
        limits = ((-0.5, len(across.values) - 0.5), (-0.5, len(up.values) - 0.5))
        axes.set(across.key, up.short, *limits, x_names=across.values, y_names=up.values)

    return draw


def _leave_out(values: tuple[str, ...], index: int) -> tuple[str, ...]:
    return (*values[:index], *values[index + 1 :])
