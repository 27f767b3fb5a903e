"""`dprecipe votes`: what a PATE recipe will bring on simulated votes, so that nobody needs to look at private ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import Overrides, RecipePath, TextOrJson
from dprecipe.cli.documents import limit_notes, write_documents
from dprecipe.contract.mechanism import Facts
from dprecipe.faults import UsageFault
from dprecipe.mechanisms.pate.commands.forecast import forecast_plan
from dprecipe.mechanisms.pate.commands.forecast_document import Forecast, ForecastRelease, ForecastRow, Stop
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.commands.votes_plot import plot_votes
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.mechanisms.pate.teacher_rules import FEW_TEACHERS
from dprecipe.planning.make import plan
from dprecipe.planning.paid import solve_prices
from dprecipe.recipe.read import read
from dprecipe.screen import as_json, show_document, write_output

SCHEMA = "dprecipe.votes/v1"
FORMATS = ("text", "json")


def forecast_votes(
    recipe: RecipePath,
    overrides: Overrides = None,
    agreement: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="Shares of the teachers that agree on a query; uniform between them."),
    ] = (0.5, 1.0),
    seed: Annotated[int, typer.Option(help="Of the simulated votes.")] = 0,
    output: TextOrJson = "text",
    out: Annotated[Path | None, typer.Option(help="A folder for votes.json and votes.svg; replaced there.")] = None,
) -> None:
    """Print what to expect of a recipe's queries; with `out`, also write `votes.json` and `votes.svg`.

    Raises:
        RecipeError, PlanRefused: what is wrong with the recipe.
        UsageFault: an unknown format, another mechanism, shares or a seed out of range, a folder that can't be written.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    try:
        assumed = Agreement(*agreement)
    except ValueError:
        raise UsageFault(
            f"no share of teachers lies between {agreement[0]:g} and {agreement[1]:g}",
            "give --agreement LOW HIGH with 0 <= LOW <= HIGH <= 1",
        ) from None
    if seed < 0:
        raise UsageFault(f"{seed} is no seed", "give --seed a whole number >= 0")
    if out is not None:
        write_documents(out, {})  # a folder that can't be written is known before the work
    loaded = read(recipe, overrides or ())
    spec = loaded.recipe.mechanism
    if not isinstance(spec, Pate):
        raise UsageFault(f"mechanism {spec.kind} has no votes", "use mechanism pate")
    note, planned = limit_notes(), plan(loaded)
    facts, _ = solve_prices(loaded.recipe, Facts.of(loaded.recipe, loaded.source.attachments))
    result = forecast_plan(planned, spec, facts, assumed, seed, lambda task: note(f"now {task}"))
    document = {
        "schema": SCHEMA,
        "recipe": {"name": loaded.recipe.name, "digest": loaded.source.digest},
        **result.to_json(),
        "verdict": describe_verdict(result),
    }
    text = as_json(document)
    if out is not None:
        write_documents(out, {"votes.json": text, "votes.svg": plot_votes(result)})
    show_document(text if output == "json" else render_text(loaded.recipe.name, result))
    if out is not None and output == "text":
        write_output(["", f"wrote {out / 'votes.json'} and {out / 'votes.svg'}"])


def render_text(name: str, forecast: Forecast) -> str:
    """What to expect and what follows from it, as a person reads it."""
    parts = [_head(name, forecast), _expected(forecast)]
    if forecast.suggested is not None:
        parts.append(_suggestion(forecast.suggested))
    if forecast.rows:
        parts += [_table([HEAD, *(_row(row, forecast) for row in forecast.rows)]), list(LEGEND)]
    parts.append([describe_verdict(forecast)])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _head(name: str, forecast: Forecast) -> list[str]:
    voting, agreement = forecast.voting, forecast.agreement
    lines = [
        f"{name}: {forecast.aggregator} on simulated votes of {voting.teachers:,} teachers for "
        f"{voting.classes:,} classes",
        f"assumed: {agreement.low:.0%} to {agreement.high:.0%} of the teachers agree on a query, uniformly (seed "
        f"{forecast.seed}); no data was read",
    ]
    if forecast.queries < forecast.planned:
        lines.append(
            f"first round only, {forecast.queries:,} of {forecast.planned:,} queries: later queries depend on what the "
            "student has learned"
        )
    return lines


def _expected(forecast: Forecast) -> list[str]:
    costs, at = forecast.costs, f"at δ = {forecast.delta:g}"
    rows = [
        ("answered", f"{forecast.answered:.1%} of the queries"),
        ("right", f"{forecast.right:.1%} of the answers are the class with the most votes"),
        ("ends", _ends(forecast.stop)),
        ("worst case", f"ε = {forecast.worst_case:g} {at}: what the certificate claims"),
        ("data-dependent", f"ε = {costs.papers:.3g} expected cost, the papers' currency: no bound"),
        ("", f"ε = {costs.bound:.3g} bound, {'Theorem 6' if forecast.voting.family == 'gaussian' else 'moments'}"),
    ]
    if costs.exact is not None:
        rows.append(("", f"ε = {costs.exact:.3g} bound, exact"))
    if forecast.has_paid_steps:
        rows.append(("", "of the votes alone; the worst case includes the paid steps of preprocessing"))
    if forecast.own is not None:
        rows.append(("sanitised", f"{_epsilon(forecast.own)}, by the recipe's constants"))
    if forecast.suggested is not None:
        rows.append(
            ("sanitised" if forecast.own is None else "", f"{_epsilon(forecast.suggested)}, by those suggested")
        )
    width = max(len(name) for name, _ in rows)
    return [f"  {name.ljust(width)}  {value}" for name, value in rows]


def _epsilon(release: ForecastRelease) -> str:
    result = release.published
    return f"ε = {result.epsilon:.3g} ± {result.deviation:.1g} at δ = {result.delta:g}"


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
    chosen = release.published.constants
    constants = (
        f"{{method: smooth_sensitivity, order: {chosen.order:g}, beta: {chosen.smoothness:g}, "
        f"multiplier: {chosen.value_multiplier:g}, scale_multiplier: {chosen.sensitivity_multiplier:g}, "
        f"delta: {chosen.failure:g}}}"
    )
    return [
        "suggested, for mechanism with analysis: data_dependent",
        f"  sanitize: {constants}",
        f"  {_price(release)}",
    ]


def _price(release: ForecastRelease) -> str:
    """What publishing makes of the claim and of the answers."""
    if release.worst_case is None or release.stop is None:
        return "the budget does not hold such a release beside the queries"
    stop = release.stop
    return (
        f"the claim is then ε = {release.worst_case:g}, and the run ends after about {stop.queries:,.0f} queries and "
        f"{stop.answers:,.0f} answers"
    )


HEAD = ("threshold", "of N", "check σ₁", "noise σ₂", "answered", "right", "queries", "answers", "ε")
LEGEND = (
    "* the recipe's own. answered: share of the queries that pass the check. right: share of the answers that are the",
    "class with the most votes. queries, answers: where the run ends. ε: the claim, in the worst case.",
)


def _row(row: ForecastRow, forecast: Forecast) -> tuple[str, ...]:
    stop = row.stop
    return (
        f"{row.threshold:.5g}" + (" *" if row.chosen else "  "),
        f"{row.threshold / forecast.voting.teachers:.0%}",
        f"{row.deviation:.5g}",
        "-" if row.multiplier is None else f"{row.multiplier:.5g}",
        f"{row.answered:.1%}",
        "-" if row.right is None else f"{row.right:.1%}",
        "-" if stop is None else f"{stop.queries:,.0f}",
        "-" if stop is None else f"{stop.answers:,.0f}",
        "does not fit" if row.worst_case is None else f"{row.worst_case:g}",
    )


def describe_verdict(forecast: Forecast) -> str:
    """Whether a data-dependent ε is worth publishing, in plain words."""
    release, teachers = forecast.release, forecast.voting.teachers
    if release is None:
        if forecast.queries < forecast.planned:
            reason = "what interactive queries cost depends on earlier answers, and has no smooth sensitivity"
        elif forecast.has_paid_steps:
            reason = "`sanitize` and paid steps of preprocessing exclude each other"
        else:
            reason = "the sensitivity of so many teachers' votes is not worked out"
        return f"A data-dependent ε can't be published here: {reason}.\nThe claim is the worst case."
    published = release.published
    owner = "the recipe's constants" if forecast.own is not None else "the constants suggested"
    figures = (
        f"With {owner} ε = {published.epsilon:.3g} at δ = {published.delta:g} is to be expected; the worst case is "
        f"{forecast.unpublished:g} at δ = {forecast.delta:g}."
    )
    rule = f"below about {FEW_TEACHERS:,} teachers the noise that makes it publishable takes what agreement gains"
    has_few_teachers = teachers < FEW_TEACHERS
    if forecast.pays:
        lines = ["Publishing a data-dependent ε would pay.", figures]
        if release.worst_case is not None and forecast.own is not None:
            lines.append(f"The claim for everyone, whatever the votes, is then ε = {release.worst_case:g}.")
        lines.append("It holds for the votes of the run, not for other data; its constants must be chosen before them.")
        if has_few_teachers:
            lines.append(f"Do not rely on it: {rule}. Try less agreement.")
    elif release.worst_case is None and published.epsilon < forecast.unpublished:
        lines = [
            "Publishing a data-dependent ε does not fit this budget: the release by itself costs too much.",
            figures,
        ]
    else:
        lines = ["Publishing a data-dependent ε does not pay.", figures]
        lines += [f"As a rule, {rule}."] if has_few_teachers else []
        lines.append("A private report, `analysis: data_dependent` without `sanitize`, costs nothing.")
    stop = forecast.stop
    if stop.reason == "filter" and stop.queries < 0.99 * forecast.queries:
        lines.append(
            f"Data-dependent figures count all {forecast.queries:,} planned queries, the filter lets about "
            f"{stop.queries:,.0f} through: plan fewer, and they shrink."
        )
    return "\n".join(lines)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
