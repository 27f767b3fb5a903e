"""A run that loses a process goes on under torchrun: what was reserved stays charged, and the certificate verifies."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dprecipe
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read
from dprecipe.training.processes.launch import is_of_launch, is_restart_of_complete, name_launch

RECIPE = """\
recipe: dprecipe/v1
name: elastic
data:
  %s
model: %s
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  steps: %d
  optimizer: {kind: sgd, lr: 1.0}
runtime: {device: cpu, checkpoint_seconds: 0.02, compile: false, sharding: %s}
release: {report: false}
"""
TEXTS = """\
train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: {column: label, values: [ham, spam]}
  size: 1438
  preprocess: [{tokenize: {column: text, buckets: 64, length: 8}}]"""
DIGITS = "train: {source: digits, split: train}\n  size: 1438\n  preprocess: [{clip_features: {norm: 4.0}}]"
DRIVER = Path(__file__).with_name("elastic_driver.py")
KILLS = int(os.environ.get("DPRECIPE_KILLED_RANKS", "1"))
"""docs/project/reliability.md has the figures of 30."""


def find_children(process: int) -> list[int]:
    """The processes that this one has started, those that ended left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may have ended
            state, parent = path.read_text().rsplit(")", 1)[1].split()[:2]
            if int(parent) == process and state != "Z":
                found.append(int(path.parent.name))
    return sorted(found)


def kill_ranks(launcher: subprocess.Popen[str], ledger: Path, kills: int, seed: int) -> int:
    """Kill a random process of each attempt at a random moment; how many attempts it were."""
    moments, killed, seen = random.Random(seed), 0, 0
    ranks: list[int] = []
    while launcher.poll() is None:
        fresh = find_children(launcher.pid)
        if killed == kills or len(fresh) < 2 or set(fresh) & set(ranks):
            time.sleep(0.05)
            continue
        ranks = fresh
        # Most moments are in the loop, some before it.
        waits = time.monotonic() + (moments.uniform(0, 6) if moments.random() < 0.2 else 120)
        while launcher.poll() is None and time.monotonic() < waits and set(find_children(launcher.pid)) >= set(ranks):
            if ledger.exists() and (size := ledger.stat().st_size) > seen:
                seen = size
                time.sleep(moments.uniform(0, 0.5))
                break
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(moments.choice(ranks[:2]), signal.SIGKILL)
            killed += 1
        if ledger.exists():
            seen = ledger.stat().st_size
    return killed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("sharding", ["none", "parameters"])
def test_a_run_that_loses_ranks_at_random_moments_goes_on_and_counts_all(tmp_path: Path, sharding: str) -> None:
    """With weights in shards each process draws noise: none may draw more often than is charged."""
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    if sharding == "none":
        data, model, steps = DIGITS, "{kind: logistic_regression}", 1000 if KILLS < 10 else 3000
    else:
        data, model, steps = TEXTS, "{kind: transformer, width: 8, layers: 2, heads: 2}", 100 if KILLS < 10 else 1500
        rows = (f"{('ham', 'spam')[row % 2]},w{row % 7} w{row % 11}" for row in range(1438))
        (tmp_path / "texts.csv").write_text("\n".join(("label,text", *rows)), encoding="utf-8")
    recipe.write_text(RECIPE % (data, model, steps, sharding), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", str(KILLS + 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DPRECIPE_DATA": str(tmp_path)}
    with open(tmp_path / "said", "w+") as said:  # a pipe that nobody reads would fill
        launcher = subprocess.Popen(
            [*command, str(DRIVER), str(recipe), str(out)], env=environment, stdout=said, stderr=said, text=True
        )
        try:
            killed = kill_ranks(launcher, out / "private" / "ledger.jsonl", KILLS, seed=2)
        finally:
            launcher.kill()
            launcher.wait()
        said.seek(0)
        text = said.read()
    assert (out / "release").exists(), text[-4000:]
    draws = (tmp_path / "run.draws").read_bytes()
    drawn, ledger = max(draws.count(b"0"), draws.count(b"1")), read(out / "private" / "ledger.jsonl")
    charged, certificate = count_events(ledger.charges), dprecipe.verify(out / "release")
    print(f"{killed} ranks killed, {ledger.attempts} attempts: {drawn} draws, {charged} charged", end=", ")
    print(f"{count_events(ledger.unsettled)} of them not settled, ε = {certificate.claim.epsilon:g} of 3")
    assert killed >= 1
    assert ledger.attempts >= 2
    assert drawn <= charged
    assert certificate.claim.epsilon <= 3.0


def test_a_folder_of_another_launch_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert name_launch() is None
    assert not is_of_launch(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    (tmp_path / "private").mkdir()
    assert not is_of_launch(tmp_path)
    (tmp_path / "private" / "launch").write_text(name_launch() or "", encoding="utf-8")
    assert is_of_launch(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "two")
    assert not is_of_launch(tmp_path)


def test_a_restart_on_a_machine_without_the_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would begin anew, and spend a second budget."""
    for name, value in (("RUN_ID", "one"), ("RESTART_COUNT", "1")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("RANK", "0")
    assert not is_of_launch(tmp_path / "run")  # one machine: nothing had begun
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(UsageFault, match="not on this machine"):
        is_of_launch(tmp_path / "run")
    monkeypatch.setenv("RANK", "1")
    assert not is_of_launch(tmp_path / "run")


def test_a_complete_run_is_one_with_a_release_after_a_restart_on_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "launch").write_text(name_launch() or "", encoding="utf-8")
    assert not is_restart_of_complete(tmp_path)
    (tmp_path / "release").mkdir()
    assert is_restart_of_complete(tmp_path)
    for name, value in (("TORCHELASTIC_RESTART_COUNT", "0"), ("GROUP_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "two")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not is_restart_of_complete(tmp_path)
