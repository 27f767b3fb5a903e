"""The table of mechanisms. A new mechanism is one folder, and one name here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from dprecipe.contract.mechanism import Mechanism
from dprecipe.privacy.event_kinds import announce_events

PACKAGES = ("dpsgd", "encoded", "pate", "pnsgd", "correlated")
"""Names of packages in `dprecipe.mechanisms`. They are imported by name, because they build on the users of this
table."""
MECHANISMS: dict[str, Mechanism] = {}
"""The registered mechanisms, by `mechanism.kind`."""
_is_closed = False


def register(mechanism: Mechanism) -> None:
    """Adds a mechanism to the language, before the first recipe is read.

    Raises:
        ValueError: a mechanism of this kind is registered already.
        RuntimeError: the language is built already and would not include it.
    """
    if mechanism.kind in MECHANISMS:
        raise ValueError(f"mechanism {mechanism.kind!r} is registered already")
    if _is_closed:
        raise RuntimeError(
            f"mechanism {mechanism.kind!r} is registered too late: register it before dprecipe.recipe.root is imported"
        )
    MECHANISMS[mechanism.kind] = mechanism
    announce_events(lambda: mechanism.events)


for name in PACKAGES:
    register(import_module(f"dprecipe.mechanisms.{name}").MECHANISM)


def mechanism_of(kind: str) -> Mechanism:
    """Returns the mechanism of a kind that a recipe or a plan names."""
    return MECHANISMS[kind]


def list_kinds(trait: Callable[[Mechanism], bool]) -> list[str]:
    """Returns the kinds of the mechanisms that have a trait, in the order of the table."""
    return [kind for kind, mechanism in MECHANISMS.items() if trait(mechanism)]


def _import_shared_events() -> None:
    """Registers the events of paid steps and of tuned runs."""
    import dprecipe.privacy.stages.events
    import dprecipe.privacy.tuning.events  # noqa: F401


announce_events(_import_shared_events)


def mechanism_block() -> object:
    """Returns the type of the `mechanism` block: the union of the blocks of all registered mechanisms, by `kind`.

    This call builds the language: from now on `register` refuses.
    """
    from typing import Annotated, Union

    from pydantic import Field

    global _is_closed
    _is_closed = True
    return Annotated[Union[tuple(m.block for m in MECHANISMS.values())], Field(discriminator="kind")]  # noqa: UP007


def mechanism_facts() -> object:
    """Returns the type of a certificate's `mechanism` block: the union of the facts of all registered mechanisms, by
    `kind`."""
    from typing import Annotated, Union

    from pydantic import Field

    return Annotated[Union[tuple(m.certificate.facts for m in MECHANISMS.values())], Field(discriminator="kind")]  # noqa: UP007
