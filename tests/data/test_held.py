"""Records in memory are read as a file of the same block is: values, labels, units, steps and faults are the same."""

from __future__ import annotations

import io
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.data.load import load, read
from dprecipe.data.preprocess import is_pending
from dprecipe.data.records import Records
from dprecipe.faults import DataFault, UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.gather import gather_records

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet")

COUNT = 30
FRAME = pandas.DataFrame(
    {
        "who": [f"P{number // 2}" for number in range(COUNT)],
        "age": [float(number) if number % 7 else None for number in range(COUNT)],
        "sex": ["f", "m", None] * 10,
        "born": pandas.date_range("1950-01-01", periods=COUNT, freq="300D"),
        "sick": [True, False, True] * 10,
        "ill": ["no", "yes"] * 15,
        "unused": [object()] * COUNT,
    },
    index=range(100, 100 + COUNT),
)
COLUMNS = {
    "age": {"kind": "numeric", "min": 0, "max": 40, "missing": 20},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "born": {"kind": "date", "min": "1950-01-01", "max": "2000-01-01", "parts": ["time", "month"]},
    "sick": {"kind": "boolean"},
}
LABEL = {"column": "ill", "values": ["no", "yes"]}
SOURCE = {"source": "csv", "path": "never-opened.csv", "columns": COLUMNS, "label": LABEL}
STEPS = [{"one_hot": {}}]
UNIT = {"column": "who", "max_records": 1}


def held_frames() -> dict[str, Any]:
    used = FRAME.drop(columns="unused")
    table = pa.Table.from_pandas(used)
    return {
        "pandas": Records.from_pandas(FRAME),
        "pandas, nullable": Records.from_pandas(used.convert_dtypes()),
        "pandas, categorical": Records.from_pandas(used.astype({"sex": "category", "ill": "category", "who": object})),
        "arrow": Records.from_arrow(table),
        "arrow, chunked": Records.from_arrow(pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)])),
        "arrow's interface": Records.from_arrow(Capsule(table)),
        "datasets": Records.from_datasets(Dataset(table)),
    }


class Capsule:
    """A table of another library that hands over Arrow's columns."""

    def __init__(self, table: Any) -> None:
        self.__arrow_c_stream__ = table.__arrow_c_stream__


class Dataset:
    """Has the members of a data set of Hugging Face that are used."""

    def __init__(self, table: Any, features: dict[str, Any] | None = None) -> None:
        self.table, self.features, self.column_names = table, features or {}, table.schema.names

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def select_columns(self, names: list[str]) -> Dataset:
        return Dataset(self.table.select(names))

    def with_format(self, kind: str) -> Any:
        assert kind == "arrow"
        return self.table


Dataset.__module__ = "datasets.arrow_dataset"


class ClassLabel:
    def __init__(self, *names: str) -> None:
        self.names = list(names)


@pytest.fixture
def hold(block, tmp_path: Path):
    def make(held: Any, role: Any = "train", size: int = COUNT, unit: object = "record", **source: Any) -> Records:
        data = block({**SOURCE, **source}, size=size, unit=unit, preprocess=STEPS)
        return read(data.train, data, tmp_path, role, held=held)[0].prepared()

    return make


@pytest.mark.parametrize("unit", ["record", UNIT])
@pytest.mark.parametrize("records", [None, [3, 17]])
def test_they_are_read_as_the_file_is(hold, block, tmp_path: Path, unit: Any, records: Any) -> None:
    FRAME.drop(columns="unused").to_parquet(tmp_path / "t.parquet")
    size = (COUNT if records is None else 14) if unit == "record" else (15 if records is None else 8)
    part = {} if records is None else {"records": records}
    source = {"source": "parquet", "path": "t.parquet", "columns": COLUMNS, "label": LABEL, **part}
    data = block(source, size=size, unit=unit, preprocess=STEPS)
    file = load(data.train, data, tmp_path, "train")
    assert len(np.unique(file.features[:, 0])) > 5
    for kind, held in held_frames().items():
        mine = hold(held, size=size, unit=unit, **part)
        np.testing.assert_array_equal(mine.features, file.features, kind)
        np.testing.assert_array_equal(mine.labels, file.labels, kind)
        assert list(mine.identities.texts()) == list(file.identities.texts()), kind
        assert (mine.units is None) == (file.units is None)


def test_chunks_change_nothing(hold, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {kind: hold(held, size=15, unit=UNIT) for kind, held in held_frames().items()}
    monkeypatch.setattr("dprecipe.data.held.CHUNK_ROWS", 4)
    for kind, held in held_frames().items():
        parts = hold(held, size=15, unit=UNIT)
        np.testing.assert_array_equal(parts.features, whole[kind].features)
        np.testing.assert_array_equal(parts.units, whole[kind].units)


def test_a_unit_s_name_does_not_depend_on_its_neighbours(hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chunk of 7 and 8.5, pyarrow makes 7.0: the patient 7 would be two units."""
    monkeypatch.setattr("dprecipe.data.held.CHUNK_ROWS", 2)
    frame = FRAME.iloc[:4].assign(who=pandas.Series([7, 9, 7, 8.5], dtype=object).values)
    assert hold(Records.from_pandas(frame), size=3, unit={"column": "who", "max_records": 2}).units.tolist() == [
        0,
        1,
        0,
        2,
    ]
    frame = frame.assign(who=pandas.Series([7, None, 7, 8], dtype=object).values)
    with pytest.raises(DataFault, match="column 'who': a field is empty that names the unit") as caught:
        hold(Records.from_pandas(frame), size=3, unit={"column": "who", "max_records": 2})
    assert caught.value.private == "record 1, counted from 0"


@pytest.mark.parametrize(
    "who", [[7, 9, 7.0, 8], ["7", "9", "x", 7.0], ["2024-01-01", "a", pandas.Timestamp("2024-01-01"), "b"]]
)
def test_a_person_with_two_spellings_of_one_name_is_not_two(hold, who, monkeypatch: pytest.MonkeyPatch) -> None:
    """`read_csv` makes 7.0 of 7 in the parts of a large file in which the column has empty fields."""
    monkeypatch.setattr("dprecipe.data.held.CHUNK_ROWS", 2)
    frame = FRAME.iloc[:4].assign(who=pandas.Series(who, dtype=object).values)
    with pytest.raises(DataFault, match=r"column 'who' names units or records by .*one name could be written"):
        hold(Records.from_pandas(frame), size=4, unit={"column": "who", "max_records": 2})


def test_decimals_that_are_equal_and_long_numbers_are_names(hold) -> None:
    decimals = pandas.Series([Decimal("7"), Decimal("7.00"), Decimal("8"), Decimal("7.0")], dtype=object)
    unit = {"column": "who", "max_records": 3}
    records = hold(Records.from_pandas(FRAME.iloc[:4].assign(who=decimals.values)), size=2, unit=unit)
    assert records.units.tolist() == [0, 0, 1, 0]
    long = pandas.Series([2**70, 2**70 + 1, 2**70, 1], dtype=object)
    records = hold(Records.from_pandas(FRAME.iloc[:4].assign(who=long.values)), size=3, unit=unit)
    assert records.units.tolist() == [0, 1, 0, 2]


def test_the_type_of_a_column_names_no_value(hold) -> None:
    frame = FRAME.assign(who=pandas.Series([{"SECRET": 1}] * len(FRAME), dtype=object).values)
    with pytest.raises(DataFault, match="column 'who' holds struct, expected") as caught:
        hold(Records.from_pandas(frame), size=4, unit={"column": "who", "max_records": 2})
    assert "SECRET" not in f"{caught.value} {caught.value.remedy} {caught.value.private}"


FAULTS = {
    "a label": (FRAME.assign(ill="maybe"), "`train`, column 'ill': a label is not among the 2"),
    "a number": (FRAME.assign(age="<0.5"), "`train`, column 'age': a field has < or > before its number"),
    "a column": (FRAME.rename(columns={"age": "Age"}), "no column 'age'.*'Age'"),
    "one too few": (FRAME.iloc[1:], "does not have the number of records that data"),
    "one too many": (pandas.concat([FRAME, FRAME]), "does not have the number of records that data"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_file_may_not_hold(hold, name: str) -> None:
    frame, message = FAULTS[name]
    table = pa.Table.from_pandas(frame.drop(columns="unused"), preserve_index=False)
    for held in (Records.from_pandas(frame), Records.from_arrow(table)):
        with pytest.raises(DataFault, match=message) as caught:
            hold(held)
        assert "maybe" not in caught.value.message + caught.value.remedy


def test_class_labels_are_read_by_their_names(hold) -> None:
    table = pa.table({"age": [1.0, 2, 3], "ill": [0, 1, -1]}).slice(0, 2)
    columns = {"age": COLUMNS["age"]}
    data = Dataset(table, {"age": object(), "ill": ClassLabel("yes", "no")})
    read_as = hold(Records.from_datasets(data), size=2, columns=columns).labels.tolist()
    assert read_as == [1, 0]
    with pytest.raises(DataFault, match="a class of the data set is none of the 2 declared ones"):
        hold(Records.from_datasets(Dataset(table, {"ill": ClassLabel("no", "sick")})), size=2, columns=columns)
    label = {"column": "ill", "classes": 2}
    assert hold(Records.from_datasets(data), size=2, columns=columns, label=label).labels.tolist() == [0, 1]


def test_public_records_need_no_label(hold) -> None:
    for held in (FRAME.drop(columns=["ill", "who"]), FRAME.assign(ill="anything")):
        records = hold(Records.from_pandas(held), role="public")
        assert records.labels.tolist() == [0] * COUNT


def test_encoded_images(block, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")

    def encode(value: int) -> bytes:
        image.fromarray(np.full((2, 3, 3), value, np.uint8)).save(buffer := io.BytesIO(), "PNG")
        return buffer.getvalue()

    table = pa.table({"img": [{"bytes": encode(number), "path": None} for number in (0, 51)], "ill": ["no", "yes"]})
    source = {"source": "parquet", "path": "x", "image": {"column": "img", "shape": [2, 3, 3]}, "label": LABEL}
    data = block(source, size=2)
    for held in (Records.from_arrow(table), Records.from_datasets(Dataset(table))):
        records = read(data.train, data, tmp_path, "train", held=held)[0].prepared()
        assert (records.features[:, 0, 0, 0] * 5).round(6).tolist() == [0, 1]


PIXELS = np.arange(4 * 2 * 3, dtype=np.uint8).reshape(4, 2, 3, 1).repeat(3, axis=3)
ARRAYS = {"source": "npz", "path": "never-opened.npz", "columns": None, "label": None, "classes": 2}
CLASSES = np.array([0, 1, 1, 0])


class Tensor:
    """What a tensor has of what is asked for, without torch."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)
        self.shape = self._array.shape

    def __len__(self) -> int:
        return len(self._array)

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self._array[key])


class TensorDataset:
    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors


class MapStyle:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        return tuple(part[number] for part in self.parts)


@pytest.fixture
def hold_arrays(block, tmp_path: Path):
    def make(held: Any, size: int = 4, unit: object = "record", role: Any = "train", **source: Any) -> Records:
        whole = {key: value for key, value in {**ARRAYS, "shape": [2, 3, 3], **source}.items() if value is not None}
        data = block(whole, size=size, unit=unit)
        return read(data.train, data, tmp_path, role, held=held)[0].prepared()

    return make


def test_arrays_tensors_and_data_sets(hold_arrays, block, tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", features=PIXELS, labels=CLASSES, who=["a", "b", "a", "c"])
    unit = {"column": "who", "max_records": 1}
    data = block({"source": "npz", "path": "t.npz", "shape": [2, 3, 3], "classes": 2}, size=3, unit=unit)
    file = load(data.train, data, tmp_path, "train")
    first = PIXELS.transpose(0, 3, 1, 2)
    who = ["a", "b", "a", "c"]
    for held in (
        Records.from_torch(PIXELS, CLASSES, who),
        Records.from_torch(Tensor(PIXELS), Tensor(CLASSES), np.array([7, 8, 7, 9])),
        Records.from_torch(Tensor(first), CLASSES, who),
        Records.from_torch(TensorDataset(Tensor(first), Tensor(CLASSES), Tensor([7, 8, 7, 9]))),
        Records.from_torch(MapStyle(first, CLASSES.tolist(), np.array(who))),
        Records.from_torch(MapStyle(Tensor(PIXELS), Tensor(CLASSES), Tensor([7, 8, 7, 9]))),
    ):
        mine = hold_arrays(held, 3, unit)
        np.testing.assert_array_equal(mine.features, file.features)
        np.testing.assert_array_equal(mine.labels, file.labels)
        np.testing.assert_array_equal(mine.units, file.units)
    assert hold_arrays(Records.from_torch(PIXELS, CLASSES), 2, records=[1, 3]).labels.tolist() == [1, 1]
    assert hold_arrays(Records.from_torch(PIXELS), role="public").labels.tolist() == [0, 0, 0, 0]
    numbers = hold_arrays(Records.from_torch(PIXELS, CLASSES * 10.0), classes=None, range=[0, 5]).labels
    assert numbers.tolist() == [-1, 1, 1, -1]


BAD_ARRAYS = {
    "another shape": (PIXELS[:, :1], CLASSES, r"a record has the shape \[1, 3, 3\], the recipe declares \[2, 3, 3\]"),
    "a label too large": (PIXELS, CLASSES + 1, r"`train`, labels: a label is outside 0 … 1"),
    "labels of fractions": (PIXELS, CLASSES / 3, "the labels are not one integer a record"),
    "no labels": (PIXELS, None, "the labels are not one integer a record"),
    "objects": (PIXELS.astype(object), CLASSES, "the features are not numbers"),
    "items": (MapStyle([PIXELS[0], PIXELS[1, :1]] * 2, CLASSES), None, "features of different shapes"),
    "single items": (MapStyle(PIXELS), None, r"is not \(features, label\)"),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_that_are_not_what_is_declared(hold_arrays, name: str) -> None:
    features, labels, message = BAD_ARRAYS[name]
    with pytest.raises(DataFault, match=message) as caught:
        hold_arrays(Records.from_torch(features, labels))
    assert caught.value.remedy
    with pytest.raises(DataFault, match="does not say which 'who' each record belongs to"):
        hold_arrays(Records.from_torch(PIXELS, CLASSES), 2, {"column": "who", "max_records": 2})


def test_tables_for_tables_and_arrays_for_arrays(hold, hold_arrays) -> None:
    for held in (Records.from_pandas(FRAME), Records.from_arrow(pa.table({"age": [1.0]}))):
        with pytest.raises(UsageFault, match=r"`train` is a table, and the recipe's data\.train \(npz\) declares no"):
            hold_arrays(held)
    with pytest.raises(UsageFault, match=r"`train` is arrays, and the recipe's data\.train \(csv\) is a table"):
        hold(Records.from_torch(PIXELS, CLASSES))


def test_each_function_takes_its_own_kind() -> None:
    table = pa.table({"age": [1.0]})
    for take, value, remedy in (
        (Records.from_pandas, table, r"Records\.from_arrow\("),
        (Records.from_pandas, PIXELS, r"Records\.from_torch\("),
        (Records.from_arrow, FRAME.to_dict, "Records"),
        (Records.from_datasets, FRAME, r"Records\.from_pandas\("),
        (Records.from_torch, "train.npz", r"Records\.from_pandas, from_arrow"),
        (Records.from_torch, FRAME, r"Records\.from_pandas\("),
        (Records.from_torch, np.float64(3), r"from_torch\(features, labels\)"),
    ):
        with pytest.raises(UsageFault, match=r"takes .*, and this is") as caught:
            take(value)
        assert re.search(remedy, caught.value.remedy)
    with pytest.raises(UsageFault, match="are not of one length"):
        Records.from_torch(PIXELS, CLASSES[:3])
    assert dprecipe.Records is Records


RECIPE = """\
recipe: dprecipe/v1
name: example
data:
  train:
    source: csv
    path: never-opened.csv
    columns: {age: {kind: numeric, min: 0, max: 40, missing: 20}, who: {kind: text}}
    label: {column: ill, values: ["no", "yes"]}
  size: 30
  preprocess:
    - dp_categories: {columns: [who], width: 3, share: 0.1}
    - dp_standardize: {columns: [age], share: 0.1}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 8}
budget: {epsilon: 3.0, delta: 1e-3}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
runtime: {device: cpu}
"""


def test_paid_steps_wait_as_they_do_for_a_file(tmp_path: Path) -> None:
    plan = make_plan(read_text(RECIPE, "recipe.yaml"))
    frame = FRAME[["who", "age", "ill"]]
    held = gather_records(plan, tmp_path, {"train": Records.from_pandas(frame), "test": Records.from_pandas(frame[:9])})
    frame.to_csv(tmp_path / "never-opened.csv", index=False)
    file = gather_records(plan, tmp_path)
    mine, theirs = held.sources["train"], file.sources["train"]
    assert isinstance(mine, Records)
    assert isinstance(theirs, Records)
    np.testing.assert_array_equal(mine.features, theirs.features)
    assert list(mine.texts["who"].values) == list(theirs.texts["who"].values)
    assert [step for step in mine.pending if is_pending(step)] == [step for step in theirs.pending if is_pending(step)]
    assert len(mine.pending) == 2
    assert len(held.sources["test"]) == 9
    assert held.counts["train"].as_json() == file.counts["train"].as_json()
    with pytest.raises(UsageFault, match="paid steps have to run first") as caught:
        gather_records(plan, tmp_path, {"train": (np.zeros((30, 5), np.float32), np.zeros(30, int))})
    assert "Records.from_pandas" in caught.value.remedy


def test_a_split_divides_what_was_passed(tmp_path: Path) -> None:
    text = RECIPE.replace(
        "  size: 30\n", "  test: {split: {by: unit, share: 0.3}}\n  size: 15\n  unit: {column: who, max_records: 2}\n"
    )
    plan = make_plan(read_text(text.replace("[who]", "[sex]").replace("who: {kind", "sex: {kind"), "recipe.yaml"))
    frame = FRAME[["who", "age", "sex", "ill"]]
    held = gather_records(plan, tmp_path, {"train": Records.from_pandas(frame)})
    frame.to_csv(tmp_path / "never-opened.csv", index=False)
    file = gather_records(plan, tmp_path)
    for role in ("train", "test"):
        mine, theirs = held.sources[role], file.sources[role]
        assert isinstance(mine, Records)
        assert isinstance(theirs, Records)
        np.testing.assert_array_equal(mine.features, theirs.features)
        assert 0 < mine.unit_count < COUNT
    for objects, says in (
        ({"train": (np.zeros((30, 5), np.float32), np.zeros(30, int))}, "Records.from_pandas"),
        ({"test": Records.from_pandas(frame)}, "leave `test` out"),
    ):
        with pytest.raises(UsageFault) as caught:
            gather_records(make_plan(plan_without_stages(text)), tmp_path, objects)
        assert says in caught.value.remedy


def plan_without_stages(text: str) -> Any:
    lines = [line for line in text.splitlines() if "dp_" not in line and "preprocess" not in line]
    return read_text("\n".join(lines).replace(", who: {kind: text}", "") + "\n", "recipe.yaml")


class DatasetDict(dict):
    """Several splits, as Hugging Face's library loads them."""


class IterableDataset:
    """A stream: it has no length."""


@pytest.mark.parametrize("kind", [DatasetDict, IterableDataset])
def test_one_split_is_passed(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "__module__", "datasets.dataset_dict")
    with pytest.raises(UsageFault, match="takes one split that has a length, and this is a datasets") as caught:
        Records.from_datasets(kind())
    assert 'pass one split, data["train"]' in caught.value.remedy
