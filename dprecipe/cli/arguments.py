"""Arguments that several commands share, including those of the mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a value, written as in the recipe. Repeatable."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the data; else $DPRECIPE_DATA, else the recipe's folder.", show_default=False),
]
