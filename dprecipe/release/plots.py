"""The report's plots, as SVG to be put into a page. Needs matplotlib, which is imported on use."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dprecipe.mechanisms.pate import certificate as voting
from dprecipe.mechanisms.plan import Plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, FilterRest, NoisyMax, SanitisedCost, take_first, total
from dprecipe.release import figures
from dprecipe.release.certificate import steps_of
from dprecipe.release.schema import Claim

INK, SOFT, LINE, MARK, CAP = "#1c2733", "#5b6b7b", "#e3e8ee", "#1f6feb", "#c2410c"
POINTS = 24
LEAST_SHOWN = 1e-30


def spent_over_steps(plan: Plan, charges: Sequence[Charge]) -> list[tuple[int, float]]:
    """(steps, or queries put, and ε spent by then) along the events charged; every ε is an upper bound."""
    events, budget = total(charges), plan.budget
    ended = events - voting.count(charges, FilterRest | SanitisedCost)  # what is charged at the end is a step up
    counts = sorted({ended, *(round(events * i / POINTS) for i in range(1, POINTS + 1))} - {0})
    points = [(0, 0.0)]
    for count in counts:
        part = take_first(charges, count)
        epsilon = accountants.epsilon(part, budget.delta, budget.neighbouring, budget.accountant)
        points.append((_progress(plan, part), epsilon))
    return points


def _progress(plan: Plan, part: Sequence[Charge]) -> int:
    if plan.mechanism == voting.NAME:
        return voting.queries(part)
    return sum(charge.count * steps_of(charge.event) for charge in part)


def answered_over_queries(charges: Sequence[Charge]) -> list[tuple[int, int]]:
    """(queries put, answers given) after each block of queries, in the ledger's order; what a crash lost included."""
    points = [(0, 0)]
    for index, charge in enumerate(charges, 1):
        if isinstance(charge.event, NoisyMax) or index == len(charges):
            point = voting.queries(charges[:index]), voting.count(charges[:index], NoisyMax)
            points += [point] if point != points[-1] else []
    return points


def epsilon_plot(points: Sequence[tuple[int, float]], budget: float, what: str = "steps") -> str:
    """ε over steps, against the budget."""

    def draw(axes: Any) -> None:
        steps, epsilons = zip(*points, strict=True)
        axes.axhline(budget, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
        axes.plot(steps, epsilons, color=MARK, linewidth=2)
        axes.fill_between(steps, epsilons, color=MARK, alpha=0.08, linewidth=0)
        axes.annotate(
            f"budget ε = {budget:g}", (0, budget), (4, -4), textcoords="offset points", color=CAP, va="top", size=9
        )
        axes.set(xlabel=what, ylabel="ε spent", ylim=(0, budget * 1.08), xlim=(0, max(steps)))

    return svg("epsilon", draw)


def answered_plot(points: Sequence[tuple[int, int]]) -> str:
    """The part of the queries put that was answered, against how many had been put."""

    def draw(axes: Any) -> None:
        put = [queries for queries, _ in points if queries]
        parts = [answers / queries for queries, answers in points if queries]
        axes.plot(put, parts, color=MARK, linewidth=2, marker="o", markersize=3)
        axes.annotate(
            f"{points[-1][1]:,} of {points[-1][0]:,}",
            (put[-1], parts[-1]),
            (-4, 7),
            textcoords="offset points",
            ha="right",
            color=INK,
            size=9,
        )
        axes.set(xlabel="queries", ylabel="answered, of those put", ylim=(0, 1.1), xlim=(0, None))

    return svg("answered", draw)


def profile_plot(claim: Claim) -> str:
    """δ(ε) on a logarithmic scale, with the claimed point."""

    def draw(axes: Any) -> None:
        points = [(point.epsilon, point.delta) for point in claim.profile if point.delta > 0]
        axes.semilogy(*zip(*points, strict=True), color=MARK, linewidth=2)
        axes.plot([claim.epsilon], [claim.delta], "o", color=CAP, markersize=7, zorder=5)
        axes.annotate(
            f"claimed: ε = {claim.epsilon:g}, δ = {claim.delta:g}",
            (claim.epsilon, claim.delta),
            (10, 8),
            textcoords="offset points",
            color=CAP,
            size=9,
        )
        axes.set(xlabel="ε", ylabel="δ")

    return svg("profile", draw)


def position_plot(claim: Claim) -> str:
    """ε at the claim's δ against the record's place in the file."""

    def draw(axes: Any) -> None:
        places = [row.position for row in claim.by_position]
        axes.axhline(claim.epsilon, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
        axes.plot(places, [row.epsilon for row in claim.by_position], color=MARK, linewidth=2)
        axes.set(xlabel="position of the record", ylabel="ε", ylim=(0, claim.epsilon * 1.08))

    return svg("positions", draw)


def bounds_over_epsilon(plan: Plan, charges: Sequence[Charge], claim: Claim) -> dict[str, list[tuple[float, float]]]:
    """(ε, δ) of hidden runs by each of their bounds, at the ε of the claim's profile."""
    relation = plan.budget.neighbouring
    epsilons = [point.epsilon for point in claim.profile]
    columns = [accountants.hidden_deltas(charges, epsilon, relation) for epsilon in epsilons]
    return {name: [(e, column[name]) for e, column in zip(epsilons, columns, strict=True)] for name in columns[0]}


def bounds_plot(curves: Mapping[str, Sequence[tuple[float, float]]], claim: Claim) -> str:
    """δ(ε) by each bound on a logarithmic scale, with the claimed point."""

    def draw(axes: Any) -> None:
        for (name, points), color in zip(curves.items(), (SOFT, "#b8860b", "#8250df", MARK, "#1a7f4b"), strict=False):
            shown = [(e, d) for e, d in points if d > LEAST_SHOWN]
            dashes = (0, (4, 3)) if name == "hybrid" else "-"
            if not shown:
                continue
            axes.semilogy(
                *zip(*shown, strict=True), color=color, linewidth=2, linestyle=dashes, label=name.replace("_", " ")
            )
        axes.plot([claim.epsilon], [claim.delta], "o", color=CAP, markersize=7, zorder=5)
        axes.set(xlabel="ε", ylabel="δ")
        axes.legend(frameon=False, fontsize=8)

    return svg("bounds", draw)


def accuracy_plot(history: Sequence[Mapping[str, float]], what: str = "steps") -> str:
    """Accuracy on public records over steps."""

    def draw(axes: Any) -> None:
        steps = [point["step"] for point in history]
        accuracies = [point["accuracy"] for point in history]
        axes.plot(steps, accuracies, color=MARK, linewidth=2, marker="o", markersize=3)
        axes.annotate(
            f"{accuracies[-1]:.1%}",
            (steps[-1], accuracies[-1]),
            (-4, 7),
            textcoords="offset points",
            ha="right",
            color=INK,
            size=9,
        )
        axes.set(xlabel=what, ylabel="accuracy, public records", ylim=(0, 1.05), xlim=(0, None))

    return svg("accuracy", draw)


def style(name: str) -> dict[str, Any]:
    """matplotlib's settings for the plot of this name."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": name,  # ids that are the same each time and differ between the plots of a page
        "font.family": "sans-serif",
        "font.size": 10,
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


def svg(name: str, draw: Callable[[Any], None]) -> str:
    """What `draw` makes of a pair of axes, in the style of the report's plots."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style(name)):
        figure = Figure(figsize=(figures.SIZE[0] / 72, figures.SIZE[1] / 72), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        draw(axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    return figures.tidy(name, text.getvalue())
