"""`duckdb`: queries over files. What may be asked, what may be read, and what a result has to be."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.checks import check_data
from dprecipe.data.disjoint import check_files
from dprecipe.data.load import load, read
from dprecipe.data.query import FUNCTIONS
from dprecipe.data.records import Records
from dprecipe.faults import DataFault
from dprecipe.training.program.file_digests import digest_files
from tests.data.test_query import BY_ROW, OTHER

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")
read_duckdb = pytest.importorskip("dprecipe.data.sources.read_duckdb")

COLUMNS = {"age": {"kind": "numeric", "min": 0, "max": 100}}
LABEL = {"column": "ill", "values": ["no", "yes"]}
QUERY = "SELECT who, age, ill FROM visits"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, ages in {"visits/b": [30, 40], "visits/a": [10, 20], "other": [50]}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        table = {"who": [f"P{age % 20}" for age in ages], "age": ages, "ill": ["no", "yes"][: len(ages)]}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
    (tmp_path / "labs.csv").write_text('who,value,note\nP10,007,"a, b"\nP0,,x\nP10,7.50,"say ""x"""\n')
    (tmp_path / "secret.csv").write_text("k\nSECRET\n")
    return tmp_path


@pytest.fixture
def ask(root: Path, block):
    def make(query: str = QUERY, size: int = 4, unit: object = "record", **source: Any) -> Records:
        whole = {"source": "duckdb", "tables": {"visits": "visits/*.parquet", "labs": "labs.csv"}, "query": query}
        data = block({**whole, "columns": COLUMNS, "label": LABEL, **source}, size=size, unit=unit)
        assert check_data(data) == []
        return load(data.train, data, root, "train")

    return make


def ages(records: Records) -> list[float]:
    return [round(float(age) * 100, 3) for age in records.features[:, 0]]


def test_the_result_is_the_table_of_records(ask) -> None:
    assert ages(ask()) == [10, 20, 30, 40]
    assert ask().labels.tolist() == [0, 1, 0, 1]
    query = "SELECT who, age / 2 AS age, CASE WHEN age > 25 THEN 'yes' ELSE 'no' END AS ill FROM visits WHERE age <> 20"
    records = ask(query, 3)
    assert ages(records) == [5, 15, 20]
    assert records.labels.tolist() == [0, 1, 1]
    assert ask(size=2, unit={"column": "who", "max_records": 1}).units.tolist() == [0, 1]
    with pytest.raises(DataFault, match="does not have the number of records"):
        ask(size=3)


def test_columns_of_csv_are_texts_whatever_they_hold(ask, root: Path) -> None:
    """A column that DuckDB takes for numbers would be read otherwise once one record holds a word."""
    query = "SELECT who AS note, value AS x, 'no' AS ill FROM labs WHERE who = 'P10'"
    numbers = {"columns": {"x": {"kind": "numeric", "min": 0, "max": 10}}, "label": LABEL}
    assert ages(ask(query, 2, **numbers)) == [70, 75]
    query = "SELECT TRY_CAST(value AS DOUBLE) AS x, 'no' AS ill FROM labs WHERE value IS NOT NULL"
    assert ages(ask(query, 2, **numbers)) == [70, 75]


def test_batches_change_nothing(ask, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 5000
    table = pa.table({"who": np.arange(count).astype(str), "age": np.arange(count) % 100, "ill": ["no"] * count})
    pq.write_table(table, root / "visits/a.parquet", row_group_size=700)
    (root / "visits/b.parquet").unlink()
    monkeypatch.setattr(read_duckdb, "BATCH_ROWS", 100)
    np.testing.assert_allclose(ages(ask(size=count)), np.arange(count) % 100)
    monkeypatch.setattr(read_duckdb, "BATCH_ROWS", 9000)
    np.testing.assert_allclose(ages(ask(size=count)), np.arange(count) % 100)
    with pytest.raises(DataFault, match="does not have the number of records"):
        ask(size=count - 1)


BAD = {
    "a column that is not there": (
        "SELECT Age, ill FROM visits WHERE agee > 1",
        {},
        'Referenced column "agee" not found',
    ),
    "a column that is not in the result": ("SELECT who, ill FROM visits", {}, "has no column 'age'"),
    "a column twice": ("SELECT age, age, ill FROM visits", {}, "has more than one column 'age'"),
    "a word that is no number": ("SELECT CAST(who AS DOUBLE) AS age, ill FROM visits", {}, "the query fails on a row"),
    "no row": ("SELECT age, ill FROM visits WHERE age > 99", {}, "selects no row"),
    "a label": ("SELECT age, who AS ill FROM visits", {}, "column 'ill': a label is not among the 2"),
    "no file": (QUERY, {"tables": {"visits": "absent/*.parquet"}}, "the pattern matches no file"),
    "no parquet": (QUERY, {"tables": {"visits": "fake.parquet"}}, "is not a Parquet file"),
    "a header without names": (QUERY, {"tables": {"visits": "twice.csv"}}, "does not name each column once"),
    "other columns": (
        QUERY,
        {"tables": {"visits": ["labs.csv", "secret.csv"]}},
        "is not that of the table's first file",
    ),
    "another type": (
        QUERY,
        {"tables": {"visits": ["other.parquet", "texts.parquet"]}},
        "holds texts, and integers in a",
    ),
    "a broken row": (
        "SELECT k AS age, 'no' AS ill FROM visits",
        {"tables": {"visits": "broken.csv"}},
        "fails on a row",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_a_fault(ask, root: Path, name: str) -> None:
    (root / "fake.parquet").write_text("SECRET")
    (root / "twice.csv").write_text("a,A\n1,2\n")
    (root / "broken.csv").write_text('k,l\n"SECRET,1\nSECRET,2,3\n')
    pq.write_table(pa.table({"who": ["P"], "age": ["SECRET"], "ill": ["no"]}), root / "texts.parquet")
    query, source, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        ask(query, **source)
    assert "SECRET" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"
    assert "P10" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"
    assert caught.value.__suppress_context__ or caught.value.__cause__ is None


def declared(query: str) -> dict[str, Any]:
    return {"query": query, "rows": "declared"}


@pytest.mark.parametrize("query", ["SELECT * FROM labs", "SELECT labs.* FROM labs", "SELECT agee FROM labs"])
def test_the_first_record_of_a_file_without_a_header_is_not_told(ask, root: Path, query: str) -> None:
    (root / "labs.csv").write_text("P17,63,SECRET,yes\nP18,44,er,no\n")
    with pytest.raises(DataFault) as caught:
        ask(query)
    told = f"{caught.value} {caught.value.remedy}"
    assert not [field for field in ("P17", "63", "SECRET") if field in told]


def test_a_declared_query_may_join_and_group(ask) -> None:
    query = "SELECT who, avg(age) AS age, max(ill) AS ill FROM visits GROUP BY who ORDER BY who"
    unit = {"column": "who", "max_records": 1}
    records = ask(size=2, unit=unit, **declared(query))
    assert sorted(ages(records)) == [20, 30]
    for _ in range(3):
        np.testing.assert_array_equal(ask(size=2, unit=unit, **declared(query)).features, records.features)
    query = """WITH last AS (SELECT who, max(value) AS value FROM labs GROUP BY who)
    SELECT v.who, age, ill FROM visits v JOIN last USING (who)"""
    assert sorted(ages(ask(size=2, unit={"column": "who", "max_records": 2}, **declared(query)))) == [10, 20, 30, 40]


def test_no_unit_s_rows_are_cut_where_other_units_may_decide_their_order(ask, root: Path) -> None:
    """DuckDB builds a join's table of the smaller side: more rows of others give P0's another order."""
    query = "SELECT who, age, ill FROM visits JOIN labs USING (who)"
    with pytest.raises(DataFault, match=r"a unit has more than the 1 rows that data\.unit\.max_records") as caught:
        ask(size=2, unit={"column": "who", "max_records": 1}, **declared(query))
    assert "QUALIFY row_number() OVER (PARTITION BY who ORDER BY …) <= 1" in caught.value.remedy
    kept = f"{query} QUALIFY row_number() OVER (PARTITION BY who ORDER BY age) <= 1"
    assert len(ask(size=2, unit={"column": "who", "max_records": 1}, **declared(kept))) == 2
    assert len(ask(size=2, unit={"column": "who", "max_records": 9}, **declared(query))) > 2
    assert len(ask(size=2, unit={"column": "who", "max_records": 1})) == 2  # a table has an order, and is cut


OUTSIDE = [
    "SELECT * FROM read_csv('{}/secret.csv')",
    "SELECT * FROM '{}/secret.csv'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('{}/*')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('https://example.org/x.parquet')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM sniff_csv('{}/secret.csv')",
    "SELECT * FROM visits WHERE age IN (SELECT age FROM read_parquet('{}/other.parquet'))",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM visits USING SAMPLE 50%",
    "SELECT age, random() AS x FROM visits",
    "SELECT age, now() AS x FROM visits",
    "SELECT age, current_date AS x FROM visits",
    "SELECT age, uuid() AS x FROM visits",
    "SELECT age(timestamp '2020-01-01') AS x FROM visits",
    "SELECT age, ago(INTERVAL 1 DAY) AS x FROM visits",
    "SELECT age, pg_postmaster_start_time() AS x FROM visits",
    "SELECT age, current_connection_id() AS x FROM visits",
    "SELECT age, current_setting('allowed_paths') AS x FROM visits",
    "SELECT age, getvariable('x') AS x FROM visits",
    "ATTACH '{}/new.db'",
    "COPY visits TO '{}/new.csv'",
    "COPY (SELECT 1) TO '{}/new.csv'",
    "EXPORT DATABASE '{}/new'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "RESET lock_configuration",
    "PRAGMA database_list",
    "CREATE TABLE new AS SELECT 1",
    "DROP VIEW visits",
    "SELECT 1; SELECT 2",
    "SELECT * FROM visits; COPY visits TO '{}/new.csv'",
    "EXPLAIN ANALYZE SELECT * FROM visits",
    "FROM labs SELECT 1 WHERE (SELECT count(*) FROM read_csv('{}/secret.csv')) > 0",
]


@pytest.mark.parametrize("query", OUTSIDE)
def test_nothing_else_is_read_and_nothing_written(ask, root: Path, query: str) -> None:
    before = sorted(root.rglob("*"))
    with pytest.raises(DataFault, match=r"data\.train\.query: the query is refused") as caught:
        ask(**declared(query.format(root)))
    assert "SECRET" not in f"{caught.value} {caught.value.private}"
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("query", [query for query in OUTSIDE if "{}" in query or "/" in query or "SET" in query])
def test_duckdb_itself_refuses_too(root: Path, query: str) -> None:
    """If the check of the query missed something: the connection can read the tables' files, and nothing else."""
    files = {"visits": [read_duckdb.DataFile.of(root / "visits/a.parquet")]}
    with read_duckdb._connect(files, False) as connection:
        connection.execute(f'CREATE VIEW "visits" AS {read_duckdb._select_files(files["visits"], ",")}')
        connection.execute("CREATE VIEW labs AS SELECT 1 AS one")
        if "getvariable" in query or "current_setting" in query:
            return
        with pytest.raises(duckdb.Error):
            connection.execute(query.format(root)).fetchall()
        assert not any(path.name.startswith("new") for path in root.rglob("*"))


HARMLESS = ("--", "/*", "E'", "$$", "x'", "x, x, x", " WINDOW w ", "#1", "COLUMNS(")
"""Of queries that the words refuse because they are not known, not because of other rows."""


def test_duckdb_s_parser_agrees_with_the_text(root: Path) -> None:
    """Whatever the words of a query let through, DuckDB's parser finds to be made row by row; and the other way round
    it refuses each query that the words refuse because of other rows."""
    result = read_duckdb.DataFile(Path(), "q", "q")
    tables = {"visits": (), "labs": ()}
    with read_duckdb._connect({}, False) as connection:
        for query in BY_ROW:
            read_duckdb.check_statement(connection, query, tables, True, result)
        checked = 0
        for query, _ in OTHER.values():
            parsed = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0]
            statements = json.loads(parsed).get("statements", [])
            if len(statements) != 1 or any(word in query for word in HARMLESS) or query == "FROM visits":
                continue
            node = statements[0]["node"]
            assert read_duckdb._find_foreign(node, tables, read_duckdb.VOLATILE) or read_duckdb._find_other_rows(
                node
            ), query
            checked += 1
        assert checked > 30


def test_functions_are_what_duckdb_says_they_are() -> None:
    """Each is a scalar function that gives the same for the same values, in all of its forms. Of times with a zone it
    may depend on the session's zone too, which is fixed."""
    forms: dict[str, set[tuple[str, str]]] = {}
    columns = "function_name, function_type, stability, parameter_types"
    for name, kind, stability, types in duckdb.sql(f"SELECT {columns} FROM duckdb_functions()").fetchall():
        zoned = stability == "CONSISTENT_WITHIN_QUERY" and any(
            word in str(types) for word in ("TIME ZONE", "TIMESTAMPTZ")
        )
        forms.setdefault(name, set()).add((kind, "CONSISTENT" if zoned else stability))
    known = FUNCTIONS & forms.keys()
    assert len(known) > 70
    wrong = {name: forms[name] for name in known if not forms[name] <= {("scalar", "CONSISTENT"), ("macro", None)}}
    assert wrong == {}
    assert FUNCTIONS - forms.keys() <= {"coalesce", "if", "ifnull", "nullif"}  # of the grammar


def test_no_function_that_may_be_called_asks_for_more_than_its_values(root: Path) -> None:
    """Neither one that DuckDB states to do so, nor a macro that is made of such."""
    with read_duckdb._connect({}, False) as connection:
        volatile = read_duckdb.VOLATILE | {name for (name,) in connection.execute(read_duckdb.STATED).fetchall()}
        macros = connection.execute(
            "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
        ).fetchall()
    assert {"now", "today", "random", "uuid", "nextval", "current_setting", "getvariable"} <= volatile
    assert not volatile & (FUNCTIONS | {"timezone", "make_timestamptz"})
    asked = volatile - {"error"} | read_duckdb.VALUES  # an error of a value is raised, which tells nothing of the time
    calls = {name: set(re.findall(r"[a-z_]+", definition or "")) & asked for name, definition in macros}
    assert len(calls) > 100
    assert {name for name, found in calls.items() if found} <= volatile


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_machine_s_time_zone_changes_nothing(root: Path, zone: str) -> None:
    time = datetime(2024, 6, 1, 20, 30, tzinfo=UTC)
    pq.write_table(pa.table({"seen": pa.array([time], pa.timestamp("us", "UTC"))}), root / "times.parquet")
    program = """
import sys
from pathlib import Path
from dprecipe.data.files import DataFile
from dprecipe.data.sources.read_duckdb import _connect, _select_files
files = {"times": [DataFile.of(Path(sys.argv[1]))]}
with _connect(files, True) as connection:
    rows = f"({_select_files(files['times'], ',')})"
    query = f"SELECT hour(seen), day(seen), CAST(seen AS VARCHAR) FROM {rows}"
    print(connection.execute(query).fetchall())
"""
    command = [sys.executable, "-c", program, str(root / "times.parquet")]
    printed = subprocess.run(command, env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == "[(20, 1, '2024-06-01 20:30:00+00')]"


def test_a_public_table_is_no_training_file(root: Path, block) -> None:
    source = {"source": "duckdb", "query": "SELECT age, 'no' AS ill FROM visits", "columns": COLUMNS}
    train = {**source, "tables": {"visits": "visits/*.parquet"}, "label": LABEL}
    data = block(train, public={**source, "tables": {"visits": "other.parquet"}})
    check_files(data, root)
    assert len(load(data.public, data, root, "public")) == 1
    data = block(train, public={**source, "tables": {"visits": ["other.parquet", "visits/b.parquet"]}})
    with pytest.raises(DataFault, match=r"data\.public is declared public, but this is or holds a file"):
        check_files(data, root)
    assert list(digest_files(data.train, root)) == ["a.parquet", "b.parquet"]


def test_what_contradicts_itself(block) -> None:
    source = {"source": "duckdb", "tables": {"visits": "a.parquet"}, "query": QUERY, "columns": COLUMNS, "label": LABEL}
    cases: dict[str, dict[str, object]] = {
        "R240": {"tables": {"visits": "../*.parquet"}},
        "R242": {"tables": {"visits": "a.xlsx"}},
        "R243": {"rows": "declared"},
        "R217": {"delimiter": "é"},
    }
    for code, change in cases.items():
        assert [finding.code for finding in check_data(block({**source, **change}))] == [code]
    mixed = {**source, "tables": {"visits": ["a.parquet", "b.csv"]}}
    assert [finding.code for finding in check_data(block(mixed))] == ["R242"]


def test_no_home_no_settings_of_others(ask, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of settings in the user's folder is not run."""
    monkeypatch.setenv("HOME", str(root))
    (root / ".duckdbrc").write_text("this is no SQL")
    assert len(ask()) == 4
    assert os.environ["HOME"] == str(root)
    assert not (root / ".duckdb").exists()


def test_a_copy_is_kept_by_query_and_files(root: Path, block) -> None:
    source = {"source": "duckdb", "tables": {"visits": "visits/*.parquet"}, "columns": COLUMNS, "label": LABEL}
    for query, expected in ((QUERY, [10, 20, 30, 40]), (QUERY.replace("age,", "age + 1 AS age,"), [11, 21, 31, 41])):
        for _ in range(2):
            data = block({**source, "query": query})
            records = read(data.train, data, root, "train", copies=root / "copies")[0].prepared()
            assert ages(records) == expected


def test_csv_as_people_have_it(ask, root: Path) -> None:
    """Gzipped, with a mark of byte order, semicolons, quotes and Windows line ends."""
    text = '\ufeffPatient;"Alter";Krank\r\n"P1";"30";no\r\nP2;40;"yes"\r\n'
    (root / "de.csv.gz").write_bytes(gzip.compress(text.encode()))
    query = 'SELECT Patient AS who, CAST("Alter" AS DOUBLE) AS age, Krank AS ill FROM visits'
    records = ask(query, 2, tables={"visits": "de.csv.gz"}, delimiter=";", unit={"column": "who", "max_records": 1})
    assert ages(records) == [30, 40]
    assert records.labels.tolist() == [0, 1]


def test_the_machine_s_time_zone_decides_nothing() -> None:
    with read_duckdb._connect({}, single=True) as connection:
        assert connection.sql("SELECT current_setting('TimeZone')").fetchall() == [("UTC",)]
