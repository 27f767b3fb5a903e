"""`dprecipe noise`: every noise distribution at the budget and length of a recipe, and whether the choice matters."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.encoded import account
from dprecipe.mechanisms.encoded.commands.compare import (
    MAX_L1_GAIN,
    Compared,
    Comparison,
    compare_distributions,
    name_of,
)
from dprecipe.mechanisms.encoded.commands.noise_plot import plot_noise
from dprecipe.mechanisms.encoded.schema import Encoded, GaussianCodebook
from dprecipe.mechanisms.noisy_sum.uniform import MayHaveUniformSteps
from dprecipe.mechanisms.table import kinds_where
from dprecipe.noise.distributions import Distribution
from dprecipe.planning import rules
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import Loaded, read
from dprecipe.screen import as_json, show_document, write_note, write_output

SCHEMA = "dprecipe.noise/v1"
FORMATS = ("text", "json")
PATIENCE = 2.0
"""Seconds between signs of life."""


def compare_noise(recipe: Path, overrides: Sequence[str] = (), output: str = "text", out: Path | None = None) -> None:
    """Compare all noise distributions at a recipe's budget and length; with `out`, also write `noise.json` and
    `noise.svg`.

    Raises:
        RecipeError, PlanRefused: what is wrong with the recipe.
        UsageFault: an unknown format, a mechanism without a choice of noise, or a folder that can't be written.
    """
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output}", f"choose one of {', '.join(FORMATS)}")
    if out is not None:
        _write(out, {})  # a folder that can't be written is known before the work
    loaded = read(recipe, overrides)
    spec = as_encoding(loaded)
    facts = Facts.of(loaded.recipe, loaded.source.attachments)
    try:
        result = compare_distributions(spec, facts, _progress())
    except PlanRefused as refusal:
        raise PlanRefused(loaded.located(refusal.findings)) from None
    document = {
        "schema": SCHEMA,
        "recipe": {"name": loaded.recipe.name, "digest": loaded.source.digest},
        "mechanism": loaded.recipe.mechanism.kind,
        "compared_as": spec.kind,
        **result.to_json(),
        "verdict": describe_verdict(result),
    }
    written = as_json(document)
    if out is not None:
        _write(out, {"noise.json": written, "noise.svg": plot_noise(result)})
    show_document(
        written if output == "json" else render_text(loaded.recipe.name, loaded.recipe.mechanism.kind, result)
    )
    if out is not None and output == "text":
        write_output(["", f"wrote {out / 'noise.json'} and {out / 'noise.svg'}"])


def as_encoding(loaded: Loaded) -> Encoded:
    """The recipe's mechanism as gradient encoding. Another whose steps all add Gaussian noise to a clipped sum becomes
    encoding with one codeword of its clip norm, which costs the same and can be accounted with any other noise.

    Raises:
        PlanRefused: what is wrong with the recipe, or what hinders encoding at its settings.
        UsageFault: a mechanism whose noise is not added to the coordinates of a bounded sum.
    """
    recipe, mechanism = loaded.recipe, loaded.recipe.mechanism
    if not isinstance(mechanism, Encoded | MayHaveUniformSteps):
        able = kinds_where(lambda known: known.block is Encoded or issubclass(known.block, MayHaveUniformSteps))
        raise UsageFault(
            f"mechanism {mechanism.kind} has no choice of noise to compare", f"use mechanism {join_with_or(able)}"
        )
    _refuse(loaded, rules.check(recipe, loaded.source.attachments))
    if isinstance(mechanism, Encoded):
        return mechanism
    steps = mechanism.uniform_steps()
    if steps is None:
        raise UsageFault(
            "families of noise are compared for runs of gaussian noise whose steps are alike",
            "give noise, clip norm and batch size one value each, and sample by scheme: poisson",
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


def render_text(name: str, kind: str, found: Comparison) -> str:
    """The table and what follows from it, as a person reads it."""
    terms = found.terms
    parts = [
        [
            f"{name}: noise at ε = {terms.epsilon:g}, δ = {terms.delta:g} ({terms.accountant}), {terms.steps:,} steps, "
            f"{terms.dimension:,} coordinates, codewords of norm {terms.norm:g}"
        ],
        _table([HEAD, *(_row(row) for row in found.distributions)]),
        [f"{name_of(distribution)} is left out: {why}" for distribution, why in found.left_out],
        LEGEND,
        () if kind == "encoded" else (AS_ENCODED[0].format(kind=kind), AS_ENCODED[1]),
        [describe_verdict(found)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


HEAD = ("noise", "multiplier", "scale", "L1", "L2", "L1 rel.", "L2 rel.", "equal σ", "signal", "ε", "cross-check")
LEGEND = (
    "* the recipe's own. L1, L2: E|noise| of a coordinate of the sum, and its root mean square; rel.: over those of",
    "gaussian noise. equal σ: gaussian noise with the same Fisher information. signal: norm of a batch of parallel",
    "codewords over the norm of the noise, in one step.",
)
AS_ENCODED = (
    "{kind} can be accounted with gaussian noise only. This is what `mechanism.kind: encoded` with one codeword of its",
    "clip norm would offer, at the same sampling, length and budget; its gaussian row costs what this recipe costs.",
)


def describe_verdict(found: Comparison) -> str:
    """What follows from the table, in plain words."""
    terms = found.terms
    best = f"Smallest L1 error: {_gain(found.least_l1, 'l1_ratio')}. "
    best += f"Smallest L2 error: {_gain(found.least_l2, 'l2_ratio')}."
    if found.matters:
        lines = [
            best,
            "The distribution counts here, not its Fisher information alone: over few coordinates, single ones are",
            "moved by a good part of the noise's scale. The gain fades as coordinates become many.",
        ]
    else:
        lines = [
            best,
            f"The choice hardly matters: over {terms.dimension:,} coordinates only Fisher information counts. Where "
            "that is equal,",
            f"no distribution has a smaller L2 error than gaussian noise, nor an L1 error smaller by more than "
            f"{MAX_L1_GAIN:.2%}. Take gaussian.",
        ]
    return "\n".join([*lines, *_what_gaussian_has_ahead(found)])


def _what_gaussian_has_ahead(found: Comparison) -> list[str]:
    """Differences that lie in what can be proved, and not in the distributions."""
    terms, lines = found.terms, []
    longer = terms.envelope - 1
    if longer > 1e-3:
        lines.append(
            f"All others pay {longer:.1%} for the envelope of {terms.words:,} codewords, gaussian noise does not; with "
            "one codeword none does."
        )
    if terms.neighbouring is Neighbouring.REPLACE_ONE:
        lines.append(
            "Under replace_one all others are charged for a unit removed and one added; gaussian noise has a bound of "
            "its own, a tighter one."
        )
    if terms.exchanged:
        lines.append("For micro-batches all others have looser bounds than gaussian noise.")
    return lines


def _gain(row: Compared, error: str) -> str:
    gain = 1 - float(getattr(row, error))
    return (
        name_of(row.distribution)
        if row.distribution.family == "gaussian"
        else f"{name_of(row.distribution)}, {gain:.1%} below gaussian"
    )


def _row(row: Compared) -> tuple[str, ...]:
    return (
        name_of(row.distribution) + (" *" if row.chosen else ""),
        f"{row.multiplier:.5g}",
        f"{row.scale:.4g}",
        _finite(row.l1, ".4g"),
        _finite(row.l2, ".4g"),
        _finite(row.l1_ratio, ".4f"),
        _finite(row.l2_ratio, ".4f"),
        f"{row.equal_fisher_scale:.4g}",
        f"{row.signal_to_noise:.3g}",
        f"{row.epsilon:g}",
        f"{row.alternative_epsilon:g} {row.alternative_accountant}",
    )


def _finite(value: float, how: str) -> str:
    return format(value, how) if math.isfinite(value) else "infinite"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if index else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _progress() -> Callable[[int, int, Distribution], None]:
    """Says on stderr which distribution is at work, where the last sign of life was some time ago."""
    last = time.monotonic()

    def report(done: int, of: int, distribution: Distribution) -> None:
        nonlocal last
        if time.monotonic() - last >= PATIENCE:
            last = time.monotonic()
            write_note(f"{done} of {of} distributions compared; now {name_of(distribution)}")

    return report


def _write(folder: Path, files: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise UsageFault(f"{folder} can't be written: {error.strerror}", "name another folder with --out") from None
