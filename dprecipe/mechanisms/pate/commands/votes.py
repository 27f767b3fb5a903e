"""`dprecipe votes`: a forecast of a PATE recipe on simulated votes, so that no private vote has to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import Overrides, RecipePath, TextOrJson
from dprecipe.cli.files import limit_notes, write_documents
from dprecipe.contract.mechanism import Facts
from dprecipe.faults import UsageFault
from dprecipe.mechanisms.pate.commands.forecast import forecast_plan
from dprecipe.mechanisms.pate.commands.forecast_document import (
    Forecast,
    ForecastRelease,
    ForecastRound,
    ForecastRow,
    Stop,
    plot_votes,
)
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.planning.make import plan
from dprecipe.planning.paid import solve_prices
from dprecipe.recipe.read import read
from dprecipe.screen import show_document, write_output

FORMATS = ("text", "json")


def forecast_votes(
    recipe: RecipePath,
    overrides: Overrides = None,
    agreement: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="Shares of the teachers that agree on a query; uniform between them."),
    ] = (0.5, 1.0),
    seed: Annotated[int, typer.Option(help="Seed of the simulated votes.")] = 0,
    output: TextOrJson = "text",
    out: Annotated[Path | None, typer.Option(help="A folder for votes.json and votes.svg; replaced there.")] = None,
    student: Annotated[
        float, typer.Option(help="Chance that the student of an interactive run knows a query's class.")
    ] = 0.8,
) -> None:
    """Prints a forecast of a recipe's queries; with `out`, also writes `votes.json` and `votes.svg`.

    Raises:
        RecipeError, PlanRefused: what is wrong with the recipe.
        UsageFault: an unknown format, another mechanism, shares or a seed out of range, a folder that can't be written.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    if not 0 <= student <= 1:
        raise UsageFault(f"--student {student:g} is no chance", "give a number from 0 to 1")
    try:
        assumed = Agreement(*agreement, student)
    except ValueError:
        raise UsageFault(
            f"no share of teachers lies between {agreement[0]:g} and {agreement[1]:g}",
            "give --agreement LOW HIGH with 0 <= LOW <= HIGH <= 1",
        ) from None
    if seed < 0:
        raise UsageFault(f"{seed} is no seed", "give --seed a whole number >= 0")
    if out is not None:
        write_documents(out, {})  # fails before the work if the folder can't be written
    loaded = read(recipe, overrides or ())
    spec = loaded.recipe.mechanism
    if not isinstance(spec, Pate):
        raise UsageFault(f"mechanism {spec.kind} has no votes", "use mechanism pate")
    note, planned = limit_notes(), plan(loaded)
    facts, _ = solve_prices(loaded.recipe, Facts.of(loaded.recipe, loaded.source.attachments))
    result = forecast_plan(planned, spec, facts, assumed, seed, lambda task: note(f"now {task}"))
    if out is not None:
        write_documents(out, {"votes.json": result.to_text(), "votes.svg": plot_votes(result)})
    show_document(result.to_text() if output == "json" else render_text(result))
    if out is not None and output == "text":
        write_output(["", f"wrote {out / 'votes.json'} and {out / 'votes.svg'}"])


def render_text(forecast: Forecast) -> str:
    """Renders the forecast and its conclusions as text."""
    parts = [_head(forecast), _expected(forecast)]
    if forecast.suggested is not None:
        parts.append(_suggestion(forecast.suggested))
    if forecast.rows:
        parts += [_table([HEAD, *(_row(row, forecast) for row in forecast.rows)]), list(LEGEND)]
    if forecast.rounds:
        parts.append(_rounds(forecast.rounds))
    parts.append([forecast.verdict])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(forecast: Forecast) -> list[str]:
    low, high = forecast.simulated.agreement
    lines = [
        f"{forecast.recipe.name}: {forecast.aggregator} on simulated votes of {forecast.teachers:,} teachers for "
        f"{forecast.classes:,} classes",
        f"assumed: {low:.0%} to {high:.0%} of the teachers agree on a query, uniformly (seed "
        f"{forecast.simulated.seed}); no data was read",
    ]
    if forecast.queries < forecast.planned:
        lines.append(
            f"first round, {forecast.queries:,} of {forecast.planned:,} queries; in later ones, below, the student "
            f"is assumed to know the class of {forecast.simulated.student:.0%} of the queries"
        )
    return lines


def _expected(forecast: Forecast) -> list[str]:
    costs, at = forecast.data_dependent, f"at δ = {forecast.delta:g}"
    rows = [
        ("answered", f"{forecast.answered:.1%} of the queries"),
        ("right", f"{forecast.right:.1%} of the answers are the class with the most votes"),
        ("ends", _ends(forecast.stop)),
        ("worst case", f"ε = {forecast.worst_case:g} {at}: what the certificate claims"),
        ("data-dependent", f"ε = {costs.papers:.3g} expected cost, the papers' currency: no bound"),
        ("", f"ε = {costs.bound:.3g} bound, {'moments' if forecast.aggregator == 'lnmax' else 'Theorem 6'}"),
    ]
    if costs.exact is not None:
        rows.append(("", f"ε = {costs.exact:.3g} bound, exact"))
    if forecast.has_paid_steps:
        rows.append(("", "of the votes alone; the worst case includes the paid steps of preprocessing"))
    if forecast.sanitised is not None:
        rows.append(("sanitised", f"{_epsilon(forecast.sanitised)}, by the recipe's constants"))
    if forecast.suggested is not None:
        rows.append(
            ("sanitised" if forecast.sanitised is None else "", f"{_epsilon(forecast.suggested)}, by those suggested")
        )
    width = max(len(name) for name, _ in rows)
    return [f"  {name.ljust(width)}  {value}" for name, value in rows]


def _epsilon(release: ForecastRelease) -> str:
    return f"ε = {release.epsilon:.3g} ± {release.deviation:.1g} at δ = {release.delta:g}"


def _ends(stop: Stop) -> str:
    after = f"after about {stop.queries:,.0f} queries and {stop.answers:,.0f} answers"
    if stop.reason == "filter":
        return f"{after}: the filter holds no more"
    if stop.reason == "answers":
        return f"{after}: that is all that was asked for"
    allowed = (
        ""
        if stop.max_queries is None or stop.max_queries < 1.01 * stop.queries
        else f"; the filter holds about {stop.max_queries:,.0f}"
    )
    return f"{after}: all of these are put{allowed}"


def _suggestion(release: ForecastRelease) -> list[str]:
    constants = ", ".join(
        f"{key}: {value if isinstance(value, str) else format(value, 'g')}" for key, value in release.sanitize
    )
    return [
        "suggested, for mechanism with analysis: data_dependent",
        f"  sanitize: {{{constants}}}",
        f"  {_price(release)}",
    ]


def _price(release: ForecastRelease) -> str:
    """Describes the claim and the end of a run that publishes."""
    if release.worst_case is None or release.stop is None:
        return "the budget does not hold such a release beside the queries"
    stop = release.stop
    return (
        f"the claim is then ε = {release.worst_case:g}, and the run ends after about {stop.queries:,.0f} queries and "
        f"{stop.answers:,.0f} answers"
    )


ROUND_HEAD = ("round", "queries", "threshold", "answered", "right", "by itself", "right", "put", "answers")


def _rounds(rounds: Sequence[ForecastRound]) -> list[str]:
    """Returns the rounds as a table, and where the run ends."""
    rows = [
        (
            str(number),
            f"{each.queries:,}",
            f"{each.threshold:.5g}",
            f"{each.answered:.1%}",
            "-" if each.right is None else f"{each.right:.1%}",
            f"{each.own:.1%}",
            "-" if each.own_right is None else f"{each.own_right:.1%}",
            f"{each.asked:,.0f}",
            f"{each.answers:,.0f}",
        )
        for number, each in enumerate(rounds, 1)
    ]
    put, answers = sum(each.asked for each in rounds), sum(each.answers for each in rounds)
    return [
        *_table([ROUND_HEAD, *rows]),
        f"all rounds: about {put:,.0f} queries are put, and {answers:,.0f} answered; by itself: labels of the student",
    ]


HEAD = ("threshold", "of N", "check σ₁", "noise σ₂", "answered", "right", "queries", "answers", "ε")
LEGEND = (
    "* the recipe's own. answered: share of the queries that pass the check. right: share of the answers that are the",
    "class with the most votes. queries, answers: where the run ends. ε: the claim, in the worst case.",
)


def _row(row: ForecastRow, forecast: Forecast) -> tuple[str, ...]:
    stop = row.stop
    return (
        f"{row.threshold:.5g}" + (" *" if row.chosen else "  "),
        f"{row.threshold / forecast.teachers:.0%}",
        f"{row.selection_multiplier:.5g}",
        "-" if row.noise_multiplier is None else f"{row.noise_multiplier:.5g}",
        f"{row.answered:.1%}",
        "-" if row.right is None else f"{row.right:.1%}",
        "-" if stop is None else f"{stop.queries:,.0f}",
        "-" if stop is None else f"{stop.answers:,.0f}",
        "does not fit" if row.worst_case is None else f"{row.worst_case:g}",
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
