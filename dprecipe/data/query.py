"""Queries of SQL whose rows are made one by one: which they are, by their text alone. Nothing is run, no library asked.

A query is a function of the whole table, so one person could decide other people's rows: by a join, an aggregate, a
window, a limit. Of `SELECT … FROM one table WHERE …` with functions of a row's own values, each row of the result is
made of one row of the table, whatever the others are. What is not plainly that is refused: the language accepted here
is a small part of SQL, read word by word.

Casts are to types that are known, and to a day or a time of nothing that asks the clock. For PostgreSQL the text `now`
is the time, wherever it meets a day: `'now'::date`, `DATE 'now'`, `born > 'today'`. So no text of the query may have
such a word, and no text that the query makes (`'n' || 'ow'`) may be cast to a day or a time. DuckDB reads no such
words. (A record's own text stays what it is.)
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Literal, final

from dprecipe.faults import Finding


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


TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--|/\*)
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")+")
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    |(?P<word>[^\W\d]\w*(?!\w))
    |(?P<sign><=|>=|<>|!=|==|\|\||::|//|[=<>+\-*/%(),.])""",
    re.VERBOSE,
)


KEYWORDS = frozenset_of(
    """and or not null is in between like ilike case when then else end cast try_cast as true false distinct from"""
)
"""Words within an expression; `distinct` and `from` in `is distinct from` alone."""
FUNCTIONS = frozenset_of(
    """abs ceil ceiling coalesce concat contains cos date_diff date_part date_sub date_trunc datediff datepart
    datetrunc day dayofmonth dayofweek dayofyear decade ends_with epoch exp floor greatest hour if ifnull isfinite
    isnan left least length ln log log10 log2 lower lpad ltrim make_date make_timestamp minute mod month monthname
    nullif pow power quarter regexp_extract regexp_full_match regexp_matches regexp_replace replace reverse
    right round rpad rtrim second sign sin split_part sqrt starts_with strftime strip_accents strlen strpos strptime
    substr substring tan translate trim trunc try_strptime upper week weekday year"""
)
"""Functions of the values of a row: neither the time, nor chance, nor a setting, nor another row decides them."""
POSTGRES_SETS = frozenset_of("regexp_matches")
"""Functions among them that give a set of rows in PostgreSQL."""
RESERVED = frozenset_of(
    """all analyze any array asof at collate columns cross current_catalog current_date current_role current_schema
    current_time current_timestamp current_user desc except exclude exists fetch filter for full grant group
    grouping having inner insert intersect into isnull join lambda lateral limit localtime localtimestamp natural
    notnull offset on only order outer over partition pivot placing positional qualify recursive rename returning
    rowid sample select semi session_user similar some struct summarize symmetric system_user table tablesample
    union unnest unpivot user using values where window with within"""
)
"""Words that begin something else, or stand for the time, the user or the place of a row. As a column, write it in
double quotes."""
MAX_QUERY = 20_000

Rows = Literal["declared"]


@final
@dataclass(frozen=True, slots=True)
class RowOrigin:
    """Origin of a source's records: how they are made of the rows of its tables."""

    reason: str
    """Reason why a record may depend on more than one row; empty if none does."""
    declared: bool
    """True if the author declares that a record depends on rows of its own unit alone."""
    filters: bool
    """True if a row may be left out because of its own values."""
    path: str
    """The key of the query, below the source."""


class NotByRow(Exception):
    """Query whose rows are not made one by one; the message says why."""


def find_reason(query: str, tables: Collection[str]) -> str:
    """Explains why a row of a query's result may depend on several rows; empty if it depends on one."""
    try:
        _check(list(_tokens(query)), {table.lower() for table in tables})
    except NotByRow as reason:
        return str(reason)
    return ""


def find_postgres_reason(query: str, tables: Collection[str]) -> str:
    """Applies `find_reason` to a query that PostgreSQL runs, whose own parser is not asked: there `t.count` and
    `(t).count` call a function, `public.lower(x)` one that a user has made, a text can ask the clock, and a
    function of sets makes several rows of one.
    """
    reason = find_reason(query, tables)
    if reason:
        return reason
    if Token("sign", ".") in (tokens := list(_tokens(query))):
        return "what follows a '.' may be a function of several rows: write columns without the table's name"
    if clock := find_clock(tokens, KEYWORDS | RESERVED):
        return clock
    sets = next((token.text for token in tokens if token.kind == "word" and token.text in POSTGRES_SETS), "")
    return f"{sets}(…) makes several rows of one" if sets else ""


def has_filter(query: str) -> bool:
    """Returns True if a query may leave rows out."""
    try:
        return any(token == Token("word", "where") for token in _tokens(query))
    except NotByRow:
        return True


def keeps_column(query: str, tables: Collection[str], name: str) -> bool:
    """Returns True if a query whose rows are made one by one gives a column of the table as it is, under its own name.
    A wrong no is possible, of other capitals in double quotes; a wrong yes is not."""
    if find_reason(query, tables):
        return False
    tokens = list(_tokens(query))
    start = _find_from(tokens)
    source = takewhile(lambda token: token != Token("word", "where"), tokens[start + 1 :])
    own_tables = {_unquote(token).lower() for token in source if token.kind in ("word", "quoted")} - {"as"}
    is_kept = False
    for item in _split_items(tokens[1:start]):
        if item[1:2] == [Token("sign", ".")] and _unquote(item[0]).lower() in own_tables:
            item = item[2:]
        if item == [Token("sign", "*")]:
            is_kept = True
        elif item and item[-1].kind in ("word", "quoted") and _unquote(item[-1]).lower() == name.lower():
            is_own = item[0] == Token("word", name.lower()) or (item[0].kind == "quoted" and _unquote(item[0]) == name)
            if not is_own or len(item) > 2 + (item[1:2] == [Token("word", "as")]):
                return False
            is_kept = True
    return is_kept


def _unquote(token: Token) -> str:
    return token.text[1:-1].replace('""', '"') if token.kind == "quoted" else token.text


def _split_items(tokens: Sequence[Token]) -> list[list[Token]]:
    """Returns the items of a list, without the commas between them."""
    depth, items = 0, [list[Token]()]
    for token in tokens:
        depth += token.is_sign("(") - token.is_sign(")")
        if depth == 0 and token.is_sign(","):
            items.append([])
        else:
            items[-1].append(token)
    return items


def check_rows(query: str, tables: Collection[str], rows: Rows | None, filters: bool) -> RowOrigin:
    """Returns what a recipe's query and its `rows` say together."""
    return RowOrigin(find_reason(query, tables), rows == "declared", filters, "query")


def needless_declaration(query: str, tables: Collection[str], rows: Rows | None, path: str) -> Iterator[Finding]:
    """Yields the finding for `rows: declared` of a query that needs none: a certificate would state it for nothing."""
    if rows is not None and not find_reason(query, tables):
        yield Finding(
            "R243",
            "the query's text shows that each row of the result is made of one row of the table",
            "remove `rows`",
            f"{path}.rows",
        )


def _tokens(query: str) -> Iterator[Token]:
    text, word_end = query.strip().removesuffix(";"), -1
    if len(text) > MAX_QUERY:
        raise NotByRow(f"it has more than {MAX_QUERY:,} letters")
    place = 0
    while place < len(text):
        match = TOKEN.match(text, place)
        kind = match.lastgroup if match is not None else None
        if match is None or kind is None:
            raise NotByRow(f"{text[place]!r} begins nothing that is accepted here")
        if kind == "comment":
            raise NotByRow("it has a comment")
        if kind == "string" and place == word_end:  # E'…' and its like have rules of their own
            raise NotByRow("a text follows a word without a blank")
        if kind == "word":
            word_end = match.end()
        if kind != "space":
            plain = match[0].lower() if kind == "word" else match[0]
            yield Token(kind, plain)
        place = match.end()


def _check(tokens: Sequence[Token], tables: Collection[str]) -> None:
    if tokens[:1] != [Token("word", "select")]:
        raise NotByRow("it does not begin with SELECT")
    start = _find_from(tokens)
    if not start:
        raise NotByRow("it has no FROM with one table")
    _check_expression(tokens[1:start])
    rest = tokens[start + 1 :]
    name = rest[0].text.strip('"').lower() if rest and rest[0].kind in ("word", "quoted") else ""
    if name not in tables:
        raise NotByRow(f"FROM is not followed by one of the tables {', '.join(sorted(tables))}")
    rest = rest[1:]
    if rest[:1] == [Token("word", "as")]:
        rest = rest[1:]
    if rest and rest[0].kind in ("word", "quoted") and rest[0].text not in ("where", *RESERVED):
        rest = rest[1:]  # another name of the table
    if rest and rest[0] != Token("word", "where"):
        raise NotByRow(f"{rest[0].text!r} follows the table, where only WHERE may")
    if rest:
        _check_expression(rest[1:])


def _find_from(tokens: Sequence[Token]) -> int:
    """Returns the place of a SELECT's own FROM, which is not that of DISTINCT FROM; 0 if there is none."""
    depth = 0
    for number, token in enumerate(tokens):
        depth += token.is_sign("(") - token.is_sign(")")
        if depth == 0 and token == Token("word", "from") and tokens[number - 1] != Token("word", "distinct"):
            return number
    return 0


def _check_expression(tokens: Sequence[Token]) -> None:
    """Values of a row, and functions of them alone."""
    if not tokens:
        raise NotByRow("an expression is missing")
    if unknown := find_unknown_type(tokens, KEYWORDS | RESERVED):
        raise NotByRow(f"{unknown} is no type that is known here")
    for number, token in enumerate(tokens):
        after = tokens[number + 1] if number + 1 < len(tokens) else None
        before = tokens[number - 1] if number > 0 else None
        called = after == Token("sign", "(")
        if token.kind == "quoted" and called:
            raise NotByRow(f"{token.text} is called as a function")
        if token.kind != "word":
            continue
        word = token.text
        if word == "distinct" and not (
            after == Token("word", "from") and before in (Token("word", "is"), Token("word", "not"))
        ):
            raise NotByRow("DISTINCT compares rows")
        if word == "from" and before != Token("word", "distinct"):
            raise NotByRow("there is more than one FROM")
        if word in RESERVED and before != Token("sign", "."):
            raise NotByRow(f"{word.upper()} is not accepted: a row of the result could depend on more than one row")
        if called and word not in FUNCTIONS and word not in KEYWORDS and word not in TYPES:
            raise NotByRow(f"{word}(…) is no function of one row's values that is known here")
