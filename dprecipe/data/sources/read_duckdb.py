"""`duckdb`: a query's result, a batch at a time. DuckDB may read the tables' files and nothing else, and write nothing.

A table of CSV has texts alone: what DuckDB would make of a column depends on its values, so one record could decide how
those of others are read. The query is read twice: by its text (`dprecipe.data.query`), and by DuckDB's own parser.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dprecipe.data.arrow import ColumnTypes, select_columns
from dprecipe.data.arrow_table import ArrowChunk, Chunks, collect_chunks
from dprecipe.data.files import READ_ERRORS, DataFile, locate_files
from dprecipe.data.query import FUNCTIONS, find_reason, frozenset_of
from dprecipe.data.raw import Limits, Raw, Reading
from dprecipe.data.sources.queries import AnyDuckDb, format_of
from dprecipe.data.sources.query_time import QueryTime
from dprecipe.data.sources.read_parquet import BATCH_ROWS, ParquetShards
from dprecipe.data.words import find_columns
from dprecipe.faults import DataFault
from dprecipe.text.spelling import normalise_texts

MAX_HEADER = 1 << 20
MEMORY = "4GB"
OPERATORS = frozenset(("+", "-", "*", "/", "//", "%", "||", "~~", "!~~", "~~*", "!~~*"))
"""Operators as DuckDB names them; the last four are LIKE and ILIKE."""
CLASSES = frozenset(
    (
        "COLUMN_REF",
        "CONSTANT",
        "COMPARISON",
        "CONJUNCTION",
        "CAST",
        "CASE",
        "OPERATOR",
        "BETWEEN",
        "FUNCTION",
        "STAR",
        "TYPE",
    )
)
"""DuckDB's classes of expressions that depend on a row's own values."""
EMPTY: dict[str, Any] = {
    "modifiers": [],
    "cte_map": {"map": []},
    "group_expressions": [],
    "group_sets": [],
    "aggregate_handling": "STANDARD_HANDLING",
    "having": None,
    "sample": None,
    "qualify": None,
}
"""Entries of a SELECT that has no clause except WHERE."""


def read(source: AnyDuckDb, root: Path, reading: Reading) -> Raw:
    """Returns the records of the query's result, in its order. Without `rows`, a private one has to be made of one
    row of a table.

    Raises:
        DataFault: a file is missing or damaged, the query is refused or fails, or its result is not what is declared.
    """
    by_row = reading.private and source.rows is None
    result = DataFile(Path(), f"data.{reading.role}.query", f"data.{reading.role}.query")
    files = {name: locate_files(paths, root) for name, paths in source.paths.items()}
    with open_result(source, files, by_row, result, reading) as opened:
        return collect_chunks(opened.chunks, source.columns, None, source.read_label, reading)


@final
@dataclass(frozen=True, slots=True)
class Result:
    """The result of a query: the names of its columns, and its rows."""

    names: list[str]
    chunks: Chunks


@contextmanager
def open_result(
    source: AnyDuckDb,
    files: Mapping[str, Sequence[DataFile]],
    by_row: bool,
    result: DataFile,
    reading: Limits,
    seconds: float | None = None,
) -> Iterator[Result]:
    """Yields the result of a source's query over the files of each table. `by_row`: each row of it has to be made of
    one row of a table. `result`: what messages call it. `seconds`: the most that it may take; None: however long.

    Raises:
        DataFault: a file is damaged, the query is refused or fails, takes too long, or selects no row.
    """
    finished = reading.problems.finished
    are_stored = all(format_of(file.path.name) == "parquet" for shards in files.values() for file in shards)
    with _connect(files, not by_row) as connection:
        limit = QueryTime(seconds, connection.interrupt)
        try:
            check_statement(connection, source.query, source.tables, by_row, result)
        except duckdb.Error as error:
            raise _refused(result, error, finished) from None
        for name, shards in files.items():
            connection.execute(f'CREATE VIEW "{name}" AS {_select_files(shards, source.delimiter)}')
        try:
            with limit.running():
                relation = connection.sql(source.query)
                names = list(relation.columns)
        except duckdb.Error as error:  # of the text: no row has been looked at
            raise _refused(result, error, finished) from None

        def chunks(wanted: tuple[str, ...], max_bytes: int) -> Iterator[ArrowChunk]:
            stored = find_columns(wanted, names, result, are_stored, finished)
            first = 0
            try:
                with limit.running():
                    batches = iter(relation.to_arrow_reader(BATCH_ROWS))
                while True:
                    with limit.running():
                        batch = next(batches, None)
                    if batch is None:
                        break
                    yield ArrowChunk(result, first, select_columns(batch, stored))
                    first += batch.num_rows
                    if first > reading.max_rows:
                        raise reading.problems.stop(reading.excess_fault())
            except (duckdb.Error, OSError) as error:  # its message may quote a value
                raise reading.problems.stop(_failed(result, error, finished)) from None
            if first == 0:
                raise result.fault("selects no row", "loosen the condition, or name other files")

        yield Result(names, chunks)


def _connect(files: Mapping[str, Sequence[DataFile]], single: bool) -> Any:
    """Returns a database in memory that may read these files and nothing else, and whose settings are final."""
    settings = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "temp_directory": "",  # nothing of private records on the disk
        "memory_limit": MEMORY,
        "preserve_insertion_order": True,
        "python_enable_replacements": False,
        **({"threads": 1} if single else {}),  # several may group and join in any order
    }
    connection = duckdb.connect(":memory:", config=settings)
    allowed = [str(file.path.resolve()) for shards in files.values() for file in shards]
    connection.execute(f"SET allowed_paths = [{', '.join(map(_quote, allowed))}]")
    connection.execute("SET enable_progress_bar = false")
    with suppress(duckdb.CatalogException):  # without its library for zones there are none
        connection.execute("SET TimeZone = 'UTC'")  # not the machine's: an hour would depend on it
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _select_files(files: Sequence[DataFile], delimiter: str) -> str:
    """Returns all rows of the files of a table."""
    paths = ", ".join(_quote(str(file.path.resolve())) for file in files)
    if format_of(files[0].path.name) == "parquet":
        types, shards = ColumnTypes(), ParquetShards()
        for file in files:
            _check_parquet(file, shards, types)
        return f"SELECT * FROM read_parquet([{paths}], union_by_name = false, hive_partitioning = false)"
    names = [_header(file, delimiter) for file in files]
    for file, own in zip(files, names, strict=True):
        if own != names[0]:
            raise file.fault("its header line is not that of the table's first file", "give all files the same columns")
    columns = ", ".join(f"{_quote(name)}: 'VARCHAR'" for name in names[0])
    return (
        f"SELECT * FROM read_csv([{paths}], columns = {{{columns}}}, header = true, auto_detect = false, "
        f"delim = {_quote(delimiter)}, quote = '\"', escape = '\"', strict_mode = true, hive_partitioning = false)"
    )


def _check_parquet(file: DataFile, shards: ParquetShards, types: ColumnTypes) -> None:
    """Checks that a file is Parquet, and its columns have the types of those before it."""
    try:
        shards.count_rows(file, tuple(pq.read_schema(file.path).names), types)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise shards.describe(file, error) from None


def _header(file: DataFile, delimiter: str) -> list[str]:
    try:
        with file.open() as stream:
            line = stream.readline(MAX_HEADER).decode("utf-8-sig").rstrip("\r\n")
    except (*READ_ERRORS, UnicodeDecodeError) as error:
        raise file.unreadable(error) from None
    names = normalise_texts(next(csv.reader([line], delimiter=delimiter), []))
    if not all(names) or len({name.lower() for name in names}) < len(names) or not names:
        raise file.fault(
            "its header line does not name each column once", "does the file begin with a header line? Name the columns"
        )
    return names


def check_statement(connection: Any, query: str, tables: Mapping[str, object], by_row: bool, result: DataFile) -> None:
    """Checks by DuckDB's own parser that a query is one SELECT of the tables alone and, if `by_row`, one whose rows are
    made one by one.

    Raises:
        DataFault: it is not.
    """
    parsed = json.loads(connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0])
    statements = parsed.get("statements", [])
    if parsed.get("error") or len(statements) != 1:
        message = str(parsed.get("error_message") or "it is not one SELECT").splitlines()[0]
        raise result.fault(f"the query is refused: {message}", "write one SELECT")
    node = statements[0]["node"]
    volatile = VOLATILE.union(name for (name,) in connection.execute(STATED).fetchall())
    reason = _find_foreign(node, tables, volatile) or (
        by_row and (find_reason(query, tables) or _find_other_rows(node))
    )
    if reason:
        raise result.fault(
            f"the query is refused: {reason}", "see docs/reference/findings/P144.md for what a query may be"
        )


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from _walk(value)


def _find_foreign(node: Any, tables: Mapping[str, object], volatile: Set[str]) -> str:
    """Returns the first thing that a query reads but the tables and its own parts of them, or asks of anything but the
    rows.

    Args:
        volatile: functions that no query may call.
    """
    own = {name.lower() for name in tables}
    for part in _walk(node):
        own |= {str(entry.get("key", "")).lower() for entry in part.get("cte_map", {}).get("map", [])}
    for part in _walk(node):
        kind = part.get("type")
        if kind == "BASE_TABLE" and (str(part.get("table_name")).lower() not in own or part.get("schema_name")):
            return f"{part.get('table_name')} is none of the tables {', '.join(sorted(tables))}"
        if kind in ("TABLE_FUNCTION", "SHOW_REF", "COLUMN_DATA", "DELIM_GET"):
            return "a table function reads something else than the tables"
        if part.get("sample") is not None:
            return "a sample is drawn at random"
        if part.get("class") == "FUNCTION" and part.get("function_name") in volatile:
            return f"{part['function_name']}(…) does not depend on the rows alone"
        if part.get("class") == "COLUMN_REF" and [str(n).lower() for n in part["column_names"]][-1] in VALUES:
            return f"{part['column_names'][-1]} does not depend on the rows alone"
    return ""


STATED = """
SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'
AND NOT (len(parameter_types) > 0
         AND regexp_matches(concat(CAST(parameter_types AS VARCHAR), return_type), 'TIME ZONE|TIMESTAMPTZ'))
"""
"""Finds functions that DuckDB itself states to depend on more than their values: the time, chance, the machine or a
setting. A time with a zone asks for the session's zone, which is UTC."""
VOLATILE = frozenset_of(
    """age ago assert_true current_catalog current_role current_user pg_conf_load_time pg_postmaster_start_time pg_sleep
    reservoir_quantile session_user user version"""
)
"""Others of that kind: DuckDB states nothing of macros, and the best of the rest. `age` of one time asks the clock."""


VALUES = frozenset_of(
    """current_catalog current_date current_role current_schema current_time current_timestamp current_user localtime
    localtimestamp session_user user rowid"""
)
"""Names that DuckDB reads as a function where no column has the name."""


def _find_other_rows(node: dict[str, Any]) -> str:
    """Explains why a row of the result may depend on several rows, by DuckDB's parser."""
    table = node.get("from_table") or {}
    if node.get("type") != "SELECT_NODE" or table.get("type") != "BASE_TABLE" or table.get("at_clause") is not None:
        return "it is not SELECT … FROM one table"
    for key, empty in EMPTY.items():
        if node.get(key, empty) != empty:
            return f"it has a clause that compares or counts rows ({key.replace('_', ' ')})"
    for part in _walk([node["select_list"], node.get("where_clause")]):
        kind = part.get("class")
        if kind is not None and kind not in CLASSES:
            return f"an expression of the class {kind} may look at other rows"
        if kind == "FUNCTION":
            name = str(part.get("function_name")).lower()
            if part.get("filter") is not None or part.get("distinct") or (part.get("order_bys") or {}).get("orders"):
                return f"{name}(…) is used as an aggregate"
            if name not in FUNCTIONS and not (name in OPERATORS and part.get("is_operator")):
                return f"{name}(…) is no function of one row's values that is known here"
    return ""


def _failed(result: DataFile, error: Exception, finished: bool) -> DataFault:
    """Returns the fault where the query fails on a row. DuckDB's own words may quote it."""
    remedy = "use TRY_CAST and try_strptime where a field may be anything, which give NULL, and declare what is missing"
    return result.fault(
        f"the query fails on a row ({type(error).__name__})",
        "correct the field that it can't compute with, or leave the row out" if finished else remedy,
    )


def _refused(result: DataFile, error: Exception, finished: bool) -> DataFault:
    remedy = "mend the query; each table has the columns of its files"
    return result.fault(
        f"the query is refused: {str(error).splitlines()[0]}",
        "give each table the columns that the query names; that of a label may be empty" if finished else remedy,
    )


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
