"""The commands of `dprecipe data`: their arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import DataRoot, Overrides, RecipePath
from dprecipe.cli.guard import guard_faults

data_app = typer.Typer(
    help="Look at data: whether files are what a recipe declares.", no_args_is_help=True, rich_markup_mode=None
)


@data_app.command("check")
@guard_faults
def check_data(
    recipe: RecipePath,
    overrides: Overrides = None,
    data_root: DataRoot = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a private page with histograms to this new .html file.")
    ] = None,
    print_private: Annotated[
        bool, typer.Option("--print-private", help="Print counts of private records although others may read them.")
    ] = False,
) -> int:
    """Open every declared source and tell all that does not fit the recipe; counts are for a terminal alone."""
    from dprecipe.cli.data_check import data_check

    return data_check(recipe, overrides or (), data_root, report, print_private)
