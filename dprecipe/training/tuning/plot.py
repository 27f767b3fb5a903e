"""The scores of all runs over each of their values, for `private/`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dprecipe.contract.drawing import MARK
from dprecipe.contract.plan import Plan
from dprecipe.libraries import importing_libraries
from dprecipe.planning.candidates import Point
from dprecipe.release.figures import plot_style


def draw_trials(plan: Plan, rows: Sequence[tuple[Point, float | None]]) -> str:
    """Returns an SVG with a panel for each key."""
    import io

    with importing_libraries("tuning"):
        import matplotlib
        from matplotlib.figure import Figure

    over = () if plan.tuning is None else plan.tuning.block.over
    figure_name = "" if plan.tuning is None else plan.tuning.block.score.figure
    scored = [(point, score) for point, score in rows if score is not None]
    with matplotlib.rc_context(plot_style("trials")):
        figure = Figure(figsize=(3 * max(1, len(over)), 2.6), layout="constrained")
        panels: Any = figure.subplots(1, max(1, len(over)), sharey=True, squeeze=False)[0]
        for axes, each in zip(panels, over, strict=False):
            values = [point[each.key] for point, _ in scored]
            shown = values if each.range is not None else [str(value) for value in values]
            axes.plot(shown, [score for _, score in scored], "o", color=MARK, markersize=4)
            axes.set(xlabel=each.key.rpartition(".")[2], xscale="log" if each.scale == "log" else axes.get_xscale())
        panels[0].set_ylabel(figure_name.replace("_", " "))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return text.getvalue()
