"""Arguments that several commands share, including those of the mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a value, written as in the recipe. Repeatable."),
]
PolicyPath = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also check against this policy.", show_default=False)
]
MaxSeconds = Annotated[float, typer.Option(min=1, help="Limit on processor time for recomputing, in seconds.")]
MaxMemory = Annotated[float, typer.Option(min=0.1, help="Limit on memory for recomputing, in GiB.")]
ExportForm = Annotated[
    str | None, typer.Option("--export", metavar="registry|nist|sbom|json", help="Print this document instead.")
]
ReleaseForm = Annotated[
    str,
    typer.Option("--format", metavar="onnx|huggingface|model-signing", help="A file, or a folder.", show_default=False),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the data; else $DPRECIPE_DATA, else the recipe's folder.", show_default=False),
]
TeacherFolders = Annotated[
    list[Path] | None,
    typer.Option(metavar="FOLDER", help="Use the votes that `dprecipe teachers` left in this folder. Repeatable."),
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="[ADDRESS]", help="Run on a cluster: a local one, or the one at HOST:PORT."),
]
AcceptLostSteps = Annotated[
    bool,
    typer.Option("--accept-lost-steps", help="Resume although most of the paid steps are lost; the card says so."),
]


class ClusterCommand(TyperCommand):
    """A command whose `--ray` may stand alone: for a cluster of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named: list[str] = []
        for argument, after in zip(args, [*args, "-"][1:], strict=True):
            named += [argument, "local"] if argument == "--ray" and after.startswith("-") else [argument]
        return super().parse_args(ctx, named)
