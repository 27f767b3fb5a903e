"""The command line: the table of all commands, those of mechanisms included.

A command is a function of one module, whose parameters are the command's arguments. Only the module of the command that
is called is imported, so that `--help` and `validate` stay fast and nothing here needs torch. Exit codes are those of
`docs/reference/contract.md`.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, ClassVar, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from dprecipe import __version__, screen
from dprecipe.cli.arguments import CommandWithCluster
from dprecipe.cli.guard import INTERNAL, Output, guard_faults, guarded_output, reporting_faults
from dprecipe.contract.commands import Command
from dprecipe.contract.table import MECHANISMS


class LazyGroup(TyperGroup):
    """A group with a table of commands.

    `commands` has the name and the line of help of each, which is enough for `--help`, for suggestions and for shell
    completion. `resolve_command`, which finds the command that a line calls or completes, imports its module.
    """

    table: ClassVar[Mapping[str, Command]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: TyperCommand(name, help=command.help) for name, command in self.table.items()}
        self.commands = {**listed, **self.commands}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except Exception as error:  # of the vendored click, whose classes have no public name
            if hasattr(error, "message"):
                from dprecipe.cli.hints import hint_at_command

                hint = hint_at_command(args[0], self.commands)
                error.message = error.message if hint is None else f"{error.message.rstrip('.')}; {hint}"
            raise
        return name, command if name is None else self.load_command(name), rest

    def load_command(self, name: str) -> Any:
        """Returns a command with its parameters, or a group of commands."""
        return build_command(name, self.table[name]) if name in self.table else self.commands[name]


def group_of(commands: Mapping[str, Command]) -> type[LazyGroup]:
    """Returns the class of a group with these commands, as typer takes it."""

    class Group(LazyGroup):
        table = commands

    return Group


def build_command(name: str, command: Command) -> Any:
    """Imports a command's module, and makes the command of its function, guarded. A module that can't be imported is
    reported as a fault of the command."""
    module, _, function = command.function.partition(":")
    with reporting_faults():
        callback = getattr(import_module(module), function)
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(name, cls=CommandWithCluster, help=command.help)(guard_faults(callback))
    return typer.main.get_command(single)


EXIT_CODES = (
    "Exit codes: 0 done, 1 findings in a recipe, 2 wrong usage, 3 refused, 4 the run failed, "
    "130 interrupted (resumable)."
)


def list_own(helps: Mapping[str, str]) -> dict[str, Command]:
    """Returns the commands of `dprecipe.cli` whose module and function have the command's name."""
    return {name: Command(f"dprecipe.cli.{name}:{name}", text) for name, text in helps.items()}


COMMANDS = (
    list_own(
        {
            "init": "Write a commented starter recipe.",
            "validate": "Check recipes and their privacy arithmetic; reads no data.",
            "explain": "Print the page of a finding: what it means, an example, and the remedy.",
            "plan": "Solve for the free variable; print what a run will spend and release.",
            "show": "Print the resolved recipe, every default filled in.",
            "run": "Train, stop within the budget, and write the run folder.",
            "audit": "Attack the claim with synthetic records; reads no data, spends nothing.",
            "tune": "Train several times with values drawn at random, and release the best model alone.",
            "sweep": "Train once for each combination of values, where looking at all scores is free or charged.",
            "verify": "Recompute a certificate with an independent accountant.",
            "compare": "Compare score and ε of runs under one claim, paired over seeds.",
            "predict": "Predict the records of files with a released model.",
            "export": "Write a released model for other programs.",
            "generate": "Write texts with a released language model.",
            "synthesize": "Write synthetic records with a released language model, and its certificate beside them.",
            "prior": "Learn initial weights from images made from a seed, and from no real data.",
        }
    )
    | {
        name: command
        for mechanism in MECHANISMS.values()
        if mechanism.commands is not None
        for name, command in mechanism.commands.COMMANDS.items()
    }
    | list_own(
        {
            "copies": "List prepared copies of records (runtime.prepared), check or delete them.",
            "schema": "Write the JSON Schemas that editors and other tools use.",
        }
    )
)
DATA = {
    "check": Command(
        "dprecipe.cli.data_check:data_check",
        "Open every declared source and tell all that does not fit the recipe; counts are for a terminal alone.",
    ),
}
ACCOUNT = {
    "create": Command(
        "dprecipe.cli.account:create",
        "Make the account of a data set, once. Its cap is never raised, and it has no refresh.",
    ),
    "show": Command("dprecipe.cli.account_show:show", "Show what is counted, what is left, and the latest runs."),
    "history": Command("dprecipe.cli.account_show:history", "Every run of the account, in order."),
    "export": Command(
        "dprecipe.cli.account:export", "Write what strangers verify (--public), or what shows a roll-back (--head)."
    ),
    "verify": Command(
        "dprecipe.cli.account:verify", "Recompute an account, or its public statement, from all entries."
    ),
    "plan": Command(
        "dprecipe.cli.account_runs:plan_in_account",
        "Show what a recipe would leave of its account, how many such runs fit, and the budget for a number of runs.",
    ),
    "settle": Command(
        "dprecipe.cli.account_runs:settle",
        "Tell the account what a run has drawn, and write the release that waited for that; draws nothing.",
    ),
    "test": Command(
        "dprecipe.cli.account:test_connection",
        "Test the connection: read, lock, write and take back; nothing is left behind.",
    ),
}

app = typer.Typer(
    cls=group_of(COMMANDS),
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


app.add_typer(
    typer.Typer(
        cls=group_of(DATA),
        help="Look at data: whether files are what a recipe declares.",
        no_args_is_help=True,
        rich_markup_mode=None,
    ),
    name="data",
)
app.add_typer(
    typer.Typer(
        cls=group_of(ACCOUNT),
        help="The account of a data set: what all runs on it have spent, and may still spend, together.",
        no_args_is_help=True,
        rich_markup_mode=None,
    ),
    name="account",
)


def main() -> NoReturn:
    """Runs the `dprecipe` command, and exits with its code."""
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
