"""The commands `dprecipe noise` and `dprecipe codebook`.

They compare noise families at a recipe's budget, and make codebooks from public gradients. They use the accounting of
the mechanism and change nothing in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath


def compare_noise(
    recipe: RecipePath,
    overrides: Overrides = None,
    output: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    out: Annotated[Path | None, typer.Option(help="A folder for noise.json and noise.svg; replaced there.")] = None,
) -> None:
    """Compare all noise families at the recipe's budget; reads no data."""
    from dprecipe.mechanisms.encoded.commands.noise import compare_noise

    compare_noise(recipe, overrides or (), output, out)


def make_codebook(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(help="The .npz file to be written.")],
    overrides: Overrides = None,
    size: Annotated[int, typer.Option(help="How many codewords at most.", min=1, max=100_000)] = 1000,
    data_root: DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Make a codebook from the gradients of public held-out records."""
    from dprecipe.mechanisms.encoded.commands.codebook import write_codebook

    write_codebook(recipe, out, overrides or (), size, data_root, force)


def schema_of_noise() -> dict[str, Any]:
    """Returns the JSON Schema of `dprecipe noise --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.encoded.commands.noise_document import Comparison

    return schema_of(Comparison)


COMMANDS = {"noise": compare_noise, "codebook": make_codebook}
SCHEMAS = {"noise.schema.json": schema_of_noise}
