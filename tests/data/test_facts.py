from __future__ import annotations

import subprocess
import sys

import pytest

from dprecipe.data.facts import ColumnFacts, describe_data
from dprecipe.data.targets import ClassTarget, NumberTarget
from dprecipe.faults import RecipeError

IDX = {"source": "idx", "images": "i", "labels": "l"}
TABLE = {
    "source": "csv",
    "path": "no-such-file.csv",
    "columns": {
        "t": {"kind": "text"},
        "n": {"kind": "numeric", "min": 0, "max": 1},
        "c": {"kind": "category", "values": ["a", "b"]},
    },
    "label": {"column": "y", "values": ["no", "yes", "maybe"]},
}


WORDS = {**TABLE, "columns": {"t": {"kind": "text"}}}


@pytest.mark.parametrize(
    ("train", "steps", "shape", "classes", "pixels"),
    [
        ({"source": "digits", "split": "train"}, [], (1, 8, 8), 10, True),
        (IDX, [], (1, 28, 28), 10, True),
        ({**IDX, "shape": [32, 30, 3], "classes": 4}, [], (3, 32, 30), 4, True),
        (IDX, [{"flatten": {}}], (784,), 10, False),
        (IDX, [{"scattering": {}}, {"group_norm": {"groups": 27}}], (81, 7, 7), 10, False),
        ({**IDX, "shape": [8, 16, 3]}, [{"scattering": {"scales": 1, "angles": 3}}], (12, 4, 8), 10, False),
        (IDX, [{"patches": {"filters": 5, "grid": 2}}, {"whiten": {"across": "channels"}}], (10, 2, 2), 10, False),
        (IDX, [{"patches": {"filters": 5, "grid": 2}}, {"whiten": {}}], (40,), 10, False),
        ({**IDX, "shape": [16, 16]}, [{"scattering": {"scales": 3, "angles": 2}}, {"flatten": {}}], (76,), 10, False),
        ({"source": "npz", "path": "p", "shape": [7], "classes": 2}, [], (7,), 2, False),
        (TABLE, [{"one_hot": {}}, {"hash": {"columns": ["t"], "buckets": 5}}], (9,), 3, False),
        (WORDS, [{"tokenize": {"column": "t", "buckets": 50, "length": 6}}], (6,), 3, False),
    ],
)
def test_shape_and_classes_from_the_recipe_alone(block, train, steps, shape, classes, pixels) -> None:
    result = describe_data(block(train, preprocess=steps))
    assert (result.shape, result.outputs, result.is_pixels) == (shape, classes, pixels)


def test_tokens_have_a_vocabulary(block) -> None:
    steps = [{"tokenize": {"column": "t", "buckets": 50, "length": 6}}]
    assert describe_data(block(WORDS, preprocess=steps)).vocabulary == 51  # and padding
    assert (
        describe_data(block(TABLE, preprocess=[{"one_hot": {}}, {"hash": {"columns": ["t"], "buckets": 5}}])).vocabulary
        is None
    )


@pytest.mark.parametrize(
    "train",
    [
        {**TABLE, "label": {"column": "y", "range": [-3, 7.5]}},
        {"source": "npz", "path": "p", "shape": [7], "range": [-3, 7.5]},
    ],
    ids=["table", "npz"],
)
def test_a_number_is_one_output_of_a_declared_range(block, train) -> None:
    steps = [{"one_hot": {}}, {"hash": {"columns": ["t"], "buckets": 5}}] if train["source"] == "csv" else []
    result = describe_data(block(train, preprocess=steps))
    assert (result.outputs, result.target) == (1, NumberTarget(-3.0, 7.5))


def test_classes_have_no_range(block) -> None:
    assert describe_data(block(IDX)).target == ClassTarget(10)


def test_columns_keep_their_declared_order(block) -> None:
    result = describe_data(block(TABLE, preprocess=[{"one_hot": {}}, {"hash": {"columns": ["t"], "buckets": 5}}]))
    assert result.columns == (ColumnFacts("t", 0, 5), ColumnFacts("n", 5, 1), ColumnFacts("c", 6, 3))
    assert result.target == ClassTarget(3, ("no", "yes", "maybe"))
    assert result.width == 9


def test_the_test_source_has_facts_of_its_own(block) -> None:
    data = block({"source": "digits", "split": "train"}, test={**IDX, "shape": [8, 8]})
    assert describe_data(data, "test").shape == (1, 8, 8)


def test_a_block_that_contradicts_itself_has_no_facts(block) -> None:
    with pytest.raises(RecipeError) as caught:
        describe_data(block(TABLE))
    assert [finding.code for finding in caught.value.findings] == ["R209", "R209"]


def test_facts_and_checks_need_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, dprecipe.data.facts, dprecipe.data.checks, dprecipe.models.checks\n"
        "assert not {'torch', 'numpy', 'pyarrow', 'PIL'} & set(sys.modules), 'too much is imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
