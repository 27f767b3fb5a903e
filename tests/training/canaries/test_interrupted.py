"""Canaries of runs that are killed and resumed, and of runs in several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dprecipe
from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.audit.results import Guesses
from dprecipe.training.canaries.contract import FILE, Coins
from dprecipe.training.canaries.gradients import GradientCanaries
from dprecipe.training.run import checkpoint
from tests.training.canaries.test_run import hidden_texts, is_public
from tests.training.run.test_kill import CORRELATED, DPSGD, RECIPE, hold_killed

AUDIT = "audit: {program: false, canaries: 200}\naccept: {P226: the audit is what it is for}\n"


def read_coins(folder: Path) -> Coins:
    return Coins(np.array([int(d) for d in json.loads((folder / "private" / FILE).read_text())["inside"]], bool))


@pytest.mark.slow
def test_a_run_that_is_killed_ten_times_keeps_its_coins_and_its_scores(tmp_path: Path) -> None:
    """The driver holds that the file of coins never changes. Whatever is written, by all attempts, tells no coin."""
    text = RECIPE % (DPSGD, "poisson, batch_size: 64", 400) + AUDIT
    _, ledger = hold_killed(tmp_path, text, 10)
    assert ledger.attempts >= 3  # a kill before an attempt is open counts none
    folder = tmp_path / "run"
    stated = dprecipe.verify(folder / "release").statement.predicate.audit
    assert stated is not None
    assert not stated.bounds[0].refuted
    coins = read_coins(folder)
    state = checkpoint.load(folder / "private" / "checkpoints" / "last.pt")
    assert state is not None
    assert state["canaries"]["coins"] == coins.digest
    scores = state["canaries"]["scores"].numpy()
    assert scores[coins.inside].mean() > scores[~coins.inside].mean()
    written = [path.read_bytes() for path in sorted(folder.rglob("*")) if is_public(path)]
    for hidden in hidden_texts(folder):
        assert not any(hidden.encode() in content for content in written)


def test_each_canary_is_added_by_one_process() -> None:
    canaries = GradientCanaries(Coins(np.array([True] * 50)), 33, "sha256:" + "00" * 32, replaced=False)
    batch: UnitNumbers = np.arange(5, 80, 3)
    parts = [canaries.split(batch[batch % 3 == rank]) for rank in range(3)]
    assert sorted(np.concatenate([kept for kept, _ in parts])) == [unit for unit in batch if unit < 33]
    assert sorted(np.concatenate([added for _, added in parts])) == [unit - 33 for unit in batch if unit >= 33]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "sampling", "steps"),
    [(DPSGD, "full_batch", 40), (CORRELATED, "fixed_order, batch_size: 128", 65)],
    ids=["full_batch", "fixed_order"],
)
def test_canaries_of_all_processes_are_seen(mechanism: str, sampling: str, steps: int, tmp_path: Path) -> None:
    """Nineteen names in twenty are right at so little noise (five runs), if the canaries of each process are in the sum
    and are scored by all; three in four would be, if only those of one were. Either is beyond the bound in one of ten
    thousand runs."""
    text = (RECIPE % (mechanism, sampling, steps) + AUDIT).replace("epsilon: 3.0", "epsilon: 60.0")
    recipe = tmp_path / "together.yaml"
    recipe.write_text(text.replace("checkpoint_seconds: 0.02", "device: cpu, processes: 2"), encoding="utf-8")
    command = [sys.executable, "-m", "dprecipe", "run", str(recipe), "--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    stated = dprecipe.verify(tmp_path / "run" / "release").statement.predicate.audit
    assert stated is not None
    guesses = stated.bounds[0].evidence
    assert isinstance(guesses, Guesses)
    inside = read_coins(tmp_path / "run").inside.sum()
    best = guesses.named_in + guesses.named_out - abs(inside - guesses.named_in)  # all are named, and coins are coins
    assert guesses.correct >= 0.87 * best
