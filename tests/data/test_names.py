"""Names of columns that stand in a claim."""

from __future__ import annotations

import pytest

from dprecipe.data.names import is_name, is_noun, name_unit, quote_name, read_unit_key, write_unit_key


@pytest.mark.parametrize(
    "name",
    ["user_id", "_id", "writer", "Patient", "patient ID", "Größe", "利用者", "व्यक्ति", "user-id", "a.b", "household:no",
     "person#2", "x" * 60],
)  # fmt: skip
def test_columns_as_people_name_them(name: str) -> None:
    assert is_name(name)
    assert quote_name(name) == f"'{name}'"


@pytest.mark.parametrize(
    "name",
    ["", " ", "user  id", " user", "user ", "user\nid", "user\tid", "user\u2028id", "user\u202eid", "user\u200bid",
     "user\u00a0id", "person (ε = 0.01)", "person, nor of a household", "it's", 'a"b', "a‘b", "x" * 61, "ε = 0.01",
     "1e-5", "0.01", "a;b", "{unit}", "<b>", "a\x1b[2J", "e" + "\u0301" * 4],
)  # fmt: skip
def test_no_sentence_is_a_name(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("noun", ["patient", "Patient", "Haushalt", "e-bike", "利用者", "व्यक्ति", "x" * 30])
def test_words_for_a_unit(noun: str) -> None:
    assert is_noun(noun)
    assert name_unit("who", noun) == noun


@pytest.mark.parametrize(
    "noun",
    ["", "record", "RECORDS", "two words", "-x", "x-", "x--y", "x1", "it's", "x" * 31, "a\nb", "e" + "\u0301" * 4],
)
def test_what_could_say_more_than_one_unit_is_no_word_for_it(noun: str) -> None:
    assert not is_noun(noun)


INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180f\u3164\ufe00\ufe0f\uffa0\U00016fe4\U000e0100\U000e01ef"


@pytest.mark.parametrize("letter", INVISIBLE, ids=ascii)
def test_a_letter_or_mark_that_no_reader_sees_makes_no_name(letter: str) -> None:
    """With it, a unit of another name would look like "record", or like nothing."""
    for text in (letter, f"record{letter}", f"x{letter}y"):
        assert not is_noun(text)
        assert not is_name(text)


@pytest.mark.parametrize(
    "noun", ["\uff52\uff45\uff43\uff4f\uff52\uff44", "\U0001d42b\U0001d41e\U0001d41c\U0001d428\U0001d42b\U0001d41d"]
)
def test_record_in_other_letters_of_the_same_form_is_taken(noun: str) -> None:
    assert not is_noun(noun)


@pytest.mark.parametrize("column", [None, "who", "record", "column record", "column column record", "column who"])
def test_a_unit_is_read_as_it_is_written(column: str | None) -> None:
    assert read_unit_key(write_unit_key(column)) == column
