"""A run whose held-out records are cut out of its training source: from an interruption to a release that verifies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from dprecipe.api import run
from dprecipe.faults import Interrupted
from dprecipe.planning.make import plan
from dprecipe.privacy import ledger
from dprecipe.recipe.read import read_text
from dprecipe.release.verify import verify
from dprecipe.training.program import gather
from dprecipe.training.run import start as running

RECIPE = """
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train}
  test: {split: {share: 0.2}}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5, neighbouring: zero_out_one}
training: {steps: 30, optimizer: {kind: sgd, lr: 0.5}}
"""


@pytest.mark.slow
def test_a_resumed_run_has_the_same_split_and_its_certificate_says_how_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out, sides = plan(read_text(RECIPE)), tmp_path / "run", []
    real, reserve = gather.gather_records, ledger.LedgerWriter.reserve
    calls = 0

    def gathering(*arguments: object) -> gather.Gathered:
        gathered = real(*arguments)  # type: ignore[arg-type]
        sides.append([gathered.sources[role].batch(slice(None))[0] for role in ("train", "test")])
        return gathered

    def interrupting(self: ledger.LedgerWriter, *arguments: object) -> None:
        nonlocal calls
        calls += 1
        reserve(self, *arguments)  # type: ignore[arg-type]
        if calls == 5:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(running, "gather_records", gathering)
    monkeypatch.setattr(ledger.LedgerWriter, "reserve", interrupting)
    with pytest.raises(Interrupted):
        run(made, out)
    monkeypatch.setattr(ledger.LedgerWriter, "reserve", reserve)
    run(made, out, resume=True)
    assert len(sides) == 2
    for one, other in zip(*sides, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(sides[0][0]) + len(sides[0][1]) == 1438
    access = verify(out / "release").statement.predicate.data_access
    words = "cut out of the training source by a keyed hash of each record's number in its source"
    assert words in str(access.evaluation)
    released = [path for path in (out / "release").iterdir() if path.suffix in (".json", ".md", ".html")]
    for count in (len(sides[0][0]), len(sides[0][1])):  # how many are on a side is no part of the release
        assert not [path.name for path in released if f"{count:,} records" in path.read_text("utf-8")]
