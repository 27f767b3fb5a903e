"""A guess of how numbers are written: what is such a number, and what only looks like one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dprecipe.data.guess import guess_writing
from dprecipe.data.writing import Writing

TEMPS = [f"{36 + number // 10},{number % 10}" for number in range(50)]
GUESSED: dict[str, tuple[Sequence[str], Writing]] = {
    "decimal comma": (TEMPS, Writing("comma")),
    "with gaps and marks": ([*TEMPS, "", "NA", "-", "?"], Writing("comma")),
    "with a slip": ([*TEMPS, "37.5"], Writing("comma")),
    "thousands and a comma": (["1.234,5", "12,5", "900", "1.000"], Writing("comma")),
    "blanks and a comma": (["1\u00a0234,5", "12,5", "900"], Writing("comma")),
    "thousands": (["1,000", "12,500", "900", "1,234,567"], Writing("point")),
    "thousands with a slip": (["1,000", "12,500", "900"] * 100 + ["12,50"], Writing("point")),
    "thousands and a point": (["1,234.5", "12.5", "900"], Writing("point")),
    "percentages": ([f"{number}%" for number in range(100)], Writing(None, ("%",))),
    "some of a currency": (["€ 5", "7 €", "0"] * 9, Writing(None, ("€",))),
    "comma and percent": (["4,5 %", "12,25 %", "100 %"], Writing("comma", ("%",))),
    "currency before": (["€ 12", "€ 1.234,50", "-€ 3,10"], Writing("comma", ("€",))),
    "currency in two spellings": (["€ 12", "13 EUR", "14.5 €"], Writing(None, ("EUR", "€"))),
    "dollars": (["$1,234.50", "$12", "$7.25"], Writing("point", ("$",))),
    "unit": (["12 kg", "7.5kg", "100 kg"], Writing(None, ("kg",))),
    "compound unit": (["23,5 kg/m2", "31,0 kg/m2"], Writing("comma", ("kg/m2",))),
}
NOT_GUESSED: dict[str, Sequence[str]] = {
    "plain numbers": ["1", "2.5", "-3e5", "900", ""],
    "nothing": ["", "NA"],
    "words": ["low", "mid", "high"],
    "leading zeros": ["00123", "00456", "12345"],
    "ids": ["P07", "P08", "P12"],
    "ids of three letters": ["SUB 12", "SUB 13", "SUB 14"],
    "dates": ["17.05.2020", "18.05.2020", "01.12.2021"],
    "other dates": ["2020-05-17", "2020-05-18"],
    "times": ["12:30", "13:45"],
    "card numbers": ["1234 5678 9012 3456", "1234 5678 9012 3457"],
    "accounts": ["923 609 016", "974 760 673", "971 032 081"],
    "addresses of machines": ["192.168.0.1", "10.0.0.12"],
    "house numbers": ["12", "12a", "13", "14b", "15a"] * 5,
    "two units": ["12 kg", "300 g", "7 kg", "450 g"],
    "two currencies": ["12 €", "12 $", "7 €", "9 $"],
    "ordinal numbers": ["1st", "2nd", "3rd", "4th"],
    "ranges": ["12-15", "16-18"],
    "points and commas alike": ["13,5", "13.5", "14,5", "14.5"],
    "numbers and words": ["13,5", "14,5", "cold", "warm"],
    "codes with a unit": ["001 A", "002 A", "003 A"],
    "heights": ["5'11", "6'02"],
    "some percentages: 0.05 may be a share": ["5 %", "7%", "0.05"] * 9,
    "some thousands": ["5k", "6k", "7k"] * 9 + ["5000"],
}


@pytest.mark.parametrize("case", GUESSED)
def test_numbers_are_recognised(case: str) -> None:
    texts, expected = GUESSED[case]
    guessed = guess_writing(texts)
    assert guessed == expected
    assert guessed is not None
    read = [guessed.parse(text.strip()) for text in texts if text]
    assert read.count(None) <= 5


@pytest.mark.parametrize("case", NOT_GUESSED)
def test_what_only_looks_like_numbers_is_none(case: str) -> None:
    assert guess_writing(NOT_GUESSED[case]) is None
