"""Fields of CSV files that a spreadsheet would run as formulas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dprecipe.data.values import parse_number

FIRST = frozenset("=+-@\t\r\n＝＋－＠")
"""First characters of a formula, by OWASP's page on CSV injection: those of full width too."""
GUARD_HELP = "In CSV, put an apostrophe before what spreadsheets would run."


def is_formula(field: Any) -> bool:
    """Returns True for a text that a spreadsheet takes for a formula; a number and a lone sign are none."""
    return isinstance(field, str) and field[:1] in FIRST and len(field) > 1 and parse_number(field) is None


def guard(field: Any) -> Any:
    """Returns a field, with an apostrophe before it if it is a formula: a spreadsheet hides that, other programs read
    it."""
    return f"'{field}" if is_formula(field) else field


def count_formulas(fields: Iterable[Any]) -> int:
    """Returns the number of formulas among fields."""
    return sum(map(is_formula, fields))


def describe_formulas(count: int | None, guarded: bool) -> str:
    """Says that there are formulas. `count`: None where their number is for a terminal alone."""
    done = "an apostrophe stands before each" if guarded else "--guard-formulas puts an apostrophe before each"
    number = "" if count is None else f": {count:,}"
    return f"fields that a spreadsheet would take for formulas{number} ({done})"
