"""Labels that are missing, of every kind and from every kind of reader: marked where the recipe omits them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dprecipe.data.counts import SourceCounts
from dprecipe.data.omitted import OMITTED, find_missing, is_omitted
from dprecipe.data.problems import Problems
from dprecipe.data.sources.labels import Label
from dprecipe.data.table import encode_labels
from dprecipe.data.values import CodedTexts, Values
from dprecipe.faults import DataFault

NAN = float("nan")


def encode(fields: Values, counts: SourceCounts | None = None, **declared: Any) -> list[float | None]:
    """The labels of a column, as a run has them; None for NaN."""
    problems = Problems(private=True)
    label = Label.model_validate({"column": "y", **declared})
    labels = encode_labels({"y": fields}, label, lambda row: f"row {row}", problems, counts)
    problems.check()
    return [None if value != value else value for value in labels.tolist()]


MASKED = np.ma.MaskedArray([1, 0, 2], mask=[False, True, False])
CASES: dict[str, tuple[Values, dict[str, Any], list[float | None]]] = {
    "names": (["b", "", "a", "NA", None], {"values": ("a", "b")}, [1, OMITTED, 0, OMITTED, OMITTED]),
    "a name that is a mark": (["none", "", "a"], {"values": ("a", "none")}, [1, OMITTED, 0]),
    "coded": (CodedTexts(["a", "b"], np.array([1, -1, 0])), {"values": ("a", "b")}, [1, OMITTED, 0]),
    "classes": (["1", "", "0", "n/a"], {"classes": 2}, [1, OMITTED, 0, OMITTED]),
    "whole numbers": (MASKED, {"classes": 3}, [1, OMITTED, 2]),
    "a range": (["5", "", "0", "nan"], {"range": (0.0, 10.0)}, [0, None, -1, None]),
    "numbers": (np.ma.MaskedArray([5.0, NAN, 10.0]), {"range": (0.0, 10.0)}, [0, None, 1]),
    "a count": (["5", "", "0"], {"count": {"max": 9}}, [5, None, 0]),
    "none is there": (["", "NA"], {"classes": 2}, [OMITTED, OMITTED]),
    "no number is there": (["", "NA"], {"range": (0.0, 10.0)}, [None, None]),
    "all are there": (["1", "0"], {"classes": 2}, [1, 0]),
}


@pytest.mark.parametrize("name", CASES)
def test_each_kind_of_label(name: str) -> None:
    values, declared, expected = CASES[name]
    assert encode(values, missing="omit", **declared) == expected
    if len(expected) > 2:
        with pytest.raises(DataFault):
            encode(values, **declared)


def test_what_is_wrong_is_still_reported_by_its_own_row() -> None:
    with pytest.raises(DataFault, match="a label is not among the 2 declared values") as caught:
        encode(["", "a", "SECRET"], values=("a", "b"), missing="omit")
    assert caught.value.message.startswith("row 2, ")
    with pytest.raises(DataFault, match="a label is empty") as caught:
        encode(["", "a"], values=("a", "b"))
    assert "label.missing: omit" in caught.value.remedy


def test_a_missing_number_counts_as_no_other() -> None:
    """Counts of clamped labels stay those of the labels that are there."""
    counts = SourceCounts(records=3)
    encode(["7", "", "99"], counts, range=(5.0, 10.0), missing="omit")
    found = counts.column("y", "label")
    assert (found.below, found.above, found.missing) == (0, 1, 1)
    assert counts.as_json()["columns"]["y"] == {"kind": "label", "clamped": 1, "shares": {"clamped": 0.333333}}


def test_labels_that_are_all_missing_are_refused() -> None:
    counts, problems = SourceCounts(records=20), Problems(private=True)
    encode([""] * 20, counts, classes=2, missing="omit")
    counts.check("data.train", problems)
    with pytest.raises(DataFault, match="every field is missing"):
        problems.check()


def test_one_label_beyond_the_range_stops_nothing() -> None:
    """Where nearly all labels are missing, one record would decide if the run begins."""
    for present in ([], ["500"], ["50"]):
        counts, problems = SourceCounts(records=400), Problems(private=True)
        encode([*present, *[""] * (400 - len(present))], counts, range=(0.0, 100.0), missing="omit")
        counts.check("data.train", problems)
        assert problems.found == (not present)
    counts, problems = SourceCounts(records=400), Problems(private=True)
    encode([*["500"] * 20, *[""] * 380], counts, range=(0.0, 100.0), missing="omit")
    counts.check("data.train", problems)
    with pytest.raises(DataFault, match="every number is at one end"):
        problems.check()


def test_masks() -> None:
    assert is_omitted(np.array([0, -1, 3])).tolist() == [False, True, False]
    assert is_omitted(np.array([0.0, NAN], np.float32)).tolist() == [False, True]
    assert find_missing(["?", "no", " "], ("?",)).tolist() == [False, False, True]
