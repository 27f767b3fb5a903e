"""Which queries make each row of their result of one row of a table, by their text alone."""

from __future__ import annotations

import pytest

from dprecipe.data.query import (
    FUNCTIONS,
    KEYWORDS,
    RESERVED,
    TYPES,
    find_postgres_reason,
    find_reason,
    has_filter,
    keeps_column,
)

BY_ROW = [
    "SELECT * FROM visits",
    "select age, v.ill from visits v;",
    "SELECT age AS years, lower(trim(ward)) ward FROM visits AS v WHERE age >= 18 AND ward IN ('icu', 'er')",
    'SELECT "order", "Größe" FROM "visits" WHERE "order" IS NOT NULL',
    "SELECT CASE WHEN age > 65 THEN 'old' ELSE 'young' END AS x, CAST(age AS DECIMAL(10, 2)), bmi::INTEGER FROM visits",
    "SELECT w / (h * h) AS bmi FROM visits WHERE w IS DISTINCT FROM h AND NOT (age BETWEEN 1 AND 2)",
    "SELECT try_strptime(born, '%d.%m.%Y')::DATE AS d, TRY_CAST(x AS DOUBLE) + .5e-3 FROM visits WHERE a LIKE ';--'",
    "SELECT date_diff('day', DATE '2000-01-01', admitted) AS days FROM visits",
    "SELECT 'it''s' AS said, note.upper() FROM visits WHERE x = -1",
]

OTHER = {
    "a join": ("SELECT a.x FROM visits a JOIN labs b ON a.k = b.k", "'join' follows the table"),
    "a cross join": ("SELECT x FROM visits, labs", "',' follows the table"),
    "an aggregate": ("SELECT avg(age) FROM visits", "avg(…) is no function of one row's values"),
    "a count": ("SELECT count(*) FROM visits", "count(…) is no function"),
    "groups": ("SELECT who FROM visits GROUP BY who", "'group' follows the table"),
    "groups after where": ("SELECT who FROM visits WHERE age > 1 GROUP BY who", "GROUP is not accepted"),
    "a window": ("SELECT age - lag(age) OVER (ORDER BY day) FROM visits", "OVER is not accepted|lag"),
    "a window without a function": ("SELECT x FROM visits WINDOW w AS (ORDER BY x)", "'window' follows"),
    "distinct": ("SELECT DISTINCT who FROM visits", "DISTINCT compares rows"),
    "distinct on": ("SELECT DISTINCT ON (who) * FROM visits", "DISTINCT compares rows"),
    "an order": ("SELECT who FROM visits ORDER BY who", "'order' follows"),
    "a limit": ("SELECT who FROM visits LIMIT 5", "'limit' follows"),
    "a limit after where": ("SELECT who FROM visits WHERE true LIMIT 5", "LIMIT is not accepted"),
    "an offset": ("SELECT who FROM visits OFFSET 5", "'offset' follows"),
    "a sample": ("SELECT who FROM visits USING SAMPLE 10%", "'using' follows|USING"),
    "a tablesample": ("SELECT who FROM visits TABLESAMPLE 10%", "'tablesample' follows"),
    "a subquery": ("SELECT x FROM visits WHERE age > (SELECT avg(age) FROM visits)", "SELECT is not accepted|FROM"),
    "a subquery in the list": ("SELECT (SELECT max(age) FROM visits) FROM visits", "SELECT is not accepted"),
    "a subquery as a table": ("SELECT x FROM (SELECT x FROM visits)", "FROM is not followed by one of the tables"),
    "exists": ("SELECT x FROM visits WHERE EXISTS (FROM labs)", "EXISTS is not accepted|FROM"),
    "a union": ("SELECT x FROM visits UNION ALL SELECT x FROM labs", "'union' follows"),
    "a union after where": ("SELECT x FROM visits WHERE true UNION SELECT x FROM labs", "UNION is not accepted"),
    "with": ("WITH a AS (SELECT x FROM visits) SELECT x FROM a", "does not begin with SELECT"),
    "from first": ("FROM visits", "does not begin with SELECT"),
    "two statements": ("SELECT x FROM visits; DROP TABLE visits", "';' begins nothing"),
    "another statement": ("COPY visits TO 'x.csv'", "does not begin with SELECT"),
    "another table": ("SELECT x FROM other", "FROM is not followed by one of the tables labs, visits"),
    "a file": ("SELECT x FROM '/etc/passwd'", "FROM is not followed by one of the tables"),
    "a table function": ("SELECT x FROM read_csv('x.csv')", "FROM is not followed by one of the tables"),
    "a schema": ("SELECT x FROM visits.labs", "'.' follows the table"),
    "no table": ("SELECT 1", "it has no FROM"),
    "the time": ("SELECT now() FROM visits", "now(…) is no function"),
    "today": ("SELECT x FROM visits WHERE born > current_date", "CURRENT_DATE is not accepted"),
    "chance": ("SELECT random() FROM visits", "random(…) is no function"),
    "chance, quoted": ('SELECT "random"() FROM visits', "is called as a function"),
    "chance, of a schema": ("SELECT main.random() FROM visits", "random"),
    "chance in where": ("SELECT x FROM visits WHERE random() < 0.1", "random(…) is no function"),
    "a uuid": ("SELECT uuid() FROM visits", "uuid(…) is no function"),
    "a place": ("SELECT rowid FROM visits", "ROWID is not accepted"),
    "a number of rows": ("SELECT row_number() OVER () FROM visits", "row_number|OVER"),
    "a setting": ("SELECT current_setting('x') FROM visits", "current_setting(…) is no function"),
    "a variable": ("SELECT getvariable('x') FROM visits", "getvariable(…) is no function"),
    "unnest": ("SELECT unnest(x) FROM visits", "UNNEST is not accepted"),
    "columns": ("SELECT COLUMNS('a.*') FROM visits", "COLUMNS is not accepted"),
    "a comment": ("SELECT x -- FROM a\nFROM visits", "it has a comment"),
    "another comment": ("SELECT x /* y */ FROM visits", "it has a comment"),
    "a filter": ("SELECT sum(x) FILTER (WHERE y) FROM visits", "sum(…) is no function|FILTER"),
    "a lambda": ("SELECT list_transform(x, y -> y) FROM visits", "'>'|list_transform|begins nothing"),
    "a list": ("SELECT [x FOR x IN y] FROM visits", "'[' begins nothing"),
    "a position": ("SELECT #1 FROM visits", "'#' begins nothing"),
    "a parameter": ("SELECT $1 FROM visits", "'$' begins nothing"),
    "a dollar text": ("SELECT $$x$$ FROM visits", "'$' begins nothing"),
    "a text that does not end": ("SELECT 'x FROM visits", "begins nothing"),
    "no expression": ("SELECT FROM visits", "an expression is missing"),
    "no condition": ("SELECT x FROM visits WHERE", "an expression is missing"),
    "an escape": ("SELECT E'\\' FROM labs' FROM visits", "a text follows a word without a blank"),
    "a prefix": ("SELECT x'ff' FROM visits", "a text follows a word without a blank"),
    "a long query": ("SELECT " + "x, " * 9000 + "x FROM visits", "more than 20,000 letters"),
    "nothing": ("", "does not begin with SELECT"),
}


@pytest.mark.parametrize("query", BY_ROW)
def test_queries_whose_rows_are_made_one_by_one(query: str) -> None:
    assert find_reason(query, ("visits", "labs")) == ""


@pytest.mark.parametrize("name", OTHER)
def test_other_queries(name: str) -> None:
    query, says = OTHER[name]
    reason = find_reason(query, ("visits", "labs"))
    assert any(part in reason for part in says.split("|")), reason


def test_words_of_all_kinds_are_apart() -> None:
    assert not FUNCTIONS & RESERVED
    assert not KEYWORDS & RESERVED
    assert not TYPES & RESERVED


def test_filters() -> None:
    assert has_filter("SELECT x FROM visits WHERE x > 1")
    assert has_filter("SELECT [")
    assert not has_filter("SELECT 'where' AS \"where\" FROM visits")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT visits.count AS n FROM visits", "may be a function of several rows"),
        ("SELECT (doc).jsonb_array_elements AS x FROM visits", "may be a function of several rows"),
        ("SELECT public.lower(ward) AS x FROM visits", "may be a function of several rows"),
        ("SELECT regexp_matches(note, 'x', 'g') AS x FROM visits", "makes several rows of one"),
        ("SELECT max(age) FROM visits", "is no function of one row's values"),
    ],
)
def test_what_postgres_reads_as_a_function_of_other_rows_is_refused(query: str, message: str) -> None:
    assert message in find_postgres_reason(query, ("visits",))


def test_postgres_takes_columns_by_their_own_names() -> None:
    query = "SELECT lower(trim(ward)) AS w, age * 1.5 AS x FROM visits AS v WHERE note <> 'a.b'"
    assert find_postgres_reason(query, ("visits",)) == ""


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("SELECT age, patient_id FROM t", True),
        ("SELECT age, Patient_ID FROM t WHERE age > 3", True),
        ("SELECT * FROM t", True),
        ("SELECT t.patient_id FROM t", True),
        ("SELECT v.patient_id FROM t AS v", True),
        ("SELECT visit.patient_id FROM t AS v", False),  # a field of a column
        ("SELECT visit.patient_id FROM t WHERE visit > 0", False),
        ('SELECT "patient_id" AS patient_id FROM t', True),
        ("SELECT patient_id patient_id FROM t", True),
        ('SELECT "Patient_ID" AS patient_id FROM t', False),
        ("SELECT age FROM t", False),
        ("SELECT age, FROM t", False),
        ("SELECT visit AS patient_id FROM t", False),
        ("SELECT visit patient_id FROM t", False),
        ('SELECT visit AS "patient_id" FROM t', False),
        ("SELECT *, visit AS patient_id FROM t", False),
        ("SELECT patient_id, visit AS PATIENT_ID FROM t", False),
        ("SELECT t.visit AS patient_id FROM t", False),
        ("SELECT age + patient_id FROM t", False),
        ("SELECT lower(patient_id) AS patient_id FROM t", False),
        ("SELECT patient_id::int AS patient_id FROM t", False),
        ("SELECT CASE WHEN age > 3 THEN patient_id ELSE visit END AS patient_id FROM t", False),
        ("SELECT age IS DISTINCT FROM 3 AS patient_id FROM t", False),
        ("SELECT patient_id FROM t AS t(visit, patient_id)", False),
        ("SELECT max(visit) AS patient_id FROM t GROUP BY age", False),
    ],
)
def test_a_column_is_kept_that_is_selected_as_it_is(query: str, kept: bool) -> None:
    assert keeps_column(query, ["t"], "patient_id") is kept


CLOCK = [
    "CAST('now' AS timestamp)", "'now'::date", "' NOW '::timestamp(3)", "timestamp 'now'", "DATE 'today'",
    "born > 'now'", "born BETWEEN 'yesterday' AND '2030-01-01'", "'today 12:00'::timestamp",
    "coalesce(born, 'tomorrow')", "CASE WHEN true THEN 'now' ELSE ward END::date", "greatest(born, 'now')",
    "born IN ('2020-01-01', '(now)')", "date('now')", "date_part('epoch', 'now')", "try_cast('now' AS date)",
    "('n' || 'ow')::date", "concat('n', 'ow')::timestamp", "concat('n', 'ow')::text::timestamp",
    "lower('N' || 'ow')::date",
    "CAST(concat('n', 'ow') AS date)", "CAST((('n' || 'ow')) AS time)", "date(replace('nxow', 'x', ''))",
    "'nowx'::varchar(3)::date", "CAST('nowx' AS varchar(3))::date",
    "(CASE WHEN true THEN substr('xnow', 2) END)::date", "CASE WHEN true THEN substr('xnow', 2) END::date",
    "coalesce(trim('n' || 'ow'), ward)::date", "born > CAST(reverse('won') AS varchar)::date",
]  # fmt: skip
UNKNOWN = [
    "'now'::timestamptz", "'now'::\"timestamp\"", "\"date\" 'now'", "timestamptz 'now'", "'now'::abstime",
    "'x'::regclass",
    "CAST('now' AS timestamptz)", "CAST('now' AS \"date\")", "'n' 'ow'", "'n'\n'ow'::date", "(ward) 'now'",
    "timestamp(3) 'now'",
]  # fmt: skip
FINE = [
    "date_part('year', born) > 2000", "born > '2020-01-01'", "born::date - DATE '2000-01-01'", "CAST(born AS date)",
    "ward LIKE '%now%'", "ward ILIKE 'today'", "lower(ward) = 'icu' AND born::date > '2020-01-01'",
    "(born + INTERVAL '1 day')::date", "date_trunc('day', born)::date", "'epoch'::timestamp", "'infinity'::date",
    "ward || 'x', born::date", "make_date(2020, 1, 1)::timestamp", "born::timestamp(3)::date", "born::text",
    "CASE WHEN lower(ward) = 'x' THEN 1 ELSE 2 END", "note = 'nowhere'", "(lower(ward) = 'x')::int", "'12:00'::time",
    "CASE WHEN a THEN born ELSE other END::date", "date(born)", "round(x::numeric, 2)",
]  # fmt: skip


@pytest.mark.parametrize("value", CLOCK)
@pytest.mark.parametrize("form", ["SELECT {} AS x FROM visits", "SELECT x FROM visits WHERE ({}) IS NOT NULL"])
def test_what_may_ask_the_clock_is_refused(value: str, form: str) -> None:
    assert "time" in find_postgres_reason(form.format(value), ("visits",))


@pytest.mark.parametrize("value", UNKNOWN)
def test_types_that_are_not_known_are_refused(value: str) -> None:
    for find in (find_reason, find_postgres_reason):
        assert "is no type that is known here" in find(f"SELECT {value} AS x FROM visits", ("visits",))


@pytest.mark.parametrize("value", FINE)
def test_other_casts_and_texts_are_taken(value: str) -> None:
    assert find_postgres_reason(f"SELECT {value} FROM visits", ("visits",)) == ""
    assert find_reason(f"SELECT {value} FROM visits", ("visits",)) == ""
