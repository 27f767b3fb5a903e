"""Commands of the command line, as they are known before their modules are imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol


class Command(NamedTuple):
    """A command: its function, and its description."""

    function: str
    """`module:name` of a function whose parameters, which typer reads, are the command's arguments."""
    help: str
    """One paragraph for `--help`, of the command and of its group."""


class Commands(Protocol):
    """The commands that a mechanism adds to the command line, and the JSON Schemas of what they print."""

    @property
    def COMMANDS(self) -> Mapping[str, Command]:  # noqa: N802
        """By name."""

    @property
    def SCHEMAS(self) -> Mapping[str, Callable[[], dict[str, Any]]]:  # noqa: N802
        """Functions that return the JSON Schemas, by file name."""
