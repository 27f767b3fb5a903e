"""Fields of events, read from untrusted JSON types; and fields that hold charges themselves."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from dprecipe.privacy.event_kinds import event_kinds
from dprecipe.privacy.events import MAX_ROWS, MAX_VALUE, Charge, charge_from_json, field_types


def charge_fields(kind: str) -> frozenset[str]:
    """Returns the fields of a kind of event that hold charges themselves: those of a run within the event."""
    return frozenset(name for name, hint in field_types(kind).items() if holds_charges(hint))


def holds_charges(hint: Any) -> bool:
    """Returns True if a field with this annotation holds charges."""
    hint = _drop_constraints(hint)
    return get_origin(hint) is tuple and get_args(hint)[0] is Charge


def _drop_constraints(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _decode_charges(what: str, value: Any) -> tuple[Charge, ...]:
    """Reads charges within an event; none of them may hold charges itself."""
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MAX_ROWS:
        raise ValueError(f"{what} is not a list of between 1 and {MAX_ROWS} charges")
    for row in value:
        kind = row.get("kind") if isinstance(row, Mapping) else None
        if not isinstance(row, Mapping) or (isinstance(kind, str) and kind in event_kinds() and charge_fields(kind)):
            raise ValueError(f"{what} is not a list of charges of plain events")
    return tuple(map(charge_from_json, value))


def decode_field(what: str, value: Any, hint: Any) -> Any:
    """Reads a field of a dataclass from JSON types; the dataclass checks its range. The input is untrusted."""
    hint = _drop_constraints(hint)
    if get_origin(hint) in (Union, types.UnionType):  # X | None
        (inner,) = (part for part in get_args(hint) if part is not types.NoneType)
        return None if value is None else decode_field(what, value, inner)
    if holds_charges(hint):
        return _decode_charges(what, value)
    if get_origin(hint) is tuple:  # of numbers or of rows, any number of them
        inner = get_args(hint)[0]
        row_hints = get_args(_drop_constraints(inner))
        if not isinstance(value, list | tuple) or len(value) > MAX_ROWS:
            raise ValueError(f"{what} is not a list of at most {MAX_ROWS} {'rows' if row_hints else 'numbers'}")
        if not row_hints:
            return tuple(decode_field(what, entry, inner) for entry in value)
        if not all(isinstance(row, list | tuple) and len(row) == len(row_hints) for row in value):
            raise ValueError(f"{what} is not a list of rows of {len(row_hints)}")
        return tuple(
            tuple(decode_field(what, entry, part) for entry, part in zip(row, row_hints, strict=True)) for row in value
        )
    expected = (int, float) if hint is float else hint
    if not isinstance(value, expected) or isinstance(value, bool) is not (hint is bool):
        raise ValueError(f"{what} is not of the right type")
    if isinstance(value, int | float):
        if not abs(value) <= MAX_VALUE:
            raise ValueError(f"{what} is not a number between -{MAX_VALUE:.0e} and {MAX_VALUE:.0e}")
        return float(value) if hint is float else value
    return value
