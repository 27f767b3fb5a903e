"""`dprecipe plan`: what the run will spend and release."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe.cli.arguments import Overrides, RecipePath, TextOrJson
from dprecipe.cli.plan_plot import check_plot, write_plot
from dprecipe.contract.plan import Plan, PlanBudget
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.models.layout import layer_of, trained_parameters
from dprecipe.models.schema import Pretrained
from dprecipe.nonprivate.plan import make_plan as make_public_plan
from dprecipe.planning.audit import canaries_of, describe_audit, naming_of
from dprecipe.planning.candidates import describe_candidates, describe_runs, describe_score
from dprecipe.planning.compare_samplings import SamplingRow, compare_samplings
from dprecipe.planning.make import plan as make_plan
from dprecipe.planning.verifiable import find_unverifiable
from dprecipe.policy.apply import enforce_on_plan, enforce_on_recipe
from dprecipe.privacy.rounding import round_up, write_number
from dprecipe.recipe.read import LoadedPublic, read_any
from dprecipe.release.specification import find_reason_untested
from dprecipe.release.tensors import count_trained, expected_shapes
from dprecipe.screen import align_columns, as_json, show_document, write_output

if TYPE_CHECKING:
    from dprecipe.privacy.comparison import AccountantRow

FORMATS = ("text", "json")
MEASURED = "measured at the start of the run, from the memory there is"


def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    output: TextOrJson = "text",
    compare: Annotated[
        bool, typer.Option("--compare-accountants", help="Also print what other accountants say; none is the claim.")
    ] = False,
    samplings: Annotated[
        bool, typer.Option("--compare-sampling", help="Also print what other sampling schemes would cost.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Also plot curves of ε in this .svg, which is replaced.")] = None,
) -> None:
    """Solves for the free variable and prints the plan; with `compare`, also what other accountants say of its events;
    with `samplings`, also what other sampling schemes would cost; with `plot`, also draws ε along the run, over its
    noise and over its batch size.

    Raises:
        RecipeError, PlanRefused: the recipe has no plan.
        UsageFault: the format is unknown; or there is no curve to draw.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    check_plot(plot)
    loaded = read_any(recipe, overrides or ())
    if isinstance(loaded, LoadedPublic):
        for option, given in (("--plot", plot is not None), ("--compare-sampling", samplings)):
            if given:
                raise UsageFault(f"{option}: a recipe with mechanism none has no ε", "leave it out")
        _show_public(loaded, output, compare)
        return
    result = enforce_on_plan(make_plan(loaded))
    findings = find_unverifiable(result)
    if findings:
        raise PlanRefused(loaded.located(findings))
    comparisons = _compare(result) if compare else ()
    schemes = compare_samplings(loaded, result) if samplings else ()
    if output == "json":
        more = {"comparison": [asdict(row) for row in comparisons]} if compare else {}
        more |= {"sampling_comparison": [asdict(row) for row in schemes]} if samplings else {}
        show_document(as_json({**result.to_json(), **more}))
    else:
        write_output(
            [
                *plan_lines(result),
                *account_lines(result),
                "  rests on",
                *(f"    - {a.text} ({a.checked_by})" for a in result.assumptions),
                *comparison_lines(result, comparisons),
                *(sampling_lines(schemes) if samplings else []),
            ]
        )
    if plot is not None:
        said = write_plot(loaded, result, plot)
        write_output(said if output == "text" else ())


def _show_public(loaded: LoadedPublic, output: str, compare: bool) -> None:
    """Prints the plan of a recipe without privacy."""
    if compare:
        raise UsageFault(
            "--compare-accountants: a recipe with mechanism none has nothing to account for", "leave it out"
        )
    result = make_public_plan(loaded)
    enforce_on_recipe(loaded)
    if output == "json":
        show_document(as_json(result.to_json()))
    else:
        write_output(result.describe())


def plan_lines(plan: Plan) -> list[str]:
    """Returns the plan as lines of text, which include texts of the recipe."""
    guarantee, budget = plan.guarantee, plan.budget
    rows = [
        ("mechanism", plan.mechanism),
        *((f"solved {path}", f"{value:g}") for path, value in plan.solved.items()),
        *plan.mechanism_plan.describe(),
        *_size_rows(plan),
        *([("physical batch", MEASURED)] if plan.runtime.physical_batch == "auto" else []),
        *describe_canaries(plan),
        ("spends", f"{describe_spent(guarantee.epsilon, budget)}{plan.mechanism_plan.epsilon_note}"),
        (
            "accountant",
            f"{guarantee.accountant}; {guarantee.alternative_accountant} gives {guarantee.alternative_epsilon:g}",
        ),
        ("protects", guarantee.neighbouring.words.format(unit=guarantee.unit)),
        *_position_rows(plan),
        *_trained_rows(plan),
        *tuning_rows(plan),
        *describe_audit(plan),
        ("releases", ", ".join(plan.released)),
        *(("keeps to", f"policy {policy.name!a} ({policy.digest})") for policy in plan.policies),
        ("digest", plan.digest),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [plan.name, *(f"  {name.ljust(width)}  {value}" for name, value in rows), *spending_lines(plan)]
    for warning in plan.warnings:
        word, more = ("accepted", warning.accepted) if warning.accepted else ("warning", warning.remedy)
        lines += [f"  {word} {warning.code}: {warning.message}", f"    {more}"]
    return lines


def account_lines(plan: Plan) -> list[str]:
    """Lists where the run would leave its account; no lines for a recipe that names none."""
    if plan.budget.account is None:
        return []
    from dprecipe.cli.account_runs import describe_plan

    return describe_plan(plan)


def spending_lines(plan: Plan) -> list[str]:
    """Lists who spends what, where more than the mechanism spends: each part alone, and all together."""
    if not plan.spending:
        return []
    noise: dict[int | None, str] = {s.step: f"noise multiplier {s.noise_multiplier:g}" for s in plan.stages}
    rows = [(part.name, f"ε = {part.epsilon:g}", noise.get(part.step, "")) for part in plan.spending]
    rows.append(("together", f"ε = {plan.guarantee.epsilon:g}", "less than the sum: they compose"))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = (f"    {name.ljust(first)}  {cost.ljust(second)}  {more}".rstrip() for name, cost, more in rows)
    return ["  who spends what, each alone", *lines]


def _trained_rows(plan: Plan) -> list[tuple[str, str]]:
    """Returns the layers that are trained, where the recipe leaves others as they are and the layers are known."""
    if not isinstance(plan.model, Pretrained) or plan.model.train == "all":
        return []
    shapes = expected_shapes(plan) or {}
    trained = trained_parameters(plan.model, shapes)
    layers = list(dict.fromkeys(layer_of(name) for name in shapes if name in trained))
    count, total = (sum(math.prod(shapes[name]) for name in names) for names in (trained, shapes))
    kept = "the other layers stay as the initial weights have them"
    return [("trains", f"{', '.join(layers)}: {count:,} of {total:,} parameters; {kept}")] if shapes else []


def describe_spent(epsilon: float, budget: PlanBudget) -> str:
    """Returns the words for what is spent of a budget."""
    return f"ε = {epsilon:g} of {write_number(budget.epsilon)} at δ = {write_number(budget.delta)}"


def comparison_lines(plan: Plan, comparisons: Sequence[AccountantRow]) -> list[str]:
    """Lists what each accountant says, as lines of text; no lines without any."""
    if not comparisons:
        return []
    guarantee = plan.guarantee
    values = [
        "-" if row.epsilon is None else f"{row.epsilon:g}{'' if row.holds else ' (no guarantee)'}"
        for row in comparisons
    ]
    name_width, value_width = max(len(row.accountant) for row in comparisons), max(map(len, values))
    return [
        f"  other accountants, at δ = {write_number(guarantee.delta)}; the claim is ε = {guarantee.epsilon:g} by "
        f"{guarantee.accountant}, and none of these",
        *(
            f"    {row.accountant.ljust(name_width)}  {value.ljust(value_width)}  {row.source}"
            f"{row.note and f'; {row.note}'}"
            for row, value in zip(comparisons, values, strict=True)
        ),
    ]


def sampling_lines(rows: Sequence[SamplingRow]) -> list[str]:
    """Lists what each sampling scheme costs, as lines of text."""
    if not rows:
        return ["  other sampling schemes: none, since the recipe has not one batch size and one noise multiplier"]
    cells = [("scheme", "ε at this noise", "noise at this ε"), *map(_list_costs, rows)]
    return ["  sampling schemes, with batches of this size", *(f"    {line}" for line in align_columns(cells))]


def _list_costs(row: SamplingRow) -> tuple[str, str, str]:
    if row.epsilon is None or row.noise_multiplier is None:
        return (row.scheme, "-", f"-  {row.reason}")
    return (row.scheme, f"{round_up(row.epsilon, 4):g}", f"{round_up(row.noise_multiplier, 4):g}")


def _compare(plan: Plan) -> tuple[AccountantRow, ...]:
    from dprecipe.privacy.comparison import compare_accountants

    return compare_accountants(plan.events, plan.budget.delta, plan.budget.neighbouring)


def tuning_rows(plan: Plan) -> list[tuple[str, str]]:
    """Lists the number of runs, the cost of one, and the values that they try."""
    if plan.tuning is None:
        return []
    block = plan.tuning.block
    return [
        ("runs", describe_runs(block)),
        ("one run", f"ε = {plan.tuning.epsilon:g} at δ = {write_number(plan.budget.delta)}"),
        *(("tries", describe_candidates(each)) for each in block.over),
        ("chosen by", describe_score(block)),
    ]


def _size_rows(plan: Plan) -> list[tuple[str, str]]:
    """Returns a bound on the number of units, where that is protected, and how a split divides them: what batches count
    on."""
    data, rows = plan.data, []
    if data.split is not None:
        share, planned, most = data.split.share, data.planned_units, data.max_units
        text = f"a share of {share:g}, by a hash; planned for {planned:,} training units of {most:,}"
        rows.append(("held out", f"{text}, how many is not public"))
    if data.hides_size:
        text = f"from 1 to {data.max_units:,}, the number is protected; batches as expected of the most"
        rows.append(("units", text))
    return rows


def _position_rows(plan: Plan) -> list[tuple[str, str]]:
    """Returns the records with the largest and the smallest ε, where it depends on the position in the file."""
    positions = plan.guarantee.by_position
    if not positions:
        return []
    worst = max(positions, key=lambda bound: (bound[1], -bound[0]))
    best = min(positions, key=lambda bound: (bound[1], bound[0]))
    rows = [f"ε = {epsilon:g} for record {position:,}" for position, epsilon, _ in (worst, best)]
    return [("worst position", rows[0]), ("best position", rows[1])]


def describe_canaries(plan: Plan) -> list[tuple[str, str]]:
    """Returns the rows of a plan; none without canaries."""
    count, block = canaries_of(plan), plan.audit
    if not count or block is None:
        return []
    from dprecipe.privacy.audit.any_program import lower_epsilon_of_guesses  # needed by few plans
    from dprecipe.privacy.audit.implied import run_curve
    from dprecipe.privacy.audit.power import smallest_fault
    from dprecipe.privacy.audit.results import Guesses

    naming, units = naming_of(plan), plan.data.planned_units + count
    guesses = Guesses(canaries=count, named_in=naming.each, named_out=naming.each, correct=naming.expected)
    terms = (block.confidence, plan.guarantee.delta)
    shown = lower_epsilon_of_guesses(guesses, *terms, roughly=True)
    budget, guarantee = plan.budget, plan.guarantee
    curve = run_curve(
        (*plan.stage_charges, *plan.mechanism_plan.events), budget.neighbouring, budget.accountant, guarantee.epsilon
    )
    fault = smallest_fault(guesses, block.confidence, guarantee.epsilon, guarantee.delta, curve)
    seen = "none is large enough to be called one" if fault is None else f"ε = {fault:.3g} or more is called one"
    return [
        (
            "canaries",
            f"{count:,}, each a {block.canary}, in the run by a secret coin: {_describe_share(plan, count, units)}",
        ),
        ("they cost", _describe_cost(plan, count, units)),
        (
            "they show",
            f"of a sound program ε of about {shown:.2g} at least, at confidence {block.confidence:g}, from "
            f"{naming.each:,} that are named in and {naming.each:,} that are named out; of faults, {seen} in 8 of 10 "
            "runs",
        ),
        ("they test", f"whether the program is the specified one: {_describe_specification(plan, block.confidence)}"),
    ]


def _describe_specification(plan: Plan, confidence: float) -> str:
    reason = find_reason_untested(plan, "recipe")
    if reason is not None:
        return f"not tested, {reason}"
    return f"a sound one raises an alarm in {1 - confidence:.2g} of runs, and is released all the same"


def _describe_share(plan: Plan, count: int, units: int) -> str:
    inside = count / 2 * plan.mechanism_plan.expected_batch / units
    return f"{inside:.3g} of them in a batch of {plan.mechanism_plan.expected_batch:,.10g}, as expected"


def _describe_cost(plan: Plan, count: int, units: int) -> str:
    """Describes what canaries take from the records, and what their gradients add to the noise."""
    rate = plan.mechanism_plan.sampling_rate
    part = f"a batch has {count / units:.2%} fewer records"
    if rate is not None:
        before = plan.mechanism_plan.expected_batch / (units - count)
        part += f" (the sampling rate is {rate:.6g}, and was {before:.6g} without)"
    if plan.audit is None or plan.audit.canary != "gradient":
        return part
    weights = count_trained(plan)
    if not weights:
        return part
    multiplier = min(charge.event.multipliers[0] for charge in plan.mechanism_plan.events)
    share = count / 2 * (1.0 if rate is None else rate) / (weights * multiplier**2)
    return f"{part}; their gradients add about {share:.2%} to the variance of the noise on a weight"
