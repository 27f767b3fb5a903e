"""Texts of a column as they are, for models that learn them: nothing is trimmed, replaced or made up."""

from __future__ import annotations

from dprecipe.data.encoders import ColumnReport
from dprecipe.data.values import Value, Values, as_list

HALF_LETTER = "a text holds half of a letter of two parts (a lone surrogate)"
HALF_REMEDY = "write the text again in UTF-8, or leave the row out"


def check_texts(values: Values, report: ColumnReport, may_be_empty: bool = False) -> list[str | None]:
    """Returns the texts of a column, blanks around them included; None for a field that is empty or no text, which is
    reported."""
    return [_check_text(value, row, report, may_be_empty) for row, value in enumerate(as_list(values))]


def has_half_letter(text: str) -> bool:
    """Returns True if a text holds a lone surrogate, which no encoding of text has."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _check_text(value: Value, row: int, report: ColumnReport, may_be_empty: bool) -> str | None:
    if value is not None and not isinstance(value, str):
        report.add(row, "a field is no text", "store the column as texts")
    elif not may_be_empty and not (value or "").strip():
        report.add(row, "a text is empty", "fill it in, or leave the row out")
    elif has_half_letter(value or ""):
        report.add(row, HALF_LETTER, HALF_REMEDY)
    else:
        return value or ""
    return None
