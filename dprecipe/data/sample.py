"""Drafts of what a recipe could declare of a column, from its fields in a public sample.

Nothing here may be used on private records but the kind of a column (`Drafted.kind`): ranges, categories and missing
values would be measured on them. Ranges are rounded outward, so that no value of the sample lies outside.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Literal, final

from dprecipe.data.encoders import NO_WORDS, YES_WORDS
from dprecipe.data.guess import guess_writing
from dprecipe.data.targets import MAX_NAMES
from dprecipe.data.words import MARKS
from dprecipe.data.writing import Writing

MAX_CATEGORIES = 50
MAX_MARKS = 3
"""Different texts among numbers that may mean a missing one."""
MAX_CLASSES = 50
MAX_NUMBERED_CLASSES = 10
"""Different whole numbers that are taken for classes; more of them are a quantity."""
ROWS_OF_A_CLASS = 5
"""Rows for each different number, on average, where numbers are classes."""
MAX_COUNT = 1000
"""Whole numbers up to here, zero and mostly small ones among them, are taken for counts."""
TAIL = 0.005
FAR = 2
"""A range leaves out the outermost values, a share `TAIL` on each side, where it would be this many times as long."""
LONG_DIGITS = 10
"""Whole numbers of this many digits are names, cards or times, and no quantity."""
FORMATS = (
    "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d",
    "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%Y/%m/%d %H:%M", "%d.%m.%Y %H:%M:%S",
)  # fmt: skip
WORD_END = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NAMES = re.compile(
    r"(^|[^a-z])(id|ids|uuid|guid|identifier|mrn|ssn)$"
    r"|(account|case|client|customer|employee|member|order|patient|person|record|student|subject|user|visit)"
    r"[^a-z]?(id|key|no|nr|num|number)$"
)
"""Names of columns that name someone or something; in lower case, with `_` between words."""
Kind = Literal["numeric", "boolean", "date", "category", "text", "name", "row_number", "empty"]
ROW_NUMBERS = "numbers of the rows"
LEFT_OUT = ("name", "row_number", "empty")
"""Kinds of columns that are no features."""
HARDLY = 200
"""Fields for each value from which on a column is as good as empty: part of the records may have none."""


@final
@dataclass(frozen=True, slots=True)
class Drafted:
    """A column: its kind (`name`: it identifies a row; `row_number`: it counts the rows; `empty`: nothing in it
    differs), what may be declared of it, and a remark on it."""

    kind: Kind
    declared: dict[str, Any] = field(default_factory=dict)
    remark: str = ""


def is_missing(text: str) -> bool:
    """Returns True if a field counts as missing without being declared so."""
    return text == "" or text.casefold() in MARKS


def draft_column(texts: Sequence[str], name: str = "") -> Drafted:
    """Drafts the declaration of a column from its fields, which are normalised texts (`dprecipe.text.spelling`), and
    from its name."""
    present = [text for text in texts if not is_missing(text)]
    if not present:
        return Drafted("empty", remark="no field has a value")
    if len(present) * HARDLY < len(texts):
        return Drafted("empty", remark="hardly a field has a value")
    if len(set(texts)) == 1:
        return Drafted("empty", remark="each field is the same")
    if is_name_of_names(name) and len(set(present)) > min(MAX_CATEGORIES, len(present) / 10):
        return Drafted("name", remark="its name says that it names someone or something")
    gaps = len(present) < len(texts)
    for draft in (_draft_codes, _draft_numbers, _draft_truths, _draft_dates):
        found = draft(present, gaps)
        if found is not None:
            return found
    return _draft_texts(present)


def is_name_of_names(name: str) -> bool:
    """Returns True for a column called `id`, `patientId`, `customer_no` and the like."""
    return NAMES.search(WORD_END.sub("_", name).casefold()) is not None


def _draft_codes(present: Sequence[str], gaps: bool) -> Drafted | None:
    """Drafts digits that are no quantity: with leading zeros, long, or each in one row and counting the rows."""
    if not all(text.isdecimal() and text.isascii() for text in present):
        return None
    if any(len(text) > 1 and text.startswith("0") for text in present):
        found = _draft_texts(present)
        return Drafted("name" if found.kind == "text" else found.kind, found.declared, "codes with leading zeros")
    if max(map(len, present)) >= LONG_DIGITS:
        return Drafted("name", remark="long whole numbers: names, or seconds since 1970? Then declare a date")
    if len(present) > 2 and not gaps and are_numbered(present):
        return Drafted("row_number", remark=ROW_NUMBERS)
    return None


def are_numbered(texts: Sequence[str]) -> bool:
    """Returns True if a column counts the rows, from 0 or 1 on."""
    first = 1 if texts[:1] == ["1"] else 0
    return all(text == str(number) for number, text in enumerate(texts, first))


def _draft_numbers(present: Sequence[str], gaps: bool) -> Drafted | None:
    writing = guess_writing(present) or Writing()
    numbers = {text: writing.parse(text) for text in set(present)}
    marks = sorted(text for text, number in numbers.items() if number is None)
    values = [number for text in present if (number := numbers[text]) is not None]
    if not values or len(marks) > MAX_MARKS or (marks and (2 * len(values) < len(present) or len(set(values)) < 3)):
        return None
    if set(numbers) <= {"0", "1"} and len(numbers) == 2:
        return Drafted("boolean", _fill_gaps(gaps, False))
    whole = all(value.is_integer() for value in values)
    low, high, remark = _find_range(values)
    middle = statistics.median(values)
    fill = round(middle) if whole else float(f"{middle:.3g}")
    declared: dict[str, Any] = {"min": low, "max": high, **_fill_gaps(gaps or bool(marks), fill)}
    if marks:
        declared["marks"] = marks
    declared |= _declare_writing(writing)
    return Drafted("numeric", declared, remark)  # whole numbers too: a later file may hold 1.5


def _fill_gaps(gaps: bool, fill: object) -> dict[str, Any]:
    """Drafts what a missing field counts as, and a feature that says that it was missing."""
    return {"missing": {"fill": fill, "indicator": True}} if gaps else {}


def _declare_writing(writing: Writing) -> dict[str, Any]:
    named = {"decimal": writing.decimal, "affixes": list(writing.affixes)}
    return {key: value for key, value in named.items() if value}


def _find_range(values: Sequence[float]) -> tuple[int | float, int | float, str]:
    """Returns a range of round numbers around all values, or around all but a few far ones, and a remark on these."""
    ordered = sorted(values)
    tail = int(TAIL * len(ordered))
    low, high = ordered[tail], ordered[-1 - tail]
    if not 0 < FAR * (high - low) < ordered[-1] - ordered[0]:
        return *round_outward(ordered[0], ordered[-1]), ""
    first, last = round_outward(low, high)
    outside = sum(not first <= value <= last for value in ordered)
    remark = f"{outside} of {len(ordered)} values lie outside, to {ordered[0]:g} and {ordered[-1]:g}: they are clamped"
    return first, last, remark if outside else ""


def _draft_truths(present: Sequence[str], gaps: bool) -> Drafted | None:
    words = {text.casefold() for text in present}
    if len(words) == 2 and len(words & set(NO_WORDS)) == 1 and len(words & set(YES_WORDS)) == 1:
        return Drafted("boolean", _fill_gaps(gaps, False))
    return None


def _draft_dates(present: Sequence[str], gaps: bool) -> Drafted | None:
    distinct = sorted(set(present))
    days = _parse_all(distinct, datetime.fromisoformat) if all(len(text) >= 10 for text in distinct) else None
    formats: list[str | None] = [None] if days is not None else []
    if days is None:
        for form in FORMATS:
            parsed = _parse_all(distinct, lambda text, form=form: datetime.strptime(text, form))  # type: ignore[misc]
            if parsed is not None:
                days, formats = days or parsed, [*formats, form]
    if days is None:
        return None
    low, high = date(min(days).year, 1, 1), date(max(days).year, 12, 31)
    declared: dict[str, Any] = {"min": str(low), "max": str(high)}
    if formats[0] is not None:
        declared["format"] = formats[0]
    declared |= _fill_gaps(gaps, str(sorted(days)[len(days) // 2].date()))
    remark = f"or {formats[1]}: these dates fit both" if len(formats) > 1 else ""
    return Drafted("date", declared, remark)


def _parse_all(texts: Sequence[str], parse: Callable[[str], datetime]) -> list[datetime] | None:
    try:
        return [parse(text).replace(tzinfo=None) for text in texts]
    except ValueError:
        return None


def _draft_texts(present: Sequence[str]) -> Drafted:
    distinct = set(present)
    if _are_codes(present):
        return Drafted("name", remark="codes that are alike, of few records each")
    if len(distinct) <= MAX_CATEGORIES and (len(distinct) == 1 or 2 * len(distinct) <= len(present)):
        return Drafted("category", {"values": sorted(distinct)})
    if len(distinct) == len(present) and not any(" " in text for text in distinct):
        return Drafted("name", remark="each field differs")
    return Drafted("text")


def _are_codes(present: Sequence[str]) -> bool:
    """Returns True for texts such as P0001 and P0002 if none is much more frequent than the others."""
    counts = Counter(present)
    if len(counts) <= min(MAX_CATEGORIES, len(present) / 4) or max(counts.values()) * len(counts) > 8 * len(present):
        return False
    shapes = {re.sub(r"[0-9]+", "0", re.sub(r"[^\W\d_]+", "a", text)) for text in counts}
    return len(shapes) == 1 and "0" in next(iter(shapes))


def draft_label(texts: Sequence[str]) -> dict[str, Any]:
    """Drafts the declaration of labels from their fields: `classes`, `values`, a `range`, a `count` or `several`.

    It is empty where they are texts of too many kinds, or of one. As its reader does, it takes an empty field alone for
    a missing label.
    """
    present = [text for text in texts if text]
    distinct = sorted(set(present))
    writing = guess_writing(present) or Writing()
    numbers = {text: number for text in distinct if (number := writing.parse(text)) is not None}
    if len(numbers) == len(distinct) and _are_quantities(set(numbers.values()), len(present)):
        return _draft_quantity([numbers[text] for text in present]) | _declare_writing(writing)
    if [str(number) for number in range(len(distinct))] == distinct and len(distinct) > 1:
        return {"classes": len(distinct)}
    for separator in (";", "|"):
        names = Counter(name for text in present for part in text.split(separator) if (name := part.strip()))
        if any(separator in text for text in present) and 2 <= len(names) <= MAX_NAMES and min(names.values()) > 1:
            own = {} if separator == ";" else {"separator": separator}
            return {"several": sorted(names), **own, **({} if len(present) == len(texts) else {"empty": "none"})}
    if len(distinct) == 2 or (2 < len(distinct) <= MAX_CLASSES and 2 * len(distinct) <= len(present)):
        return {"values": sorted(distinct, key=lambda text: (numbers.get(text, math.inf), text))}
    return {}


def _are_quantities(values: set[float], rows: int) -> bool:
    """Returns True for numbers that are to be predicted as such, and no classes."""
    if len(values) <= 2:
        return False
    if not all(value.is_integer() for value in values) or len(values) > MAX_NUMBERED_CLASSES:
        return True
    return values != set(range(len(values))) and ROWS_OF_A_CLASS * len(values) > rows


def _draft_quantity(values: Sequence[float]) -> dict[str, Any]:
    high = max(values)
    counted = min(values) == 0 and 1 < high <= MAX_COUNT and all(value.is_integer() for value in values)
    if counted and 4 * statistics.mean(values) <= high:
        return {"count": {"max": round_outward(0, high)[1]}}
    return {"range": list(_find_range(values)[:2])}


def round_outward(low: float, high: float) -> tuple[int | float, int | float]:
    """Returns a range of round numbers around both: low is rounded down and high up, and from 0 on where it begins near
    it.

    Guarantees: the first is at most `low` and the second at least `high`, exactly; they differ.
    """
    least, most = Decimal(repr(float(low))), Decimal(repr(float(high)))
    span = most - least
    scale = span / 2 if span else max(abs(most), Decimal(1))
    step = Decimal(10) ** math.floor(scale.log10())
    first = (least / step).to_integral_value(ROUND_FLOOR) * step
    last = (most / step).to_integral_value(ROUND_CEILING) * step
    if 0 <= least < span / 2:
        first = Decimal(0)
    if first == last:
        last += step
    return _plain(first), _plain(last)


def _plain(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)
