"""Names of columns that stand in a claim."""

from __future__ import annotations

import pytest

from dprecipe.data.names import is_name, quote_name


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
