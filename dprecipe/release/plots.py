"""The report's plots, as SVG for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from dprecipe.contract.drawing import CAP, LINE, SOFT, Axes
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events, take_first
from dprecipe.privacy.rounding import write_number
from dprecipe.release import figures
from dprecipe.release.schema import Claim
from dprecipe.release.scores import SHARES, format_score

POINTS = 24
ALONE = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
"""Attributes that a figure needs where it is a file of its own."""


def trace_spending(plan: Plan, charges: Sequence[Charge]) -> list[tuple[int, float]]:
    """Returns (steps or queries, ε spent up to there) along the charged events; every ε is an upper bound."""
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


def label_budget(budget: float) -> str:
    """Beside the line of the budget."""
    return f"budget ε = {write_number(budget)}"


def label_claim(claim: Claim) -> str:
    """Beside the claimed point."""
    return f"claimed: ε = {write_number(claim.epsilon)}, δ = {write_number(claim.delta)}"


def draw_spending(axes: Axes, points: Sequence[tuple[int, float]], budget: float, what: str = "steps") -> None:
    """Draws ε over steps, against the budget."""
    axes.draw_level(budget)
    axes.plot(points)
    axes.shade(points)
    axes.write(label_budget(budget), (0, budget), CAP, shift=(4, 13))
    axes.set(what, "ε spent", (0, max(step for step, _ in points)), (0, budget * 1.08))


def draw_profile(axes: Axes, claim: Claim) -> None:
    """Draws δ(ε) on a logarithmic scale, with the claimed point."""
    axes.plot((point.epsilon, point.delta) for point in claim.profile)
    axes.mark(claim.epsilon, claim.delta)
    axes.write_corner(label_claim(claim))
    axes.set("ε", "δ", log_y=True)


def draw_scores(
    axes: Axes, history: Sequence[Mapping[str, float]], key: str, baseline: float | None, what: str = "steps"
) -> None:
    """Draws the score `key` on public records over steps, against the score that takes no model."""
    points = [(point["step"], point[key]) for point in history]
    if baseline is not None:
        axes.draw_level(baseline)
    axes.plot(points, dots=True)
    axes.write(format_score(key, points[-1][1]), points[-1], anchor="end", shift=(-4, -7))
    top = 1.05 if key in SHARES else 1.1 * max(baseline or 0.0, *(value for _, value in points)) or 1.0
    axes.set(what, key.replace("_", " "), (0, None), (0, top))


def plot_style(name: str) -> dict[str, Any]:
    """Returns matplotlib's settings for a picture of this name that is a file of its own."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # ids that are the same each time
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


def render_svg(name: str, draw: Callable[[Axes], None]) -> str:
    """Returns the figure that `draw` draws on its axes."""
    axes = Axes()
    draw(axes)
    return f"{figures.figure_head(name)}{axes.render()}</svg>"


def render_svg_file(name: str, draw: Callable[[Axes], None]) -> str:
    """Returns the same, as a file of its own."""
    return render_svg(name, draw).replace("<svg ", f"<svg {ALONE} ", 1)
