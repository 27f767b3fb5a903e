"""Commands on the device, in one process: a search, audits, and what is done with a release. Run by `test_runs.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dprecipe.cli.main import app
from tests.languages import write_release
from tests.pretend_cuda.cases.recipes import CNN, TRAINING, Start
from tests.pretend_cuda.counting import recording
from tests.recipe_texts import DIGITS, DPSGD

MLP = DIGITS + "model: {kind: mlp, hidden: [16]}\n" + DPSGD + TRAINING + "runtime: {device: cuda}\n"
TUNED = (
    MLP
    + """\
tuning:
  runs: {kind: fixed, count: 2}
  over: [{key: training.optimizer.lr, range: [0.5, 5.0], scale: log}]
  score: {metric: accuracy, records: test}
"""
)


def call(*command: str) -> str:
    """Run a command that is to end well; return what it printed."""
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path / "recipe.yaml"


def write(path: Path, text: str) -> str:
    path.write_text(f"recipe: dprecipe/v1\nname: pretended\n{text}", encoding="utf-8")
    return str(path)


def test_a_search(written: Path, tmp_path: Path) -> None:
    with recording() as seen:
        call("tune", write(written, TUNED), "--out", str(tmp_path / "tuned"))
    assert seen.launches > 100
    call("verify", str(tmp_path / "tuned" / "release"))


def test_an_audit_of_steps(written: Path) -> None:
    with recording() as seen:
        call("audit", write(written, MLP), "--depth", "steps", "--steps", "200")
    assert seen.launches > 1000


def test_a_rehearsal(written: Path) -> None:
    with recording() as seen:
        call("run", write(written, MLP), "--rehearse")
    assert seen.launches > 10


def test_what_was_released_predicts_and_is_exported(start: Start, tmp_path: Path) -> None:
    release = start(CNN, "training.steps=1")
    (tmp_path / "images").mkdir()
    for number in range(4):
        Image.fromarray(np.full((28, 28), 60 * number, dtype=np.uint8)).save(tmp_path / "images" / f"{number}.png")
    call("predict", str(release), str(tmp_path / "images"), "--out", str(tmp_path / "predicted.csv"))
    assert len((tmp_path / "predicted.csv").read_text(encoding="utf-8").splitlines()) == 5
    call("export", str(release), "--format", "huggingface", "--out", str(tmp_path / "hub"))


def test_a_language_model_writes_on_the_device_what_it_writes_on_the_cpu(tmp_path: Path) -> None:
    write_release(tmp_path / "release", "llama")
    given = ["generate", str(tmp_path / "release"), "--no-verify", "--prompt", "see", "--max-tokens", "6"]
    with recording() as seen:
        there = call(*given, "--temperature", "0", "--device", "cuda")
    assert seen.launches > 10
    assert there == call(*given, "--temperature", "0", "--device", "cpu")
    with recording() as seen:
        assert call(*given, "--device", "auto") == call(*given, "--device", "cuda")
    assert seen.launches > 10
