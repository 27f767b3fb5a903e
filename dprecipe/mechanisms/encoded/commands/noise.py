"""The command `dprecipe noise`: compares all noise distributions at a recipe's budget and length, and says whether the
choice matters.

This is the search over noise of Nasr, Shokri and Houmansadr 2020. Each distribution is compared at the smallest scale
that keeps the budget. The scale is solved as a plan solves it, from the events that the run would be charged for, so
the comparison is of runs as they would happen. No data is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import Overrides, RecipePath, TextOrJson
from dprecipe.cli.files import limit_notes, write_documents
from dprecipe.contract.document import RecipeName
from dprecipe.contract.mechanism import Facts
from dprecipe.contract.table import list_kinds
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.mechanisms.encoded import account
from dprecipe.mechanisms.encoded.commands.noise_document import (
    Alternative,
    Compared,
    ComparedBudget,
    ComparedCodebook,
    Comparison,
    LeftOut,
    NamedNoise,
    plot_noise,
)
from dprecipe.mechanisms.encoded.phases import box_of
from dprecipe.mechanisms.encoded.plan import EncodedPlan
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.schema import (
    CauchyNoise,
    GaussianNoise,
    LaplaceNoise,
    Noise,
    SechNoise,
    StudentTNoise,
    VarianceGammaNoise,
    phases,
    shape_of,
)
from dprecipe.noisy_sum.sampling import MayHaveUniformSteps
from dprecipe.planning import rules
from dprecipe.planning.paid import solve_prices
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.rounding import round_up
from dprecipe.recipe.read import Loaded, read
from dprecipe.screen import show_document, write_output

GAUSSIAN = Distribution("gaussian")
DISTRIBUTIONS = (
    GAUSSIAN,
    Distribution("laplace"),
    *(Distribution("student_t", df) for df in (3.0, 5.0, 9.0, 18.0, 30.0)),
    Distribution("cauchy"),
    *(Distribution("variance_gamma", shape) for shape in (2.0, 3.0, 4.0)),
    Distribution("sech"),
)
"""The distributions that are always compared, besides the recipe's own."""


def compare_distributions(
    loaded: Loaded,
    spec: Encoded,
    facts: Facts,
    report: Callable[[int, int, Distribution], None] = lambda done, total, distribution: None,
) -> Comparison:
    """Compares every distribution of `DISTRIBUTIONS` and those of the recipe, at the ε and length of the recipe's run.

    ε is the budget if the recipe's noise is `auto`, and what the run spends if the noise is given. An `auto` length is
    the one that the recipe's noise solves to. Phases are compared as one noise for the whole run.
    `report(done, total, distribution)` is called before each distribution.

    Raises:
        PlanRefused: the recipe can't be planned, or can't be planned with Gaussian noise.
        UsageFault: the run spends nothing, so there is nothing to compare.
    """
    facts = _fix_budget(spec, facts)
    own = [Distribution(noise.family, shape_of(noise)) for _, noise in phases(spec.noise)]
    distributions = list(dict.fromkeys([*DISTRIBUTIONS, *own]))
    results: list[Compared] = []
    left_out: list[LeftOut] = []
    reference: Compared | None = None
    for index, distribution in enumerate(distributions):
        report(index, len(distributions), distribution)
        try:
            plan = account.plan(spec.model_copy(update={"noise": noise_of(distribution)}), facts).plan
        except PlanRefused as refusal:
            if distribution == GAUSSIAN:
                raise
            left_out.append(
                LeftOut(family=distribution.family, shape=distribution.shape, reason=refusal.findings[0].message)
            )
            continue
        row = _compare(distribution, distribution in own, plan, facts, reference)
        reference = reference or row
        results.append(row)
    results.sort(key=lambda row: (row.l2, row.l1, row.multiplier))
    budget, box = facts.budget, box_of(spec, facts)
    return Comparison(
        recipe=RecipeName(name=loaded.recipe.name, digest=loaded.source.digest),
        mechanism=loaded.recipe.mechanism.kind,
        budget=ComparedBudget(
            epsilon=float(budget.epsilon),
            delta=budget.delta,
            neighbouring=Neighbouring(budget.neighbouring),
            accountant=budget.accountant,
        ),
        steps=plan.length.steps,
        sampling_rate=plan.sampling_rate,
        codes=plan.divisor,
        dimension=box.dimension,
        codebook=ComparedCodebook(words=box.words, norm=spec.codebook.norm, envelope=box.length),
        exchanged=spec.microbatch_size > 1,
        distributions=tuple(results),
        left_out=tuple(left_out),
    )


def name_of(distribution: Distribution) -> str:
    """`student_t(9)`."""
    return NamedNoise(family=distribution.family, shape=distribution.shape).name


def noise_of(distribution: Distribution) -> Noise:
    """Returns the noise block of a distribution, with multiplier `auto`."""
    shape = distribution.shape or 1.0
    match distribution.family:
        case "gaussian":
            return GaussianNoise(family="gaussian", multiplier="auto")
        case "laplace":
            return LaplaceNoise(family="laplace", multiplier="auto")
        case "student_t":
            return StudentTNoise(family="student_t", df=shape, multiplier="auto")
        case "cauchy":
            return CauchyNoise(family="cauchy", multiplier="auto", force=True)
        case "variance_gamma":
            return VarianceGammaNoise(family="variance_gamma", shape=shape, multiplier="auto")
        case _:
            return SechNoise(family="sech", multiplier="auto")


def _fix_budget(spec: Encoded, facts: Facts) -> Facts:
    """Returns the same facts, with ε and the length as numbers."""
    if any(noise.multiplier == "auto" for _, noise in phases(spec.noise)):
        return facts
    plan = account.plan(spec, facts).plan
    budget = facts.budget
    relation = Neighbouring(budget.neighbouring)
    charges = (*facts.stage_charges, *plan.events)
    epsilon = round_up(accountants.epsilon(charges, budget.delta, relation, budget.accountant))
    if not 0 < epsilon < math.inf:
        raise UsageFault(
            f"the recipe's run spends ε = {epsilon:g}: there is nothing to compare at",
            "set mechanism.noise.multiplier to auto and budget.epsilon to a number",
        )
    return replace(
        facts,
        budget=budget.model_copy(update={"epsilon": epsilon}),
        training=facts.training.model_copy(update={"epochs": None, "steps": plan.length.steps}),
        stage_noise={stage.step: stage.noise_multiplier for stage in facts.stages},
    )


def _compare(
    distribution: Distribution, chosen: bool, plan: EncodedPlan, facts: Facts, reference: Compared | None
) -> Compared:
    noise, budget = plan.noises[-1], facts.budget
    scale, sizes, dimension = noise.scale, plan.groups, plan.dimension
    relative = plan.group_noise or (1.0,) * len(sizes)
    mean = math.fsum(size * r for size, r in zip(sizes, relative, strict=True)) / dimension
    square = math.fsum(size * r * r for size, r in zip(sizes, relative, strict=True)) / dimension
    l1 = scale * distribution.mean_absolute * mean
    l2 = scale * distribution.standard_deviation * math.sqrt(square)
    relation = Neighbouring(budget.neighbouring)
    second = "rdp" if budget.accountant in ("pld", "gdp") else "pld"
    charges = (*facts.stage_charges, *plan.events)
    answer, check = (
        accountants.epsilon_answer(charges, budget.delta, relation, name) for name in (budget.accountant, second)
    )
    return Compared(
        family=distribution.family,
        shape=distribution.shape,
        chosen=chosen,
        multiplier=noise.multiplier,
        scale=scale,
        l1=l1,
        l2=l2,
        l1_ratio=1.0 if reference is None else l1 / reference.l1,
        l2_ratio=1.0 if reference is None else l2 / reference.l2,
        equal_fisher_scale=scale / math.sqrt(distribution.fisher),
        signal_to_noise=plan.divisor * plan.codebook.norm / (l2 * math.sqrt(dimension)),
        epsilon=round_up(answer.value),
        accountant=answer.accountant,
        alternative=Alternative(accountant=check.accountant, epsilon=round_up(check.value)),
    )


FORMATS = ("text", "json")


def compare_noise(
    recipe: RecipePath,
    overrides: Overrides = None,
    output: TextOrJson = "text",
    out: Annotated[Path | None, typer.Option(help="A folder for noise.json and noise.svg; replaced there.")] = None,
) -> None:
    """Compares all noise distributions at a recipe's budget and length; with `out`, also writes `noise.json` and
    `noise.svg`.

    Raises:
        RecipeError, PlanRefused: the recipe has errors.
        UsageFault: the format is unknown, the mechanism has no choice of noise, or the folder can't be written.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    if out is not None:
        write_documents(out, {})  # fail before the work if the folder can't be written
    loaded = read(recipe, overrides or ())
    spec = as_encoding(loaded)
    facts = Facts.of(loaded.recipe, loaded.source.attachments)
    try:
        facts, _ = solve_prices(loaded.recipe, facts)
        result = compare_distributions(loaded, spec, facts, _report_progress())
    except PlanRefused as refusal:
        raise PlanRefused(loaded.located(refusal.findings)) from None
    if out is not None:
        write_documents(out, {"noise.json": result.to_text(), "noise.svg": plot_noise(result)})
    show_document(result.to_text() if output == "json" else render_text(result))
    if out is not None and output == "text":
        write_output(["", f"wrote {out / 'noise.json'} and {out / 'noise.svg'}"])


def as_encoding(loaded: Loaded) -> Encoded:
    """Returns the recipe's mechanism as gradient encoding. A mechanism whose steps all add Gaussian noise to a clipped
    sum becomes encoding with one codeword of its clip norm: it costs the same and can be accounted with any other
    noise.

    Raises:
        PlanRefused: the recipe has errors, or encoding is impossible at its settings.
        UsageFault: the mechanism does not add noise to the coordinates of a bounded sum.
    """
    recipe, mechanism = loaded.recipe, loaded.recipe.mechanism
    if not isinstance(mechanism, Encoded | MayHaveUniformSteps):
        supported = list_kinds(lambda known: known.block is Encoded or issubclass(known.block, MayHaveUniformSteps))
        raise UsageFault(
            f"mechanism {mechanism.kind} has no choice of noise to compare", f"use mechanism {join_with_or(supported)}"
        )
    _refuse(loaded, rules.check(recipe, loaded.source.attachments))
    if isinstance(mechanism, Encoded):
        return mechanism
    steps = mechanism.uniform_steps()
    if steps is None:
        raise UsageFault(
            "noise families can be compared only for runs with gaussian noise and equal steps",
            "give noise, clip norm and batch size one value each, and use scheme: poisson",
        )
    spec = Encoded.model_validate(
        {
            "kind": "encoded",
            "codebook": GaussianCodebook(source="gaussian", size=1, norm=steps.norm),
            "noise": {"family": "gaussian", "multiplier": steps.multiplier},
            "sampling": steps.sampling.model_dump(exclude_none=True),
        }
    )
    _refuse(loaded, account.check(spec, Facts.of(recipe)))
    return spec


def _refuse(loaded: Loaded, findings: Sequence[Any]) -> None:
    if any(finding.is_error for finding in findings):
        raise PlanRefused(loaded.located(findings))


def render_text(comparison: Comparison) -> str:
    """The table and its verdict as text."""
    budget = comparison.budget
    parts = [
        [
            f"{comparison.recipe.name}: noise at ε = {budget.epsilon:g}, δ = {budget.delta:g} ({budget.accountant}), "
            f"{comparison.steps:,} steps, {comparison.dimension:,} coordinates, codewords of norm "
            f"{comparison.codebook.norm:g}"
        ],
        _format_table([HEAD, *(_format_row(row) for row in comparison.distributions)]),
        [f"{left.name} is left out: {left.reason}" for left in comparison.left_out],
        LEGEND,
        () if comparison.mechanism == "encoded" else (AS_ENCODED[0].format(kind=comparison.mechanism), AS_ENCODED[1]),
        [comparison.verdict],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


HEAD = ("noise", "multiplier", "scale", "L1", "L2", "L1 rel.", "L2 rel.", "equal σ", "signal", "ε", "cross-check")
LEGEND = (
    "* the recipe's own. L1, L2: E|noise| and root mean square of a coordinate of the sum; rel.: relative to gaussian",
    "noise. equal σ: gaussian noise with the same Fisher information. signal: norm of a batch of parallel codewords",
    "over the norm of the noise, in one step.",
)
AS_ENCODED = (
    "{kind} can be accounted with gaussian noise only. The table is for `mechanism.kind: encoded` with one codeword of",
    "the same norm, at the same sampling, length and budget; its gaussian row costs the same as this recipe.",
)


def _format_row(row: Compared) -> tuple[str, ...]:
    return (
        row.name + (" *" if row.chosen else ""),
        f"{row.multiplier:.5g}",
        f"{row.scale:.4g}",
        _format_number(row.l1, ".4g"),
        _format_number(row.l2, ".4g"),
        _format_number(row.l1_ratio, ".4f"),
        _format_number(row.l2_ratio, ".4f"),
        f"{row.equal_fisher_scale:.4g}",
        f"{row.signal_to_noise:.3g}",
        f"{row.epsilon:g}",
        f"{row.alternative.epsilon:g} {row.alternative.accountant}",
    )


def _format_number(value: float, spec: str) -> str:
    return format(value, spec) if math.isfinite(value) else "infinite"


def _format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _report_progress() -> Callable[[int, int, Distribution], None]:
    note = limit_notes()
    return lambda done, total, distribution: note(
        f"{done} of {total} distributions compared; now {name_of(distribution)}"
    )
