"""Questions of `dprecipe init --private` on a terminal: what its draft would leave open, column by column.

Answers are the person's words. Nothing is suggested from the records but a column's kind, which the draft has anyway.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Sequence
from datetime import date
from typing import Any

from dprecipe.data.columns import find_unknown_format
from dprecipe.data.encoders import NO_WORDS, YES_WORDS
from dprecipe.data.sample import LEFT_OUT, draft_column
from dprecipe.data.sample_files import Arrays, Table
from dprecipe.recipe.draft import Declarations, choose_kind
from dprecipe.recipe.mismatch import describe_readings
from dprecipe.recipe.starters import LABELS
from dprecipe.screen import write_note

Ask = Callable[[str], str | None]
"""Asks a question; returns the answer without blanks around it, or None at the end of the input."""
KINDS = ("numeric", "integer", "boolean", "ordinal", "date", "category", "text")
INTRODUCTION = (
    "Answer from what is known of the subject; measure nothing on private records.",
    "Enter leaves a question open, Ctrl-D all that follow.",
    f"Kinds of a column: {', '.join(KINDS)}, or - to leave it out.",
)
STATEMENT = {
    "curators": "who answers for the data and the release",
    "contact": "whom to ask about it: an address that may be published",
    "intended_use": "what the model is for, and what not",
}


class _Ended(Exception):
    """End of the input."""


def ask_answers(
    sample: Table | Arrays, label: str, unit: str | None, ask: Ask, label_kind: str | None = None
) -> Declarations:
    """Asks for what a private draft leaves open; returns what was answered before the input ended. `label_kind`: what
    the label is, if that is said already."""
    answers = Declarations(label={} if label_kind is None else {label_kind: None})
    write_note(*INTRODUCTION)
    try:
        if isinstance(sample, Table):
            for name, texts in sample.columns.items():
                if name not in (label, unit):
                    _ask_column(name, texts, sample.typed.get(name), ask, answers)
        if isinstance(sample, Arrays) or sample.typed.get(label) != "boolean":
            _ask_label(label, LABELS if isinstance(sample, Table) else LABELS[1:4], ask, answers, label_kind)
        many = "records" if unit is None else f"units (different values of {unit})"
        answers.size = _ask(ask, f"number of {many}, with those held out, which becomes public", _read_size)
        if unit is not None:
            answers.max_records = _ask(ask, "most records of one unit that are used", _read_count)
        for key, question in STATEMENT.items():
            said = _ask(ask, f"for the report: {question}", str)
            if said is not None:
                answers.statement[key] = [said] if key == "curators" else said
    except _Ended:
        write_note("")
    return answers


def _ask(ask: Ask, question: str, read: Callable[[str], Any]) -> Any:
    """Returns an answer as its value, or None for an empty one; asks again where it can't be read."""
    while True:
        said = ask(f"{question}: ")
        if said is None:
            raise _Ended
        if not said:
            return None
        try:
            return read(said)
        except ValueError as error:
            write_note(f"  {error}")


def _ask_column(name: str, texts: Sequence[str], typed: str | None, ask: Ask, answers: Declarations) -> None:
    made = draft_column(texts, name)
    usual = "-" if made.kind in LEFT_OUT and made.kind != "empty" else choose_kind(made, typed)
    kind = _ask(ask, f"{name}: kind (Enter: {usual})", _choose((*KINDS, "-"))) or usual
    if kind == "-":
        answers.columns[name] = None
        return
    declared: dict[str, Any] = {"kind": kind}
    answers.columns[name] = declared
    read = {"numeric": _read_number, "integer": _read_whole, "date": _read_day, "boolean": _read_truth}.get(kind, str)
    if kind in ("numeric", "integer", "date"):
        first, last = ("first", "last") if kind == "date" else ("smallest", "largest")
        noun = "day" if kind == "date" else "value"
        least = _ask(ask, f"{name}: {first} {noun} that is possible", read)
        _keep(declared, "min", least)
        _keep(declared, "max", _ask(ask, f"{name}: {last} {noun} that is possible", _read_above(least, read)))
    if kind == "date" and typed != "date":
        _keep(declared, "format", _ask(ask, f"{name}: how days are written, such as %d.%m.%Y", _read_format))
    if kind in ("category", "ordinal"):
        order = ", the lowest first" if kind == "ordinal" else ""
        _keep(declared, "values", _ask(ask, f"{name}: its values, with commas between{order}", _read_words))
    if kind == "boolean" and typed != "boolean":
        _keep(
            declared,
            "values",
            _ask(ask, f"{name}: its words for no and yes (Enter: no, yes and their like)", _read_two),
        )
    if kind not in ("category", "text"):
        _keep(declared, "missing", _ask(ask, f"{name}: what an empty field counts as (Enter: there is none)", read))


def _ask_label(name: str, kinds: Sequence[str], ask: Ask, answers: Declarations, kind: str | None) -> None:
    if kind is None:
        kind = _ask(ask, f"{name}, the label: {', '.join(kinds)} (Enter: {kinds[0]})", _choose(kinds)) or kinds[0]
    questions: dict[str, tuple[str, Callable[[str], Any]]] = {
        "values": ("its values, with commas between", _read_words),
        "classes": ("number of classes, which are whole numbers from 0", _read_count),
        "range": ("smallest and largest number that is possible, with a comma between", _read_range),
        "count": ("largest count that is possible", _read_count),
        "several": ("the names that may apply together, with commas between", _read_words),
    }
    value = _ask(ask, f"{name}: {questions[kind][0]}", questions[kind][1])
    if value is not None:
        answers.label[kind] = {"max": value} if kind == "count" else value
        if kind != "several" and kinds == LABELS:
            missing = _ask(ask, f"{name}: omit the records without one? (Enter: each has one)", _choose(("omit",)))
            _keep(answers.label, "missing", missing)
    elif kind != kinds[0]:
        answers.label[kind] = None


def _keep(declared: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        declared[key] = value


def _choose(words: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"write one of {', '.join(words)}")
        return text

    return read


def _read_number(text: str) -> float:
    if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("write a number, such as 0 or 37.5")
    if readings := describe_readings(text.strip()):
        raise ValueError(f"write {readings}")
    return int(value) if value.is_integer() else value


def _read_whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("write a whole number") from None


def _read_count(text: str) -> int:
    if _read_whole(text) < 1:
        raise ValueError("write a whole number from 1 on")
    return _read_whole(text)


def _read_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError("write a day as 2024-05-17") from None


def _read_format(text: str) -> str:
    for finding in find_unknown_format(text, ""):
        raise ValueError(f"{finding.message}; {finding.remedy}")
    return text


def _read_above(least: Any, read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_largest(text: str) -> Any:
        value = read(text)
        if least is not None and not least < value:
            raise ValueError(f"write more than {least}")
        return value

    return read_largest


def _read_size(text: str) -> int:
    try:
        return _read_count(text)
    except ValueError as error:
        raise ValueError(
            f"{error}; if it must stay secret, Enter, and see docs/reference/data.md on `size: {{max}}`"
        ) from None


def _read_truth(text: str) -> bool:
    if text.casefold() in YES_WORDS or text.casefold() in NO_WORDS:
        return text.casefold() in YES_WORDS
    raise ValueError("write no or yes")


def _read_words(text: str) -> list[str]:
    words = [word.strip() for word in next(csv.reader([text.strip("[]")], skipinitialspace=True), [])]
    if not all(words) or len(set(words)) < len(words) or len(words) < 2:
        raise ValueError("write two or more different texts, with commas between; one with a comma in double quotes")
    return words


def _read_two(text: str) -> list[str]:
    if len(words := _read_words(text)) != 2:
        raise ValueError("write two texts, that for no first")
    return words


def _read_range(text: str) -> list[float]:
    numbers = [_read_number(part) for part in text.strip("[]").split(",")]
    if len(numbers) != 2 or numbers[0] >= numbers[1]:
        raise ValueError("write two numbers, the smaller first, as 0, 10")
    return numbers
