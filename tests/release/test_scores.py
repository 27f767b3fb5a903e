"""Released scores, read by name."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.language.base import Block
from dprecipe.release import scores
from dprecipe.release.scores import ClassifierScore, NumericScore, hint_at_classes


class WithBaseline(Block):
    """A score of a kind that this module has not heard of."""

    accuracy: float
    accuracy_baseline: float
    average_precision: float
    records: int


def test_a_score_stands_beside_its_baseline() -> None:
    released = WithBaseline(accuracy=0.852, accuracy_baseline=0.734, average_precision=0.71234567, records=10)
    assert scores.list_rows(released) == [
        scores.Row("accuracy", "73.40%", "85.20%"),
        scores.Row("average precision", "", "0.7123"),
    ]
    assert scores.list_headline(released, 10) == (
        ("85.20%", "accuracy: 73.40% without a model; on 10 records declared public"),
    )
    assert scores.read_baseline(released, "accuracy") == 0.734


def test_accuracy_does_not_lead_where_classes_are_unequal() -> None:
    found = {"accuracy": 0.9368, "accuracy_baseline": 0.9356, "balanced_accuracy": 0.512, "auc": 0.607}
    found |= {"balanced_accuracy_baseline": 0.5, "auc_baseline": 0.5}
    unequal = ClassifierScore(**found, loss=0.25, records=1000)
    assert scores.list_headline(unequal, 1000) == (
        ("51.20%", "balanced accuracy: 50.00% without a model; on 1,000 records declared public"),
        ("0.607", "AUC: 0.5 without a model; on 1,000 records declared public"),
        ("93.68%", "accuracy: 93.56% without a model; on 1,000 records declared public"),
    )
    numbers = scores.read_numbers(unequal)
    assert scores.describe_scores(numbers, scores.list_leading(numbers)) == (
        "balanced accuracy 51.20% (50.00% without a model), AUC 0.607 (0.5), accuracy 93.68% (93.56%)"
    )
    assert scores.list_leading({**numbers, "accuracy_baseline": 0.74}) == ["accuracy"]
    one_class = {"accuracy": 1.0, "accuracy_baseline": 1.0, "balanced_accuracy": 1.0}
    assert scores.list_leading(one_class) == ["balanced_accuracy", "accuracy"]
    names = {"accuracy": 0.8, "accuracy_baseline": 0.8, "f1_macro": 0.1, "auc": 0.7, "average_precision": 0.2}
    assert scores.list_leading(names) == ["auc", "average_precision", "accuracy"]
    assert scores.list_leading({"mean_absolute_error": 3.0, "mean_absolute_error_baseline": 4.0}) == [
        "mean_absolute_error"
    ]
    assert scores.list_leading({}) == []


def test_a_score_near_chance_leads_to_weights() -> None:
    unequal = {"accuracy": 0.96, "accuracy_baseline": 0.97, "balanced_accuracy_baseline": 0.5}
    assert "class_weights" in hint_at_classes({**unequal, "balanced_accuracy": 0.54})[0]
    assert hint_at_classes({**unequal, "balanced_accuracy": 0.56}) == []
    assert hint_at_classes({**unequal, "accuracy_baseline": 0.6, "balanced_accuracy": 0.5}) == []
    assert hint_at_classes({"mean_absolute_error": 1.0}) == []


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
