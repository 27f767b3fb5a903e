"""The value of an unquoted word: the JSON subset of YAML 1.2, and nothing else.

`1e-5` is a number; `no`, `on`, `017`, `12:30:45`, `2024-01-01` are text; only `true` and `false` are
booleans."""

from __future__ import annotations

import math
import re

from dprecipe.text.tree import Value

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<exponent>[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None, "~": None, "": None}
_INT_BOUND = 2**63


class NotFiniteError(ValueError):
    """A number that can't be represented as a finite one; the message says why."""


def resolve_scalar(text: str) -> Value:
    """Returns the value of a plain scalar.

    Raises:
        NotFiniteError: `.inf`, `.nan`, or a number too large or too small to be held.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NOT_FINITE.fullmatch(text):
        raise NotFiniteError(f"{text} is not a finite number")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    if match["fraction"] is None and match["exponent"] is None:
        # Digits are counted first: converting a very long integer is slow, and refused by Python itself.
        if len(text) > 20 or not -_INT_BOUND <= int(text) < _INT_BOUND:
            raise NotFiniteError("the number is too large")
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise NotFiniteError(f"{_short(text)} is too large for a number")
    mantissa = text.lower().partition("e")[0]
    if value == 0 and any(digit in "123456789" for digit in mantissa):
        raise NotFiniteError(f"{_short(text)} is so small that it would become 0")
    return value


def _short(text: str) -> str:
    return text if len(text) <= 30 else text[:27] + "…"
