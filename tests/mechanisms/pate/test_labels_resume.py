"""A run that releases labels alone, killed at any moment, goes on: nothing is free, and nothing comes twice."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dprecipe
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read

DRIVER = Path(__file__).with_name("kill_labels_driver.py")
RECIPE = """\
recipe: dprecipe/v1
name: labels
data: {train: {source: elsewhere, classes: 3}}
model: {kind: none}
mechanism:
  kind: pate
  teachers: {count: 250, votes: {path: votes.npz}}
  aggregator: AGGREGATOR
  queries: {max: 60}
budget: {epsilon: 3.0, delta: 1e-6}
release: {labels: true}
"""
GNMAX = "{kind: gnmax, noise: {family: gaussian, multiplier: auto}}"
CONFIDENT = """{kind: confident_gnmax, noise: {family: gaussian, multiplier: auto},
    selection: {threshold: 150, noise: {family: gaussian, multiplier: 90}}}"""


@pytest.mark.slow
@pytest.mark.parametrize("aggregator", [GNMAX, CONFIDENT])
def test_kills_at_each_moment(tmp_path: Path, aggregator: str) -> None:
    recipe = tmp_path / "labels.yaml"
    recipe.write_text(RECIPE.replace("AGGREGATOR", aggregator), encoding="utf-8")
    np.savez(tmp_path / "votes.npz", votes=np.random.default_rng(0).multinomial(250, [0.9, 0.05, 0.05], size=60))
    environment = {name: value for name, value in os.environ.items() if name != "DPRECIPE_DATA"}
    command = [sys.executable, str(DRIVER), str(recipe), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        case = json.loads(line)
        moment, out = case["moment"], Path(case["out"])
        words = Path(f"{out}.words").read_text(encoding="utf-8")
        is_released = moment == "released"  # then there is nothing to resume
        assert case["codes"] == [-signal.SIGKILL, 2 if is_released else 0, 2], (moment, words)
        ledger = read(out / "private" / "ledger.jsonl")
        assert len(Path(f"{out}.draws").read_bytes()) <= count_events(ledger.charges), moment
        kept = [json.loads(line) for line in (out / "private" / "answers.jsonl").read_text().splitlines()]
        asked = [query for one in kept if one["is_answer"] for query in one["queries"]]
        assert len(asked) == len(set(asked)), moment
        labels = [label for one in kept if one["is_answer"] for label in one["outcomes"]]
        rows = csv.DictReader((out / "release" / "labels.csv").read_text(encoding="utf-8").splitlines())
        released = {int(row["record"]): int(row["label"]) for row in rows}
        assert released == dict(zip(asked, labels, strict=True)), moment
        assert len(released) >= 40, moment
        verified = dprecipe.verify(out / "release")
        assert verified.statement.predicate.claim.epsilon <= 3.0, moment
