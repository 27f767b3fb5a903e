"""What a run says of private data: in a log, and in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

RECIPE = """\
recipe: dprecipe/v1
name: example
data:
  train: {source: digits, split: train}
  size: 1437
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
"""


def test_the_exact_number_of_private_records_is_for_a_terminal_alone(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "dprecipe", "run", "recipe.yaml"]
    logged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert logged.returncode == 4
    assert "does not have the number of records that data.size: 1437 declares" in logged.stderr
    assert "a terminal shows where and how many; a log must not" in logged.stderr
    assert not any(number in logged.stdout + logged.stderr for number in ("1438", "1,438"))
    leader, terminal = pty.openpty()
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal, check=False)
    os.close(terminal)
    output = b""
    try:
        while part := os.read(leader, 4096):
            output += part
    except OSError:  # all is read, and the other end is closed
        pass
    os.close(leader)
    assert b"in this terminal only: 1,438 records" in output
    assert not (tmp_path / "runs").exists()
