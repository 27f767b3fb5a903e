"""Arguments that several commands take, those of the mechanisms among them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a value; read by the rules of the recipe. Repeatable."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the data; else $DPRECIPE_DATA, else the recipe's folder.", show_default=False),
]
