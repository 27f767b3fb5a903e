"""`dprecipe predict`: files of all forms that training reads, the columns that are kept, records that can't be read."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import pyarrow.parquet as pq  # noqa: E402

from dprecipe import screen  # noqa: E402
from dprecipe.data.schema import Data  # noqa: E402
from dprecipe.models.load import load  # noqa: E402
from dprecipe.recipe.read import read_text  # noqa: E402
from tests.cli.test_predict import IMAGES, ROWS, TABLE, call, expected_of, make_release, rows_of, write_csv  # noqa: E402

PEOPLE = TABLE.replace("  size: 1000\n", "  size: 1000\n  unit: {column: id, max_records: 2}\n")
QUERY = TABLE.replace(
    "    source: csv\n    path: t.csv\n",
    "    source: duckdb\n    tables: {visits: v.csv}\n"
    "    query: SELECT id, CAST(years AS DOUBLE) AS age, sex, ill FROM visits\n",
).replace("  size: 1000\n", "  size: 1000\n  unit: {column: id, max_records: 2}\n")
VECTORS = """\
recipe: dprecipe/v1
name: vectors
data:
  train: {source: npz, path: t.npz, features: x, labels: y, shape: [3], classes: 2}
  size: 1000
""" + TABLE[TABLE.index("model:") :]
assert PEOPLE != TABLE
assert "duckdb" in QUERY


@pytest.fixture
def release(tmp_path: Path) -> Path:
    make_release(tmp_path / "release", TABLE)
    return tmp_path / "release"


@pytest.fixture
def trained_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the release's certificate hold a recipe."""

    def hold(recipe: str) -> None:
        data: Data = read_text(recipe).recipe.data
        monkeypatch.setattr("dprecipe.cli.predict.read_training_data", lambda release, verified: data)

    return hold


def records() -> list[dict[str, Any]]:
    return [{"id": name, "age": float(age) if age else None, "sex": sex} for name, age, sex in ROWS]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_json_lines_are_read_and_written(release: Path, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "new.jsonl", records())
    out = tmp_path / "out.jsonl"
    done = call(release, file, "--no-verify", "--keep", "id", "--keep", "age", "--probabilities", "--out", out)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["id"], row["age"], row["prediction"]) for row in rows] == list(
        zip("abcd", (50.0, None, 1000.0, 7.0), expected_of(release), strict=True)
    )
    assert all(row["probability_no"] + row["probability_yes"] == pytest.approx(1) for row in rows)
    renamed = file.rename(tmp_path / "new.txt")  # its first byte says what it is
    assert [row["prediction"] for row in rows_of(call(release, renamed, "--no-verify").stdout)] == expected_of(release)


def test_several_files_of_any_form_make_one_output(release: Path, tmp_path: Path) -> None:
    rows = records()
    first = write_csv(tmp_path / "1.csv", ROWS[:1], ";")
    second = write_lines(tmp_path / "2.jsonl", rows[1:2])
    pq.write_table(pa.table({name: [row[name] for row in rows[2:]] for name in rows[0]}), tmp_path / "3.parquet")
    done = call(release, first, second, tmp_path / "3.parquet", "--no-verify", "--keep", "id")
    assert done.exit_code == 0, done.output
    assert [row["id"] for row in rows_of(done.stdout)] == list("abcd")
    assert [row["prediction"] for row in rows_of(done.stdout)] == expected_of(release)


def test_a_folder_of_datasets(release: Path, tmp_path: Path) -> None:
    rows = records()
    (tmp_path / "hub" / "data").mkdir(parents=True)
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    pq.write_table(table, tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
    done = call(release, tmp_path / "hub", "--no-verify", "--keep", "id")
    assert [row["prediction"] for row in rows_of(done.stdout)] == expected_of(release)
    pq.write_table(table, tmp_path / "hub" / "data" / "test-00000-of-00001.parquet")
    refused = call(release, tmp_path / "hub", "--no-verify")
    assert (refused.exit_code, "name the folder of one split, or its Parquet files" in refused.stderr) == (4, True)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_the_units_column_is_kept(release: Path, tmp_path: Path, trained_on: Callable[[str], None], form: str) -> None:
    trained_on(PEOPLE)
    file = tmp_path / f"new.{form}"
    if form == "csv":
        write_csv(file)
    elif form == "jsonl":
        write_lines(file, records())
    else:
        pq.write_table(pa.table({name: [row[name] for row in records()] for name in records()[0]}), file)
    assert [row["id"] for row in rows_of(call(release, file, "--no-verify").stdout)] == list("abcd")
    assert list(rows_of(call(release, file, "--no-verify", "--keep", "sex").stdout)[0]) == ["sex", "prediction"]


def test_a_units_column_that_the_file_does_not_have_is_not_asked_for(
    release: Path, tmp_path: Path, trained_on: Callable[[str], None]
) -> None:
    trained_on(PEOPLE)
    (tmp_path / "new.csv").write_text("age,sex\n50,m\n")
    assert list(rows_of(call(release, tmp_path / "new.csv", "--no-verify").stdout)[0]) == ["prediction"]


def test_the_query_of_training_is_run(release: Path, tmp_path: Path, trained_on: Callable[[str], None]) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    trained_on(QUERY)
    (tmp_path / "a.csv").write_text("id,years,sex,ill\na,50,m,\nb,,f,\n")
    (tmp_path / "b.csv").write_text("id,years,sex,ill\nc,1000,x,\nd,7,f,\n")
    done = call(release, f"visits={tmp_path / 'a.csv'}", f"visits={tmp_path / 'b.csv'}", "--no-verify")
    assert done.exit_code == 0, done.output
    assert [row["id"] for row in rows_of(done.stdout)] == list("abcd")
    assert [row["prediction"] for row in rows_of(done.stdout)] == expected_of(release)
    made = write_csv(tmp_path / "result.csv")  # the result itself
    assert [row["prediction"] for row in rows_of(call(release, made, "--no-verify").stdout)] == expected_of(release)


def test_what_a_query_needs_is_said(release: Path, tmp_path: Path, trained_on: Callable[[str], None]) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    file = write_csv(tmp_path / "new.csv")
    refused = call(release, f"visits={file}", "--no-verify")
    assert (refused.exit_code, "the release has no query of tables" in refused.stderr) == (2, True)
    trained_on(QUERY)
    (tmp_path / "a.csv").write_text("id,years,sex\na,50,m\n")
    refused = call(release, tmp_path / "a.csv", "--no-verify")
    assert (refused.exit_code, "name the query's tables, and it is run on them: visits=FILE" in refused.stderr) == (
        4,
        True,
    )
    refused = call(release, f"visits={tmp_path / 'a.csv'}", "--no-verify")  # without the label's column
    assert (refused.exit_code, "give each table the columns that the query names" in refused.stderr) == (4, True)
    refused = call(release, f"people={file}", "--no-verify")
    assert (refused.exit_code, "has visits" in refused.stderr) == (2, True)
    assert call(release, f"visits={tmp_path / 'none.csv'}", "--no-verify").exit_code == 2


SLOW = QUERY.replace(
    "SELECT id, CAST(years AS DOUBLE) AS age, sex, ill FROM visits",
    "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n) "
    "SELECT id, CAST(years AS DOUBLE) AS age, sex, ill FROM visits, n WHERE i < 0\n    rows: declared",
)


def test_a_query_that_never_ends_is_interrupted(
    release: Path, tmp_path: Path, trained_on: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb", reason="duckdb is not installed")
    assert SLOW != QUERY
    monkeypatch.setattr("dprecipe.data.sources.query_time.LEAST_SECONDS", 1.0)
    trained_on(SLOW)
    (tmp_path / "a.csv").write_text("id,years,sex,ill\na,50,m,\n")
    refused = call(release, f"visits={tmp_path / 'a.csv'}", "--no-verify", "--out", tmp_path / "out.csv")
    assert refused.exit_code == 4
    assert "the query takes longer than 1 s, the most for files of this size" in refused.stderr
    assert not (tmp_path / "out.csv").exists()


POSTGRES = QUERY.replace("duckdb", "postgres").replace(
    "tables: {visits: v.csv}", "connection: WARD_DB\n    tables: {visits: ward.visits}"
)


def test_a_release_of_a_database_reads_its_querys_result(
    release: Path, tmp_path: Path, trained_on: Callable[[str], None]
) -> None:
    trained_on(POSTGRES)
    made = write_csv(tmp_path / "result.csv")
    assert [row["prediction"] for row in rows_of(call(release, made, "--no-verify").stdout)] == expected_of(release)
    (tmp_path / "a.csv").write_text("id,years,sex\na,50,m\n")
    for name, code in ((tmp_path / "a.csv", 4), (f"visits={tmp_path / 'a.csv'}", 2)):
        refused = call(release, name, "--no-verify")
        assert (refused.exit_code, "psql: \\copy (SELECT" in refused.stderr) == (code, True), refused.output
    for address in ("postgresql://me:secret@db/ward", "visits=postgresql://me:secret@db/ward"):
        refused = call(release, address, "--no-verify")
        assert (refused.exit_code, "postgresql:…: no address is opened" in refused.stderr) == (2, True)
        assert "secret" not in refused.output


def test_arrays_of_an_archive(tmp_path: Path, trained_on: Callable[[str], None]) -> None:
    make_release(tmp_path / "release", VECTORS)
    trained_on(VECTORS)
    x = np.random.default_rng(0).normal(size=(5, 3))
    np.savez(tmp_path / "new.npz", x=x, id=np.array(list("abcde")))
    expected = load(tmp_path / "release").predict(x)
    done = call(tmp_path / "release", tmp_path / "new.npz", "--no-verify", "--keep", "id")
    assert done.exit_code == 0, done.output
    assert [(row["id"], int(row["prediction"])) for row in rows_of(done.stdout)] == list(
        zip("abcde", expected, strict=True)
    )
    x[2, 1] = np.nan
    np.savez(tmp_path / "bad.npz", x=x)
    refused = call(tmp_path / "release", tmp_path / "bad.npz", "--no-verify")
    assert (refused.exit_code, "a record has a number that is not finite" in refused.stderr) == (4, True)
    done = call(tmp_path / "release", tmp_path / "bad.npz", "--no-verify", "--allow-unreadable", "--probabilities")
    rows = rows_of(done.stdout)
    assert [row["prediction"] for row in rows] == [*map(str, expected[:2]), "", *map(str, expected[3:])]
    assert (rows[2]["probability_0"], rows[1]["probability_0"] != "") == ("", True)


def test_long_arrays_are_read_in_parts_with_their_names(
    tmp_path: Path, trained_on: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprecipe.data import archive

    monkeypatch.setattr(archive, "CHUNK_BYTES", 240)  # ten records, and sixty names
    make_release(tmp_path / "release", VECTORS)
    trained_on(VECTORS)
    names = [f"{number:04}" for number in range(103)]
    np.savez(tmp_path / "new.npz", x=np.zeros((103, 3)), id=np.array(names))
    done = call(tmp_path / "release", tmp_path / "new.npz", "--no-verify", "--keep", "id")
    assert [row["id"] for row in rows_of(done.stdout)] == names


def test_images_of_idx_and_of_an_archive(tmp_path: Path) -> None:
    recipe = IMAGES.replace(
        "    source: parquet\n    path: t.parquet\n    image: {column: image, shape: [8, 8, 1]}\n"
        "    label: {column: y, classes: 10}\n",
        "    source: idx\n    images: i\n    labels: l\n    shape: [8, 8]\n    classes: 10\n",
    )
    assert "idx" in recipe
    make_release(tmp_path / "release", recipe)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8), dtype=np.uint8)
    header = bytes((0, 0, 8, 3)) + struct.pack(">3I", 3, 8, 8)
    (tmp_path / "new.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
    np.savez(tmp_path / "new.npz", features=pixels)
    expected = [str(one) for one in load(tmp_path / "release").predict(pixels)]
    for name in ("new.gz", "new.npz"):
        done = call(tmp_path / "release", tmp_path / name, "--no-verify")
        assert done.exit_code == 0, done.output
        assert [row["prediction"] for row in rows_of(done.stdout)] == expected
    np.savez(tmp_path / "other.npz", features=pixels[:, :4])
    (tmp_path / "other.idx").write_bytes(bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 4, 4) + bytes(16))
    for name in ("other.npz", "other.idx"):
        refused = call(tmp_path / "release", tmp_path / name, "--no-verify")
        assert (refused.exit_code, "shape" in refused.stderr) == (4, True)
        assert not any(word in refused.stderr for word in ("recipe", "declare", "`"))


def test_a_folder_of_images_is_kept_by_its_files(tmp_path: Path) -> None:
    from PIL import Image

    make_release(tmp_path / "release", IMAGES)
    (tmp_path / "pictures" / "x").mkdir(parents=True)
    for name in ("x/a.png", "b.png"):
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "pictures" / name)
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify")
    assert [row["file"] for row in rows_of(done.stdout)] == ["b.png", "x/a.png"]
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--keep", "folder")
    assert [row["folder"] for row in rows_of(done.stdout)] == ["", "x"]
    (tmp_path / "t.csv").write_text("kind,file\nq,x/a.png\n")
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--table", tmp_path / "t.csv")
    assert [row["file"] for row in rows_of(done.stdout)] == ["x/a.png"]
    (tmp_path / "pictures" / "c.png").write_bytes(b"none")
    done = call(tmp_path / "release", tmp_path / "pictures", "--no-verify", "--allow-unreadable")
    assert [row["file"] for row in rows_of(done.stdout) if row["prediction"] == ""] == ["c.png"]


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "is_watched", lambda: True)
    monkeypatch.setattr("dprecipe.cli.guard.is_watched", lambda: True, raising=False)


WHOLE = TABLE.replace("{kind: numeric, min: 0, max: 100, missing: 40}", "{kind: integer, min: 0, max: 100}")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_records_that_cant_be_read(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column is declared as whole numbers; a later file has fractions, and no one can change the recipe."""
    assert WHOLE != TABLE
    make_release(tmp_path / "release", WHOLE)
    rows = [("a", "50", "m"), ("b", "7.5", "f"), ("c", "8", "f"), ("d", "", "f"), ("e", "9.25", "m")]
    file, out = write_csv(tmp_path / "new.csv", rows), tmp_path / f"out.{ending}"
    refused = call(tmp_path / "release", file, "--no-verify", "--out", out)
    assert refused.exit_code == 4
    assert "a field is a number with a fraction" in refused.stderr
    assert "--allow-unreadable leaves the prediction of such a record empty" in refused.stderr
    assert "line 3" not in refused.stderr  # a log must not say where
    assert not out.exists()
    watch(monkeypatch)
    done = call(tmp_path / "release", file, "--no-verify", "--out", out, "--allow-unreadable", "--keep", "id")
    assert done.exit_code == 0, done.output
    assert "records that can't be read have an empty prediction (3)" in done.stderr
    assert "column 'age': a field is a number with a fraction (line 3, line 6)" in done.stderr
    assert "column 'age': a field is empty (line 5)" in done.stderr
    if ending == "parquet":
        written = {row["id"]: row["prediction"] for row in pq.read_table(out).to_pylist()}
    elif ending == "jsonl":
        written = {row["id"]: row["prediction"] for row in map(json.loads, out.read_text().splitlines())}
    else:
        written = {row["id"]: row["prediction"] or None for row in csv.DictReader(io.StringIO(out.read_text()))}
    model = load(tmp_path / "release")
    expected = model.predict([{"age": 50, "sex": "m"}, {"age": 8, "sex": "f"}]).tolist()
    assert written == {"a": expected[0], "b": None, "c": expected[1], "d": None, "e": None}


def test_a_file_of_which_no_record_can_be_read_is_refused(tmp_path: Path) -> None:
    make_release(tmp_path / "release", WHOLE)
    file = write_csv(tmp_path / "new.csv", [("a", "x", "m"), ("b", "y", "m")])
    done = call(tmp_path / "release", file, "--no-verify", "--allow-unreadable", "--out", tmp_path / "out.csv")
    assert (done.exit_code, (tmp_path / "out.csv").exists()) == (4, False)


def test_progress_is_for_what_takes_long_and_for_a_terminal(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprecipe import progress

    shown: list[tuple[int, bool]] = []

    class Watched:
        def __init__(self, what: str, unit: str, total: int | None, *, private: bool) -> None:
            self._private = private

        def show(self, done: int) -> None:
            shown.append((done, self._private))

        end = show

    file = write_csv(tmp_path / "new.csv", times=1000)
    monkeypatch.setattr(progress, "Progress", Watched)
    call(release, file, "--no-verify", "--out", tmp_path / "1.csv")
    assert shown == []
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    call(release, file, "--no-verify", "--out", tmp_path / "2.csv")
    assert shown[-1] == (4000, True)
    assert len(shown) > 1


def test_half_a_letter_is_written_escaped(release: Path, tmp_path: Path) -> None:
    rows = records()
    rows[0]["id"] = "\ud800"
    file = write_lines(tmp_path / "new.jsonl", rows)
    for ending in ("csv", "jsonl", "parquet"):
        out = tmp_path / f"out.{ending}"
        done = call(release, file, "--no-verify", "--keep", "id", "--out", out)
        assert done.exit_code == 0, done.output
        assert b"\\ud800" in out.read_bytes()


def test_columns_without_a_name_and_a_blank_first_line(release: Path, tmp_path: Path) -> None:
    """What pandas and R write: read by training, and so by predict."""
    (tmp_path / "new.csv").write_text("\n,age,sex\n0,50,m\n1,,f\n2,1000,x\n3,7,f\n")
    done = call(release, tmp_path / "new.csv", "--no-verify")
    assert [row["prediction"] for row in rows_of(done.stdout)] == expected_of(release)


@pytest.mark.parametrize("column", [{"kind": "integer", "min": 17 * 10**17, "max": 17 * 10**17 + 100}, {"kind": "x"}])
def test_a_range_that_is_empty_in_doubles_predicts_nothing(
    release: Path, tmp_path: Path, column: dict[str, Any]
) -> None:
    described = json.loads((release / "model.json").read_text())
    described["columns"]["age"] = column
    (release / "model.json").write_text(json.dumps(described))
    refused = call(release, write_csv(tmp_path / "new.csv"), "--no-verify")
    assert (refused.exit_code, "model.json is not what dprecipe writes" in refused.stderr) == (4, True)
    assert refused.stdout == ""


def test_weights_that_are_no_numbers_predict_nothing(release: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(release / "model.safetensors")
    save_file(
        {name: torch.full_like(tensor, torch.nan) for name, tensor in weights.items()}, release / "model.safetensors"
    )
    refused = call(release, write_csv(tmp_path / "new.csv"), "--no-verify", "--out", tmp_path / "out.csv")
    assert (refused.exit_code, "what the model computes is no number" in refused.stderr) == (4, True)
    assert not (tmp_path / "out.csv").exists()


def test_a_kept_column_has_one_type_in_parquet(release: Path, tmp_path: Path) -> None:
    for name, ids in (("1", [7, None]), ("2", ["x", None])):
        pq.write_table(pa.table({"id": ids, "age": [1, 2], "sex": ["m", "f"]}), tmp_path / f"{name}.parquet")
    first, second, out = tmp_path / "1.parquet", tmp_path / "2.parquet", tmp_path / "out.parquet"
    refused = call(release, first, second, "--no-verify", "--keep", "id", "--out", out)
    assert (refused.exit_code, "holds whole numbers, and then other values" in refused.stderr) == (4, True)
    assert not out.exists()
    done = call(release, second, first, "--no-verify", "--keep", "id", "--out", out)
    assert done.exit_code == 0, done.output
    assert pq.read_table(out)["id"].to_pylist() == ["x", None, "7", None]


def as_parquet(columns: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream)
    return stream.getvalue()


def as_npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def as_gzip(content: bytes) -> bytes:
    return gzip.compress(content)


MISFITS = {
    "no object": (TABLE, "new.jsonl", b'{"age": 1, "sex": "m"}\n[1]\n', "a line is no JSON object"),
    "a list of objects": (TABLE, "new.json", b'[{"age": 1, "sex": "m"}]\n', "a line is no JSON object"),
    "no such key": (TABLE, "new.jsonl", b'{"Age": 1, "sex": "m"}\n', "a line has no such key (it has 'Age')"),
    "a list in a field": (TABLE, "new.jsonl", b'{"age": [1], "sex": "m"}\n', "a field holds a list or an object"),
    "an empty file": (TABLE, "new.jsonl", b"", "has no line"),
    "a column of lists": (TABLE, "new.parquet", as_parquet({"age": [[1]], "sex": ["m"]}), "column 'age' holds list"),
    "no such column": (TABLE, "new.parquet", as_parquet({"age": [1]}), "has no column 'sex'"),
    "Parquet cut off": (TABLE, "new.parquet", as_parquet({"age": [1], "sex": ["m"]})[:-9], "can't be read"),
    "carriage returns alone": (TABLE, "new.csv", b"age,sex\r1,m\r2,f\r", "lines end in a carriage return alone"),
    "a field without end": (TABLE, "new.csv", b'age,sex,"' + b"x" * 200_000 + b"\n1,m,2\n", "well-formed CSV"),
    "gzip cut off": (TABLE, "new.csv.gz", as_gzip(b"age,sex\n" + b"1,m\n" * 99)[:-12], "can't be read"),
    "a workbook": (TABLE, "new.xlsx", as_npz(x=np.zeros(1)), "is an Excel workbook (.xlsx) or another zip archive"),
    "no column of images": (IMAGES, "new.parquet", as_parquet({"image": [1]}), "expected images"),
    "no such images": (IMAGES, "new.parquet", as_parquet({"img": [b"x"]}), "has no column 'image'"),
    "no image": (IMAGES, "new.parquet", as_parquet({"image": [b"x"]}), "an image is damaged"),
    "a table of images": (IMAGES, "new.csv", b"image\nx\n", "is neither of"),
    "no such array": (VECTORS, "new.npz", as_npz(y=np.zeros((2, 3))), "has no array 'x'"),
    "another shape": (VECTORS, "new.npz", as_npz(x=np.zeros((2, 4))), "has the shape [records, 4]"),
    "Python objects": (VECTORS, "new.npz", as_npz(x=np.array([{}])), "holds Python objects"),
    "no numbers": (VECTORS, "new.npz", as_npz(x=np.array([["a", "b", "c"]])), "expected numbers"),
    "an archive cut off": (VECTORS, "new.npz", as_npz(x=np.zeros((2, 3)))[:-30], "is not a NumPy archive"),
    "a table of vectors": (VECTORS, "new.parquet", as_parquet({"x": [1]}), "the model takes arrays of shape [3]"),
    "no records": (VECTORS, "new.npz", as_npz(x=np.zeros((0, 3))), "the file has no record"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_is_refused_is_explained_to_whoever_has_only_the_file(
    case: str, tmp_path: Path, trained_on: Callable[[str], None]
) -> None:
    recipe, name, content, message = MISFITS[case]
    make_release(tmp_path / "release", recipe)
    trained_on(recipe)
    (tmp_path / name).write_bytes(content)
    refused = call(tmp_path / "release", tmp_path / name, "--no-verify", "--out", tmp_path / "out.csv")
    assert (refused.exit_code, message in refused.stderr) == (4, True), refused.output
    assert not any(word in refused.stderr for word in ("recipe", "declare", "`"))
    assert not list(tmp_path.glob("*out*"))


def test_a_pipe_is_refused_as_it_can_be_read_only_once(
    release: Path, tmp_path: Path, trained_on: Callable[[str], None]
) -> None:
    trained_on(TABLE)
    os.mkfifo(tmp_path / "new.csv")
    refused = call(release, tmp_path / "new.csv", "--no-verify", "--out", tmp_path / "out.csv")
    assert (refused.exit_code, "a pipe can be read only once" in refused.stderr) == (4, True), refused.output


@pytest.mark.slow
def test_the_certificate_says_what_training_read(tmp_path: Path, release_of: Callable[..., Path]) -> None:
    release = release_of(PEOPLE, tmp_path)
    file = write_csv(tmp_path / "new.csv")
    for options in ((), ("--no-verify",)):
        done = call(release, file, *options)
        assert done.exit_code == 0, done.output
        assert [row["id"] for row in rows_of(done.stdout)] == list("abcd")
    (release / "certificate.json").write_text("{}")
    assert list(rows_of(call(release, file, "--no-verify").stdout)[0]) == ["prediction"]


FORMULAS = TABLE.replace('values: ["no", "yes"]', 'values: ["=cmd", "-1"]')
NAMES = ["@SUM(A1)", "-2.5", "-", "=1+1", "\t=1", "＋1", "plain"]


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("ending", ["", ".csv", ".jsonl", ".parquet"])
def test_formulas_are_told_and_can_be_guarded_and_what_is_written_is_read_again(
    ending: str, guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_release(tmp_path / "release", FORMULAS)
    file, out = tmp_path / "new.jsonl", tmp_path / f"out{ending}"
    write_lines(file, [{"id": name, "age": 7 * number, "sex": "m"} for number, name in enumerate(NAMES)])
    options = [*(["--out", out] if ending else []), *(["--guard-formulas"] if guarded else [])]
    done = call(tmp_path / "release", file, "--no-verify", "--keep", "id", *options)
    assert done.exit_code == 0, done.output
    is_csv = ending in ("", ".csv")
    told = ("an apostrophe stands" if guarded else "--guard-formulas puts an apostrophe") + " before each"
    assert (f"would take for formulas ({told})" in done.stderr) == is_csv  # how many is for a terminal
    if is_csv:
        rows = rows_of(out.read_bytes().decode() if ending else done.stdout)
    elif ending == ".jsonl":
        rows = list(map(json.loads, out.read_text().splitlines()))
    else:
        rows = pq.read_table(out).to_pylist()
    predicted = load(tmp_path / "release").predict([{"age": 7 * number, "sex": "m"} for number in range(len(NAMES))])
    hidden = {"@SUM(A1)", "=1+1", "\t=1", "＋1", "=cmd"} if is_csv and guarded else set()
    assert [row["id"] for row in rows] == [f"'{name}" if name in hidden else name for name in NAMES]
    assert [row["prediction"] for row in rows] == [f"'{one}" if one in hidden else one for one in predicted.tolist()]
    assert "=cmd" in predicted.tolist()
    if is_csv:
        watch(monkeypatch)
        out.unlink(missing_ok=True)
        formulas = 4 + predicted.tolist().count("=cmd")
        again = call(tmp_path / "release", file, "--no-verify", "--keep", "id", *options)
        assert f"formulas: {formulas} (" in again.stderr
