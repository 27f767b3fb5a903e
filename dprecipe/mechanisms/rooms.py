"""The table of rooms: every mechanism, with its one-line help. A new mechanism is one line here.

`Mechanism` is the union of the rooms' schemas; a room's accounting and training are imported on use, so that
help and validation cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

from pydantic import Field

from dprecipe.mechanisms.dpsgd.schema import Dpsgd


@dataclass(frozen=True, slots=True)
class Room:
    """Where a mechanism lives (`<package>.account`, `<package>.train`) and what it does in a line."""

    package: str
    summary: str


ROOMS: dict[str, Room] = {
    "dpsgd": Room("dprecipe.mechanisms.dpsgd", "clip each record's gradient, add noise to the sum, step"),
}

# One member today; a union discriminated by `kind` as soon as a second room opens.
Mechanism = Annotated[Dpsgd, Field()]


def account_of(kind: str) -> Any:
    """The accounting half of a room (a module that fulfils `contract.Account`)."""
    return import_module(f"{ROOMS[kind].package}.account")


def trainer_of(kind: str) -> Any:
    """The training half of a room; imports torch."""
    return import_module(f"{ROOMS[kind].package}.train")
