"""Records from Python answer what was asked for, once each, and hold what was declared: before anything is spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.data.python_records import CheckedSource, check_records
from dprecipe.data.records import Records
from dprecipe.faults import DataFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from tests.data.test_python_records import FEATURES, LABELS, RECIPE

COUNT = len(LABELS)


@pytest.fixture
def expected() -> DataFacts:
    return describe_data(make_plan(read_text(RECIPE, "recipe.yaml")).data, "train")


class Source:
    """Answers what `change` makes of features and labels."""

    def __init__(self, change: Any = None, units: Any = None, answer: Any = None) -> None:
        self.units, self.unit_count, self.change, self.answer = units, COUNT, change, answer

    def __len__(self) -> int:
        return COUNT

    def batch(self, indices: Any) -> Any:
        chosen = np.arange(COUNT)[indices]
        if self.change is not None:
            chosen = self.change(chosen)
        features, labels = FEATURES[chosen], LABELS[chosen]
        return (features, labels) if self.answer is None else self.answer(features, labels)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Source(lambda chosen: np.repeat(chosen, np.where(chosen == 3, 5, 1))), "one row and one label for each"),
        (Source(lambda chosen: chosen[1:]), "one row and one label for each"),
        (Source(answer=lambda x, y: (x, y[:-1])), "one row and one label for each"),
        (Source(answer=lambda x, y: (x.tolist(), y)), "does not return NumPy arrays"),
        (Source(answer=lambda x, y: (x, y + 7)), "not an integer from 0 to 1"),
        (Source(answer=lambda x, y: (x, y.astype(np.float32))), "not an integer from 0 to 1"),
        (Source(answer=lambda x, y: (x, np.stack([y, y], 1))), "does not have one label a record"),
        (Source(answer=lambda x, y: (x.astype(object), y)), "are an array of object"),
    ],
)
def test_an_answer_that_was_not_asked_for(source: Source, says: str, expected: DataFacts) -> None:
    for indices in (slice(0, 9), np.arange(9)):
        with pytest.raises(DataFault, match=says):
            CheckedSource(source, expected, "train").batch(indices)


def test_rows_keep_one_shape(expected: DataFacts) -> None:
    source = CheckedSource(Source(answer=lambda x, y: (x[:, : 3 if len(x) < 5 else 2], y)), expected, "train")
    source.batch(slice(0, 4))
    with pytest.raises(DataFault, match=r"rows of float32 \[2\], after rows of float32 \[3\]"):
        source.batch(slice(0, 6))


def test_an_answer_that_was(expected: DataFacts) -> None:
    source = CheckedSource(Source(), expected, "train")
    features, labels = source.batch(np.array([5, 2]))
    assert (features == FEATURES[[5, 2]]).all()
    assert (labels == LABELS[[5, 2]]).all()
    assert len(source.batch(slice(20, 99))[0]) == COUNT - 20
    assert (len(source), source.unit_count) == (COUNT, COUNT)
    assert CheckedSource(Source(units=np.repeat(np.arange(COUNT // 2), 2)), expected, "train").unit_count == COUNT // 2


@pytest.mark.parametrize(
    ("records", "says"),
    [
        (
            Records(FEATURES, np.where(np.arange(COUNT) == 5, 77, LABELS)),
            "a label of `train` is not an integer from 0 to 1",
        ),
        (Records(FEATURES, LABELS.astype(np.float32)), "a label of `train` is not an integer from 0 to 1"),  # type: ignore[arg-type]
        (Records(FEATURES[:9], LABELS), "one label a record"),
        (Records(FEATURES.astype(object), LABELS), "array of object"),
        (Records(FEATURES, LABELS, np.full(COUNT, -1)), "whole number a record, from 0 on"),
        (Records(FEATURES, LABELS, np.zeros(3, np.int64)), "whole number a record, from 0 on"),
        (Source(units=np.full(COUNT, -1)), "whole number a record, from 0 on"),
    ],
)
def test_records_are_checked_whole(records: Any, says: str, expected: DataFacts) -> None:
    with pytest.raises(DataFault, match=says) as caught:
        check_records(records, expected, "train")
    assert "77" not in caught.value.message


def test_records_of_other_widths_of_number_are_taken(expected: DataFacts) -> None:
    result = check_records(Records(FEATURES, LABELS.astype(np.uint8)), expected, "train")  # type: ignore[arg-type]
    assert isinstance(result, Records)
    assert result.labels.dtype == np.int64


def test_a_kind_of_records_that_answers_by_itself_is_held(expected: DataFacts) -> None:
    class Oversampled(Records):
        def batch(self, indices: Any) -> Any:
            features, labels = super().batch(indices)
            return np.repeat(features, 2, 0), np.repeat(labels, 2)

    with pytest.raises(DataFault, match="one row and one label"):
        check_records(Oversampled(FEATURES, LABELS), expected, "train").batch(slice(0, 4))


def test_nothing_is_spent_on_a_label_that_is_no_class(tmp_path: Path) -> None:
    import dprecipe

    plan = make_plan(read_text(RECIPE, "recipe.yaml"))
    with pytest.raises(DataFault, match="not an integer from 0 to 1"):
        dprecipe.run(plan, out=tmp_path / "run", train=Records(FEATURES, LABELS + 1))
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataFault, match="one row and one label"):
        dprecipe.run(
            plan, out=tmp_path / "other", train=Source(lambda chosen: np.repeat(chosen, 2)), test=(FEATURES, LABELS)
        )
    assert not (tmp_path / "other" / "release").exists()
