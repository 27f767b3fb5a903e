"""The full set of scores: against scikit-learn and by hand, with baselines, and in a run's private folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn import metrics

import dprecipe
from dprecipe.api import run
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget
from dprecipe.faults import CertificateInvalid
from dprecipe.planning.make import plan as plan_of
from dprecipe.recipe.read import read_text
from dprecipe.release.certificate import to_bytes
from dprecipe.release.scores import SeveralScore
from dprecipe.training.program.metrics import (
    PRIVATE,
    find_calibration_error,
    list_calibration,
    measure,
    render_metrics,
)

GENERATOR = np.random.default_rng(0)


def draw(classes: int) -> tuple[np.ndarray, np.ndarray]:
    labels = GENERATOR.integers(classes, size=200)
    labels[:100] = 0
    scores = GENERATOR.normal(size=(200, classes))
    scores[np.arange(200), labels] += 1
    chances = np.exp(scores)
    return chances / chances.sum(1, keepdims=True), labels.astype(float)


def test_two_classes() -> None:
    chances, labels = draw(2)
    found, chosen, share = measure(chances, labels, ClassTarget(2)), chances.argmax(1), labels.mean()
    assert found["auc"] == metrics.roc_auc_score(labels, chances[:, 1])
    assert found["average_precision"] == metrics.average_precision_score(labels, chances[:, 1])
    assert found["average_precision_baseline"] == pytest.approx(share)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(labels, chosen))
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, chosen, average="macro"))
    assert found["accuracy_baseline"] == pytest.approx(max(share, 1 - share))
    assert found["confusion"] == metrics.confusion_matrix(labels, chosen).tolist()
    assert (found["auc_baseline"], found["balanced_accuracy_baseline"]) == (0.5, 0.5)


def test_several_classes_are_each_against_all_others() -> None:
    chances, labels = draw(4)
    found = measure(chances, labels, ClassTarget(4))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, chances, multi_class="ovr", average="macro"))
    assert np.array(found["confusion"]).sum() == 200
    absent = measure(chances, np.where(labels == 3, 0.0, labels), ClassTarget(4))  # a class without records
    assert absent["balanced_accuracy_baseline"] == pytest.approx(1 / 3)
    assert 0 < absent["auc"] < 1


def test_the_calibration_error_by_hand() -> None:
    confidence, right = np.array([0.95, 0.95, 0.62, 0.68, 1.0]), np.array([True, False, True, True, True])
    assert find_calibration_error(confidence, right) == pytest.approx((abs(2.9 - 2) + abs(1.3 - 2)) / 5)


def test_the_calibration_by_hand() -> None:
    said, true = np.array([0.0, 0.62, 0.68, 1.0]), np.array([False, False, True, True])
    assert list_calibration(said, true) == [
        {"from": 0.0, "to": 0.1, "count": 1, "said": 0.0, "true": 0.0},
        {"from": 0.6, "to": 0.7, "count": 2, "said": pytest.approx(0.65), "true": 0.5},
        {"from": 0.9, "to": 1.0, "count": 1, "said": 1.0, "true": 1.0},
    ]
    chances, labels = draw(2)
    assert measure(chances, labels, ClassTarget(2))["calibration"] == list_calibration(chances[:, 1], labels == 1)
    chances, labels = draw(3)
    top = list_calibration(chances.max(1), chances.argmax(1) == labels)
    assert measure(chances, labels, ClassTarget(3))["calibration"] == top


def test_the_loss_of_a_constant() -> None:
    """It says the shares of the classes, or the mean: the loss that scores have, of the best constant."""
    chances, labels = draw(3)
    shares = np.bincount(labels.astype(int)) / 200
    found = measure(chances, labels, ClassTarget(3))["loss_baseline"]
    assert found == pytest.approx(metrics.log_loss(labels, np.tile(shares, (200, 1))))
    assert measure(chances, np.zeros(200), ClassTarget(3))["loss_baseline"] == 0
    answers = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    names = measure(np.full((4, 2), 0.5), answers, SeveralTarget(("a", "b")))
    assert names["loss_baseline"] == pytest.approx(metrics.log_loss(answers[:, 0], np.full(4, 0.75)) / 2)
    numbers = GENERATOR.poisson(3, 50).astype(float)
    assert measure(numbers[:, None], numbers, NumberTarget(0, 9))["loss_baseline"] == pytest.approx(numbers.var())
    counted = measure(numbers[:, None] + 1, numbers, CountTarget(9))
    assert counted["loss_baseline"] == counted["poisson_deviance_baseline"]


def test_numbers_and_counts() -> None:
    labels = GENERATOR.poisson(4, 100).astype(float)
    predicted = labels * 0.7 + 1.5
    found = measure(predicted[:, None], labels, CountTarget(50))
    assert found["r2"] == metrics.r2_score(labels, predicted)
    assert found["root_mean_squared_error"] == pytest.approx(np.sqrt(((labels - predicted) ** 2).mean()))
    assert found["mean_absolute_error_baseline"] == pytest.approx(np.abs(labels - np.median(labels)).mean())
    assert found["poisson_deviance"] == metrics.mean_poisson_deviance(labels, predicted)
    assert found["poisson_deviance"] < found["poisson_deviance_baseline"]
    assert "poisson_deviance" not in measure(predicted[:, None], labels, NumberTarget(0.0, 50.0))
    constant = measure(predicted[:, None], np.full(100, 3.0), NumberTarget(0.0, 50.0))
    assert "r2" not in constant


def test_what_can_not_be_scored() -> None:
    assert measure(np.zeros((0, 2)), np.zeros(0), ClassTarget(2)) == {}
    assert measure(np.full((3, 2), np.nan), np.zeros(3), ClassTarget(2)) == {}
    one = measure(np.array([[0.6, 0.4]]), np.zeros(1), ClassTarget(2))
    assert "auc" not in one
    assert one["accuracy"] == 1


def test_json_has_no_infinity() -> None:
    scores = {"perplexity": float("inf"), "tokens": 3, "by_name": [{"auc": float("nan")}]}
    text = render_metrics(scores, 2)
    expected = {"records": 2, "perplexity": None, "tokens": 3, "by_name": [{"auc": None}]}
    assert json.loads(text, parse_constant=pytest.fail) == {"schema": PRIVATE, **expected}


def test_names_that_may_apply() -> None:
    generator = np.random.default_rng(3)
    answers = generator.random((300, 4)) < [0.5, 0.3, 0.05, 0.0]  # of the last nobody has any
    chances = np.clip(0.4 * answers + 0.6 * generator.random((300, 4)), 0, 1)
    found = measure(chances, answers.astype(float), SeveralTarget(("a", "b", "c", "d")))
    said = chances > 0.5
    assert found["accuracy"] == pytest.approx((said == answers).all(1).mean())
    rows = [tuple(row) for row in answers.tolist()]
    assert found["accuracy_baseline"] == max(rows.count(row) for row in rows) / 300
    for kind in ("macro", "micro"):
        expected = metrics.f1_score(answers, said, average=kind, zero_division=0)
        assert found[f"f1_{kind}"] == pytest.approx(expected)
        expected = metrics.f1_score(answers, np.ones_like(answers), average=kind, zero_division=0)
        assert found[f"f1_{kind}_baseline"] == pytest.approx(expected)
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(answers[:, :3], chances[:, :3]))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(answers[:, :3], chances[:, :3]))
    assert (found["auc_baseline"], found["average_precision_baseline"]) == (0.5, pytest.approx(answers[:, :3].mean()))
    assert [each["name"] for each in found["by_name"]] == ["a", "b", "c", "d"]
    assert found["by_name"][0]["f1"] == pytest.approx(metrics.f1_score(answers[:, 0], said[:, 0]))
    share = answers[:, 1].mean()
    assert found["by_name"][1]["f1_baseline"] == pytest.approx(2 * share / (1 + share))
    assert set(found["by_name"][3]) == {"name", "share", "f1", "f1_baseline"}
    nobody = measure(chances, np.zeros((300, 4)), SeveralTarget(("a", "b", "c", "d")))
    assert (nobody["accuracy_baseline"], nobody["f1_micro_baseline"]) == (1.0, 0.0)
    assert "auc" not in nobody
    stated = {key: value for key, value in found.items() if key not in ("loss_baseline", "calibration")}
    SeveralScore.model_validate({**stated, "loss": 0.5, "records": 300})
    assert found["calibration"] == list_calibration(chances.ravel(), answers.ravel())


RECIPE = """\
recipe: dprecipe/v1
name: scores
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 200}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 4, optimizer: {kind: sgd, lr: 1.0}}
release: {report: true}
"""


@pytest.mark.parametrize("access", ["private_internal", "public"])
def test_they_are_released_where_the_records_are_public_and_nowhere_else(tmp_path: Path, access: str) -> None:
    done = run(plan_of(read_text(RECIPE, "recipe.yaml", (f"data.test.access={access}",))), tmp_path / "run")
    content = json.loads((done.folder / "private" / "metrics.json").read_text())
    assert done.score is not None
    assert content["accuracy"] == pytest.approx(done.score.accuracy)
    assert content["records"] == 359
    assert content["auc"] > 0.5
    dprecipe.verify(done.release)
    if access == "private_internal":
        released = "".join(path.read_text("utf-8", "ignore") for path in done.release.iterdir())
        assert "balanced_accuracy" not in released
        assert "without a model" not in released
        return
    public = json.loads((done.release / "metrics.json").read_text())["public_evaluation"]
    assert {name: public[name] for name in ("accuracy_baseline", "auc", "f1_baseline", "calibration_error")} == {
        name: content[name] for name in ("accuracy_baseline", "auc", "f1_baseline", "calibration_error")
    }
    assert "confusion" not in public
    assert f"{content['accuracy_baseline']:.2%} without a model" in (done.release / "report.html").read_text("utf-8")
    assert f"| auc | {content['auc']:.4g} | 0.5 |" in (done.release / "card.md").read_text("utf-8")
    certificate = done.release / "certificate.json"
    changed = json.loads(certificate.read_text())
    changed["predicate"]["data_access"]["evaluation"]["released"]["accuracy_baseline"] = 0.0
    certificate.write_bytes(to_bytes(changed))
    with pytest.raises(CertificateInvalid, match=r"accuracy_baseline|public_evaluation"):
        dprecipe.verify(done.release)
