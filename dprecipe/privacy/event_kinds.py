"""The register of kinds of events, by which ledgers and certificates read them.

It knows no event and imports none, so that a package can announce its events before they are imported: checking a
recipe needs none of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dprecipe.privacy.events import Event

TABLE = "dprecipe.contract.table"
"""The module that announces the events of stages, of tuned runs and of every mechanism. It is above this package, so it
is imported by name, and only when kinds are looked up."""
_KINDS: dict[str, type[Event]] = {}
_IMPORTERS: list[Callable[[], object]] = []
_E = TypeVar("_E", bound="Event")


def register_event(cls: type[_E]) -> type[_E]:
    """Registers a kind of event for ledgers and certificates; a class decorator.

    Raises:
        ValueError: another event has this kind.
    """
    known = _KINDS.get(cls.kind)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"there is an event of kind {cls.kind!r} already: {known.__module__}.{known.__qualname__}")
    _KINDS[cls.kind] = cls
    return cls


def announce_events(importer: Callable[[], object]) -> None:
    """Announces an `importer` of modules that register events: it is called once, before kinds are next looked up."""
    _IMPORTERS.append(importer)


def event_kinds() -> Mapping[str, type[Event]]:
    """Returns all events by kind, sorted by name: those registered and those announced, whatever was imported
    before."""
    import_module(TABLE)
    while _IMPORTERS:
        importer = _IMPORTERS.pop()
        try:
            importer()
        except BaseException:
            _IMPORTERS.append(importer)  # a kind whose import failed is not unknown: the next caller gets the error too
            raise
    return types.MappingProxyType(dict(sorted(_KINDS.items())))
