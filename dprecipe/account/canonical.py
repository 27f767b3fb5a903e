"""Canonical JSON, digests and timestamps: the parts of an account's chain."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dprecipe.privacy.filters.cap import Spent, spent_from_json

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LARGEST = sys.float_info.max


def to_line(content: Mapping[str, Any]) -> bytes:
    """Returns the canonical form of a JSON object: keys sorted, no blanks, ASCII. Raises `ValueError` for NaN and
    infinities."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(line: bytes) -> str:
    return "sha256:" + hashlib.sha256(line).hexdigest()


def tell_time() -> str:
    """Returns the current time, in UTC, to the second."""
    return datetime.now(UTC).strftime(TIME_FORMAT)


class Fields:
    """The fields of an untrusted JSON object, each taken once; `end` refuses what is left over.

    Raises:
        ValueError: a field is missing, of another type, or out of range; the message names it.
    """

    def __init__(self, content: Any) -> None:
        if not isinstance(content, dict):
            raise ValueError("not an object")
        self._rest = dict(content)

    def text(self, name: str, pattern: str) -> str:
        value = self._take(name)
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"{name} is not valid")
        return value

    def whole(self, name: str, at_least: int) -> int:
        value = self._take(name)
        if type(value) is not int or not at_least <= value < 2**53:
            raise ValueError(f"{name} is not a whole number of at least {at_least}")
        return value

    def number(self, name: str) -> float:
        """Takes a finite number that is not negative."""
        return _number(name, self._take(name))

    def numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_number(name, value) for value in self.items(name))

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise ValueError(f"{name} is not true or false")
        return value

    def moment(self, name: str) -> str:
        value = self.text(name, r"[0-9TZ:-]{20}")
        datetime.strptime(value, TIME_FORMAT)
        return value

    def has(self, name: str) -> bool:
        """Returns True if the field is there: some are written only where there is something to say."""
        return name in self._rest

    def items(self, name: str) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} is not a list")
        return value

    def inner(self, name: str) -> Fields:
        try:
            return Fields(self._take(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._take(name)
        if not isinstance(value, dict):
            raise ValueError(f"{name} is not an object")
        return value

    def is_null(self, name: str) -> bool:
        """Returns True if the field is null, and then takes it."""
        if name in self._rest and self._rest[name] is None:
            del self._rest[name]
            return True
        return False

    def spent(self, name: str, orders: int) -> Spent:
        try:
            return spent_from_json(self.mapping(name), orders)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    def end(self) -> None:
        if self._rest:
            raise ValueError(f"unknown fields: {', '.join(sorted(map(str, self._rest)))}")

    def _take(self, name: str) -> Any:
        if name not in self._rest:
            raise ValueError(f"there is no field {name}")
        return self._rest.pop(name)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{name} is not a finite number of at least 0")
    return float(value)
