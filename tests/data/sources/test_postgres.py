"""`postgres`: queries of a database, against a real server that the tests start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.load import load
from dprecipe.data.records import Records
from dprecipe.faults import DataFault, UsageFault
from dprecipe.planning.public import share_records
from tests.postgres import serve_postgres

COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 100},
    "day": {"kind": "date", "min": "2020-01-01", "max": "2030-01-01"},
}
LABEL = {"column": "ill", "values": ["no", "yes"]}
SOURCE = {
    "source": "postgres",
    "connection": "DPRECIPE_TEST_DATABASE",
    "tables": {"visits": "clinic.visits"},
    "query": "SELECT who, age, day, CASE WHEN sick THEN 'yes' ELSE 'no' END AS ill FROM visits",
    "columns": COLUMNS,
    "label": LABEL,
}
SET_UP = """
CREATE SCHEMA clinic;
CREATE TABLE clinic.visits (who text, age numeric(5, 2), day date, sick boolean, note text);
INSERT INTO clinic.visits VALUES ('P1', 10, '2024-05-17', false, 'SECRET'), ('P2', 20.50, '2024-05-18', true, 'SECRET'),
    ('P1', 30, '2024-05-19', true, '7'), ('P3', NULL, NULL, false, '8');
CREATE VIEW clinic.means AS
    SELECT who, avg(age) AS age, min(day) AS day, bool_or(sick) AS sick FROM clinic.visits GROUP BY who;
CREATE FUNCTION public.lower(text) RETURNS text AS $$ SELECT 'SHADOWED' $$ LANGUAGE sql;
CREATE TABLE clinic.numbers AS SELECT 'P' || i AS who, i % 100 AS age, date '2024-01-01' AS day, false AS sick
    FROM generate_series(1, 20000) i;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server with the tables of `SET_UP`."""
    with serve_postgres("fsync=off", SET_UP) as address:
        yield address


@pytest.fixture
def ask(server: str, block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DPRECIPE_TEST_DATABASE", server)

    def make(size: int = 3, unit: object = "record", **source: Any) -> Records:
        where = {"query": f"{SOURCE['query']} WHERE age IS NOT NULL"}
        data = block({**SOURCE, **where, **source}, size=size, unit=unit)
        assert check_data(data) == []
        return load(data.train, data, tmp_path, "train")

    return make


slow = pytest.mark.slow


@slow
def test_the_result_is_the_table_of_records(ask) -> None:
    records = ask()
    assert (records.features[:, 0] * 100).round(3).tolist() == [10, 20.5, 30]
    assert records.labels.tolist() == [0, 1, 1]
    assert ask(size=2, unit={"column": "who", "max_records": 1}).units.tolist() == [0, 1]
    with pytest.raises(DataFault, match="column 'age': a field is empty") as caught:
        ask(4, query=SOURCE["query"])
    assert "record 3, counted from 0" in caught.value.private


@slow
def test_batches_change_nothing(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"tables": {"visits": "clinic.numbers"}}
    whole = ask(20000, **tables).features
    monkeypatch.setattr("dprecipe.data.sources.read_postgres.BATCH_ROWS", 999)
    assert (ask(20000, **tables).features == whole).all()
    with pytest.raises(DataFault, match="does not have the number of records"):
        ask(19999, **tables)


@slow
def test_functions_are_the_server_s_own(ask) -> None:
    """Not those that somebody made in a schema of the database, under the same name."""
    query = "SELECT age, day, CASE WHEN lower(who) = 'p1' THEN 'yes' ELSE 'no' END AS ill FROM visits WHERE age > 0"
    assert ask(query=query).labels.tolist() == [1, 0, 1]


@slow
def test_a_view_is_declared(ask) -> None:
    view = {"tables": {"visits": "clinic.means"}}
    with pytest.raises(DataFault, match=r"clinic\.means is no table but a view") as caught:
        ask(2, **view)
    assert "rows: declared" in caught.value.remedy
    assert sorted((ask(2, rows="declared", **view).features[:, 0] * 100).round(3).tolist()) == [20, 20.5]


@slow
def test_a_cast_that_somebody_made_is_not_called(ask, server: str) -> None:
    """No search path leads past it: its function could look at other rows."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as other:
        other.execute("CREATE TYPE clinic.grade AS ENUM ('low', 'high')")
        other.execute(
            "CREATE TABLE clinic.graded AS SELECT who, age, day, sick, 'low'::clinic.grade AS grade FROM clinic.visits "
            "WHERE age IS NOT NULL"
        )
        columns = {"tables": {"visits": "clinic.graded"}}
        assert len(ask(**columns)) == 3  # a type of one's own alone does no harm
        other.execute(
            "CREATE FUNCTION clinic.count_all(clinic.grade) RETURNS integer LANGUAGE sql AS "
            "'SELECT count(*)::integer FROM clinic.visits'"
        )
        other.execute("CREATE CAST (clinic.grade AS integer) WITH FUNCTION clinic.count_all(clinic.grade)")
    with pytest.raises(DataFault, match="a cast that is not PostgreSQL's own") as caught:
        ask(**columns)
    assert "rows: declared" in caught.value.remedy


@slow
def test_rows_come_in_the_order_of_the_table_whatever_indexes_there_are(ask, server: str) -> None:
    """An index scan, which statistics of all rows decide, gives another order: other first records of a unit."""
    import psycopg

    with psycopg.connect(server, autocommit=True) as other:
        other.execute(
            "CREATE TABLE clinic.indexed AS SELECT 'P' || i % 7 AS who, 99 - i / 60 AS age, "
            "date '2024-01-01' AS day, false AS sick FROM generate_series(1, 5000) i"
        )
        other.execute("CREATE INDEX ON clinic.indexed (age)")
        other.execute("ANALYZE clinic.indexed")
    source = {"tables": {"visits": "clinic.indexed"}, "query": f"{SOURCE['query']} WHERE age < 20"}
    records = ask(7, {"column": "who", "max_records": 2}, **source)
    seen = [(i % 7, age) for i in range(1, 5001) if (age := 99 - i // 60) < 20]
    expected = [age for n, (who, age) in enumerate(seen) if [one for one, _ in seen[:n]].count(who) < 2]
    assert (records.features[:, 0] * 100).round().tolist() == expected


BAD = {
    "a column that is not there": ("SELECT agee AS age, day, 'no' AS ill FROM visits", 'column "agee" does not exist'),
    "a column that is not in the result": ("SELECT age, day FROM visits", "the result has no column 'ill'"),
    "a row that fails": ("SELECT CAST(note AS INTEGER) AS age, day, 'no' AS ill FROM visits", "fails on a row"),
    "no row": ("SELECT age, day, 'no' AS ill FROM visits WHERE age > 99", "selects no row"),
    "a function that is not known": ("SELECT strlen(who) AS age, day, 'no' AS ill FROM visits", "strlen"),
    "a join": ("SELECT age FROM visits, visits v", "the query is refused: ',' follows the table"),
    "a file": ("SELECT pg_read_file('/etc/passwd') AS ill, age, day FROM visits", "is no function of one row's values"),
    "a sleep": ("SELECT pg_sleep(10) AS ill, age, day FROM visits", "is no function of one row's values"),
    "a second statement": ("SELECT age FROM visits; DROP TABLE visits", "';' begins nothing"),
    "an escape": ("SELECT E'\\', pg_sleep(1), ' AS ill, age, day FROM visits", "follows a word without a blank"),
    "another table": ("SELECT age FROM numbers", "FROM is not followed by one of the tables visits"),
    "a schema": ("SELECT age FROM clinic.numbers", "FROM is not followed by one of the tables visits"),
}


@slow
@pytest.mark.parametrize("name", BAD)
def test_what_is_a_fault(ask, name: str) -> None:
    query, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        ask(query=query)
    assert "SECRET" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@slow
def test_tables_and_connections_that_are_not_there(ask, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataFault, match=r"the database has no table clinic\.visit$"):
        ask(tables={"visits": "clinic.visit"})
    monkeypatch.setenv("DPRECIPE_TEST_DATABASE", "postgresql://someone:hunter2@127.0.0.1:1/nothing")
    with pytest.raises(DataFault, match="no connection to the database that DPRECIPE_TEST_DATABASE names") as caught:
        ask()
    assert "hunter2" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"
    assert caught.value.__suppress_context__


@slow
def test_one_transaction_that_writes_nothing(server: str, monkeypatch: pytest.MonkeyPatch, block) -> None:
    import psycopg

    from dprecipe.data.raw import Reading
    from dprecipe.data.sources import read_postgres

    monkeypatch.setenv("DPRECIPE_TEST_DATABASE", server)
    data = block(SOURCE)
    with read_postgres._transaction("DPRECIPE_TEST_DATABASE", Reading.of(data.train, data, "train")) as connection:
        first = connection.execute("SELECT count(*) FROM clinic.visits").fetchone()
        with psycopg.connect(server, autocommit=True) as other:
            other.execute("INSERT INTO clinic.visits VALUES ('P9', 1, '2024-01-01', true, '')")
        assert connection.execute("SELECT count(*) FROM clinic.visits").fetchone() == first
        with psycopg.connect(server, autocommit=True) as other:
            other.execute("DELETE FROM clinic.visits WHERE who = 'P9'")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("DELETE FROM clinic.visits")


def test_a_variable_that_is_not_set(block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    monkeypatch.delenv("DPRECIPE_TEST_DATABASE", raising=False)
    data = block(SOURCE)
    with pytest.raises(UsageFault, match="the environment variable DPRECIPE_TEST_DATABASE is not set"):
        load(data.train, data, tmp_path, "train")


def test_what_a_recipe_may_say(block) -> None:
    for bad in (
        {"connection": "postgresql://user:secret@host/db"},
        {"tables": {"visits": "visits"}},
        {"records": [0, 2]},
    ):
        with pytest.raises(ValueError, match="valid"):
            block({**SOURCE, **bad})
    assert check_data(block({**SOURCE, "rows": "declared"})) == []
    train = block(SOURCE, public={key: value for key, value in SOURCE.items() if key != "label"})
    assert share_records(train.train, train.public)
    other = block(
        SOURCE, public={**{k: v for k, v in SOURCE.items() if k != "label"}, "tables": {"visits": "open.visits"}}
    )
    assert not share_records(other.train, other.public)
    origins = {
        query: block({**SOURCE, "query": query, "rows": rows}).train.selection
        for query, rows in (("SELECT * FROM visits", None), ("SELECT max(age) FROM visits", "declared"))
    }
    by_row, grouped = origins.values()
    assert by_row is not None
    assert not by_row.reason
    assert grouped is not None
    assert grouped.reason
    assert not grouped.declared  # a view of the database may be, a query never
