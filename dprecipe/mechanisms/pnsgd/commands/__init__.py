"""The command `dprecipe positions`: the guarantee of a record by its place in the order.

It tabulates and plots what `theory` computes, beside the bounds of the papers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.cli.arguments import Overrides, RecipePath


def show_positions(
    recipe: RecipePath,
    overrides: Overrides = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(metavar="E", help="Where δ is shown; the budget's when left out. Repeatable.")
    ] = None,
    output: Annotated[str, typer.Option("--format", help="text, json or csv")] = "text",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="An .svg or .png to be drawn; replaced.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every position, not a choice of 40.")] = False,
) -> None:
    """Show the guarantee of each position in the file, by every bound; reads no data."""
    from dprecipe.mechanisms.pnsgd.commands.positions import show_positions

    show_positions(recipe, overrides or (), epsilon or (), output, plot, every)


def schema_of_positions() -> dict[str, Any]:
    """Returns the JSON Schema of `dprecipe positions --format json`."""
    from dprecipe.contract.document import schema_of
    from dprecipe.mechanisms.pnsgd.commands.positions import Curve

    return schema_of(Curve)


COMMANDS = {"positions": show_positions}
SCHEMAS = {"positions.schema.json": schema_of_positions}
