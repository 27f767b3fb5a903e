from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from dprecipe.data.load import load
from dprecipe.data.sources import read_csv
from dprecipe.faults import DataFault

COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 100},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "note": {"kind": "text"},
}
STEPS = [{"one_hot": {}}, {"hash": {"columns": ["note"], "buckets": 8, "tokens": "words"}}]
GOOD = 'id,age,sex,note,ill\nu1,50,f,"a, b",no\nu2,-7,m,,yes\nu1,200,x,"say ""a""\nb b",no\nu3, 25 , f,A,yes\n'
SECRET = "SECRET-VALUE-42"


@pytest.fixture
def read(tmp_path: Path, block):
    def make(text: str | bytes = GOOD, *, columns=COLUMNS, steps=STEPS, size=4, unit="record", **source):
        (tmp_path / "t.csv").write_bytes(text.encode() if isinstance(text, str) else text)
        train = {"source": "csv", "path": "t.csv", "columns": columns, **source}
        train.setdefault("label", {"column": "ill", "values": ["no", "yes"]})
        data = block(train, size=size, preprocess=steps, unit=unit)
        return load(data.train, data, tmp_path, "train")

    return make


def test_a_table_becomes_features_by_declared_constants_alone(read) -> None:
    records = read()
    assert records.features.shape == (4, 1 + 3 + 8)
    # Clamped to the range, then [0, 1].
    np.testing.assert_allclose(records.features[:, 0], [0.5, 0.0, 1.0, 0.25])
    # f, m, other; blanks around a value do not count.
    assert records.features[:, 1:4].argmax(1).tolist() == [0, 1, 2, 0]
    np.testing.assert_array_equal(records.features[:, 1:4].sum(1), 1)
    # Words: "a b"; none; "say a b b"; "a".
    assert records.features[:, 4:].sum(1).tolist() == [2, 0, 4, 1]
    assert records.labels.tolist() == [0, 1, 0, 1]


def test_rows_are_encoded_alike_in_chunks_of_any_size(read, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read()
    monkeypatch.setattr(read_csv, "CHUNK_ROWS", 1)
    np.testing.assert_array_equal(read().features, whole.features)


@pytest.mark.parametrize(
    "text",
    [
        gzip.compress(GOOD.encode()),
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD + "\n\n",
        GOOD.rstrip("\n"),
    ],
    ids=["gzip", "crlf", "byte order mark", "blank lines", "no last line end"],
)
def test_ways_to_write_the_same_table(read, text: str | bytes) -> None:
    np.testing.assert_array_equal(read(text).features[:, :4], read().features[:, :4])


def test_another_delimiter(read) -> None:
    text = "age;sex;note;ill\n" + "1;f;a,b;no\n" * 4
    assert read(text, delimiter=";").features[0, 4:].sum() == 2


def test_records_are_rows_counted_from_0(read) -> None:
    np.testing.assert_array_equal(read(records=[1, 3], size=2).features, read().features[1:3])


def test_rows_outside_the_range_are_not_looked_at(read) -> None:
    text = GOOD.replace("u1,50", "u1,fifty").replace(" 25 ", "never")
    assert len(read(text, records=[1, 3], size=2)) == 2


def test_a_range_beyond_the_end_says_how_many_there_are_in_private(read) -> None:
    with pytest.raises(DataFault, match=r"ends before the range `records: \[10, 14\]` does") as caught:
        read(records=[10, 14])
    assert caught.value.private == "4 records"
    assert " 4 " not in caught.value.message + caught.value.remedy


def test_t27_units_are_bounded_and_counted(read) -> None:
    records = read(size=3, unit={"column": "id", "max_records": 1})
    assert records.units.tolist() == [0, 1, 2]
    assert records.features[:, 0].tolist() == [0.5, 0.0, 0.25]
    with pytest.raises(DataFault, match=r"the number of units \(values of id\) that data.size: 4 declares") as caught:
        read(size=4, unit={"column": "id", "max_records": 2})
    assert caught.value.private == "3 units (values of id)"


def test_integer_labels(read) -> None:
    text = "age,ill\n1,0\n2,2\n3, 1\n4,2\n"
    columns = {"age": COLUMNS["age"]}
    label = {"column": "ill", "classes": 3}
    assert read(text, columns=columns, steps=[], label=label).labels.tolist() == [0, 2, 1, 2]
    for bad in ("3", "-1", "1.5", "", "١", "1_0", "9" * 30):
        with pytest.raises(DataFault, match=r"column 'ill': a label is (not an integer in 0 … 2|empty)"):
            read(text.replace("2,2", "2," + bad), columns=columns, steps=[], label=label)


def test_a_missing_number_counts_as_what_is_declared(read) -> None:
    columns = {**COLUMNS, "age": {"kind": "numeric", "min": 0, "max": 100, "missing": 30}}
    text = GOOD.replace("u2,-7", "u2, ")
    assert read(text, columns=columns).features[1, 0] == pytest.approx(0.3)
    with pytest.raises(DataFault, match="column 'age': a field is empty") as caught:
        read(text)
    assert caught.value.private == "line 3"
    assert "missing: {fill: 50, indicator: true}" in caught.value.remedy


def test_the_widest_range_of_numbers_does_not_overflow(read) -> None:
    columns = {**COLUMNS, "age": {"kind": "numeric", "min": -1.7e308, "max": 1.7e308}}
    np.testing.assert_allclose(read(columns=columns).features[:, 0], 0.5)


S = SECRET
BAD = {
    "row too short": (f"u2,{S}", "a row has fewer fields than the header line"),
    "row too long": (f"u2,1,m,,yes,{S}", "a row has more fields"),
    "not a number": (f"u2,{S},m,,yes", "column 'age': a field is not a finite number"),
    "not finite": ("u2,nan,m,,yes", "column 'age': a field holds a mark for a missing value"),
    "infinite": ("u2,1e999,m,,yes", "column 'age': a field is not a finite number"),
    "digit groups": ("u2,1_0,m,,yes", "column 'age': a field is not a finite number"),
    "unknown label": (f"u2,1,m,,{S}", "column 'ill': a label is not among the 2 declared values"),
    "text after a quote": (f'u2,1,m,"a"{S},yes', "a row is not well-formed CSV"),
    "open quote": (f'u2,1,m,"{S},yes', "a row is not well-formed CSV"),
    "field too long": (f"u2,1,m,{S * 20_000},yes", "a row is not well-formed CSV"),
    "line too long": (f"u2,1,m,{S * 100_000},yes", "is longer than"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_named_by_place_and_never_cited(read, name: str) -> None:
    row, message = BAD[name]
    with pytest.raises(DataFault, match=message) as caught:
        read(GOOD.replace("u2,-7,m,,yes", row))
    assert caught.value.remedy
    assert SECRET not in caught.value.message + caught.value.remedy + caught.value.private
    assert "line" not in caught.value.message.replace("header line", "").replace("a line", "")
    assert caught.value.private == "line 3"


def test_lines_are_counted_through_quoted_line_breaks(read) -> None:
    with pytest.raises(DataFault, match="column 'age'") as caught:
        read(GOOD.replace(" 25 ", "x"))
    assert caught.value.private == "line 6"


def test_a_text_that_is_not_utf8(read) -> None:
    with pytest.raises(DataFault, match="a line is not UTF-8"):
        read(GOOD.encode().replace(b"u2,-7,m,", b"u2,-7,m,\xe9"))


def test_a_column_that_is_not_there_and_a_header_that_is_a_record(read) -> None:
    with pytest.raises(DataFault, match=r"columns 'age', .* are not in the header line") as caught:
        read(f"{SECRET},1,m,x,yes\n")
    assert SECRET not in caught.value.message + caught.value.remedy
    with pytest.raises(DataFault, match="column 'age' is 2 times in the header line"):
        read(GOOD.replace("id,", "age,", 1))
    with pytest.raises(DataFault, match="is empty"):
        read("")
    with pytest.raises(DataFault, match="column 'user' is not in the header line"):
        read(unit={"column": "user", "max_records": 1})


def test_a_row_without_its_unit(read) -> None:
    with pytest.raises(DataFault, match="column 'id': a field is empty that names the unit or the record"):
        read(GOOD.replace("u2,", " ,"), unit={"column": "id", "max_records": 1})


def test_a_gzip_file_cut_off(read) -> None:
    with pytest.raises(DataFault, match="damaged or cut off"):
        read(gzip.compress(GOOD.encode() * 1)[:-10])


@pytest.mark.parametrize("content", [b"\x00\xff\x00binary", b"\x1f\x8b", b"a\rb\rc"])
def test_garbage(read, content: bytes) -> None:
    with pytest.raises(DataFault):
        read(content)


NUMBER = {"label": {"column": "y", "range": [0, 50]}, "columns": {"age": COLUMNS["age"]}, "steps": ()}


def test_a_number_to_be_predicted_is_clipped_to_its_range_and_mapped(read) -> None:
    labels = read("age,y\n1,-3\n2, 12.5 \n3,5e1\n4,1e9\n", **NUMBER).labels
    assert labels.dtype == np.float32
    assert labels.tolist() == [-1, -0.5, 1, 1]


@pytest.mark.parametrize("value", ["", "NA", "nan", "inf", "1_000", "1e400", f'"{SECRET}"'])
def test_a_label_that_is_no_number(read, value: str) -> None:
    with pytest.raises(DataFault, match=r"t\.csv, column 'y': a label is (not a finite number|empty)") as caught:
        read(f"age,y\n1,2\n2,{value}\n3,3\n4,4\n", **NUMBER)
    assert SECRET not in str(caught.value)
    assert caught.value.remedy


def test_a_header_of_fifty_thousand_names_is_told_at_once() -> None:
    from time import process_time

    from dprecipe.data.words import Header

    header = Header([f"patient_value_{i}" for i in range(50_000)])
    began = process_time()
    assert [header.nearest(f"value_patient_{i}a") for i in range(100)] == [None] * 100
    assert header.nearest("Patient Value 77") == "patient_value_77"
    assert process_time() - began < 2.0
    assert Header(["age", "weight"]).nearest("wieght") == "weight"
    assert Header(["x" * 100_000, "weight"]).nearest("wieght") == "weight"
