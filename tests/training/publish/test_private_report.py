"""The report for a run's owner: clearly private, and nothing of it anywhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.training.program.evaluate import MAX_SAMPLE, Sample
from dprecipe.training.publish import private_report
from dprecipe.training.steps import stepwise

Small = Callable[..., Plan]
POINTS = [
    {"step": 1, "epsilon": 0.5, "accuracy": 0.25, "loss": 2.0, "training_accuracy": 0.5, "training_loss": 1.5},
    {
        "step": 9,
        "epsilon": 0.9,
        "accuracy": 0.75,
        "loss": 1.0,
        "training_accuracy": 0.875,
        "training_loss": float("nan"),
    },
]


@pytest.mark.slow
def test_the_private_report_has_what_no_release_may_have(
    small: Small, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = small("training.steps=60", "data.test.access=private_internal", "release.report=true"), tmp_path / "run"
    done = run(plan, out)
    page = (out / "private" / "report.html").read_text("utf-8")
    assert oct((out / "private" / "report.html").stat().st_mode)[-3:] == "600"
    assert "<title>PRIVATE: small" in page
    assert private_report.BANNER in page
    assert "without a model; on private held-out records" in page
    assert "without a model; on a sample of training records" in page
    log = (out / "private" / "metrics.csv").read_text("utf-8").splitlines()
    assert log[0] == "step,epsilon,accuracy,loss,training_accuracy,training_loss"
    figures = [figure for figure in log[-1].split(",")[2:] if len(figure) > 7]  # shorter ones occur by chance
    assert len(figures) >= 2  # the losses at least
    said = "".join(capsys.readouterr())
    for file in done.release.iterdir():
        content = file.read_bytes()
        for word in ("training_loss", "training_accuracy", *figures):
            assert word.encode() not in content, (file.name, word)
    assert "training_" not in said
    dprecipe.verify(done.release)


def test_public_scores_are_released_without_those_on_training_records(small: Small, tmp_path: Path) -> None:
    done = run(small("training.steps=60"), tmp_path / "run")
    history = json.loads((done.release / "metrics.json").read_text("utf-8"))["history"]
    assert len(history) > 1
    assert all(point.keys() == {"step", "accuracy", "loss"} for point in history)


def test_a_run_without_held_out_records_still_has_curves(small: Small, tmp_path: Path) -> None:
    run(small("training.steps=60", "data.test=null", "release.report=true"), tmp_path / "run")
    page = (tmp_path / "run" / "private" / "report.html").read_text("utf-8")
    assert "Loss on a sample of training records." in page
    assert page.count("<svg ") == 2


def test_a_page_that_can_not_be_written_ends_no_run(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> str:
        raise RuntimeError("a plotting library's own fault")

    monkeypatch.setattr(private_report, "render_svg", fail)
    done = run(small("training.steps=60", "release.report=true"), tmp_path / "run")
    assert done.release.is_dir()
    assert "report.html: can't be written (RuntimeError); the run goes on without it" in capsys.readouterr().err


def test_texts_are_escaped_and_curves_pass_over_what_is_no_number(small: Small) -> None:
    page = private_report.render_private_report(small(), POINTS, "<script>1</script>\x1b", [("loop", 1.25)], False)
    assert "<script" not in page
    assert "\x1b" not in page
    assert page.count("<svg ") == 2
    assert "<td>1.2 s</td>" in page
    assert private_report.list_names(POINTS) == ["accuracy", "loss"]


def test_runs_of_a_tuned_run_and_how_an_attempt_ended_are_told(small: Small) -> None:
    trials = [["training.optimizer.lr", "accuracy"], ["0.5", "0.75"], ["<b>", ""]]
    page = private_report.render_private_report(small(), [], "", [], True, trials, "no <room> on the disk")
    assert "no &lt;room&gt; on the disk" in page
    assert ">0.75<" in page
    assert "<b>" not in page


def test_an_attempt_that_fails_leaves_its_report(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RunFailed("the disk is on fire", "call somebody")

    monkeypatch.setattr(stepwise, "fit_steps", fail)
    with pytest.raises(RunFailed, match="on fire"):
        run(small("release.report=true"), tmp_path / "run")
    page = (tmp_path / "run" / "private" / "report.html").read_text("utf-8")
    assert "No release" in page
    assert "the disk is on fire" in page
    assert "Where the time of the last attempt went" in page
    assert not (tmp_path / "run" / "release").exists()


def test_a_sample_is_spread_over_the_records_and_always_the_same() -> None:
    class Numbers:
        def __init__(self, count: int) -> None:
            self.values = np.arange(count, dtype=np.float32)

        def __len__(self) -> int:
            return len(self.values)

        def batch(self, indices: Any) -> Any:
            return self.values[indices], self.values[indices].astype(np.int64)

    sample = Sample(Numbers(20 * MAX_SAMPLE + 1))
    assert len(sample) == MAX_SAMPLE
    values = sample.batch(slice(0, MAX_SAMPLE))[0]
    assert (values[0], values[-1]) == (0, 20 * MAX_SAMPLE)
    assert set(np.diff(values)) <= {20, 21}
    assert list(Sample(Numbers(3)).batch(slice(0, 64))[0]) == [0, 1, 2]
    assert [len(Sample(Numbers(count))) for count in (0, 99, 1500, 4000)] == [0, 99, 100, 200]
