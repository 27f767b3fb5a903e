"""A guess of how the numbers of a public sample are written, for the draft of a recipe."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from dprecipe.data.values import parse_number
from dprecipe.data.words import CURRENCIES, MARKS, MAX_NUMBER, NUMBER_BESIDE
from dprecipe.data.writing import Decimal, Writing, find_wrong_affixes
from dprecipe.text.spelling import normalise_texts

NEARLY_ALL = 0.95
"""Share of the texts that must be such numbers."""
FEW = 0.01
"""Share of the texts that are slips: of a number whose comma stands elsewhere than in the others, say."""
MAX_CODE = 9
"""Digits in groups, as many in every text, from which on they are ids rather than quantities."""
SAME = (
    {"€", "EUR", "Euro", "euro", "EURO"},
    {"$", "US$", "USD"},
    {"£", "GBP"},
    {"¥", "JPY", "CNY"},
    {"CHF", "Fr.", "Fr"},
    {"kr", "kr.", "SEK", "NOK", "DKK"},
    {"Rs", "Rs.", "₹", "INR"},
    {"°C", "℃"},
)
"""Texts that name one unit: a column may mix them. Numbers in different units are none of one column."""
SIGN = re.compile(rf"[%‰°℃℉]|[A-Z]{{0,2}}[{CURRENCIES}]")
CODED = re.compile(r"[-+\u2212]?0\d")
"""Begins with a zero that a quantity would not have."""


def guess_writing(texts: Sequence[str]) -> Writing | None:
    """Returns how the numbers are written that nearly all of the texts are; None for texts that are no numbers, and
    for numbers that need no declaration. Texts that count as missing anyway are left aside.

    Prudent: codes (leading zeros, letters before digits, as many digits in groups everywhere), dates, and numbers in
    several units are none.
    """
    counts = Counter(normalise_texts(texts))
    present = {text: count for text, count in counts.items() if text and text.casefold() not in MARKS}
    total = sum(present.values())
    split = {text: parts for text in present if (parts := _split_number(text)) is not None}
    numbers = Counter[str]()
    for text, (number, _) in split.items():
        numbers[number] += present[text]
    if not split or numbers.total() < NEARLY_ALL * total or _are_codes(numbers):
        return None
    affixes = _find_affixes(present, split)
    if affixes is None:
        return None
    decimal = _find_decimal(numbers, NEARLY_ALL * total)
    return None if decimal == "neither" or (decimal is None and not affixes) else Writing(decimal, affixes)


def _split_number(text: str) -> tuple[str, tuple[str, ...]] | None:
    """Returns the number in a text, and the texts before and after it."""
    match = NUMBER_BESIDE.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if match is None:
        return None if parse_number(text) is None else (text, ())
    before, after = (match["before"] or "").strip(" \t-+\u2212"), (match["after"] or "").strip()
    if before and not _is_sign(before):
        return None
    return match["number"].strip(), tuple(part for part in (before, after) if part)


def _is_sign(text: str) -> bool:
    """Returns True for a text that makes a number a quantity, although other fields may have none beside it."""
    return SIGN.fullmatch(text) is not None or any(text in same for same in SAME)


def _is_currency(text: str) -> bool:
    return _is_sign(text) and not set(text) & set("%‰°℃℉")


def _find_affixes(present: dict[str, int], split: dict[str, tuple[str, tuple[str, ...]]]) -> tuple[str, ...] | None:
    """Returns the texts beside the numbers; None if they are of several units, or look like a part of codes."""
    beside, without = Counter[str](), 0
    for text, (_, parts) in split.items():
        beside.update(dict.fromkeys(parts, present[text]))
        without += 0 if parts else present[text]
    if not beside:
        return ()
    main = beside.most_common(1)[0][0]
    unit = next((same for same in SAME if main in same), {main})
    own = tuple(sorted(unit.intersection(beside)))
    if sum(beside[part] for part in own) < NEARLY_ALL * beside.total() or list(find_wrong_affixes(own, "")):
        return None
    # A bare number beside `5k` or `5%` may be meant in another unit; beside a currency it is not.
    return None if without > (0.5 if _is_currency(main) else 0) * sum(present.values()) else own


def _find_decimal(numbers: Counter[str], needed: float) -> Decimal | Literal["neither"] | None:
    """Returns the writing that fits at least this many. Where a comma only ever stands before three digits, it divides
    thousands: a fraction of three digits in every number is rarer.
    """
    plain = _count_fits(numbers, None)
    if plain >= needed:
        return None
    comma, point = _count_fits(numbers, "comma"), _count_fits(numbers, "point")
    if max(comma, point) < needed:
        return "neither"
    return "comma" if comma > point + FEW * numbers.total() else "point"


def _count_fits(numbers: Counter[str], decimal: Decimal | None) -> int:
    writing = Writing(decimal)
    return sum(count for number, count in numbers.items() if writing.parse(number) is not None)


def _are_codes(numbers: Counter[str]) -> bool:
    """Returns True for leading zeros, and for as many digits in groups everywhere: phone numbers, accounts."""
    if sum(count for number, count in numbers.items() if CODED.match(number)) > FEW * numbers.total():
        return True
    lengths = {len(re.sub(r"\D", "", number)) for number in numbers}
    grouped = all(re.fullmatch(r"\d{1,3}(?:[\s'\u2019.]\d{3}){2,}", number) for number in numbers)
    return grouped and len(numbers) > 1 and len(lengths) == 1 and lengths.pop() >= MAX_CODE
