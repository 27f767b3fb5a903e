"""The table of mechanisms. A new one is one folder, and one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from dprecipe.language.base import Auto, Block
from dprecipe.mechanisms import dpsgd, encoded, pate, pnsgd
from dprecipe.mechanisms.contract import Mechanism

MECHANISMS: dict[str, Mechanism] = {}
"""By `mechanism.kind`."""


def register(mechanism: Mechanism) -> None:
    """Add a mechanism to the language, before the first recipe is read.

    Raises:
        ValueError: there is one of this kind.
    """
    if mechanism.kind in MECHANISMS:
        raise ValueError(f"there is a mechanism {mechanism.kind!r} already")
    MECHANISMS[mechanism.kind] = mechanism


register(dpsgd.MECHANISM)
register(encoded.MECHANISM)
register(pate.MECHANISM)
register(pnsgd.MECHANISM)


def mechanism_of(kind: str) -> Mechanism:
    """The mechanism of a kind that a recipe or a plan names."""
    return MECHANISMS[kind]


if TYPE_CHECKING:

    class MechanismBlock(Block):
        """The `mechanism` block, of whatever kind."""

        kind: str

        @property
        def solvable(self) -> dict[str, float | int | Auto]: ...


def mechanism_block() -> object:
    """The type of the `mechanism` block: the union of the blocks of all that is registered, told apart by `kind`."""
    return Annotated[Union[tuple(m.block for m in MECHANISMS.values())], Field(discriminator="kind")]  # noqa: UP007
