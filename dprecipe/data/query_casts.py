"""Casts of a query: to types that are known, and to a day or a time of nothing that asks the clock.

For PostgreSQL the text `now` is the time, wherever it meets a day: `'now'::date`, `DATE 'now'`, `born > 'today'`. So no
text of the query may have such a word, and no text that the query makes (`'n' || 'ow'`) may be cast to a day or a time.
DuckDB reads no such words. (A record's own text stays what it is.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final


def frozenset_of(words: str) -> frozenset[str]:
    """Words that are written with blanks between."""
    return frozenset(words.split())


TYPES = frozenset_of(
    "bigint bool boolean date dec decimal double float float4 float8 hugeint int int2 int4 int8 integer interval "
    "numeric real smallint text time timestamp tinyint ubigint uinteger usmallint utinyint varchar precision"
)
TIMES = frozenset_of("date time timestamp")
CLOCK = frozenset_of("now today tomorrow yesterday")
"""PostgreSQL's words for the time; `epoch`, `infinity` and `allballs` are constants."""
TEXT_FREE = frozenset_of("cast coalesce date_trunc greatest in least make_date make_timestamp nullif try_cast") | (
    TYPES - frozenset_of("text varchar")  # `varchar(3)` cuts a text
)
"""Functions that a value which is cast to a time may call: none of them makes a text of its own."""
VALUES = frozenset_of("case cast end false null true try_cast")
"""Keywords that stand in a value."""


@final
@dataclass(frozen=True, slots=True)
class Token:
    """A word of a query, in lower case where it is neither text nor in double quotes."""

    kind: str
    text: str

    def is_sign(self, text: str) -> bool:
        return self.kind == "sign" and self.text == text


@dataclass(frozen=True, slots=True)
class _Cast:
    value: Sequence[Token]
    kind: str


def find_unknown_type(tokens: Sequence[Token], keywords: frozenset[str]) -> str:
    """Returns the first type of a cast that is not known here; empty if there is none."""
    return next((cast.kind for cast in _list_casts(tokens, keywords) if cast.kind not in TYPES), "")


def find_clock(tokens: Sequence[Token], keywords: frozenset[str]) -> str:
    """Returns the reason why a query for PostgreSQL may ask the clock; empty if it does not."""
    for number, token in enumerate(tokens):
        compares_texts = number > 0 and tokens[number - 1].text in ("like", "ilike")
        if token.kind == "string" and not compares_texts and CLOCK & set(re.findall("[a-z]+", token.text.lower())):
            return f"{token.text} may be the time, as PostgreSQL reads it"
    for cast in _list_casts(tokens, keywords):
        if cast.kind in TIMES and _makes_text(cast.value):
            return f"a text that the query makes is cast to a {cast.kind}, and could be one that says the time"
    return ""


def _list_casts(tokens: Sequence[Token], keywords: frozenset[str]) -> Iterator[_Cast]:
    """Lists the casts `x::t`, `CAST(x AS t)`, `t 'x'` and `date(x)`."""
    depth = 0
    for number, token in enumerate(tokens):
        depth += token.is_sign("(") - token.is_sign(")")
        after = tokens[number + 1] if number + 1 < len(tokens) else Token("sign", "")
        if token.is_sign("::") or (depth and token == Token("word", "as")):
            yield _Cast(tokens[_find_start(tokens, number, keywords) : number], _name_type(after))
        elif after.kind == "string" and (
            token.kind in ("quoted", "string")
            or token.is_sign(")")
            or (token.kind == "word" and token.text not in keywords)
        ):
            yield _Cast((after,), _name_type(token))
        elif token == Token("word", "date") and after.is_sign("("):
            yield _Cast(tokens[number + 1 : _find_end(tokens, number + 1)], "date")


def _name_type(token: Token) -> str:
    return token.text if token.kind in ("word", "quoted") else f"{token.text} before a text"


def _find_start(tokens: Sequence[Token], end: int, keywords: frozenset[str]) -> int:
    """Returns the start of the value that ends before `end`."""
    depth = cases = 0
    for number in range(end - 1, -1, -1):
        token = tokens[number]
        if token.is_sign("(") and depth == 0:
            return number + 1
        depth += token.is_sign(")") - token.is_sign("(")
        if depth:
            continue
        word = token.text if token.kind == "word" else ""
        if word == "case" and cases == 0:
            return number + 1
        cases += (word == "end") - (word == "case")
        operator = token.kind == "sign" and token.text not in ("::", ".", "(", ")")
        if cases == 0 and tokens[end].is_sign("::") and (operator or word in keywords - VALUES):
            return number + 1
    return 0


def _find_end(tokens: Sequence[Token], start: int) -> int:
    depth = 0
    for number in range(start, len(tokens)):
        depth += tokens[number].is_sign("(") - tokens[number].is_sign(")")
        if depth == 0:
            return number + 1
    return len(tokens)


def _makes_text(value: Sequence[Token]) -> bool:
    called = {first.text for first, after in pairwise(value) if first.kind == "word" and after.is_sign("(")}
    return any(token.is_sign("||") for token in value) or not called <= TEXT_FREE
