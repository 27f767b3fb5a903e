"""Arguments that several commands share, including those of the mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dprecipe.cli.completion import complete_words

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
    str | None,
    typer.Option(
        "--export",
        metavar="registry|nist|sbom|json|card|report",
        help="Print this document instead.",
        autocompletion=complete_words("registry", "nist", "sbom", "json", "card", "report"),
    ),
]
ReleaseForm = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="onnx|huggingface|model-signing",
        help="A file, or a folder.",
        show_default=False,
        autocompletion=complete_words("onnx", "huggingface", "model-signing"),
    ),
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
    typer.Option("--ray", metavar="[ADDRESS]", help="Run on a cluster: a local one, or the one at HOST:PORT."),
]
AcceptLostSteps = Annotated[
    bool,
    typer.Option("--accept-lost-steps", help="Resume although most of the paid steps are lost; the card says so."),
]


TextOrJson = Annotated[
    str, typer.Option("--format", help="text or json", autocompletion=complete_words("text", "json"))
]
RunOut = Annotated[Path | None, typer.Option(help="The run folder; never overwritten.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")]

ReleasePath = Annotated[Path, typer.Argument(metavar="RELEASE", help="A release/ folder.", show_default=False)]
Base = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The weights that released adapters belong to.", show_default=False),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|mps",
        help="auto: a GPU if there is one.",
        autocompletion=complete_words("auto", "cpu", "cuda", "mps"),
    ),
]
MaxTokens = Annotated[
    int | None, typer.Option(help="Largest number of new tokens of a text; by default up to the length of training.")
]
Temperature = Annotated[
    float, typer.Option(help="0 takes the likeliest token; 1 draws from the model's own distribution.")
]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens that hold this share of the probability.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same texts on one machine.")]
NoVerify = Annotated[bool, typer.Option("--no-verify", help="Don't verify the release first.")]
PublicKey = Annotated[Path | None, typer.Option(help="Require a signature by this Ed25519 public key.")]

AccountAddress = Annotated[
    str,
    typer.Argument(metavar="ACCOUNT", help="A file, or postgresql://USER@HOST/DATABASE#NAME.", show_default=False),
]


class CommandWithCluster(TyperCommand):
    """A command whose `--ray`, where it has one, may stand alone: for a cluster of its own. Other tools' options lead
    to ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = [option for parameter in self.params for option in parameter.opts]
        named = list(args)
        if "--ray" in known:
            named = []
            for argument, after in zip(args, [*args, "-"][1:], strict=True):
                named += [argument, "local"] if argument == "--ray" and after.startswith("-") else [argument]
        try:
            return super().parse_args(ctx, named)
        except Exception as error:  # of the vendored click, whose classes have no public name
            add_hint(error, str(self.name), known, args)
            raise


def add_hint(error: Exception, command: str, known: list[str], args: list[str]) -> None:
    """Adds to the message about a wrong command line what to write instead."""
    if not hasattr(error, "format_message") or not hasattr(error, "message"):
        return
    from dprecipe.cli.hints import hint_at_argument, hint_at_option

    option = getattr(error, "option_name", None) if hasattr(error, "possibilities") else None
    if isinstance(option, str):
        hint = hint_at_option(option, command, known)
        if hint is not None:
            vars(error)["possibilities"] = None
    else:
        hints = [hint_at_argument(argument, known) for argument in args] if "unexpected extra" in error.message else []
        hint = next((hint for hint in hints if hint is not None), None)
    if hint is not None:
        vars(error)["message"] = f"{error.message.rstrip('.')}; {hint}"
