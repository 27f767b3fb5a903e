"""The report's plots, as SVG for a page. Needs matplotlib, which is imported on use."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from dprecipe.mechanisms.drawing import CAP, INK, LINE, MARK, SOFT
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, take_first
from dprecipe.release import figures
from dprecipe.release.schema import Claim
from dprecipe.release.scores import SHARES, format_score

POINTS = 24
AREA = (0.185, 0.205, 0.775, 0.765)
"""Left, bottom, width and height of a plot's area, as shares of the figure; the rest is for ticks and labels. Fixed: to
measure them, matplotlib would draw each figure twice."""


def trace_spending(plan: Plan, charges: Sequence[Charge]) -> list[tuple[int, float]]:
    """(steps or queries, ε spent up to there) along the charged events; every ε is an upper bound."""
    events, budget, part = count_events(charges), plan.budget, mechanism_of(plan.mechanism).certificate
    # What is charged before or after the steps shows as a jump.
    step_events = sum(charge.count for charge in charges if part.count_steps(charge.event))
    first = sum(charge.count for charge in takewhile(lambda charge: not part.count_steps(charge.event), charges))
    counts = sorted({first, step_events, *(round(events * i / POINTS) for i in range(1, POINTS + 1))} - {0})
    points = [(0, 0.0)]
    for count in counts:
        prefix = take_first(charges, count)
        epsilon = accountants.epsilon(prefix, budget.delta, budget.neighbouring, budget.accountant)
        points.append((part.count_steps_charged(prefix), epsilon))
    return points


def draw_spending(axes: Any, points: Sequence[tuple[int, float]], budget: float, what: str = "steps") -> None:
    """ε over steps, against the budget."""
    steps, epsilons = zip(*points, strict=True)
    axes.axhline(budget, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.plot(steps, epsilons, color=MARK, linewidth=2)
    axes.fill_between(steps, epsilons, color=MARK, alpha=0.08, linewidth=0)
    axes.annotate(
        f"budget ε = {budget:g}", (0, budget), (4, -4), textcoords="offset points", color=CAP, va="top", size=10
    )
    axes.set(xlabel=what, ylabel="ε spent", ylim=(0, budget * 1.08), xlim=(0, max(steps)))


def draw_profile(axes: Any, claim: Claim) -> None:
    """δ(ε) on a logarithmic scale, with the claimed point."""
    points = [(point.epsilon, point.delta) for point in claim.profile if point.delta > 0]
    axes.semilogy(*zip(*points, strict=True), color=MARK, linewidth=2)
    axes.plot([claim.epsilon], [claim.delta], "o", color=CAP, markersize=7, zorder=5)
    axes.annotate(
        f"claimed: ε = {claim.epsilon:g}, δ = {claim.delta:g}",
        (claim.epsilon, claim.delta),
        (0.97, 0.93),
        textcoords="axes fraction",
        ha="right",
        va="top",
        color=CAP,
        size=10,
    )
    axes.set(xlabel="ε", ylabel="δ")


def draw_scores(
    axes: Any, history: Sequence[Mapping[str, float]], key: str, baseline: float | None, what: str = "steps"
) -> None:
    """The score `key` on public records over steps, against the score that takes no model."""
    steps = [point["step"] for point in history]
    values = [point[key] for point in history]
    if baseline is not None:
        axes.axhline(baseline, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.plot(steps, values, color=MARK, linewidth=2, marker="o", markersize=3)
    axes.annotate(
        format_score(key, values[-1]),
        (steps[-1], values[-1]),
        (-4, 7),
        textcoords="offset points",
        ha="right",
        color=INK,
        size=10,
    )
    axes.set(xlabel=what, ylabel=key.replace("_", " "), xlim=(0, None))
    if key in SHARES:
        axes.set(ylim=(0, 1.05))
    else:
        axes.set(ylim=(0, 1.1 * max([*values, baseline or 0.0]) or 1.0))


def plot_style(name: str) -> dict[str, Any]:
    """matplotlib's settings for the plot of this name."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # ids that are the same each time and differ between the plots of a page
        "font.family": "sans-serif",
        "font.size": 10.5,
        "axes.edgecolor": LINE,
        "axes.labelcolor": SOFT,
        "xtick.color": SOFT,
        "ytick.color": SOFT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": LINE,
        "grid.linewidth": 0.8,
    }


def render_svg(name: str, draw: Callable[[Any], None]) -> str:
    """The figure that `draw` draws on its axes, in the style of the report's plots."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(plot_style(name)):
        figure = Figure(figsize=(figures.SIZE[0] / 72, figures.SIZE[1] / 72))
        figure.patch.set_alpha(0)
        axes = figure.add_axes(AREA)
        axes.patch.set_alpha(0)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return figures.tidy_svg(name, text.getvalue())
