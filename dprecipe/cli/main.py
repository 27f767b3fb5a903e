"""The command line: every command's arguments, and what a fault looks like.

The commands' modules are imported inside the functions, so that `--help` and `validate` stay fast and
nothing here needs torch. Exit codes are those of `docs/contract.md`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, NoReturn, ParamSpec

import typer

from dprecipe import __version__, screen
from dprecipe.cli.output import Output, guarded_output
from dprecipe.faults import DataFault, Fault, Place, PlanRefused, RecipeError

P = ParamSpec("P")
INTERNAL, INTERRUPTED = 4, 130
EXIT_CODES = (
    "Exit codes: 0 done, 1 findings in a recipe, 2 wrong usage, 3 refused, 4 the run failed, "
    "130 interrupted (resumable)."
)

app = typer.Typer(
    name="dprecipe",
    help="A recipe in YAML becomes a private model and a certificate that a stranger can verify.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RecipePath = Annotated[Path, typer.Argument(metavar="RECIPE", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Override a value; read by the rules of the recipe. Repeatable."),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(help="Folder of the data; else $DPRECIPE_DATA, else the recipe's folder.", show_default=False),
]


def guarded(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn faults into a message and an exit code. A traceback is shown with `--debug` only."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        code: int | None
        try:
            code = command(*args, **kwargs)
        except Fault as fault:
            _debug_traceback()
            screen.note(*_worded(fault, kwargs.get("overrides")))
            code = fault.exit_code
        except KeyboardInterrupt:
            _debug_traceback()
            screen.note("interrupted")
            code = INTERRUPTED
        except Exception as error:  # the outermost guard: a fault of ours, told in one line
            _debug_traceback()
            hint = "" if _debugging() else "; run with --debug to see where"
            screen.note(f"internal error: {type(error).__name__}: {str(error)[:200]}{hint}")
            code = INTERNAL
        raise typer.Exit(code or 0)

    return run


def _worded(fault: Fault, overrides: object) -> list[str]:
    from dprecipe.cli import render

    if isinstance(fault, RecipeError | PlanRefused):
        given = overrides if isinstance(overrides, list) else []
        texts = {f"--set #{index + 1}": str(override) for index, override in enumerate(given)}
        texts |= fault.texts if isinstance(fault, RecipeError) else _texts_of(fault)
        return [*([] if isinstance(fault, RecipeError) else ["refused"]), *render.as_lines(fault.findings, texts)]
    first, *more = fault.message.split("\n")
    # A line break may be a stranger's: what follows it is marked as part of the message.
    marked = [line if line.startswith("- ") else f"  | {line}" for line in more]
    told = [f"error: {first}", *marked, *([f"  = {fault.remedy}"] if fault.remedy else [])]
    if isinstance(fault, DataFault) and fault.private and sys.stderr.isatty():
        told += [f"  in this terminal only: {line}" for line in fault.private.split("\n")]
    return told


def _texts_of(refusal: PlanRefused) -> dict[str, str]:
    """The files a refusal points into, for showing the lines."""
    from dprecipe.text.files import read_file

    texts: dict[str, str] = {}
    for place in {finding.place for finding in refusal.findings if isinstance(finding.place, Place)}:
        with contextlib.suppress(RecipeError):
            texts[place.file] = read_file(place.file)
    return texts


def _debugging() -> bool:
    return "--debug" in sys.argv


def _debug_traceback() -> None:
    if _debugging():
        traceback.print_exc()


def _version(asked: bool) -> None:
    if asked:
        screen.show([f"dprecipe {__version__}"])
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works anywhere on the line.")] = False,
) -> None: ...


@app.command()
@guarded
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("recipe.yaml"),
    mechanism: Annotated[str, typer.Option(help="dpsgd, encoded, pate or pnsgd")] = "dpsgd",
    data: Annotated[str, typer.Option(help="digits, idx, csv, parquet or npz")] = "digits",
) -> None:
    """Write a commented starter recipe."""
    from dprecipe.cli.init import init

    init(path, mechanism, data)


@app.command()
@guarded
def validate(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recipes, or folders of *.yaml and *.yml.")],
    format: Annotated[str, typer.Option(help="text, json, github or sarif")] = "text",  # noqa: A002
    data_root: Annotated[
        Path | None, typer.Option(help="Also warn of declared files that are not in this folder.")
    ] = None,
) -> int:
    """Check recipes and their privacy arithmetic; reads no data."""
    from dprecipe.cli.validate import validate

    return validate(paths, format, data_root)


@app.command()
@guarded
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    format: Annotated[str, typer.Option(help="text or json")] = "text",  # noqa: A002
) -> None:
    """Solve the free variable; print what a run will spend and release."""
    from dprecipe.cli.plan import plan

    plan(recipe, overrides or (), format)


@app.command()
@guarded
def show(
    recipe: RecipePath,
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print the resolved recipe, every default filled in."""
    from dprecipe.cli.show import show

    show(recipe, overrides or (), origin)


@app.command()
@guarded
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; never overwritten.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="A few steps on synthetic data; spends nothing.")
    ] = False,
    data_root: DataRoot = None,
    accept_lost_steps: Annotated[
        bool,
        typer.Option("--accept-lost-steps", help="Resume though most of what was paid for is lost; the card says so."),
    ] = False,
) -> int:
    """Train, stop within the budget, and write the run folder."""
    if int(os.environ.get("RANK", "0")) == 0:  # first words, before anything heavy is loaded
        screen.note(f"dprecipe {__version__}: {'rehearsing' if rehearse else 'running'} {recipe}")
    from dprecipe.cli.run import run

    return run(recipe, overrides or (), out, resume, rehearse, data_root, accept_lost_steps)


@app.command()
@guarded
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A certificate, or a release/ folder.")],
    public_key: Annotated[Path | None, typer.Option(help="Ed25519 public key that must have signed it.")] = None,
    max_seconds: Annotated[float, typer.Option(min=1, help="Processor time that recomputing may take.")] = 120,
    max_memory: Annotated[float, typer.Option(min=0.1, help="GiB of memory that it may take.")] = 4,
) -> None:
    """Recompute a certificate with an independent accountant."""
    from dprecipe.cli.verify import verify

    verify(path, public_key, max_seconds, max_memory)


@app.command()
@guarded
def noise(
    recipe: RecipePath,
    overrides: Overrides = None,
    format: Annotated[str, typer.Option(help="text or json")] = "text",  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="A folder for noise.json and noise.svg; replaced there.")] = None,
) -> None:
    """Compare all noise laws at the recipe's budget; reads no data."""
    from dprecipe.mechanisms.encoded.commands.noise import noise

    noise(recipe, overrides or (), format, out)


@app.command()
@guarded
def votes(
    recipe: RecipePath,
    overrides: Overrides = None,
    agreement: Annotated[
        tuple[float, float],
        typer.Option(metavar="LOW HIGH", help="Shares of the teachers that agree on a query; uniform between them."),
    ] = (0.5, 1.0),
    seed: Annotated[int, typer.Option(help="Of the simulated votes.")] = 0,
    format: Annotated[str, typer.Option(help="text or json")] = "text",  # noqa: A002
    out: Annotated[Path | None, typer.Option(help="A folder for votes.json and votes.svg; replaced there.")] = None,
) -> None:
    """Tell what a PATE recipe will bring on simulated votes; reads no data."""
    from dprecipe.mechanisms.pate.commands.votes import votes

    votes(recipe, overrides or (), agreement, seed, format, out)


@app.command()
@guarded
def positions(
    recipe: RecipePath,
    overrides: Overrides = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(metavar="E", help="Where δ is shown; the budget's when left out. Repeatable.")
    ] = None,
    format: Annotated[str, typer.Option(help="text, json or csv")] = "text",  # noqa: A002
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="An .svg or .png to be drawn; replaced.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every position, not a choice of 40.")] = False,
) -> None:
    """Show what protects a record at its place in the order, by every bound; reads no data."""
    from dprecipe.mechanisms.pnsgd.commands.positions import positions

    positions(recipe, overrides or (), epsilon or (), format, plot, every)


@app.command()
@guarded
def codebook(
    recipe: RecipePath,
    out: Annotated[Path, typer.Option(help="The .npz file to be written.")],
    overrides: Overrides = None,
    size: Annotated[int, typer.Option(help="How many codewords at most.", min=1, max=100_000)] = 1000,
    data_root: DataRoot = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
) -> None:
    """Make a codebook from the gradients of public held-out records."""
    from dprecipe.mechanisms.encoded.commands.codebook import codebook

    codebook(recipe, out, overrides or (), size, data_root, force)


@app.command()
@guarded
def schema(
    out: Annotated[Path | None, typer.Option(help="The folder; `schemas` when left out.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is not current.")] = False,
) -> int:
    """Write the JSON Schemas that editors and other tools use."""
    from dprecipe.cli.schema import schema

    return schema(out, check)


def main() -> NoReturn:
    """The entry point of the `dprecipe` command."""
    # Pydantic would look through every installed package for plugins: slow, and none may watch a recipe.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in (sys.stdout, sys.stderr):
        # An ASCII terminal gets escapes instead of a crash.
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    code: int | str | None = 0
    with guarded_output() as out:
        try:
            app(arguments)
        except SystemExit as ended:
            code = ended.code
        out.flush()
        code = _unprinted(out, arguments, code)
    raise SystemExit(code)


def _unprinted(out: Output, arguments: list[str], code: int | str | None) -> int | str | None:
    """The exit code where the answer may not have been printed: of a run, that of its training; else a failure."""
    if not out.error:
        return code
    if not out.reader_left:
        screen.note(f"error: what was to be printed can't be written: {out.error}")
    return code or (0 if arguments[:1] == ["run"] else INTERNAL)
