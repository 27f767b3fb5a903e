"""`postgres`: a query's result, a batch at a time, by a cursor of the server.

One transaction reads it, REPEATABLE READ and READ ONLY: every row is as it was when the transaction began. By its words
the query is made of one table's rows, one by one (`dprecipe.data.query`), and its functions are PostgreSQL's own:
nothing but `pg_catalog` is searched for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dprecipe.data.frames import chunk_table
from dprecipe.data.query import find_postgres_reason
from dprecipe.data.raw import Raw, Reading, record_number
from dprecipe.data.sources.queries import AnyPostgres
from dprecipe.data.table import Collector
from dprecipe.data.words import Header
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.text.spelling import normalise_texts

BATCH_ROWS = 8192
SETTINGS = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL search_path = pg_catalog",
    "SET LOCAL row_security = off",  # a policy that would hide rows is an error
    "SET LOCAL synchronize_seqscans = off",  # rows come in the order of the table
    "SET LOCAL max_parallel_workers_per_gather = 0",
    "SET LOCAL enable_indexscan = off",  # that of an index, or not, would follow from statistics of other rows
    "SET LOCAL enable_indexonlyscan = off",
    "SET LOCAL DateStyle = 'ISO'",
    "SET LOCAL TimeZone = 'UTC'",
    "SET LOCAL standard_conforming_strings = on",  # a backslash in a text is a backslash
)
OWN_CASTS = """
SELECT 1 FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_cast k ON k.castsource IN (a.atttypid, t.typbasetype)
JOIN pg_proc p ON p.oid = k.castfunc
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND n.nspname <> 'pg_catalog' LIMIT 1
"""
"""Finds columns of a table whose types have casts by functions of somebody's own: no search path leads past those."""
TABLES = ("r", "p")
"""Values of `pg_class.relkind` that are tables: ordinary and partitioned."""


def read(source: AnyPostgres, root: Path, reading: Reading) -> Raw:
    """Returns the records of the query's result. Names in `tables` may be those of views, of public records or where
    `rows` is declared.

    Raises:
        UsageFault: psycopg is not installed, or the environment variable is not set.
        DataFault: there is no connection or table, the query is refused or fails, or its result is not what is
            declared.
    """
    name = f"data.{reading.role}.query"
    reason = find_postgres_reason(source.query, tuple(source.tables))
    if reason:
        raise DataFault(f"{name}: the query is refused: {reason}", "make a view of it in the database, and name that")
    views = source.rows is not None or not reading.private
    collector = Collector(source.columns, reading.data.preprocess, source.read_label, reading)
    parts = ", ".join(f"{_quote(own)} AS (SELECT * FROM {_qualify(table)})" for own, table in source.tables.items())
    with _transaction(source.connection, reading) as connection:
        for table in source.tables.values():
            _check_table(connection, table, views, name)
        first = 0
        with connection.cursor(name="dprecipe") as cursor:
            with _refused(name, reading):
                cursor.execute(f"WITH {parts} {source.query.strip().removesuffix(';')}")
                present = normalise_texts([column.name for column in cursor.description or ()])
            _check_columns(collector.names, present, name)
            while True:
                with _failed(name, reading):
                    rows = cursor.fetchmany(BATCH_ROWS)
                if not rows:
                    break
                values = dict(zip(present, zip(*rows, strict=True), strict=True))
                ((_, count, chunk),) = chunk_table(
                    {one: values[one] for one in collector.names}, collector.names, BATCH_ROWS
                )
                collector.add(chunk, count, partial(_place, name, first))
                first += count
                if first > reading.max_rows:
                    raise reading.problems.stop(reading.excess_fault())
    if first == 0:
        raise DataFault(f"{name}: selects no row", "loosen the condition, or name another table")
    return collector.raw()


@contextmanager
def _transaction(variable: str, reading: Reading) -> Iterator[Any]:
    with importing_libraries("source postgres"):
        import psycopg

    address = os.environ.get(variable, "")
    if not address:
        raise UsageFault(
            f"data.{reading.role}.connection: the environment variable {variable} is not set",
            f"export {variable}=postgresql://user@host/database, with the password in ~/.pgpass",
        )
    try:
        connection = psycopg.connect(address, autocommit=False, application_name="dprecipe", client_encoding="UTF8")
    except psycopg.Error:  # its message holds parts of the address
        raise DataFault(
            f"data.{reading.role}.connection: no connection to the database that {variable} names",
            "check host, port, user and password (psql takes the same address)",
        ) from None
    try:
        for setting in SETTINGS:
            connection.execute(setting)
        yield connection
    finally:
        connection.close()  # rolls back: nothing was written


@contextmanager
def _refused(name: str, reading: Reading) -> Iterator[None]:
    """Faults of a query's text: no row has been looked at."""
    with importing_libraries("source postgres"):
        import psycopg

    try:
        yield
    except psycopg.Error as error:
        if (error.sqlstate or "").startswith("42"):  # of syntax, names, types and rights
            message = (error.diag.message_primary or "").splitlines()[0]
            remedy = "mend the query; its functions are PostgreSQL's own, and its tables those of `tables`"
            raise DataFault(f"{name}: the query is refused: {message}", remedy) from None
        raise reading.problems.stop(_on_a_row(name, error)) from None


@contextmanager
def _failed(name: str, reading: Reading) -> Iterator[None]:
    """Faults of a row: the server's words may quote it."""
    with importing_libraries("source postgres"):
        import psycopg

    try:
        yield
    except (psycopg.Error, UnicodeDecodeError) as error:
        raise reading.problems.stop(_on_a_row(name, error)) from None


def _on_a_row(name: str, error: Exception) -> DataFault:
    return DataFault(
        f"{name}: the query fails on a row, or the connection is lost ({type(error).__name__})",
        "leave out rows on which an expression has no value, or compute it in a view",
    )


def _check_table(connection: Any, table: str, views: bool, name: str) -> None:
    schema, _, own = table.partition(".")
    found = connection.execute(
        "SELECT c.relkind::text, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')",
        [schema, own],
    ).fetchall()
    if not found:
        raise DataFault(f"{name}: the database has no table {table}", "write schema.table as the database has it")
    if found[0][0] not in TABLES and not views:
        raise DataFault(
            f"{name}: {table} is no table but a view, whose rows may depend on those of several units",
            "name the table; or add `rows: declared`, if each row of the view depends on rows of its own unit alone",
        )
    if not views and connection.execute(OWN_CASTS, [found[0][1]]).fetchall():
        raise DataFault(
            f"{name}: {table} has a column of a type with a cast that is not PostgreSQL's own: its function may look "
            "at other rows",
            "make a view without that column, or one that casts it to a type of PostgreSQL's own; name it, and add "
            "`rows: declared`, if each of its rows depends on rows of its own unit alone",
        )


def _check_columns(names: tuple[str, ...], present: list[str], subject: str) -> None:
    for name in names:
        if present.count(name) != 1:
            meant = Header(present).nearest(name) if name not in present else None
            raise DataFault(
                f"{subject}: the result has {'no' if name not in present else 'more than one'} column {name!r}"
                + (f"; it has {meant!r}" if meant else ""),
                "name the column in the query with AS; PostgreSQL writes names without quotes in small letters",
            )


def _place(name: str, first: int, row: int) -> str:
    return f"{name}, {record_number(first + row)}"


def _quote(name: str) -> str:
    return f'"{name.lower()}"'


def _qualify(table: str) -> str:
    schema, _, own = table.partition(".")
    return f'"{schema}"."{own}"'
