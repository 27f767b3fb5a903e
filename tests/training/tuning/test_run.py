"""The whole of a tuned run: one event, one release, and nothing of the losers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import CertificateInvalid, Fault, Interrupted, PlanRefused, RunFailed, UsageFault
from dprecipe.planning.trials import planner_of
from dprecipe.privacy.cross_check import LibraryAnswer
from dprecipe.privacy.ledger import read
from dprecipe.release.certificate import to_bytes
from dprecipe.release.verify import verify
from dprecipe.training.tuning import pool
from dprecipe.training.tuning.draws import DRAWS, load
from dprecipe.training.tuning.run import TunedRun, tune
from dprecipe.training.tuning.winner import score_of

Tuned = Callable[..., Plan]
FIXED = ("tuning.runs={kind: fixed, count: 3}", "training.steps=60")


def test_what_could_not_be_verified_is_refused_before_anything_is_spent(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tuned()
    answer = LibraryAnswer("dp_accounting.pld", "0", 1.5 * plan.guarantee.epsilon)
    monkeypatch.setattr("dprecipe.privacy.cross_check.ask_library", lambda *terms: answer)
    with pytest.raises(PlanRefused, match="P189"):
        tune(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_launcher_of_several_processes_is_refused(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would make the runs, and the first of them would wait for the others in its first run."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageFault, match="starts processes of its own"):
        tune(tuned(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_files_of_all_candidates_are_asked_for_before_anything_is_spent(tuned: Tuned, tmp_path: Path) -> None:
    values = "tuning.over=[{key: model.init, values: [no.safetensors, none.safetensors]}]"
    with pytest.raises(Fault, match=r"no\.safetensors"):
        tune(tuned("model={kind: mlp, hidden: [4]}", values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_plan_has_the_command_that_it_is_for(tuned: Tuned, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="several times"):
        run(tuned(), tmp_path / "run")
    with pytest.raises(UsageFault, match="no block `tuning`"):
        tune(tuned("tuning=null"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_python_tunes_as_the_command_does_and_a_poisson_number_of_runs_ends_in_a_release(
    tuned: Tuned, tmp_path: Path
) -> None:
    """Of a mean this small a number that is not truncated is 0 in one of five runs."""
    plan = tuned("tuning.runs={kind: poisson, mean: 2}")
    done = dprecipe.tune(plan, tmp_path / "run")
    assert isinstance(done, TunedRun)
    stated = dprecipe.verify(done.release).statement.predicate
    assert stated.tuning is not None
    assert (stated.tuning.distribution, stated.tuning.mean) == ("poisson", 2.0)
    assert stated.claim.epsilon == done.epsilon <= 3


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["accuracy", "auc", "balanced_accuracy"])
def test_the_best_of_the_runs_is_released_and_no_other(
    metric: str, tuned: Tuned, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = tuned(*FIXED, f"tuning.score.metric={metric}")
    done = tune(plan, tmp_path / "run")
    verified = verify(done.release)
    assert verified.claim.epsilon == done.epsilon <= 3
    assert "the ledger beside it has exactly these events" in verified.checked
    rows = (done.folder / "private" / "trials.csv").read_text("utf-8").splitlines()[1:]
    best = max(rows, key=lambda row: float(row.rpartition(",")[2]))
    assert done.plan.tuning is not None
    kept = json.loads((done.folder / "private" / "metrics.json").read_text("utf-8"))
    assert kept["accuracy"] == pytest.approx(score_of(done.score, "accuracy"))
    assert kept["training_sample"]["records"] > 0
    assert best.startswith(",".join(str(value) for value in (done.plan.tuning.chosen or {}).values()))
    assert done.score is not None
    assert float(best.rpartition(",")[2]) == pytest.approx(score_of(done.score, metric), abs=1e-5)
    assert not (done.folder / "private" / "trials").exists()
    ledger = read(done.folder / "private" / "ledger.jsonl")
    assert ledger.charges == plan.events
    released = json.loads((done.release / "metrics.json").read_text("utf-8"))
    assert released["history"] == []
    stated = verified.statement.predicate
    assert stated.provenance.started == stated.provenance.finished
    assert stated.sampling.steps_trained is None
    printed = "".join(capfd.readouterr())
    assert "step " not in printed
    assert " of 3" not in printed


@pytest.mark.slow
def test_a_number_of_runs_in_secret_is_told_nowhere(tuned: Tuned, tmp_path: Path) -> None:
    """Everything in release/ is the same whether K is in it or not: the draws and the table are private alone."""
    done = tune(tuned("tuning.runs.mean=1.5"), tmp_path / "run")
    private = sorted(path.name for path in (done.folder / "private").iterdir())
    assert {"draws.json", "trials.csv"} <= set(private)
    stated = verify(done.release).statement.predicate
    assert stated.tuning is not None
    assert stated.tuning.mean == 1.5
    assert stated.events.total == 1


@pytest.mark.slow
def test_an_interrupted_run_goes_on_with_what_was_drawn_and_is_charged_once(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = tuned(*FIXED), tmp_path / "run"
    honest, made = pool.Trials.make, []

    def stopped(self: Any, number: int, point: Any) -> None:
        if number == 1 and len(made) == 1:
            raise Interrupted("stopped")
        honest(self, number, point)
        made.append(number)

    monkeypatch.setattr(pool.Trials, "make", stopped)
    with pytest.raises(Interrupted) as caught:
        tune(plan, out)
    assert "dprecipe tune" in caught.value.remedy
    drawn = (out / "private" / "draws.json").read_bytes()
    monkeypatch.setattr(pool.Trials, "make", honest)
    result = (out / "private" / "trials" / "0" / "result" / "draft.json").read_bytes()
    done = tune(plan, out, resume=True)
    assert (out / "private" / "draws.json").read_bytes() == drawn
    assert result  # the first run was not made again: see the ledger's attempts
    ledger = read(out / "private" / "ledger.jsonl")
    assert ledger.charges == plan.events
    assert ledger.attempts == 2
    assert verify(done.release).claim.epsilon <= 3


@pytest.mark.slow
def test_a_run_that_is_killed_while_several_processes_train_loses_no_budget(tuned: Tuned, tmp_path: Path) -> None:
    plan, out = tuned(*FIXED), tmp_path / "run"
    recipe = tmp_path / "small.yaml"
    words = [sys.executable, "-m", "dprecipe", "tune", str(recipe), "--out", str(out), "--jobs", "2"]
    words += [word for each in FIXED for word in ("--set", each)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 300
        while not list(out.glob("private/trials/*/private/ledger.jsonl")) and time.monotonic() < until:
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGKILL)
    time.sleep(2)  # the processes that it led end by themselves
    assert read(out / "private" / "ledger.jsonl").charges == plan.events
    done = tune(plan, out, resume=True, jobs=2)
    ledger = read(out / "private" / "ledger.jsonl")
    assert ledger.charges == plan.events
    assert ledger.attempts == 2
    assert verify(done.release).claim.epsilon <= 3


@pytest.mark.slow
def test_a_certificate_of_a_tuned_run_that_was_changed_does_not_verify(
    tuned: Tuned, tmp_path: Path, tampered: Callable[[Path, str, object], tuple[str, ...]]
) -> None:
    done = tune(tuned("tuning.runs.mean=1.5"), tmp_path / "run")
    file = done.release / "certificate.json"
    text = file.read_text("utf-8")
    for path, value in {
        "tuning.mean": 1.4,
        "tuning.shape": 0.0,
        "tuning.distribution": "poisson",
        "tuning.one_run_epsilon": 0.5,
        "tuning.over.0.range.1": 5.0,
        "tuning.chosen.1.value": 399.9,  # which no run can have drawn
        "tuning.metric": "loss",
        "tuning": None,
        "events.run_length.0.mean": 1.4,
        "events.run_length.0.distribution": "fixed",
        "provenance.finished": "2099-01-01T00:00:00+00:00",
        "data_access.tuning.status": "declared",
        "sampling.steps_trained": 6,
    }.items():
        assert tampered(file, path, value), path
        file.write_text(text, "utf-8")
    content = json.loads(text)
    base = content["predicate"]["events"]["run_length"][0]["base"][0]
    key = next(key for key in base if "noise" in key or key == "event")
    base[key] = base[key] * 2 if isinstance(base[key], float) else {**base[key], "noise_multiplier": 99.0}
    file.write_bytes(to_bytes(content))
    assert tampered(file, "", None)


@pytest.fixture
def tampered() -> Callable[[Path, str, object], tuple[str, ...]]:
    """What `verify` finds of a certificate with one value changed."""

    def change(file: Path, path: str, value: object) -> tuple[str, ...]:
        from dprecipe.faults import CertificateInvalid

        content = json.loads(file.read_text("utf-8"))
        if path:
            *steps, last = path.split(".")
            inner: Any = content["predicate"]
            for step in steps:
                inner = inner[int(step) if isinstance(inner, list) else step]
            inner[int(last) if isinstance(inner, list) else last] = value
            file.write_bytes(to_bytes(content))
        try:
            verify(file.parent)
        except CertificateInvalid as invalid:
            return invalid.failures
        return ()

    return change


def lose(*terms: object) -> None:
    raise RunFailed("the memory of cuda ran out")


@pytest.mark.slow
def test_where_all_runs_are_lost_the_release_says_that_nothing_was_learned(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = tuned("tuning.runs={kind: fixed, count: 2}"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("dprecipe.training.run.attempt.write_result", lose)
        done = tune(plan, out)
    assert not done.has_model
    assert "no run has a model" in done.remarks[0]
    assert {entry.name for entry in done.release.iterdir()} >= {"certificate.json", "metrics.json"}
    assert not {"model.json", "model.safetensors"} & {entry.name for entry in done.release.iterdir()}
    verified = verify(done.release)
    stated = verified.statement.predicate
    assert verified.claim.epsilon == pytest.approx(plan.guarantee.epsilon)  # the event of all runs, whatever they made
    assert stated.tuning is not None
    assert (stated.tuning.chosen, stated.tensors, stated.budget.stop_reason) == ((), (), "no_model")
    ledger = read(out / "private" / "ledger.jsonl")
    assert (ledger.charges, ledger.stop_reason) == (plan.events, "no_model")
    certificate = json.loads((done.release / "certificate.json").read_text("utf-8"))
    certificate["predicate"]["budget"]["stop_reason"] = "completed"
    (done.release / "certificate.json").write_bytes(to_bytes(certificate))
    with pytest.raises(CertificateInvalid):
        verify(done.release)


KILLED_AFTER_LOSSES = """
import os, signal, sys
from pathlib import Path
from dprecipe.faults import RunFailed
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from dprecipe.training.run import attempt
from dprecipe.training.tuning.run import tune

def lose(*terms):
    raise RunFailed("the memory of cuda ran out")

attempt.write_result = lose
attempt.publish_nothing = lambda *terms: os.kill(os.getpid(), signal.SIGKILL)
tune(plan(read(Path(sys.argv[1]), sys.argv[3:])), sys.argv[2])
"""


@pytest.mark.slow
def test_a_tuned_run_without_a_model_that_is_killed_before_its_release_ends_in_one(
    tuned: Tuned, tmp_path: Path
) -> None:
    plan, out, recipe = tuned(*FIXED), tmp_path / "run", tmp_path / "small.yaml"
    words = [sys.executable, "-c", KILLED_AFTER_LOSSES, str(recipe), str(out), *FIXED]
    killed = subprocess.run(words, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (out / "release").exists()
    command = [sys.executable, "-m", "dprecipe", "tune", str(recipe), "--resume", "--out", str(out)]
    command += [word for each in FIXED for word in ("--set", each)]
    resumed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert resumed.returncode == 3, resumed.stderr
    assert "no run has a model" in resumed.stdout
    ledger = read(out / "private" / "ledger.jsonl")
    assert (ledger.charges, ledger.attempts, ledger.stop_reason) == (plan.events, 2, "no_model")
    assert verify(out / "release").claim.released == ()


@pytest.mark.slow
def test_one_of_the_runs_is_not_released_as_a_run_of_its_own(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate would claim the ε of one run for a run that was chosen among several."""
    plan = tuned(*FIXED)
    with monkeypatch.context() as killed:
        killed.setattr("dprecipe.training.tuning.run.remove_losers", lambda *terms: None)
        tune(plan, tmp_path / "run")
    place = tmp_path / "run" / "private" / "trials" / "1"
    point = load(tmp_path / "run" / "private" / DRAWS, plan).points[1]
    trial = planner_of(plan.source).plan_trial(point)
    noise = f"mechanism.noise.multiplier={trial.events[0].event.multipliers[0]!r}"
    sets = [f"{key}={value}" for key, value in point.items()]
    own = tuned("tuning=null", FIXED[1], "budget.epsilon=auto", noise, *sets)
    assert own.digest == trial.digest
    with pytest.raises(UsageFault, match="one of the runs of a tuned run"):
        run(own, place, resume=True)
    assert not (place / "release").exists()
