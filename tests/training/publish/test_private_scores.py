"""The scores of a run's private report: beside a constant answer's, with errors and calibration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.targets import ClassTarget, NumberTarget, SeveralTarget, Target
from dprecipe.training.program.evaluate import Score, keep_metrics
from dprecipe.training.program.metrics import measure
from dprecipe.training.publish.private_scores import read_scores, render_measured

Small = Callable[..., Plan]
GENERATOR = np.random.default_rng(5)
ILL = (GENERATOR.random(1000) < 0.07).astype(float)
CHANCES = np.clip(0.05 + 0.1 * ILL + 0.05 * GENERATOR.normal(size=1000), 0.0, 1.0)
UNEQUAL = measure(np.stack([1 - CHANCES, CHANCES], axis=1), ILL, ClassTarget(2))


def render(path: Path, scores: dict[str, Any], target: Target) -> str:
    keep_metrics(Score(0.5, 0.25, 1000, full=scores), path, Score(0.5, 0.25, 100, full=scores))
    return "\n".join(render_measured(read_scores(path), "private held-out records", target))


def test_unequal_classes_lead_with_what_a_constant_does_not_reach(tmp_path: Path) -> None:
    page = render(tmp_path / "metrics.json", UNEQUAL, ClassTarget(2, ("well", "ill")))
    first, second = page.split("The same on a sample of training records")
    tiles = first.partition("<table")[0]
    balanced, auc, accuracy = (
        tiles.index(f"{text} without a model; on private held-out records")
        for text in (
            "balanced accuracy: 50.00%",
            "AUC: 0.5",
            f"accuracy: {UNEQUAL['accuracy_baseline']:.2%}",
        )
    )
    assert balanced < auc < accuracy
    assert "balanced accuracy: 50.00% without a model; on a sample of training records" in second
    assert "taken for ill" in first
    assert "probability of class ill" in first
    assert f">{UNEQUAL['loss_baseline']:.4g}</td>" in first
    assert "Calibration" not in second


@pytest.mark.parametrize(
    ("scores", "target", "words", "absent"),
    [
        ({"accuracy": 0.5, "confusion": [[1] * 21] * 21}, ClassTarget(21), ("accuracy on",), "taken for"),
        (
            measure(np.ones((4, 1)), np.arange(4.0), NumberTarget(0, 9)),
            NumberTarget(0, 9),
            ("absolute error: 1",),
            "of",
        ),
        (
            measure(np.full((4, 2), 0.4), np.eye(4)[:, :2], SeveralTarget(("a", "b"))),
            SeveralTarget(("a", "b")),
            ("probability of a name", "answers"),
            "taken for",
        ),
        ({"accuracy": float("nan")}, ClassTarget(2), ("loss on",), "accuracy"),
    ],
)
def test_other_labels(
    scores: dict[str, Any], target: Target, words: tuple[str, ...], absent: str, tmp_path: Path
) -> None:
    page = render(tmp_path / "metrics.json", scores, target)
    assert all(word in page for word in words)
    assert f"{absent} 0" not in page


def test_a_file_that_is_none_of_ours_is_passed_over(tmp_path: Path) -> None:
    for content in ("", "[]", "{", '{"records": 0, "training_sample": 3}'):
        (tmp_path / "metrics.json").write_text(content)
        assert render_measured(read_scores(tmp_path / "metrics.json"), "records", ClassTarget(2)) == []
    assert read_scores(tmp_path / "none.json") == {}
    keep_metrics(None, tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()


def test_no_release_has_them_and_no_screen(small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, out = small("training.steps=60", "data.test.access=private_internal", "release.report=true"), tmp_path / "run"
    done = run(plan, out)
    kept = json.loads((out / "private" / "metrics.json").read_text("utf-8"))
    page = (out / "private" / "report.html").read_text("utf-8")
    assert oct((out / "private" / "metrics.json").stat().st_mode)[-3:] == "600"
    assert f"{kept['accuracy_baseline']:.2%} without a model; on private held-out records" in page
    sample = kept["training_sample"]
    assert f"{sample['accuracy_baseline']:.2%} without a model; on a sample of training records" in page
    assert "Which classes are taken for which" in page
    said = "".join(capsys.readouterr())
    shown = {
        f"{each[key]:.6g}" for each in (kept, sample) for key in ("loss", "loss_baseline", "auc", "accuracy_baseline")
    }
    for text in (said, *(path.read_text("utf-8", "ignore") for path in done.release.iterdir())):
        assert "without a model" not in text
        assert "calibration" not in text
        assert not any(figure in text for figure in shown if len(figure) > 6)


def test_public_records_give_a_release_its_scores_and_no_training_record(small: Small, tmp_path: Path) -> None:
    done = run(small("training.steps=60", "release.report=true"), tmp_path / "run")
    sample = json.loads((done.folder / "private" / "metrics.json").read_text("utf-8"))["training_sample"]
    for path in done.release.iterdir():
        text = path.read_text("utf-8", "ignore")
        assert "training_sample" not in text
        assert "loss_baseline" not in text
        assert f"{sample['loss_baseline']:.6g}" not in text
        assert f"{sample['auc']:.6g}" not in text
