"""The picture of a plan: its curves of ε as an SVG file, and why a curve is not there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dprecipe.cli.files import limit_notes, replace_output
from dprecipe.contract.drawing import CAP, INK, MARK, SERIES, SOFT, Axes
from dprecipe.contract.panels import Panel, render_panels
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.planning.curves import PRINTED, EpsilonCurve, trace_curves
from dprecipe.privacy.rounding import write_number
from dprecipe.recipe.read import Loaded

BELOW = 0.5
"""Share of the height that is left below the ends of the curves, where the legend is."""
TITLES = ("ε along the run, by accountant", "ε over the noise", "ε over the batch size, at equal noise")


def check_plot(plot: Path | None) -> None:
    """Checks, before any work is done, that a plot's name is that of an SVG file.

    Raises:
        UsageFault: it is not.
    """
    if plot is not None and plot.suffix != ".svg":
        raise UsageFault(f"{plot}: the plot is an .svg", "name a file that ends so with --plot")


def write_plot(loaded: Loaded, plan: Plan, plot: Path) -> list[str]:
    """Writes the curves of a plan, in place of what was there; returns what is to be said of them.

    Raises:
        UsageFault: there is no curve, or the file can't be written.
    """
    note = limit_notes()
    curves = trace_curves(loaded, plan, lambda task: note(f"now {task}"))
    missing = [
        f"  no curve of {title}: {curve.reason}" for title, curve in zip(TITLES, curves, strict=True) if curve.reason
    ]
    drawn = [(title, curve) for title, curve in zip(TITLES, curves, strict=True) if not curve.reason]
    if not drawn:
        raise UsageFault(f"there is no curve of this plan: {curves[0].reason}", "leave --plot out")
    panels = [Panel(title, partial(draw_curve, curve, plan)) for title, curve in drawn]
    replace_output(plot, render_panels(f"curves of ε of {plan.name}", panels).encode())
    return [*missing, f"  wrote {plot}"]


def draw_curve(curve: EpsilonCurve, plan: Plan, axes: Axes) -> None:
    """Draws one curve, or those of all accountants, with the plan's own point."""
    budget, delta = plan.budget.epsilon, write_number(plan.budget.delta)
    name = f"ε at δ = {delta}"
    values = [epsilon for points in curve.lines.values() for _, epsilon in points]
    axes.draw_level(budget)
    if len(curve.lines) == 1:
        (points,) = curve.lines.values()
        axes.plot(points, MARK, dots=True)
        right = max(x for x, _ in points)
        axes.write(f"budget ε = {write_number(budget)}", (right, budget), CAP, "end", shift=(-4, -5))
        axes.set(curve.what, name, log_x=curve.is_log, log_y=True)
    else:
        accountant = plan.guarantee.accountant
        ordered = sorted(curve.lines.items(), key=lambda line: (line[0] == accountant, -line[1][-1][1]))
        for (label, points), color in zip(
            ordered, _choose_colors([label for label, _ in ordered], accountant), strict=True
        ):
            axes.plot(points, color, dashed=label == PRINTED, label=_name_line(label, accountant))
        lowest, highest = min(points[-1][1] for points in curve.lines.values()), max(values)
        below = math.exp((math.log(lowest) - BELOW * math.log(highest)) / (1 - BELOW))
        axes.set(curve.what, name, (0, None), (min(below, *values), None), log_y=True)
        axes.add_legend(at_bottom=True)
    if curve.here is not None:
        axes.mark(*curve.here)


def _name_line(label: str, accountant: str) -> str:
    if label == PRINTED:
        return "composition, no guarantee"
    return label.replace("_", " ") + (" (the claim)" if label == accountant else "")


def _choose_colors(labels: Sequence[str], accountant: str) -> list[str]:
    """Returns a colour for each accountant; the claim's is that of data."""
    others = iter([color for color in (*SERIES, INK, CAP) if color != MARK])
    return [MARK if label == accountant else next(others, SOFT) for label in labels]
