"""One person, column or class under two spellings: the same for every reader, or refused."""

from __future__ import annotations

import gzip
import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.data.checks import check_data
from dprecipe.data.load import read
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.faults import DataFault
from dprecipe.recipe.read import read_text

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

COLUMNS = {"age": {"kind": "numeric", "min": 0, "max": 100}}
LABEL = {"column": "ill", "classes": 2}
NFC, NFD = "Jos\u00e9", "Jose\u0301"
RESPELT = {
    "fraction": ("101", "101.0"),
    "leading zero": ("101", "0101"),
    "exponent": ("101", "1.01e2"),
    "sign": ("101", "+101"),
    "full width": ("101", "１０１"),
    "blanks between": ("A 7", "A\u00a07"),
    "dash": ("A-7", "A\u20117"),
}
KINDS = [
    "csv",
    "csv blocks",
    "csv files",
    "parquet",
    "json_lines",
    "duckdb",
    "pandas",
    "arrow",
    "images",
    "npz",
    "torch",
]


def write_csv(path: Path, names: Sequence[str], column: str = "who") -> None:
    rows = [f'"{name}",{number},{number % 2}' for number, name in enumerate(names)]
    path.write_text("\n".join([f"{column},age,ill", *rows]) + "\n", encoding="utf-8")


class Source:
    """Records with these names, in each kind of source."""

    def __init__(self, kind: str, folder: Path, names: Sequence[str], column: str = "who") -> None:
        self.folder, self.held, count = folder, None, len(names)
        self.block: dict[str, Any] = {"source": kind, "path": f"t.{kind}", "columns": COLUMNS, "label": LABEL}
        values = {column: list(names), "age": list(range(count)), "ill": [number % 2 for number in range(count)]}
        pixels = np.zeros((count, 4, 4, 1), np.uint8)
        match kind:
            case "csv" | "csv blocks":
                write_csv(folder / "t.csv", names, column)
                self.block |= {"source": "csv", "path": "t.csv"}
            case "csv files":
                write_csv(folder / "a.csv", names[:-1], column)
                write_csv(folder / "b.csv", names[-1:], column)
                self.block |= {"source": "csv", "path": "?.csv"}
            case "parquet":
                pq.write_table(pa.table(values), folder / "t.parquet")
            case "json_lines":
                rows = (dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True))
                (folder / "t.json_lines").write_text("".join(json.dumps(row) + "\n" for row in rows))
            case "duckdb":
                pytest.importorskip("duckdb", reason="DuckDB is not installed")
                pq.write_table(pa.table(values), folder / "t.parquet")
                tables = {"tables": {"t": "t.parquet"}, "query": "SELECT * FROM t"}
                self.block = {"source": "duckdb", **tables, "columns": COLUMNS, "label": LABEL}
            case "pandas":
                self.block |= {"source": "csv"}
                self.held = Records.from_pandas(pandas.DataFrame(values))
            case "arrow":
                self.block |= {"source": "csv"}
                self.held = Records.from_arrow(pa.table(values))
            case "images":
                image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
                (folder / "scans").mkdir()
                for number in range(count):
                    image.fromarray(pixels[number, :, :, 0]).save(folder / f"scans/{number}.png")
                rows = [f'{number}.png,"{name}",{number % 2}' for number, name in enumerate(names)]
                (folder / "t.csv").write_text("\n".join([f"file,{column},ill", *rows]), encoding="utf-8")
                images = {"path": "scans", "table": "t.csv", "shape": [4, 4, 1]}
                self.block = {"source": "image_folder", **images, "label": LABEL}
            case "npz" | "torch":
                arrays = {"features": pixels.reshape(count, 16), "labels": np.array(values["ill"])}
                np.savez(folder / "t.npz", **arrays, **{column: np.array(names)})
                self.block = {"source": "npz", "path": "t.npz", "shape": [16], "classes": 2}
                if kind == "torch":
                    self.held = Records.from_torch(arrays["features"], arrays["labels"], list(names))

    def data(self, size: int, **rest: Any) -> Data:
        """The block, with `unit` where `rest` names none."""
        whole = {"train": self.block, "size": size, "unit": {"column": "who", "max_records": 2}, **rest}
        return Data.model_validate_json(json.dumps(whole))

    def read(self, size: int, role: Any = "train", **rest: Any) -> Records:
        data = self.data(size, **rest)
        return read(data.train, data, self.folder, role, held=self.held)[0]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "csv blocks":
        monkeypatch.setattr("dprecipe.data.sources.read_csv.BLOCK_BYTES", 1)
    return str(request.param)


@pytest.mark.parametrize("names", RESPELT.values(), ids=RESPELT)
@pytest.mark.parametrize("size", [2, 3])
def test_one_unit_in_two_spellings_is_refused(kind: str, names: tuple[str, str], size: int, tmp_path: Path) -> None:
    one, other = names
    source = Source(kind, tmp_path, [one, "B", other])
    with pytest.raises(DataFault, match=r"'who'.*one person would be two units") as caught:
        source.read(size)
    said = f"{caught.value}\n{caught.value.private}"
    assert said.count("one person") == 1
    assert "B" not in caught.value.private
    assert not any(name in said for name in names if name not in ("101", "101.0", "0101"))


def test_following_the_remedy_works(kind: str, tmp_path: Path) -> None:
    source = Source(kind, tmp_path, ["101", "B", "0101"])
    with pytest.raises(DataFault) as caught:
        source.read(3)
    assert "unit: {column: who, max_records: 2, spelling: exact}" in caught.value.remedy
    exact = {"column": "who", "max_records": 2, "spelling": "exact"}
    assert source.read(3, unit=exact).unit_count == 3
    (tmp_path / "mended").mkdir()
    assert Source(kind, tmp_path / "mended", ["101", "B", "101"]).read(2).unit_count == 2


@pytest.mark.parametrize("other", [NFD, f" {NFC}\u00a0", f"\ufeff{NFC}", "Jos\u200b\u00e9"])
@pytest.mark.parametrize("spelling", [{}, {"spelling": "exact"}], ids=["", "exact"])
def test_names_that_look_equal_are_one_unit(kind: str, other: str, spelling: dict[str, str], tmp_path: Path) -> None:
    source = Source(kind, tmp_path, [NFC, "B", other])
    records = source.read(2, unit={"column": "who", "max_records": 2, **spelling})
    assert records.units is not None
    assert records.units.tolist() == [0, 1, 0]


def test_capitals_tell_units_apart(kind: str, tmp_path: Path) -> None:
    assert Source(kind, tmp_path, ["P07", "p07", "P7"]).read(3).unit_count == 3


def test_one_spelling_of_any_kind_is_read(kind: str, tmp_path: Path) -> None:
    names = ["0101", "007", "0101", "1.50", "１２", "007"]
    assert Source(kind, tmp_path, names).read(4).units.tolist() == [0, 1, 0, 2, 3, 1]  # type: ignore[union-attr]


def test_names_of_a_later_chunk_are_compared_with_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.data.sources.read_csv.CHUNK_ROWS", 3)
    many = [str(number) for number in range(20)]
    order = random.Random(0)
    for respelt in ("07", "7.0", "７"):
        for number, names in enumerate(([*many, respelt], [respelt, *many], [*many[:10], respelt, *many[10:]])):
            folder = tmp_path / f"{ord(respelt[0])}{len(respelt)}{number}"
            folder.mkdir()
            order.shuffle(names)
            with pytest.raises(DataFault, match="one person would be two units"):
                Source("csv", folder, names).read(21)


def test_numbers_and_texts_of_json_are_one_name(tmp_path: Path) -> None:
    source = Source("json_lines", tmp_path, ["x", "B"])
    rows = [{"who": 101, "age": 1, "ill": 0}, {"who": "101", "age": 2, "ill": 1}]
    (tmp_path / "t.json_lines").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert source.read(1).unit_count == 1


def test_columns_of_numbers_of_different_types_are_one_name(tmp_path: Path) -> None:
    table = pa.table({"who": [7.0, 8.0], "age": [1, 2], "ill": [0, 1]})
    source = Source("parquet", tmp_path, ["x", "y"])
    pq.write_table(table, tmp_path / "t.parquet")
    first = list(source.read(2).identities.texts())  # type: ignore[union-attr]
    pq.write_table(table.set_column(0, "who", pa.array(["07", "08"])), tmp_path / "t.parquet")
    assert list(source.read(2).identities.texts()) == first == ["7", "8"]  # type: ignore[union-attr]


def test_no_split_puts_two_spellings_on_two_sides(tmp_path: Path) -> None:
    """A clinic's age is its number, so that it shows on which side a clinic is."""
    numbers = range(40)
    rows = [f"{n},{n:04d},{n},{n % 2}" for n in numbers] + [f"{n + 50},{n}.0,{n},{n % 2}" for n in numbers]
    (tmp_path / "t.csv").write_text("\n".join(["who,clinic,age,ill", *rows]) + "\n")
    block = {"source": "csv", "path": "t.csv", "columns": COLUMNS, "label": LABEL}
    whole = {
        "train": block,
        "test": {"split": {"by": "clinic", "share": 0.5}},
        "size": len(rows),
        "unit": {"column": "who", "max_records": 2},
    }
    data = Data.model_validate_json(json.dumps(whole))
    held_out = [round(age * 100) for age in read(data.train, data, tmp_path, "test")[0].features[:, 0].tolist()]
    trained = [round(age * 100) for age in read(data.train, data, tmp_path, "train")[0].features[:, 0].tolist()]
    assert held_out
    assert trained
    assert not set(held_out) & set(trained)


def test_a_split_refuses_spellings_on_the_side_that_is_not_read(tmp_path: Path) -> None:
    source = Source("csv", tmp_path, ["1", "2", "3", "4", "5", "6", "01", "02", "03", "04", "05", "06"])
    for role in ("train", "test"):
        with pytest.raises(DataFault, match="one person would be two units"):
            source.read(6, role, test={"split": {"share": 0.5}})


HEADERS = {
    "NFD": ("größe", unicodedata.normalize("NFD", "größe")),
    "blanks": ("größe", " größe\u00a0"),
    "invisible": ("größe", "grö\u200bße"),
    "byte order mark": ("größe", "\ufeffgröße"),
}


@pytest.mark.parametrize(("one", "other"), HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("in_recipe", [True, False])
def test_columns_that_look_equal_are_one(kind: str, one: str, other: str, in_recipe: bool, tmp_path: Path) -> None:
    declared, stored = (other, one) if in_recipe else (one, other)
    source = Source(kind, tmp_path, ["A", "B"], column=stored)
    assert source.read(2, unit={"column": declared, "max_records": 2}).unit_count == 2


CATEGORIES = {"ort": {"kind": "category", "values": ["Köln", "Bonn"]}, "age": COLUMNS["age"]}
OTHER_KOELN = unicodedata.normalize("NFD", "Köln")


@pytest.mark.parametrize("declared", ["Köln", OTHER_KOELN, "Kö\u200bln "])
@pytest.mark.parametrize("stored", ["Köln", OTHER_KOELN, "Kö\u200bln", "\u00a0Köln"])
@pytest.mark.parametrize("form", ["csv", "parquet", "dictionary"])
def test_values_that_look_equal_are_one(declared: str, stored: str, form: str, tmp_path: Path) -> None:
    kind = "csv" if form == "csv" else "parquet"
    texts = pa.array([stored, "Bonn", stored])
    if form == "dictionary":
        texts = texts.dictionary_encode()
    table = pa.table({"ort": texts, "yes": ["Bonn", stored, "Bonn"], "rank": texts, "ill": texts, "all": texts})
    if kind == "csv":
        table.to_pandas().to_csv(tmp_path / "t.csv", index=False)
    else:
        pq.write_table(table, tmp_path / "t.parquet")
    columns = {
        "ort": {"kind": "category", "values": ["Bonn", declared]},
        "yes": {"kind": "boolean", "values": ["Bonn", declared]},
        "rank": {"kind": "ordinal", "values": ["Bonn", declared]},
    }
    for label in ({"column": "ill", "values": ["Bonn", declared]}, {"column": "all", "several": ["Bonn", declared]}):
        block = {"source": kind, "path": f"t.{kind}", "columns": columns, "label": label}
        whole = {"train": block, "size": 3, "preprocess": [{"one_hot": {}}]}
        data = Data.model_validate_json(json.dumps(whole))
        records = read(data.train, data, tmp_path, "train")[0]
        assert records.features.tolist() == [[0, 1, 0, 0, 1], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]
        assert records.labels.tolist() == ([1, 0, 1] if "values" in label else [2, 1, 2])


def test_a_new_table_is_read_as_training_was() -> None:
    from dprecipe.data.frames import chunk_table

    for table in (
        pandas.DataFrame({unicodedata.normalize("NFD", "größe"): [1.0]}),
        {unicodedata.normalize("NFD", "größe"): [1.0]},
        [{unicodedata.normalize("NFD", "größe"): 1.0}],
        pa.table({"gr\u200böße": [1.0]}),
    ):
        ((_, _, columns),) = chunk_table(table, ["größe"], 10)
        assert list(columns["größe"]) == [1.0]


def test_class_folders_that_look_equal_are_one(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    for folder in (OTHER_KOELN, "Bonn"):
        (tmp_path / "scans" / folder).mkdir(parents=True)
        image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "scans" / folder / "1.png")
    label = {"column": "folder", "values": ["Köln", "Bonn"]}
    block = {"source": "image_folder", "path": "scans", "shape": [4, 4, 1], "label": label}
    data = Data.model_validate_json(json.dumps({"train": block, "size": 2}))
    assert sorted(read(data.train, data, tmp_path, "train")[0].labels.tolist()) == [0, 1]
    # A table that another system has written, with the accents of paths in the other way.
    rows = ["file,ill", "Köln/1.png,1", "Bonn/1.png,0"]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    table = {**block, "table": "t.csv", "label": {"column": "ill", "classes": 2}}
    data = Data.model_validate_json(json.dumps({"train": table, "size": 2}))
    assert sorted(read(data.train, data, tmp_path, "train")[0].labels.tolist()) == [0, 1]
    rows.append(f"{OTHER_KOELN}/1.png,1")
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    with pytest.raises(DataFault, match="listed twice"):
        read(data.train, data, tmp_path, "train")


MARK = b"\xef\xbb\xbf"
MARKED = {
    "plain": lambda text: text,
    "mark": lambda text: MARK + text,
    "two marks": lambda text: MARK + MARK + text,
    "mark, crlf": lambda text: MARK + text.replace(b"\n", b"\r\n"),
    "mark, gz": lambda text: gzip.compress(MARK + text),
}


@pytest.mark.parametrize("change", MARKED.values(), ids=MARKED)
@pytest.mark.parametrize("form", ["csv", "json_lines", "images"])
def test_a_mark_of_byte_order_changes_nothing(change: Any, form: str, tmp_path: Path) -> None:
    names = ["A", "B"]
    source = Source(form, tmp_path, names)
    file = tmp_path / ("t.json_lines" if form == "json_lines" else "t.csv")
    text = file.read_bytes()
    if form != "json_lines":
        first, rest = text.split(b"\n", 1)
        text = b",".join(b'"' + name + b'"' for name in first.split(b",")) + b"\n" + rest
    file.write_bytes(change(text))
    assert source.read(2).unit_count == 2
    if form == "csv":  # the second file of a pattern
        (tmp_path / "u.csv").write_bytes(change(text.replace(b'"A"', b'"C"').replace(b'"B"', b'"D"')))
        source.block["path"] = "?.csv"
        assert source.read(4).unit_count == 4


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("form", ["csv", "json_lines", "images"])
@pytest.mark.parametrize("gz", [False, True], ids=["", "gz"])
def test_another_encoding_is_one_finding(encoding: str, form: str, gz: bool, tmp_path: Path) -> None:
    source = Source(form, tmp_path, ["A", "B"])
    file = tmp_path / ("t.json_lines" if form == "json_lines" else "t.csv")
    text = file.read_text(encoding="utf-8").encode(encoding)
    file.write_bytes(gzip.compress(text) if gz else text)
    with pytest.raises(DataFault, match=r"UTF-16|zero byte|no JSON object in UTF-8") as caught:
        source.read(2)
    assert "column" not in str(caught.value)


def test_names_of_a_recipe_that_look_equal_are_one() -> None:
    nfd, number = unicodedata.normalize("NFD", "größe"), "{kind: numeric, min: 0, max: 1}"
    head = "recipe: dprecipe/v1\nname: t\ndata:\n  train:\n    source: csv\n    path: t.csv\n    columns:\n"
    columns = f"      größe: {number}\n      {nfd}: {number}\n"
    with pytest.raises(dprecipe.RecipeError, match=r"R202 data\.train\.columns: two names look equal"):
        read_text(head + columns, "t.yaml")
    values = {"ort": {"kind": "category", "values": ["Köln", OTHER_KOELN]}}
    feature = {"größe": {"kind": "numeric", "min": 0, "max": 1}}
    for columns, label, code in ((values, "y", "R202"), (feature, nfd, "R216")):
        block = {"source": "csv", "path": "t.csv", "columns": columns, "label": {"column": label, "classes": 2}}
        data = Data.model_validate_json(json.dumps({"train": block, "size": 3}))
        assert code in {finding.code for finding in check_data(data)}


def test_names_of_teachers_are_one_in_any_spelling(tmp_path: Path) -> None:
    """No unit is a person there: both spellings go to one teacher, and none is refused."""
    source = Source("csv", tmp_path, ["7", "8", "07", "7.0"])
    data = source.data(4, unit="record")
    identities = read(data.train, data, tmp_path, "train", "who")[0].identities
    assert identities is not None
    assert identities.of_record.tolist() == [0, 1, 0, 0]
