"""The command line: every command's arguments, and the commands that mechanisms add.

The commands' modules are imported inside the functions, so that `--help` and `validate` stay fast and
nothing here needs torch. Exit codes are those of `docs/reference/contract.md`.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dprecipe import __version__, screen
from dprecipe.cli.account_app import account_app
from dprecipe.cli.arguments import (
    AcceptLostSteps,
    ClusterCommand,
    DataRoot,
    ExportForm,
    MaxMemory,
    MaxSeconds,
    Overrides,
    PolicyPath,
    RayAddress,
    RecipePath,
    TeacherFolders,
)
from dprecipe.cli.data_app import data_app
from dprecipe.cli.guard import INTERNAL, guard_faults
from dprecipe.cli.model_app import export, generate, predict, synthesize
from dprecipe.cli.output import Output, guarded_output
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import UsageFault
from dprecipe.language.words import join_with_or

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


def _version(requested: bool) -> None:
    if requested:
        screen.write_output([f"dprecipe {__version__}"])
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks. May appear anywhere on the line.")] = False,
) -> None: ...


@app.command()
@guard_faults
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("recipe.yaml"),
    mechanism: Annotated[str, typer.Option(help=join_with_or([*MECHANISMS]))] = next(iter(MECHANISMS)),
    data: Annotated[str, typer.Option(help="digits, idx, csv, parquet, json_lines or npz")] = "digits",
    sample: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Draft the data block from a CSV, JSON lines, Parquet or NumPy file."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="FILE is a public sample: also draft ranges and categories.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="FILE is private: draft names and kinds, with blanks to fill in.")
    ] = False,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column of FILE.")] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of FILE that names who is protected.")
    ] = None,
) -> None:
    """Write a commented starter recipe."""
    from dprecipe.cli.init import init, init_from

    if sample is not None:
        init_from(path, mechanism, sample, public, private, label, unit)
    elif public or private or label or unit:
        raise UsageFault("--public, --private, --label and --unit are about a file", "name it: --from FILE")
    else:
        init(path, mechanism, data)


@app.command()
@guard_faults
def validate(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Recipes, or folders of *.yaml and *.yml.")],
    output: Annotated[str, typer.Option("--format", help="text, json, github or sarif")] = "text",
    data_root: Annotated[
        Path | None, typer.Option(help="Also warn about declared files that are missing from this folder.")
    ] = None,
    policy: PolicyPath = None,
    overrides: Overrides = None,
) -> int:
    """Check recipes and their privacy arithmetic; reads no data."""
    from dprecipe.cli.validate import validate

    return validate(paths, output, data_root, policy, overrides or ())


@app.command()
@guard_faults
def explain(
    code: Annotated[str | None, typer.Argument(help="A finding's code, such as P108; or a word of its title.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List all codes with their titles.")] = False,
) -> None:
    """Print the page of a finding: what it means, an example, and the remedy."""
    from dprecipe.cli.explain import explain

    explain(code, listed)


@app.command()
@guard_faults
def plan(
    recipe: RecipePath,
    overrides: Overrides = None,
    output: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    compare_accountants: Annotated[
        bool, typer.Option("--compare-accountants", help="Also print what other accountants say; none is the claim.")
    ] = False,
) -> None:
    """Solve for the free variable; print what a run will spend and release."""
    from dprecipe.cli.plan import plan

    plan(recipe, overrides or (), output, compare_accountants)


@app.command()
@guard_faults
def show(
    recipe: RecipePath,
    overrides: Overrides = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value came from.")] = False,
) -> None:
    """Print the resolved recipe, every default filled in."""
    from dprecipe.cli.show import show

    show(recipe, overrides or (), origin)


@app.command(cls=ClusterCommand)
@guard_faults
def run(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; never overwritten.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="A few steps on synthetic data; spends nothing.")
    ] = False,
    data_root: DataRoot = None,
    teachers: TeacherFolders = None,
    ray: RayAddress = None,
    accept_lost_steps: AcceptLostSteps = False,
) -> int:
    """Train, stop within the budget, and write the run folder."""
    from dprecipe.training.processes.launch import LAUNCHER

    if int(os.environ.get("RANK", "0")) == 0 and LAUNCHER not in os.environ:  # before anything heavy is loaded
        screen.write_note(f"dprecipe {__version__}: {'rehearsing' if rehearse else 'running'} {recipe}")
    from dprecipe.cli.run import run

    return run(recipe, overrides or (), out, resume, rehearse, data_root, accept_lost_steps, teachers or (), ray)


@app.command()
@guard_faults
def audit(
    recipe: RecipePath,
    overrides: Overrides = None,
    depth: Annotated[
        list[str] | None, typer.Option(metavar="DEPTH", help="program, steps or releases; all by default. Repeatable.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps for --depth steps.", show_default=False)] = None,
    releases: Annotated[
        int | None, typer.Option(help="Number of runs for --depth releases.", show_default=False)
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence of the lower bounds.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the results to this JSON file, which is replaced.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> int:
    """Attack the claim with synthetic records; reads no data, spends nothing."""
    screen.write_note(f"dprecipe {__version__}: auditing {recipe}")  # printed before anything heavy is loaded
    from dprecipe.cli.audit import audit

    return audit(recipe, overrides or (), depth or (), steps, releases, confidence, out, json)


@app.command(cls=ClusterCommand)
@guard_faults
def tune(
    recipe: RecipePath,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; never overwritten.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of runs at once, each in its own process.")] = None,
    ray: RayAddress = None,
    data_root: DataRoot = None,
) -> int:
    """Train several times with values drawn at random, and release the best model alone."""
    screen.write_note(f"dprecipe {__version__}: tuning {recipe}")  # printed before anything heavy is loaded
    from dprecipe.cli.tune import tune

    return tune(recipe, overrides or (), out, resume, jobs, data_root, ray)


@app.command()
@guard_faults
def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A certificate, or a release/ folder.")],
    public_key: Annotated[Path | None, typer.Option(help="Require a signature by this Ed25519 public key.")] = None,
    max_seconds: MaxSeconds = 120,
    max_memory: MaxMemory = 4,
    form: ExportForm = None,
    policy: PolicyPath = None,
    account_statement: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare the run's account with its public statement.")
    ] = None,
) -> None:
    """Recompute a certificate with an independent accountant."""
    from dprecipe.cli.verify import verify

    verify(path, public_key, max_seconds, max_memory, form, policy, account_statement)


@app.command()
@guard_faults
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Releases, run folders, or recipes.")],
    metric: Annotated[str | None, typer.Option(help="Score to compare; by default the first that all have.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ of the table; the smallest of all by default.")] = None,
    output: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    plot: Annotated[
        Path | None, typer.Option(help="Also plot score against ε in this .svg, which is replaced.")
    ] = None,
) -> None:
    """Compare score and ε of runs under one claim, paired over seeds."""
    from dprecipe.cli.compare import compare

    compare(paths, metric, delta, output, plot)


app.command()(predict)
app.command()(export)
app.command()(generate)
app.command()(synthesize)


@app.command()
@guard_faults
def prior(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A recipe; with --check weights or a certificate.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The file of weights; model.init by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Make the images again and compare their digest.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="With --check: also learn the weights again.")] = False,
) -> None:
    """Learn initial weights from images made from a seed, and from no real data."""
    from dprecipe.cli.prior import check_prior, make_prior

    if check:
        check_prior(path, retrain)
    else:
        make_prior(path, out, overrides or (), force)


for _mechanism in MECHANISMS.values():
    if (_commands := _mechanism.commands) is not None:
        for _name, _command in _commands.COMMANDS.items():
            app.command(_name)(guard_faults(_command))


@app.command()
@guard_faults
def copies(
    folder: Annotated[Path | None, typer.Argument(help="The folder; $DPRECIPE_PREPARED by default.")] = None,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Delete a copy, by the first letters of its key; or `all`.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read every byte, delete damaged copies, forget what is known of sources.")
    ] = False,
) -> int:
    """List prepared copies of records (runtime.prepared), check or delete them."""
    from dprecipe.cli.copies import copies

    return copies(folder, delete or (), check)


@app.command()
@guard_faults
def schema(
    out: Annotated[Path | None, typer.Option(help="The folder; `schemas` by default.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> int:
    """Write the JSON Schemas that editors and other tools use."""
    from dprecipe.cli.schema import schema

    return schema(out, check)


app.add_typer(data_app, name="data")
app.add_typer(account_app, name="account")


def main() -> NoReturn:
    """Returns the entry point of the `dprecipe` command."""
    # Pydantic would search every installed package for plugins: that is slow, and no plugin may see a recipe.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in (sys.stdout, sys.stderr):
        # On an ASCII terminal, print escapes instead of crashing.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    code: int | str | None = 0
    with guarded_output() as out:
        try:
            app(arguments)
        except SystemExit as ended:
            code = ended.code
        out.flush()
        code = _final_code(out, arguments, code)
    raise SystemExit(code)


def _final_code(out: Output, arguments: list[str], code: int | str | None) -> int | str | None:
    """Returns the exit code where the output may be incomplete: a run keeps its own; another command has failed."""
    if not out.error:
        return code
    if not out.reader_left:
        screen.write_note(f"error: the output can't be written: {out.error}")
    return code or (0 if arguments[:1] in (["run"], ["tune"]) else INTERNAL)
