"""The command `dprecipe codebook`: makes a codebook from the gradients of public records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath
from dprecipe.cli.files import check_output, path_in_recipe, replace_output
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.libraries import check_libraries
from dprecipe.mechanisms.encoded.codebook import Codebook
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.mechanisms.encoded.train.fit import make_codebook, public_records
from dprecipe.planning import rules
from dprecipe.policy.apply import enforce_on_recipe
from dprecipe.recipe.read import read
from dprecipe.screen import write_output
from dprecipe.text.load import read_file


def write_codebook(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(help="The .npz file to be written.")],
    overrides: Overrides = None,
    size: Annotated[int, typer.Option(help="How many codewords at most.", min=1, max=100_000)] = 1000,
    data_root: DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Makes a codebook for a recipe and writes it. The recipe may name the file already, whether or not it exists.

    Raises:
        RecipeError: the recipe's text has errors.
        PlanRefused: its records are not public, its blocks contradict each other, or a policy does not allow it.
        UsageFault: the file exists or can't be written, the recipe has no codebook, or torch is not installed.
        DataFault, RunFailed: as `dprecipe.mechanisms.encoded.train.fit.make_codebook`.
    """
    check_output(out, force)
    # Read the texts only: the codebook that the recipe names is the one to be made here.
    loaded = read(recipe, overrides or (), open_text=read_file)
    spec, data = loaded.recipe.mechanism, loaded.recipe.data
    if not isinstance(spec, Encoded):
        raise UsageFault(f"mechanism {spec.kind} has no codebook", "set mechanism.kind to encoded")
    findings = [finding for rule in rules.RULES for finding in rule(loaded.recipe)] + list(public_records(data))
    if any(finding.is_error for finding in findings):
        raise PlanRefused(loaded.located(findings))
    root = find_data_root(data_root, recipe)
    enforce_on_recipe(loaded, root)
    check_libraries("a codebook", "torch")
    result = make_codebook(loaded.recipe, spec, root, size, recipe.parent)
    replace_output(out, result.codebook.to_bytes())
    path = path_in_recipe(recipe, out)
    write_output(_describe_lines(result.codebook, result.without_gradient, out, path, spec.codebook.norm))


def _describe_lines(codebook: Codebook, without_gradient: int, out: Path, path: str, norm: float) -> list[str]:
    """Describes the file that was written, and how a recipe names it."""
    groups = len(codebook.sizes)
    left_out = f" ({without_gradient:,} without a gradient are left out)" if without_gradient else ""
    return [
        f"wrote {out}: {codebook.words:,} codewords of {codebook.dimension:,} coordinates in {groups:,} "
        f"{'group' if groups == 1 else 'groups'}, from as many public records{left_out}",
        f"envelope {codebook.box.length:.4g} times as long as a codeword: noise other than gaussian is accounted with "
        "the envelope",
        f"digest {codebook.digest}",
        "for the recipe:",
        "mechanism:",
        f"  codebook: {{source: file, path: {path}, norm: {norm:g}}}",
    ]
