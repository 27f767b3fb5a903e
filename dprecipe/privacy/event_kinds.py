"""The register of kinds of events, by which ledgers and certificates read them.

It knows no event and imports none of them, so that whoever provides events can announce them before they are imported:
checking a recipe needs none of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from dprecipe.privacy.events import Event

TABLE = "dprecipe.contract.table"
"""Announces the events of stages, of tuned runs and of every mechanism. It is above this package: reached by name, and
only when kinds are looked up."""
_KINDS: dict[str, type[Event]] = {}
_IMPORTERS: list[Callable[[], object]] = []
_E = TypeVar("_E", bound="Event")


def register_event(cls: type[_E]) -> type[_E]:
    """Class decorator: register a kind of event for ledgers and certificates.

    Raises:
        ValueError: another event has this kind.
    """
    known = _KINDS.get(cls.kind)
    if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"there is an event of kind {cls.kind!r} already: {known.__module__}.{known.__qualname__}")
    _KINDS[cls.kind] = cls
    return cls


def announce_events(importer: Callable[[], object]) -> None:
    """Have `importer` called, once, before kinds are next looked up; it imports modules that register events."""
    _IMPORTERS.append(importer)


def event_kinds() -> Mapping[str, type[Event]]:
    """All events by kind, sorted by name: those registered, and those announced, whatever was imported before."""
    import_module(TABLE)
    while _IMPORTERS:
        importer = _IMPORTERS.pop()
        try:
            importer()
        except BaseException:
            _IMPORTERS.append(importer)  # what could not be imported is not unknown, and the next caller is told so too
            raise
    return types.MappingProxyType(dict(sorted(_KINDS.items())))
