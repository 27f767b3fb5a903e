"""Groups of commands that import the module of the one command that is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from dprecipe.cli.arguments import CommandWithCluster
from dprecipe.cli.guard import guard_faults, reporting_faults
from dprecipe.contract.commands import Command


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
