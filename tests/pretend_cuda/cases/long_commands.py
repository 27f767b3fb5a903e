"""Commands on the device, in one process: a search, audits, and what is done with a release. Run by `test_runs.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dprecipe.cli.main import app
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


@pytest.mark.parametrize("depth", ["program", "steps"])
def test_an_audit(written: Path, depth: str) -> None:
    with recording() as seen:
        call("audit", write(written, MLP), "--depth", depth, "--steps", "10")
    assert seen.launches > 10


def test_a_rehearsal(written: Path) -> None:
    with recording() as seen:
        call("run", write(written, MLP), "--rehearse")
    assert seen.launches > 10


def test_what_was_released_predicts_and_is_exported(start: Start, images: Path, tmp_path: Path) -> None:
    release = start(CNN, "training.steps=1")
    given = torch.rand(4, 1, 28, 28)
    np.save(tmp_path / "images.npy", given.numpy())
    call("predict", str(release), str(tmp_path / "images.npy"), "--out", str(tmp_path / "predicted.csv"))
    call("export", str(release), "--out", str(tmp_path / "model.pt2"))
    assert json.loads((release / "model.json").read_text(encoding="utf-8"))
