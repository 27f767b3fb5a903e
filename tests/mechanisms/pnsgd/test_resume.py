"""A last-iterate release that is stopped or killed shows nothing, goes on where it was or begins anew, and is charged
once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import dprecipe
from dprecipe import progress
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.mechanisms.pnsgd.train import run as train
from dprecipe.mechanisms.pnsgd.train.descent import Descent, State
from dprecipe.mechanisms.pnsgd.train.encrypted_state import EncryptedState
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.ledger import Ledger, read
from dprecipe.training.run import attempt
from dprecipe.training.run.runner import PythonInputs

Planned = Callable[..., Plan]
DRIVER = Path(__file__).resolve().parents[2] / "training" / "run" / "kill_driver.py"
BEFORE_THE_END = {
    "recipe.yaml", "resolved.yaml", "plan.json",
    "private/ledger.jsonl", "private/commitment.key", "private/overrides.json", "private/checkpoint.key",
    "private/checkpoints/last.encrypted", "private/data-check.json", "private/data-check.txt",
}  # fmt: skip
"""All that a run folder holds before the end. The state and its key are the only ones that private records move."""


def ledger_of(out: Path) -> Ledger:
    return read(out / "private" / "ledger.jsonl")


def files(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


def stopping(monkeypatch: pytest.MonkeyPatch, after: int, how: Callable[[], None]) -> list[np.ndarray]:
    """Let something happen after so many blocks of steps, which are passes of 3; the iterates at their ends."""
    honest, seen = Descent.advance, []

    def watched(self: Descent, count: int | None = None) -> None:
        honest(self, count)
        if not isinstance(self._records, Records):
            return  # the probe's own
        seen.append(self.state.iterate)
        if len(seen) == after:
            how()

    monkeypatch.setattr(Descent, "advance", watched)
    return seen


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def hold_hidden(out: Path, output: str, plan: Plan, iterates: list[np.ndarray], allowed: set[str]) -> None:
    """Nothing that the iterates tell is in a file or on the terminal: no bytes and no digits of theirs, no loss."""
    assert files(out) <= allowed
    output = re.sub(r"step \d+ of \d+\n", "", output)
    assert re.sub(r"\nstopping after this block of steps; press Ctrl-C again to stop at once\n", "", output) == ""
    since = files(out) - {"plan.json"}  # which is made before any record is read
    content = b"\n".join((out / name).read_bytes() for name in since)
    objective = train.build_objective(plan)
    source = np.load(out.parent / "records.npz")
    x, y = objective.rows(source["features"][:300], source["labels"][:300])
    assert len(iterates) > 1
    for w in iterates:
        figures = [*w.ravel().tolist(), float(objective.loss.value(x @ w.T, y).mean()), float(np.linalg.norm(w))]
        for figure in figures:
            assert np.float64(figure).tobytes() not in content
            # Of some 50 numbers in these files one has these eight digits by chance once in 100,000 tests.
            assert f"{figure:.11f}"[:10].encode() not in content


@pytest.mark.parametrize("checkpoint", ["encrypted", "none"])
def test_a_stopped_run_shows_nothing_and_goes_on(
    hidden: Planned, tmp_path: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    plan, out = hidden(f"mechanism.checkpoint={checkpoint}"), tmp_path / "run"
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)  # all that it could ever say is said
    with monkeypatch.context() as patch:
        seen = stopping(patch, 5, ctrl_c)
        with pytest.raises(Interrupted, match="stopped after 15 of 600 steps") as stopped:
            run(plan, out)
    assert "--resume" in stopped.value.remedy
    output = capfd.readouterr()
    assert output.out == ""
    kept = {"private/checkpoint.key", "private/checkpoints/last.encrypted"}
    hold_hidden(out, output.err, plan, seen, BEFORE_THE_END - (set() if checkpoint == "encrypted" else kept))
    ledger = ledger_of(out)
    assert (ledger.stop_reason, ledger.charges, ledger.settled) == ("interrupted", plan.events, ())
    again = stopping(monkeypatch, 0, ctrl_c)
    done = run(plan, out, resume=True)
    assert len(again) == (195 if checkpoint == "encrypted" else 200)
    ledger = ledger_of(out)
    assert (ledger.attempts, ledger.charges, ledger.settled, ledger.unsettled) == (2, plan.events, plan.events, ())
    assert done.epsilon <= plan.budget.epsilon
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_run_goes_on_as_if_it_had_not_been_stopped(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the noise of an uninterrupted one, which only a fixed seed and a fixed attempt can give it."""
    plan = hidden("runtime.insecure={seed: 3}", "mechanism.stop=random")
    monkeypatch.setattr(attempt, "Secrets", lambda seed, attempt: Secrets(seed, 1))
    iterates = []
    for stop in (0, 2):
        out = tmp_path / f"run{stop}"
        with monkeypatch.context() as patch:
            stopping(patch, stop, ctrl_c)
            if stop:
                with pytest.raises(Interrupted):
                    run(plan, out)
            run(plan, out, resume=bool(stop))
        iterates.append((out / "release" / "model.safetensors").read_bytes())
    assert iterates[0] == iterates[1]


@pytest.mark.parametrize(("checkpoint", "same"), [("encrypted", True), ("none", False)])
def test_order_and_stop_stay_where_a_run_goes_on_and_its_noise_never_does(
    hidden: Planned, tmp_path: Path, checkpoint: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = hidden(f"mechanism.checkpoint={checkpoint}", "mechanism.stop=random"), tmp_path / "run"
    states: list[State] = []
    drawn: list[bytes] = []

    def watched(self: Descent) -> None:
        states.append(self.state)
        drawn.append(self._noise.of(self.step, 1).tobytes())
        ctrl_c()

    program = train.prepare(plan, tmp_path, PythonInputs())
    monkeypatch.setattr(train, "prepare", lambda *_: program)
    monkeypatch.setattr(Descent, "advance", watched)
    for tried in range(3):
        with pytest.raises(Interrupted):
            run(plan, out, resume=tried > 0)
    first, *others = states
    assert first.order is not None
    for other in others:
        assert other.order is not None
        assert (first.order.tolist() == other.order.tolist()) == same
    if same:
        assert len({state.stop for state in states}) == 1
    assert len(set(drawn)) == 3


def test_the_private_log_is_the_only_place_of_the_loss(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    plan, out = hidden("mechanism.private_log=true"), tmp_path / "run"
    with monkeypatch.context() as patch:
        stopping(patch, 8, ctrl_c)
        with pytest.raises(Interrupted, match="24 of 600"):
            run(plan, out)
    assert files(out) == BEFORE_THE_END | {"private/losses.csv"}
    run(plan, out, resume=True)
    lines = (out / "private" / "losses.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["step", *map(str, range(3, 601, 3))]
    assert all(0 < float(line.split(",")[1]) < 10 for line in lines[1:])
    released = b"".join(path.read_bytes() for path in (out / "release").iterdir())
    assert not any(line.split(",")[1].encode() in released for line in lines[1:])
    assert all(line.split(",")[1] not in capfd.readouterr().err for line in lines[1:])


def test_a_run_that_has_ended_is_published_again_without_a_draw(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = hidden("mechanism.checkpoint=none"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "publish", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out)
    assert ledger_of(out).stop_reason == "completed"
    state = EncryptedState(out / "private/checkpoints/last.encrypted", out / "private/checkpoint.key", plan.digest)
    final = state.load(ledger_of(out))
    assert final is not None
    assert final.finished
    with monkeypatch.context() as patch:
        patch.setattr(EncryptedState, "load", lambda *_: None)
        with pytest.raises(RunFailed, match="its final state is not in private/"):
            run(plan, out, resume=True)
    monkeypatch.setattr(train, "_descend", lambda *_: pytest.fail("a run that has ended went on"))
    done = run(plan, out, resume=True)
    ledger = ledger_of(out)
    assert (ledger.charges, ledger.settled, ledger.attempts) == (plan.events, plan.events, 2)
    weights = load_file(done.release / "model.safetensors")
    assert (weights["1.weight"][1].numpy() == final.iterate[:5].astype(np.float32)).all()
    dprecipe.verify(done.release)
    with pytest.raises(UsageFault, match="complete"):
        run(plan, out, resume=True)


def test_a_state_of_another_run_is_refused_and_one_that_is_gone_is_not_missed(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = hidden()
    for name in ("one", "other"):
        with monkeypatch.context() as patch:
            stopping(patch, 2, ctrl_c)
            with pytest.raises(Interrupted):
                run(plan, tmp_path / name)
    state, key = "private/checkpoints/last.encrypted", "private/checkpoint.key"
    one, other = tmp_path / "one", tmp_path / "other"
    own = (one / state).read_bytes(), (one / key).read_bytes()
    for name in (state, key):
        (one / name).write_bytes((other / name).read_bytes())
        with pytest.raises(RunFailed, match=r"another plan or key|not belong to this ledger"):
            run(plan, one, resume=True)
    assert ledger_of(one).attempts == 1
    (one / state).write_bytes(own[0])
    (one / key).write_bytes(own[1])
    (one / state).unlink()
    steps = stopping(monkeypatch, 0, ctrl_c)
    done = run(plan, one, resume=True)
    assert len(steps) == 200  # from the start
    assert ledger_of(one).charges == plan.events
    dprecipe.verify(done.release)


KILLED = """\
import os, signal, sys, numpy as np
import torch; torch.set_num_threads(1)
from dprecipe.mechanisms.pnsgd.train.descent import Descent
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from dprecipe import progress
from dprecipe.api import run
progress.LINE_SECONDS = 0.0
honest, seen = Descent.advance, []
def advance(self, most=None):
    honest(self, most)
    if self._records.__class__.__name__ == "Records":
        seen.append(self.state.iterate)
    if len(seen) == 40:
        np.save(sys.argv[3], np.array(seen))
        os.kill(os.getpid(), signal.SIGKILL)
Descent.advance = advance
run(plan(read(sys.argv[1])), sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_run_shows_nothing(hidden: Planned, tmp_path: Path) -> None:
    plan = hidden()
    recipe, out = tmp_path / "hidden.yaml", tmp_path / "run"
    text = recipe.read_text("utf-8") + "runtime: {checkpoint_seconds: 0.000001}\n"
    recipe.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(recipe), str(out), str(tmp_path / "seen.npy")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert done.stdout == ""
    assert (out / "private" / "checkpoints" / "last.encrypted").exists()
    writing = {"private/checkpoints/last.encrypted.writing", "private/checkpoint.key.writing"}
    hold_hidden(out, done.stderr, plan, list(np.load(tmp_path / "seen.npy")), BEFORE_THE_END | writing)
    assert ledger_of(out).charges == ledger_of(out).unsettled == plan.events


RECIPE = """\
recipe: dprecipe/v1
name: killed
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 1.0}}]
model: {kind: softmax_regression, l2: 0.01}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 5.0}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: 4.0}
  batch_size: 720
  checkpoint: %s
  stop: %s
budget: {epsilon: auto, delta: 1e-5, neighbouring: replace_one}
training: {epochs: %d}
release: {report: false}
runtime: {checkpoint_seconds: %s}
"""


@pytest.mark.parametrize(
    ("checkpoint", "stop", "epochs", "kills", "seconds"),
    [
        pytest.param("none", "random", 50, 2, 30, marks=pytest.mark.slow),
        pytest.param("encrypted", "last", 700, 8, 0.02, marks=pytest.mark.slow),
        pytest.param("encrypted", "random", 500, 8, 0.000001, marks=pytest.mark.slow),
        pytest.param("none", "last", 20, 8, 30, marks=pytest.mark.slow),
    ],
)
def test_killed_runs(tmp_path: Path, checkpoint: str, stop: str, epochs: int, kills: int, seconds: float) -> None:
    recipe, out = tmp_path / "killed.yaml", tmp_path / "run"
    recipe.write_text(RECIPE % (checkpoint, stop, epochs, f"{seconds:f}"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(recipe), str(out), str(kills), "7"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    ledger = ledger_of(out)
    assert sum(charge.count for charge in ledger.charges) == 1
    assert ledger.charges == ledger.settled
    assert 2 <= ledger.attempts <= 1 + summary["killed"]
    certificate = json.loads((out / "release" / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    assert certificate["events"]["total"] == 1
    assert certificate["claim"]["epsilon"] <= certificate["budget"]["epsilon"]
    assert dprecipe.verify(out / "release") is not None
