"""What may be passed from Python as records, what is refused, and all faults of all sources before torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.data.python_records import records_from_python
from dprecipe.data.records import Records
from dprecipe.faults import DataFault, UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.gather import gather_records
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: example
data:
  train: {source: npz, path: train.npz, shape: [3], classes: 2}
  test: {source: npz, path: test.npz, shape: [3], classes: 2, access: public}
  size: 24
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 8}
budget: {epsilon: auto, delta: 1e-3}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
runtime: {device: cpu}
"""
FEATURES = np.linspace(0, 1, 72, dtype=np.float32).reshape(24, 3)
LABELS = np.arange(24) % 2


class DataFrame:
    """Stands for a frame: no source, no array."""

    def __len__(self) -> int:
        return 24


DataFrame.__module__ = "pandas.core.frame"


class Tensor:
    """What a tensor has of what is asked for, without torch."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._array


@pytest.fixture
def plan() -> Any:
    return make_plan(read_text(RECIPE, "recipe.yaml"))


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.uint8), Tensor(LABELS)], ids=["int64", "uint8", "tensor"])
def test_two_arrays_become_records(plan: Any, labels: Any) -> None:
    for value in ((FEATURES, labels), [FEATURES.astype(np.float64), labels], (Tensor(FEATURES), labels)):
        result = records_from_python(value, plan.data, "train")
        assert isinstance(result, Records)
        assert result.features.dtype == np.float32
        assert result.labels.dtype == np.int64
        assert result.unit_count == 24
    records = Records(FEATURES, LABELS)
    assert records_from_python(records, plan.data, "train") is records


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (DataFrame(), "`train` is a pandas DataFrame"),
        (FEATURES, "`train` is a numpy ndarray"),
        ((FEATURES, LABELS, LABELS), "`train` is a tuple of ndarray"),
        ((DataFrame(), LABELS), "`train` is a tuple of DataFrame, ndarray"),
        ([(FEATURES[0], 1)], "`train` is a list of tuple"),
        ([], "`train` is a list of nothing"),
        ("train.npz", "`train` is a builtins str"),
        (Records, "`train` is a builtins type"),
        ((FEATURES.astype(object), LABELS), "the features of `train` are an array of object"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_other_objects_are_refused_with_what_to_pass(plan: Any, value: Any, says: str) -> None:
    with pytest.raises(UsageFault) as caught:
        records_from_python(value, plan.data, "train")
    assert says in caught.value.message
    assert "pass (features, labels) as two NumPy arrays, features float32 of the shape [3]" in caught.value.remedy
    if isinstance(value, DataFrame):
        assert caught.value.remedy.startswith(
            "pass dprecipe.Records.from_pandas(…): it is read as a file is; or pass ("
        )


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ((FEATURES[:, :2], LABELS), r"a record of `train` has the shape \[2\], expected \[3\]"),
        ((FEATURES, LABELS[:9]), "does not have one label a record"),
        ((FEATURES, LABELS + 1), "a label of `train` is not an integer from 0 to 1"),
        ((FEATURES, LABELS / 2), "a label of `train` is not an integer from 0 to 1"),
    ],
)
def test_arrays_that_are_not_what_the_recipe_declares(plan: Any, value: Any, says: str) -> None:
    with pytest.raises(DataFault, match=says):
        records_from_python(value, plan.data, "train")


def test_the_faults_of_all_sources_are_told_together(plan: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", features=FEATURES, labels=LABELS + 5)
    with pytest.raises(DataFault) as caught:
        gather_records(plan, tmp_path)
    first, *rest = caught.value.message.splitlines()
    assert first == "the data do not match the recipe:"
    message = [line for line in rest if line.startswith("- ")]
    assert ["train.npz: no such data file" in message[0], "a label is outside 0 … 1" in message[1]] == [True, True]


def test_a_wrong_number_of_records_from_python_is_no_number_in_a_log(plan: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "test.npz", features=FEATURES, labels=LABELS)
    with pytest.raises(DataFault, match=r"data.size: 24 declares") as caught:
        gather_records(plan, tmp_path, {"train": (FEATURES[:19], LABELS[:19])})
    assert "19" not in caught.value.message + caught.value.remedy
    assert caught.value.private == "19 records"


@pytest.mark.parametrize(
    "passed", sweep(["train=object()", "", "train=(numpy.zeros((24, 2)), numpy.zeros(24, int))"], (1,))
)
def test_what_is_wrong_with_the_data_is_told_before_torch_is_imported(tmp_path: Path, passed: str) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    script = f"""
import sys, numpy, dprecipe
plan = dprecipe.plan(dprecipe.load("recipe.yaml"))
try:
    dprecipe.run(plan, out="out", {passed})
except dprecipe.Fault as fault:
    print(type(fault).__name__, "torch" in sys.modules, "lightning" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:] == ["False", "False"]
    assert not (tmp_path / "out").exists()


def test_a_run_from_arrays_leaves_a_check_of_what_was_read_from_files(plan: Any, tmp_path: Path) -> None:
    broken = FEATURES.copy()
    broken[3, 1] = np.nan
    np.savez(tmp_path / "test.npz", features=broken, labels=LABELS)
    np.savez(tmp_path / "train.npz", features=broken, labels=LABELS)
    done = dprecipe.run(plan, out=tmp_path / "python", train=(FEATURES, LABELS), data_root=tmp_path)
    result = json.loads((done.folder / "private" / "data-check.json").read_text())
    assert result["sources"] == {"test": {"records": 24, "records_not_finite": 1}}
    done = dprecipe.run(plan, out=tmp_path / "file", data_root=tmp_path)
    result = json.loads((done.folder / "private" / "data-check.json").read_text())
    assert result["schema"] == "dprecipe.data-check/v1"
    assert result["sources"]["train"] == {"records": 24, "records_not_finite": 1}
    assert "data.train: 24 records" in (done.folder / "private" / "data-check.txt").read_text()
    assert (done.folder / "private" / "data-check.json").stat().st_mode & 0o077 == 0
