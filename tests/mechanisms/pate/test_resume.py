"""A run that is stopped or killed goes on where it was: teachers, answers, nothing twice and nothing for free."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.mechanisms.pate.train import teachers
from dprecipe.mechanisms.pate.train.answers import AnswersFile
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import read
from dprecipe.training.run import attempt

Planned = Callable[..., Plan]
DRIVER = Path(__file__).resolve().parents[2] / "training" / "run" / "kill_driver.py"

CONFIDENT = """{kind: confident_gnmax, noise: {family: gaussian, multiplier: 8},
    selection: {threshold: 15, noise: {family: gaussian, multiplier: 16}}}"""
INTERACTIVE = """{kind: interactive_gnmax, noise: {family: gaussian, multiplier: 8},
    selection: {threshold: 15, noise: {family: gaussian, multiplier: 16}}, interaction: {rounds: 4, threshold: 4}}"""
GNMAX = "{kind: gnmax, noise: {family: gaussian, multiplier: 8}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("aggregator", "epsilon", "kills"),
    [
        (CONFIDENT, "9.0", 8),
        (INTERACTIVE, "auto", 8),
        (GNMAX, "auto", 8),
    ],
)
def test_killed_runs(tmp_path: Path, digits: Planned, aggregator: str, epsilon: str, kills: int) -> None:
    text = digits().source.text
    recipe, out = tmp_path / "killed.yaml", tmp_path / "run"
    start, end = text.index("  aggregator:"), text.index("  queries:")
    text = text[:start] + f"  aggregator: {aggregator}\n" + text[end:]
    recipe.write_text(text.replace("{epsilon: auto,", f"{{epsilon: {epsilon},"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(recipe), str(out), str(kills), "5"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    ledger = read(out / "private" / "ledger.jsonl")
    counted = Counter({c.event.kind: 0 for c in ledger.charges})
    for charge in ledger.charges:
        counted[charge.event.kind] += charge.count
    lines = [json.loads(line) for line in (out / "private" / "answers.jsonl").read_text("utf-8").splitlines()]
    for is_answer, kind in ((True, "noisy_max"), (False, "noisy_threshold")):
        asked = [query for line in lines if line["is_answer"] is is_answer for query in line["queries"]]
        assert len(asked) == len(set(asked)) <= counted[kind]  # no query twice, none for free
    assert summary["draws"] <= counted["noisy_max"] + counted["noisy_threshold"]
    assert (
        1 + summary["killed"] // 2 < ledger.attempts <= 1 + summary["killed"]
    )  # one may be killed in its very first line
    certificate = json.loads((out / "release" / "certificate.json").read_text(encoding="utf-8"))["predicate"]
    assert certificate["claim"]["epsilon"] <= certificate["budget"]["epsilon"]
    dprecipe.verify(out / "release")


@pytest.mark.slow
def test_ctrl_c_among_the_teachers(digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, real = digits("mechanism.teachers.training=null"), tmp_path / "run", teachers.save_votes
    trained: list[int] = []

    def interrupting(store: Any, group: Any, votes: Any) -> None:
        real(store, group, votes)
        trained.extend(group)
        if len(trained) == 7:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(teachers, "save_votes", interrupting)
    with pytest.raises(Interrupted, match="some of the teachers") as stopped:
        run(plan, out)
    assert "--resume" in stopped.value.remedy
    assert read(out / "private" / "ledger.jsonl").stop_reason == "interrupted"
    assert count_events(read(out / "private" / "ledger.jsonl").charges) == 0
    done = run(plan, out, resume=True)
    assert trained == list(range(25))
    assert done.stop_reason == "completed"
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_ctrl_c_among_the_queries(digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, real = digits(), tmp_path / "run", AnswersFile.append
    appended = 0

    def interrupting(self: Any, entry: Any, head: str) -> None:
        nonlocal appended
        appended += 1
        real(self, entry, head)
        if appended == 9:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(AnswersFile, "append", interrupting)
        with pytest.raises(Interrupted, match=r"stopped after \d+ of 100 queries"):
            run(plan, out)
    before = (out / "private" / "answers.jsonl").read_bytes()
    trained: list[Any] = []
    monkeypatch.setattr(teachers, "collect_votes", lambda *rest: trained.append(rest))
    done = run(plan, out, resume=True)
    assert trained == []
    assert (out / "private" / "answers.jsonl").read_bytes().startswith(before)
    assert done.stop_reason == "completed"
    dprecipe.verify(done.release)


def records(seed: int, count: int = 1000) -> Records:
    generator = np.random.default_rng(seed)
    return Records(generator.random((count, 1, 8, 8), dtype=np.float32), generator.integers(10, size=count))


def test_a_run_is_resumed_with_what_it_was_started_with(
    digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = digits(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(AnswersFile, "append", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out, train=records(0), public=records(1, 200))
    with pytest.raises(UsageFault, match="other training records"):
        run(plan, out, train=records(2), public=records(1, 200), resume=True)
    with pytest.raises(UsageFault, match="other public records"):
        run(plan, out, train=records(0), public=records(3, 200), resume=True)
    with pytest.raises(UsageFault, match="data from elsewhere"):
        run(plan, out, resume=True)
    (out / "private" / "partition.key").write_bytes(bytes(32))
    with pytest.raises(UsageFault, match="other training records"):
        run(plan, out, train=records(0), public=records(1, 200), resume=True)
    assert read(out / "private" / "ledger.jsonl").attempts == 1


@pytest.mark.slow
def test_a_finished_ballot_is_published_without_another_charge(
    digits: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    plan, out = digits("runtime.insecure={seed: 1}"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(attempt, "publish", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out)
    charges = read(out / "private" / "ledger.jsonl").charges
    done = run(plan, out, resume=True)
    assert read(out / "private" / "ledger.jsonl").charges == charges
    whole = run(plan, tmp_path / "whole")
    for name in ("model.safetensors",):  # made of the same answers
        assert (done.release / name).read_bytes() == (whole.release / name).read_bytes()
