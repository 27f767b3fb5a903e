"""Labels of which any may apply: packed into a number, and read from each source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.data.counts import SourceCounts
from dprecipe.data.encoders import ColumnReport
from dprecipe.data.facts import describe_data
from dprecipe.data.load import load, read
from dprecipe.data.problems import Problems
from dprecipe.data.profile import profile_source
from dprecipe.data.python_records import check_records
from dprecipe.data.records import Records
from dprecipe.data.several import are_answers, encode_several, pack_answers, unpack_answers
from dprecipe.data.sources.labels import Label
from dprecipe.data.targets import MAX_NAMES, SeveralTarget, name_classes
from dprecipe.faults import DataFault

COLUMNS = {"n": {"kind": "numeric", "min": 0, "max": 1}}
NAMES = ["fever", "cough", "rash"]
ANSWERS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]])
PACKED = [5, 0, 2, 7]
BY_COLUMNS = {"source": "csv", "path": "a.csv", "columns": COLUMNS, "label": {"columns": NAMES}}
BY_NAMES = {**BY_COLUMNS, "label": {"column": "found", "several": NAMES, "empty": "none"}}


@pytest.mark.parametrize("names", [2, 31, 32, 33, MAX_NAMES])
def test_packing_keeps_each_answer(names: int) -> None:
    answers = np.random.default_rng(names).integers(2, size=(50, names)).astype(bool)
    answers[0], answers[1] = True, False
    labels = pack_answers(answers)
    assert labels.dtype == np.int64
    assert labels.min() == 0
    assert int(labels.max()) == (1 << names) - 1
    np.testing.assert_array_equal(unpack_answers(labels, names), answers)
    np.testing.assert_array_equal(pack_answers(answers.astype(np.uint8)), labels)


def test_what_is_no_answer_is_found() -> None:
    assert are_answers(np.array([[0, 1], [2, 0], [-1, 1]])).tolist() == [True, False, False]


def encode(chunk: dict[str, list[Any]], **declared: Any) -> tuple[list[int], dict[str, str]]:
    label, problems = Label(**declared), Problems(private=False)
    target = label.target
    assert isinstance(target, SeveralTarget)
    labels = encode_several(chunk, label, target, lambda name: ColumnReport(name, "a.csv, row {}".format, problems))
    try:
        problems.check()
    except DataFault as fault:
        return labels.tolist(), {"message": fault.message, "remedy": fault.remedy or ""}
    return labels.tolist(), {}


def test_columns_hold_yes_and_no_in_the_usual_words_or_in_declared_ones() -> None:
    columns = {"fever": ["yes", " NO", "False", "1"], "cough": [0, 0.0, True, "t"], "rash": [True, False, False, "Y"]}
    assert encode(columns, columns=tuple(NAMES)) == ([5, 0, 2, 7], {})
    words = {"fever": ["ja", "nein"], "cough": ["nein", "nein "]}
    assert encode(words, columns=("fever", "cough"), values=("nein", "ja")) == ([1, 0], {})


@pytest.mark.parametrize(
    ("field", "problem"),
    [("", "is empty"), ("NA", "is empty"), ("maybe", "none of values for no and yes"), (2, "none of values")],
)
def test_a_missing_answer_is_refused(field: object, problem: str) -> None:
    _, found = encode({"fever": ["yes", field], "cough": ["no", "no"]}, columns=("fever", "cough"))
    assert problem in found["message"]
    assert "column 'fever'" in found["message"]
    assert "maybe" not in found["message"]


def test_a_column_holds_names_in_any_order() -> None:
    fields = ["rash;fever", "", " cough ;", "fever; cough;rash;cough"]
    declared: dict[str, Any] = {"column": "found", "several": tuple(NAMES)}
    assert encode({"found": fields}, **declared, empty="none") == (PACKED, {})
    assert encode({"found": ["cough|fever"]}, **declared, separator="|") == ([3], {})
    for empty in ("", ";", None):
        _, found = encode({"found": ["cough", empty]}, **declared)
        assert "a label is empty" in found["message"]
        assert "label.empty: none" in found["remedy"]
    for other in ("Fever", "fever,cough", "NA"):
        _, found = encode({"found": ["cough", other]}, **declared, empty="none")
        assert "not among the 3 declared ones" in found["message"]
        assert other not in found["message"]


def write(folder: Path) -> None:
    rows = [
        ",".join([f"0.{row}", *map(str, answers), ";".join(n for n, yes in zip(NAMES, answers, strict=True) if yes)])
        for row, answers in enumerate(ANSWERS.tolist())
    ]
    (folder / "a.csv").write_text("\n".join(["n,fever,cough,rash,found", *rows]) + "\n", encoding="utf-8")
    np.savez(folder / "a.npz", features=np.zeros((4, 2)), labels=ANSWERS.astype(bool), bad=2 * ANSWERS)


def write_parquet(folder: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow.parquet import write_table

    frame = {"n": [0.1, 0.2, 0.3, 0.4], **{name: ANSWERS[:, at].astype(bool) for at, name in enumerate(NAMES)}}
    write_table(pa.table({name: pa.array(values) for name, values in frame.items()}), folder / "a.parquet")


def write_images(folder: Path) -> None:
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    (folder / "images").mkdir()
    for row in range(4):
        images.fromarray(np.zeros((2, 2), np.uint8)).save(folder / "images" / f"{row}.png")
    listed = [f"{row}.png,{','.join(map(str, answers))}" for row, answers in enumerate(ANSWERS.tolist())]
    (folder / "images.csv").write_text("\n".join(["file,fever,cough,rash", *listed]) + "\n", encoding="utf-8")


NPZ = {"source": "npz", "path": "a.npz", "shape": [2], "several": NAMES}


SOURCES: dict[str, dict[str, Any]] = {
    "columns": BY_COLUMNS,
    "names": BY_NAMES,
    "npz": NPZ,
    "parquet": {**BY_COLUMNS, "source": "parquet", "path": "a.parquet"},
    "duckdb": {
        "source": "duckdb",
        "tables": {"t": "a.parquet"},
        "query": "SELECT n, fever, cough, rash FROM t",
        "columns": COLUMNS,
        "label": {"columns": NAMES},
    },
    "image_folder": {
        "source": "image_folder",
        "path": "images",
        "table": "images.csv",
        "shape": [2, 2, 1],
        "label": {"columns": NAMES},
    },
}


@pytest.mark.parametrize("train", SOURCES.values(), ids=SOURCES)
def test_each_source_reads_the_same_labels(block, tmp_path: Path, train: dict[str, Any]) -> None:
    write(tmp_path)
    if train["source"] in ("parquet", "duckdb"):
        write_parquet(tmp_path)
    if train["source"] == "duckdb":
        pytest.importorskip("duckdb", reason="duckdb is not installed")
    if train["source"] == "image_folder":
        write_images(tmp_path)
    data = block(train, size=4)
    records = load(data.train, data, tmp_path, "train")
    assert records.labels.tolist() == PACKED
    assert describe_data(data).target == SeveralTarget(tuple(NAMES))
    assert data.train.class_names == tuple(NAMES) == name_classes(describe_data(data).target)


def test_an_array_with_other_values_is_refused(block, tmp_path: Path) -> None:
    write(tmp_path)
    data = block({**NPZ, "labels": "bad"}, size=4)
    with pytest.raises(DataFault, match="a label is neither 0 nor 1"):
        load(data.train, data, tmp_path, "train")
    data = block({**NPZ, "several": ["a", "b"]}, size=4)
    with pytest.raises(DataFault, match="shape"):
        load(data.train, data, tmp_path, "train")


def test_labels_from_python_are_rows_of_answers(block, tmp_path: Path) -> None:
    data = block(NPZ, size=4)
    items = [(np.zeros(2, np.float32), row) for row in ANSWERS]
    for held in (dprecipe.Records.from_torch(np.zeros((4, 2)), ANSWERS), dprecipe.Records.from_torch(items)):
        assert read(data.train, data, tmp_path, "train", held=held)[0].labels.tolist() == PACKED
    with pytest.raises(DataFault, match="not one row of 0 and 1"):
        read(data.train, data, tmp_path, "train", held=dprecipe.Records.from_torch(np.zeros((4, 2)), PACKED))


def test_prepared_records_have_answers_or_numbers(block) -> None:
    facts = describe_data(block(NPZ, size=4))
    features = np.zeros((4, 2), np.float32)
    for labels in (ANSWERS, ANSWERS.astype(bool), np.array(PACKED)):
        found = check_records(Records(features, labels), facts, "train")
        assert isinstance(found, Records)
        assert found.labels.tolist() == PACKED
    for wrong in (np.array([5, 0, 2, 8]), np.array([5, 0, 2, -1]), 2 * ANSWERS, ANSWERS * 0.5, ANSWERS[:, :2]):
        with pytest.raises(DataFault, match=r"a label of|one label") as caught:
            check_records(Records(features, wrong), facts, "train")
        assert "(N, 3)" in (caught.value.remedy or "")


def test_the_share_of_each_name_is_counted(block, tmp_path: Path) -> None:
    write(tmp_path)
    data = block(BY_NAMES, size=4)
    profile = profile_source(load(data.train, data, tmp_path, "train"), SourceCounts(), data, "train")
    assert profile.label is not None
    assert dict(zip(profile.label.names, profile.label.counts, strict=True)) == {"fever": 2, "cough": 2, "rash": 2}
