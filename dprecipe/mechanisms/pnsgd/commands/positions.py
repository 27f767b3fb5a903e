"""The command `dprecipe positions`: the guarantee of a record at its place in the order, by every bound, as a table and
a plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import ConfigDict, Field

from dprecipe.cli.arguments import Overrides, RecipePath
from dprecipe.cli.completion import complete_words
from dprecipe.contract.document import Document, Part, RecipeName
from dprecipe.contract.drawing import CAP, INK, LEFT, SERIES, SIZE, Axes
from dprecipe.contract.facts import Probability
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.language.base import NonNegativeFloat, PositiveInt
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent, choose_positions
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.theory import last_iterate
from dprecipe.mechanisms.pnsgd.theory.paper import comparison_at, paper_contraction
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import rounding
from dprecipe.privacy.events import one_of
from dprecipe.recipe.read import read
from dprecipe.release.figures import ALONE, render_svg
from dprecipe.screen import show_document

FORMATS = ("text", "json", "csv")
COMPARISONS = ("proposition_1", "theorem_4")
"""Bounds of the paper that the mechanism comes from: shown beside ours, and never the guarantee."""
LINES = dict(zip(("no_amplification", "contraction", "nonlinear", "iteration", "hybrid"), SERIES, strict=True)) | dict(
    zip(COMPARISONS, (CAP, INK), strict=True)
)
"""The colour of each line of the plot."""
MIN_SHOWN = 1e-30
"""Smallest δ that is drawn."""
MAX_ROWS = 40
MAX_EPSILONS = 8


class PositionDelta(Part):
    """δ at one ε of the records at one place."""

    epsilon: NonNegativeFloat
    delta: Probability = Field(description="the least of the bounds")
    bound: str = Field(description="which of them it is")
    bounds: dict[str, Probability] = Field(description="δ at `epsilon` by each bound that the noise has")
    comparisons: dict[str, Probability] = Field(description="the paper's curves; no guarantee")


At = Annotated[tuple[PositionDelta, ...], Field(min_length=1)]


class PositionRow(Part):
    """The guarantee of the records at one place."""

    position: PositiveInt
    epsilon: NonNegativeFloat | None = Field(description="at `delta`; null: infinite")
    bound: str = Field(description="which gives it")
    at: At


class OwnGuarantee(Part):
    """The run as the recipe has it; its guarantee."""

    order: Annotated[str, one_of("sequential", "permuted")]
    stop: Annotated[str, one_of("last", "random")]
    epsilon: NonNegativeFloat
    bound: str
    at: At


class Curve(Document):
    """The places of a recipe's run, had it gone through the file in order to its last step; and the run as it is."""

    model_config = ConfigDict(title="dprecipe positions")

    schema_: Literal["dprecipe.positions/v1"] = Field("dprecipe.positions/v1", alias="schema")
    recipe: RecipeName
    mechanism: Literal["pnsgd"] = "pnsgd"
    size: PositiveInt
    steps: PositiveInt
    steps_per_pass: PositiveInt
    delta: Probability = Field(description="the budget's")
    has_paid_steps: bool = Field(description="paid steps of preprocessing: in `own.epsilon` alone")
    own: OwnGuarantee
    positions: Annotated[tuple[PositionRow, ...], Field(min_length=1)] = Field(
        description="as if the run went through the file in order, to its last step"
    )


def show_positions(
    recipe: RecipePath,
    overrides: Overrides = None,
    epsilons: Annotated[
        list[float] | None,
        typer.Option("--epsilon", metavar="E", help="Where δ is shown; the budget's when left out. Repeatable."),
    ] = None,
    output: Annotated[
        str, typer.Option("--format", help="text, json or csv", autocompletion=complete_words("text", "json", "csv"))
    ] = "text",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="An .svg to be drawn; replaced.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every position, not a choice of 40.")] = False,
) -> None:
    """Prints the guarantee by position; with `plot`, also draws it.

    Raises:
        RecipeError, PlanRefused: what is wrong with the recipe.
        UsageFault: an unknown format, a mechanism without positions, an ε that is none, a file that can't be written.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    if plot is not None and plot.suffix != ".svg":
        raise UsageFault(f"{plot}: a plot is an .svg", "name such a file with --plot")
    epsilons = epsilons or []
    if len(epsilons) > MAX_EPSILONS or not all(0 <= e < math.inf for e in epsilons):
        raise UsageFault("--epsilon takes up to eight finite numbers >= 0", "for example --epsilon 0.5 --epsilon 1")
    loaded = read(recipe, overrides or ())
    if loaded.recipe.mechanism.kind != "pnsgd":
        raise UsageFault(
            f"mechanism {loaded.recipe.mechanism.kind} protects all records alike: it has no positions to compare",
            "use mechanism pnsgd, or see `dprecipe plan`",
        )
    plan = make_plan(loaded)
    result = trace_curve(plan, tuple(dict.fromkeys(epsilons)) or (plan.budget.epsilon,), every)
    if plot is not None:
        _save_plot(plot, result)
    renderers = {"text": render_text, "json": Curve.to_text, "csv": tabulate}
    show_document(renderers[output](result))


def trace_curve(plan: Plan, epsilons: Sequence[float], every: bool = False) -> Curve:
    """Returns the guarantees at every place if there are at most 40, else at 40 of them; with `every`, at all. All δ
    are rounded up."""
    event = plan.as_plan_of(PnsgdPlan).event
    ordered = replace(event, order="sequential", stop="last")
    delta, paper = plan.budget.delta, _paper_contraction(plan)
    rows, of_batch = [], dict[int, PositionRow]()
    for position in choose_positions(event, event.size if every else MAX_ROWS, MAX_ROWS):
        batch = (position - 1) // event.batch
        if batch not in of_batch:
            tightest = last_iterate.epsilon_at(ordered, position, delta)
            of_batch[batch] = PositionRow(
                position=position,
                epsilon=rounding.round_up(tightest.value) if tightest.value < math.inf else None,
                bound=tightest.name,
                at=tuple(_at(ordered, position, epsilon, paper) for epsilon in epsilons),
            )
        rows.append(of_batch[batch].model_copy(update={"position": position}))
    return Curve(
        recipe=RecipeName(name=plan.name, digest=plan.source.digest),
        size=event.size,
        steps=event.steps,
        steps_per_pass=event.batches,
        delta=plan.guarantee.delta,
        has_paid_steps=bool(plan.stages),
        own=OwnGuarantee(
            order=event.order,
            stop=event.stop,
            epsilon=plan.guarantee.epsilon,
            bound=plan.guarantee.accountant,
            at=tuple(_at(event, None, epsilon, None) for epsilon in epsilons),
        ),
        positions=tuple(rows),
    )


def _paper_contraction(plan: Plan) -> float | None:
    """Returns M as the paper has it, where its conditions hold and all steps are alike."""
    own = plan.as_plan_of(PnsgdPlan)
    proven = own.descent.proven
    if len(own.stages) > 1:
        return None
    try:
        return paper_contraction(own.stages[0].learning_rate, proven.strong_convexity, proven.smoothness)
    except ValueError:
        return None


def _at(event: ProjectedDescent, position: int | None, epsilon: float, paper: float | None) -> PositionDelta:
    """Returns δ at ε, of a position or of the event as a whole."""

    def evaluate(bound: str | None) -> last_iterate.NamedBound:
        if position is None:
            return last_iterate.delta(event, epsilon, bound)
        return last_iterate.delta_at(event, position, epsilon, bound)

    tightest = evaluate(None)
    compared = {}
    if position is not None and paper is not None:
        compared = comparison_at(event, position, epsilon, paper)
    return PositionDelta(
        epsilon=epsilon,
        delta=_round_up(tightest.value),
        bound=tightest.name,
        bounds={name: _round_up(evaluate(name).value) for name in last_iterate.bounds(event)},
        comparisons={name: _round_up(compared[name]) for name in COMPARISONS if name in compared},
    )


def _round_up(value: float) -> float:
    return min(1.0, rounding.round_up(value))


def render_text(curve: Curve) -> str:
    """A table for each ε, and what the recipe's own order gives."""
    lines = [
        f"{curve.recipe.name}: δ by position, {curve.steps:,} steps, {curve.steps_per_pass:,} a pass; "
        f"ε at δ = {curve.delta:g} in the last column"
    ]
    run, first = curve.own, curve.positions[0].at[0]
    for index, own in enumerate(run.at):
        head = ("position", *first.bounds, *(f"({name})" for name in first.comparisons), "least", "ε")
        rows = [head, *(_cells(row, index) for row in curve.positions)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines += ["", f"at ε = {own.epsilon:g}"]
        lines += ["  " + "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(f"  this recipe ({run.order} order, stop {run.stop}): δ = {own.delta:g}, by {own.bound}")
    beside = ", with its paid steps of preprocessing, which the table leaves out" if curve.has_paid_steps else ""
    lines += ["", f"this recipe: ε = {run.epsilon:g} at δ = {curve.delta:g}{beside}"]
    if len(curve.positions) < curve.size:
        lines.append(f"{len(curve.positions):,} of {curve.size:,} positions are shown; --all shows every one")
    if first.comparisons:
        lines.append("in brackets: the curves that Asoodeh, Diaz & Calmon 2020 draw, with their M; not the guarantee")
    return "\n".join(lines) + "\n"


def _cells(row: PositionRow, index: int) -> tuple[str, ...]:
    at = row.at[index]
    deltas = [*at.bounds.values(), *at.comparisons.values()]
    epsilon = "infinite" if row.epsilon is None else f"{row.epsilon:g}"
    return (str(row.position), *(f"{delta:.4g}" for delta in deltas), at.bound, epsilon)


def tabulate(curve: Curve) -> str:
    """CSV: a line for each position and ε."""
    names = curve.own.at[0].bounds
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["position", "epsilon", "delta", "bound", *names, *COMPARISONS, "epsilon_at_budget_delta"])
    for row in curve.positions:
        for at in row.at:
            compared = [at.comparisons.get(name, "") for name in COMPARISONS]
            last = "" if row.epsilon is None else row.epsilon
            writer.writerow([row.position, at.epsilon, at.delta, at.bound, *at.bounds.values(), *compared, last])
    return out.getvalue()


def plot_positions(curve: Curve) -> str:
    """Draws δ against the position, a panel for each ε and a line for each bound, as an SVG; the names are below."""
    names = [*curve.positions[0].at[0].bounds, *curve.positions[0].at[0].comparisons]
    width, height = SIZE[0] * len(curve.own.at), SIZE[1] + 14 * len(names) + 6
    parts = [f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>']
    for index, own in enumerate(curve.own.at):
        panel = render_svg(f"positions at epsilon {own.epsilon:g}", partial(_draw_panel, curve, index))
        parts.append(panel.replace("<svg ", f'<svg x="{SIZE[0] * index:g}" ', 1))
    for index, name in enumerate(names):
        at = f'x="{LEFT:g}" y="{SIZE[1] + 14 * (index + 1):g}"'
        parts.append(f'<text {at} font-size="10.5px" fill="{LINES[name]}">{name.replace("_", " ")}</text>')
    head = f'<svg {ALONE} width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}">'
    return f"{head}{''.join(parts)}</svg>\n"


def _draw_panel(curve: Curve, index: int, axes: Axes) -> None:
    """Draws the lines at one ε; a line begins at the bottom where the next δ is large enough to be drawn."""
    first = curve.positions[0].at[index]
    for name in (*first.bounds, *first.comparisons):
        deltas = [(row.at[index].bounds | row.at[index].comparisons)[name] for row in curve.positions]
        shown = [
            (row.position, max(delta, MIN_SHOWN))
            for row, delta, following in zip(curve.positions, deltas, [*deltas[1:], 0.0], strict=True)
            if max(delta, following) >= MIN_SHOWN
        ]
        axes.plot(shown, LINES[name], dashed=name in COMPARISONS)
    end = max(curve.positions[-1].position, 2)
    axes.set(f"position, at ε = {first.epsilon:g}", "δ", (1, end), (MIN_SHOWN, 2), log_y=True)


def _save_plot(path: Path, curve: Curve) -> None:
    try:
        path.write_text(plot_positions(curve), encoding="utf-8")
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another file with --plot") from None
