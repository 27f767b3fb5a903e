"""T24: a run killed with SIGKILL at random moments and resumed each time hides nothing and stays within the budget."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dprecipe
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read

RECIPE = """\
recipe: dprecipe/v1
name: killed
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 4.0}}]
model: {kind: logistic_regression}
mechanism:
  %s
  sampling: {scheme: %s}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: %d
  optimizer: {kind: sgd, lr: 1.0}
runtime: {checkpoint_seconds: 0.02}
release: {report: false}
"""


DPSGD = """kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}"""
ENCODED = """kind: encoded
  codebook: {source: gaussian, size: 5}
  noise: [{family: laplace, multiplier: 3.0, steps: 100}, {family: gaussian, multiplier: auto}]"""


@pytest.mark.parametrize(
    ("mechanism", "scheme", "steps", "kills"),
    [
        (DPSGD, "poisson, batch_size: 64", 300, 3),
        pytest.param(DPSGD, "shuffle, batch_size: 128", 240, 2, marks=pytest.mark.slow),
        pytest.param(DPSGD, "poisson, batch_size: 64", 3000, 20, marks=pytest.mark.slow),
        pytest.param(DPSGD, "full_batch", 1500, 20, marks=pytest.mark.slow),
        pytest.param(DPSGD, "shuffle, batch_size: 128", 2400, 20, marks=pytest.mark.slow),
        pytest.param(ENCODED, "poisson, batch_size: 64", 1500, 20, marks=pytest.mark.slow),
    ],
)
def test_t24_killed_runs(tmp_path: Path, mechanism: str, scheme: str, steps: int, kills: int) -> None:
    recipe, out = tmp_path / "killed.yaml", tmp_path / "run"
    recipe.write_text(RECIPE % (mechanism, scheme, steps), encoding="utf-8")
    driver = Path(__file__).with_name("kill_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(recipe), str(out), str(kills), "11"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    ledger = read(out / "private" / "ledger.jsonl")
    certificate = json.loads((out / "release" / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    per_event = 12 if scheme.startswith("shuffle") else 1
    counted = certificate["events"]["total"]
    assert counted == count_events(ledger.charges)
    assert counted * per_event >= told["draws"]
    assert ledger.attempts >= 2
    assert certificate["claim"]["epsilon"] <= 3.0
    assert certificate["budget"]["stop_reason"] in ("completed", "budget")
    verified = dprecipe.verify(out / "release")
    assert verified is not None
