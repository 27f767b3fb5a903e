from __future__ import annotations

import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprecipe.text.spelling import fold_name, fold_names, normalise_text, normalise_texts

NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9)
PIECES = st.sampled_from([*"019.-+eE \t\n\x1c", "  ", "é", "e\u0301", "\u200b", "７", "\u2212", "P", "\u00a0"])
TEXTS = st.text(max_size=12) | st.lists(PIECES, max_size=8).map("".join)


@pytest.mark.parametrize(
    "text", ["José", "Jose\u0301", " José\t", "José\u00a0", "\ufeffJosé", "Jo\u200bsé", "Jose\u200d\u0301"]
)
def test_texts_that_look_equal_are_equal(text: str) -> None:
    assert normalise_text(text) == "José"


@given(st.lists(TEXTS, max_size=8))
def test_texts_are_normalised_once_and_for_all(texts: list[str]) -> None:
    normalised = normalise_texts(texts)
    assert normalised == [normalise_text(text) for text in texts] == normalise_texts(normalised)
    decomposed = [unicodedata.normalize("NFD", text) for text in texts]
    assert normalise_texts(decomposed) == normalised


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (("101", "101.0", "0101", "+101", "101.", "1.01e2", "1010E-1", "１０１", "١٠١"), "101"),
        (("0", "-0", "0.0", ".0", "00", "0e5"), "0"),
        (("-7.5", "\u22127.5", "-07.50", "-75e-1"), "-7.5"),
        (("P07", "Ｐ０７", "P\u0660\u0667"), "P07"),
        (("A-7", "A\u20117", "A\u20137"), "A-7"),
        (("A 7", "A\u00a07", "A  7", "A\t7", "A\u30007"), "A 7"),
    ],
)
def test_spellings_of_one_name_are_one(names: tuple[str, ...], folded: str) -> None:
    assert set(map(fold_name, names)) == {folded}


@pytest.mark.parametrize(
    "name", ["P07", "p07", "P7", "e5", ".", "+", "1e401", "1e9999999", "1,010", "x²", "1_0", "٣ a"]
)
def test_other_names_are_not_taken_for_numbers(name: str) -> None:
    assert fold_name(name) == name.replace("٣", "3")


@given(NUMBERS)
def test_a_number_has_one_name_however_it_is_written(number: Decimal) -> None:
    plain = fold_name(f"{number:f}")
    assert Decimal(plain) == number
    assert fold_name(f"{number:e}") == fold_name(f"00{abs(number):f}".replace("00", "-00" if number < 0 else "00", 1))
    assert plain == fold_name(f"{number:e}") == fold_name(plain)


@given(st.lists(TEXTS.map(normalise_text), max_size=8))
def test_many_names_are_folded_as_each_is(names: list[str]) -> None:
    assert list(fold_names(names)) == [fold_name(name) for name in names] == list(fold_names(fold_names(names)))


def test_names_that_need_nothing_are_not_copied() -> None:
    names = ["7", "-12", "0", "P07", "a b", "deadbeef"]
    assert fold_names(names) is names
