"""Released scores, read by name."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.language.base import Block
from dprecipe.release import scores
from dprecipe.release.scores import ClassifierScore, NumericScore


class WithBaseline(Block):
    """A score of a kind that this module has not heard of."""

    accuracy: float
    accuracy_baseline: float
    average_precision: float
    records: int


def test_a_score_stands_beside_its_baseline() -> None:
    released = WithBaseline(accuracy=0.852, accuracy_baseline=0.764, average_precision=0.71234567, records=10)
    assert scores.list_rows(released) == [
        scores.Row("accuracy", "76.40%", "85.20%"),
        scores.Row("average precision", "", "0.7123"),
    ]
    assert scores.list_headline(released, 10) == (
        ("85.20%", "accuracy: 76.40% without a model; on 10 records declared public"),
    )
    assert scores.read_baseline(released, "accuracy") == 0.764


def test_a_score_without_a_baseline() -> None:
    classifier = ClassifierScore(accuracy=0.9, loss=0.25, records=1000)
    assert scores.list_headline(classifier, 1000) == (("90.00%", "accuracy on 1,000 records declared public"),)
    assert [row.name for row in scores.list_rows(classifier)] == ["accuracy", "loss"]
    numeric = NumericScore(mean_absolute_error=2.71828, loss=12.3, records=3)
    assert [row.name for row in scores.list_rows(numeric, "mean squared error")] == [
        "mean absolute error",
        "mean squared error",
    ]
    assert scores.read_baseline(classifier, "accuracy") is None
    assert scores.read_baseline(None, "accuracy") is None


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("classes: 2", "mean loss"),
        ("range: [0, 5]", "mean squared error"),
        ("count: {max: 9}", "mean Poisson deviance"),
        ("several: [a, b]", "mean binary cross entropy"),
    ],
)
def test_what_a_loss_is_depends_on_what_is_learned(label: str, name: str, plan_of: Any) -> None:
    data = f"data.train={{source: npz, path: a.npz, features: x, labels: y, shape: [3], {label}}}"
    changes = (data, "data.test=null", "model={kind: linear}", "training.optimizer.lr=0.1")
    assert scores.name_loss(plan_of(overrides=changes).data) == name
