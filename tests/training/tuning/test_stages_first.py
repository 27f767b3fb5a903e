"""A tuned run behind paid steps: each is run once before all runs, and charged; wherever the process dies."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent, CertificateInvalid, RunFailed
from dprecipe.privacy.events import Event
from dprecipe.privacy.ledger import LedgerWriter, read
from dprecipe.release import folder, rebuild
from dprecipe.release.certificate import to_bytes
from dprecipe.release.stages import digest_constants
from dprecipe.release.verify import verify
from dprecipe.training.run import stages
from dprecipe.training.tuning import draws, pool
from dprecipe.training.tuning import run as tuning
from dprecipe.training.tuning.run import tune
from dprecipe.training.tuning.trials import Trials

Tuned = Callable[..., Plan]


class Killed(BaseException):
    """The process is gone."""


class Done(BaseException):
    """All runs have ended, and one would be chosen."""


class Machine:
    """Runs that make nothing, on a machine that dies at a chosen moment: before or after any line of the ledger, any
    result of a paid step, the draws, any run. Counts what is drawn by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = -1
        self.moments = 0
        self.drawn: Counter[Event] = Counter()
        self.constants: set[tuple[str, ...]] = set()
        for owner, name in (
            (LedgerWriter, "_append"),
            (stages.StageRuns, "_write"),
            (draws, "_save"),
            (pool.Trials, "make"),
        ):
            honest = self.make if name == "make" else getattr(owner, name)
            monkeypatch.setattr(owner, name, self.watched(honest))
        release = stages.release_stage

        def counted(*terms: Any) -> Any:
            for charge in terms[2]:
                self.drawn[charge.event] += charge.count
            return release(*terms)

        monkeypatch.setattr(stages, "release_stage", counted)
        monkeypatch.setattr(tuning, "choose_winner", self.choose)
        monkeypatch.setattr(tuning, "find_unverifiable", lambda plan: [])
        planner = type("P", (), {"plan_trial": lambda self, point: None, "makes_model": lambda self, point: True})()
        monkeypatch.setattr(tuning, "planner_of", lambda source: planner)
        monkeypatch.setattr(tuning, "runner_of", lambda plan: type("R", (), {"prepare": lambda self, *terms: None})())

    def watched(self, honest: Callable[..., Any]) -> Callable[..., Any]:
        def act(*terms: Any, **more: Any) -> Any:
            self.tick()
            result = honest(*terms, **more)
            self.tick()
            return result

        return act

    def tick(self) -> None:
        self.moments += 1
        self.left -= 1
        if self.left == 0:
            raise Killed

    def make(self, trials: Trials, number: int, point: Any) -> None:
        self.constants.add(tuple(map(digest_constants, trials._constants)))
        (trials.folder(number).path / "result").mkdir(parents=True)

    def choose(self, *terms: Any) -> NoReturn:
        raise Done


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def go_on(plan: Plan, out: Path) -> None:
    """As whoever finds the run folder."""
    tune(plan, out, resume=(out / "plan.json").exists())


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_it_is_killed_no_stage_is_drawn_twice_for_the_price_of_one(
    staged: Tuned, tmp_path: Path, machine: Machine, stride: int
) -> None:
    plan, moment, lost = staged("tuning.runs={kind: fixed, count: 2}", "mechanism.noise.multiplier=20.0"), 0, 0
    while True:
        moment += stride
        out = tmp_path / str(moment)
        machine.left, machine.drawn = moment, Counter()
        machine.constants.clear()
        try:
            go_on(plan, out)
        except Killed:
            machine.left = -1
        except Done:
            break
        try:
            go_on(plan, out)
        except Done:
            pass
        except BudgetSpent:  # a result was lost, and what is left does not hold the runs
            lost += 1
        ledger = read(out / "private" / "ledger.jsonl")
        charged: Counter[Event] = Counter()
        for charge in ledger.charges:
            charged[charge.event] += charge.count
        assert all(charged[event] >= count for event, count in machine.drawn.items())
        assert len(machine.constants) <= 1
        assert plan.tuning is not None
        assert charged[plan.tuning.charge.event] <= 1
        shutil.rmtree(out)
    assert moment > 20
    assert lost == 0  # this noise leaves room for a stage more


def test_where_nothing_is_left_a_lost_stage_ends_the_run_before_more_is_spent(
    staged: Tuned, tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = staged(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(stages, "release_stage", machine_dies)
        with pytest.raises(Killed):
            go_on(plan, out)
    spent = read(out / "private" / "ledger.jsonl").charges
    done = tune(plan, out, resume=True)
    ledger = read(out / "private" / "ledger.jsonl")
    assert (ledger.charges, ledger.stop_reason) == (spent, "no_model")
    assert not done.has_model
    assert dprecipe.verify(done.release).claim.released == ()


def machine_dies(*terms: Any) -> NoReturn:
    raise Killed


@pytest.mark.parametrize("settled", [False, True])
def test_runs_that_were_made_with_a_result_are_not_gone_on_with_without_it(
    staged: Tuned, tmp_path: Path, machine: Machine, settled: bool
) -> None:
    """Drawn anew, the stage would be charged, but the runs would start from different constants: no bound holds."""
    plan, out = staged("tuning.runs={kind: fixed, count: 2}", "mechanism.noise.multiplier=20.0"), tmp_path / "run"
    if settled:
        with pytest.raises(Done):
            go_on(plan, out)
    else:
        machine.make = machine_dies  # type: ignore[method-assign]
        pool.Trials.make = machine_dies  # type: ignore[method-assign]
        with pytest.raises(Killed):
            go_on(plan, out)
    drawn = Counter(machine.drawn)
    (out / "private" / "stages" / "2.json").unlink()
    with pytest.raises(RunFailed, match="runs were made with it"):
        go_on(plan, out)
    assert machine.drawn == drawn


@pytest.mark.parametrize("settled", [False, True])
def test_values_that_runs_were_made_with_are_never_drawn_again(
    tuned: Tuned, tmp_path: Path, machine: Machine, settled: bool
) -> None:
    """One event pays for one number of runs: without `draws.json` nothing more is drawn or spent, and with it the run
    goes on."""
    plan, out = tuned("tuning.runs.mean=1.5"), tmp_path / "run"
    if not settled:
        pool.Trials.make = machine_dies  # type: ignore[method-assign]
    with pytest.raises(Done if settled else Killed):
        go_on(plan, out)
    file = out / "private" / "draws.json"
    content, spent = file.read_bytes(), (out / "private" / "ledger.jsonl").read_bytes()
    file.unlink()
    with pytest.raises(RunFailed, match=r"draws\.json is missing") as caught:
        go_on(plan, out)
    assert "put this file back" in caught.value.remedy
    assert not file.exists()
    assert (out / "private" / "ledger.jsonl").read_bytes() == spent
    file.write_bytes(content)
    with pytest.raises(Done if settled else Killed):
        go_on(plan, out)
    assert file.read_bytes() == content


def test_other_constants_than_the_draws_were_made_with_are_refused(
    staged: Tuned, tmp_path: Path, machine: Machine
) -> None:
    """A result is lost before the runs, drawn and charged again; later the first one is put in its place."""
    plan, out = staged("tuning.runs={kind: fixed, count: 2}", "mechanism.noise.multiplier=20.0"), tmp_path / "run"
    machine.left = 14
    with pytest.raises(Killed):
        go_on(plan, out)
    machine.left = -1
    file = out / "private" / "stages" / "2.json"
    assert not (out / "private" / "draws.json").exists()
    first = file.read_bytes()
    file.unlink()
    with pytest.raises(Done):
        go_on(plan, out)
    file.write_bytes(first)
    with pytest.raises(RunFailed, match="of another run"):
        go_on(plan, out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_it_ends_in_a_release_within_its_budget(
    staged: Tuned, tmp_path: Path, seed: int
) -> None:
    over = ("tuning.runs={kind: negative_binomial, mean: 3}", "mechanism.noise.multiplier=20.0")
    plan, out, moments = staged(*over), tmp_path / "run", random.Random(seed)
    recipe = tmp_path / "staged.yaml"
    recipe.write_text(plan.source.text, encoding="utf-8")
    words = [sys.executable, "-m", "dprecipe", "tune", str(recipe), "--out", str(out), "--jobs", "2"]
    words += [word for each in plan.source.overrides for word in ("--set", each)]
    for _ in range(3):
        resume = ["--resume"] if (out / "plan.json").exists() else []
        with subprocess.Popen([*words, *resume], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            ledger = out / "private" / "ledger.jsonl"
            until = time.monotonic() + 120
            while not ledger.exists() and process.poll() is None and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(moments.uniform(0.0, 8.0))
            process.kill()
        time.sleep(2)  # the processes that it led end by themselves
        if (out / "release").exists():
            break
    if not (out / "release").exists():
        tune(plan, out, resume=True)
    ledger_at_end = read(out / "private" / "ledger.jsonl")
    charged, planned = Counter[Event](), Counter[Event]()
    for counts, charges in ((charged, ledger_at_end.charges), (planned, plan.events)):
        for charge in charges:
            counts[charge.event] += charge.count
    assert planned <= charged
    assert plan.tuning is not None
    assert charged[plan.tuning.charge.event] == 1
    assert verify(out / "release").claim.epsilon <= plan.budget.epsilon


@pytest.mark.slow
def test_the_release_holds_the_constants_that_all_runs_started_from(staged: Tuned, tmp_path: Path) -> None:
    plan = staged("tuning.runs.mean=1.5")
    done = tune(plan, tmp_path / "run")
    stated = verify(done.release).statement.predicate
    assert [run.kind for run in stated.events.run_length] == ["noisy_moments", "noisy_covariance", "selected_best"]
    assert stated.claim.epsilon == done.epsilon <= 3
    assert read(done.folder / "private" / "ledger.jsonl").charges == plan.events
    assert len(json.loads((done.release / "model.json").read_text("utf-8"))["stages"]) == 2
    file = done.release / "certificate.json"
    text = file.read_text("utf-8")
    for change in (_without_stage, _with_weaker_stage, _with_other_constants, _with_stage_in_the_runs):
        content = json.loads(text)
        change(content["predicate"])
        file.write_bytes(to_bytes(content))
        with pytest.raises(CertificateInvalid):
            verify(done.release)
    file.write_text(text, "utf-8")
    assert verify(done.release).claim.epsilon == done.epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kept", [["noisy_moments", "noisy_covariance"], ["noisy_moments"]])
def test_no_release_leaves_the_best_run_out_of_its_events(staged: Tuned, tmp_path: Path, kept: list[str]) -> None:
    """By a ledger of paid steps alone, of a second attempt that the budget is said to have ended."""
    done = tune(staged("tuning.runs.mean=1.5"), tmp_path / "run")
    stated = verify(done.release).statement.predicate
    plan = rebuild._plan_again(stated, [])
    assert plan is not None
    file = tmp_path / "ledger.jsonl"
    first = LedgerWriter(file, plan.digest, {})
    charges = [charge for charge in plan.events if charge.event.kind in kept]
    first.reserve_all(charges)
    first.settle_all(charges)
    first.abandon()
    LedgerWriter(file, plan.digest, {}).close("budget")

    def write(draft: Path) -> None:
        for name in folder.list_model_files(plan):
            shutil.copyfile(done.release / name, draft / name)

    forged = folder.publish_draft(tmp_path / "forged", plan, read(file), rebuild.read_run(stated), [], write)
    assert forged < 0.1 * done.epsilon
    with pytest.raises(CertificateInvalid, match="did not complete has neither last iterate nor best run"):
        verify(tmp_path / "forged")


def _without_stage(predicate: dict[str, Any]) -> None:
    del predicate["events"]["run_length"][0]
    predicate["events"]["total"] -= 1


def _with_weaker_stage(predicate: dict[str, Any]) -> None:
    predicate["events"]["run_length"][1]["noise_multiplier"] *= 2


def _with_other_constants(predicate: dict[str, Any]) -> None:
    predicate["stages"][0]["constants"] = predicate["stages"][1]["constants"]


def _with_stage_in_the_runs(predicate: dict[str, Any]) -> None:
    first, *others = predicate["events"]["run_length"]
    others[-1]["base"] = [first, *others[-1]["base"]]
    predicate["events"]["run_length"] = others
    predicate["events"]["total"] -= 1
