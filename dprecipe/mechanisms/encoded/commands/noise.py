"""The command `dprecipe noise`: compares all noise distributions at a recipe's budget and length, and says whether the
choice matters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import Overrides, RecipePath, TextOrJson
from dprecipe.cli.files import limit_notes, write_documents
from dprecipe.contract.mechanism import Facts
from dprecipe.contract.table import list_kinds
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.mechanisms.encoded import account
from dprecipe.mechanisms.encoded.commands.compare import compare_distributions, name_of
from dprecipe.mechanisms.encoded.commands.noise_document import Compared, Comparison
from dprecipe.mechanisms.encoded.commands.noise_plot import plot_noise
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook
from dprecipe.noise.distributions import Distribution
from dprecipe.noisy_sum.sampling import MayHaveUniformSteps
from dprecipe.planning import rules
from dprecipe.planning.paid import solve_prices
from dprecipe.recipe.read import Loaded, read
from dprecipe.screen import show_document, write_output

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
            "sampling": steps.sampling.model_dump(),
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
