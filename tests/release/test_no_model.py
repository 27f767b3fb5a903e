"""A run that ended without a model: it verifies, and no other ending passes for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe.api import run
from dprecipe.cli.run import run as run_command
from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent, CertificateInvalid, UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.ledger import read
from dprecipe.recipe.read import read as read_recipe
from dprecipe.release.no_model import SENTENCE, find_impossible_end, holds_again
from dprecipe.release.schema import Statement
from dprecipe.release.untrusted import to_bytes
from tests.recipe_texts import DIGITS, DPSGD, PNSGD, STANDARDIZED

LOST = f"recipe: dprecipe/v1\nname: lost\n{DIGITS}{STANDARDIZED}"
RECIPE = f"""\
{LOST}\
model: {{kind: logistic_regression}}
{DPSGD.replace("64", "128").replace("epsilon: 3.0", "epsilon: 2.0")}\
training: {{steps: 4, optimizer: {{kind: sgd, lr: 0.5}}}}
"""


def plan_of(folder: Path, share: float = 0.9, pnsgd: bool = False) -> Plan:
    text = (LOST + PNSGD if pnsgd else RECIPE) % share
    (folder / "lost.yaml").write_text(text, encoding="utf-8")
    return make_plan(read_recipe(folder / "lost.yaml"))


def lose(plan: Plan, out: Path, where: str = "dprecipe.training.run.stages.release_stage") -> None:
    """A run whose first attempt dies where it calls this: between the reservation of a paid step and its result."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, out)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    folder = tmp_path_factory.mktemp("lost")
    plan = plan_of(folder)
    lose(plan, folder / "run")
    done = run(plan, folder / "run", resume=True)
    assert not done.has_model
    assert done.stop_reason == "no_model"
    assert "nothing was learned" in done.remarks[0]
    return plan, folder / "run"


def predicate(release: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]
    return content


def test_the_release_has_no_model_and_claims_what_the_ledger_holds(lost: tuple[Plan, Path]) -> None:
    plan, out = lost
    names = {entry.name for entry in (out / "release").iterdir()}
    assert names == {"certificate.json", "card.md", "report.html", "metrics.json"}
    verified, ledger = dprecipe.verify(out / "release"), read(out / "private" / "ledger.jsonl")
    budget = plan.budget
    spent = accountants.epsilon(ledger.charges, budget.delta, budget.neighbouring, "pld")
    assert verified.claim.epsilon == pytest.approx(spent, rel=1e-5)
    assert verified.claim.epsilon < budget.epsilon
    assert verified.claim.released == ()
    assert SENTENCE in verified.claim.sentence
    stated = predicate(out / "release")
    assert (stated["tensors"], stated["stages"], stated["budget"]["stop_reason"]) == ([], None, "no_model")
    assert stated["sampling"]["steps_trained"] == 0
    for name in ("card.md", "report.html"):
        assert SENTENCE in (out / "release" / name).read_text("utf-8")
    assert any("nothing was learned" in line for line in verified.checked)


def test_the_run_is_over(lost: tuple[Plan, Path]) -> None:
    plan, out = lost
    with pytest.raises(UsageFault):
        run(plan, out, resume=True)


def test_a_run_of_one_price_ends_so_too(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, share=0.1, pnsgd=True)
    lose(plan, tmp_path / "run")
    done = run(plan, tmp_path / "run", resume=True)
    assert not done.has_model
    assert count_events(read(tmp_path / "run" / "private" / "ledger.jsonl").charges) == 1
    dprecipe.verify(done.release)


def test_a_step_that_the_budget_holds_again_is_drawn_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, share=0.05)
    lose(plan, tmp_path / "run")
    done = run(plan, tmp_path / "run", resume=True)
    assert done.has_model
    dprecipe.verify(done.release)
    (stage,) = plan.stages
    assert holds_again(plan, stage.charges, stage)


DIVERGING = f"""\
recipe: dprecipe/v1
name: diverging
{DIGITS}\
model: {{kind: mlp, hidden: [16, 16], activation: relu}}
{DPSGD.replace("multiplier: auto", "multiplier: 2.0").replace("epsilon: 3.0", "epsilon: auto")}\
training: {{steps: 3, optimizer: {{kind: sgd, lr: 1e20}}}}
"""


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    folder = tmp_path_factory.mktemp("diverging")
    (folder / "diverging.yaml").write_text(DIVERGING, encoding="utf-8")
    return make_plan(read_recipe(folder / "diverging.yaml")), folder


def test_a_model_whose_answers_are_no_numbers_is_none(
    diverged: tuple[Plan, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    plan, folder = diverged
    assert run_command(folder / "diverging.yaml", out=folder / "run") == 3
    printed = capsys.readouterr().out
    assert "training has left the range of numbers" in printed
    assert "completed" not in printed
    assert {entry.name for entry in (folder / "run" / "release").iterdir()} == {
        "certificate.json",
        "card.md",
        "report.html",
        "metrics.json",
    }
    assert "interruptions lost" not in (folder / "run" / "release" / "card.md").read_text("utf-8")
    verified = dprecipe.verify(folder / "run" / "release")
    assert SENTENCE in verified.claim.sentence
    assert verified.claim.epsilon == pytest.approx(plan.guarantee.epsilon)
    with pytest.raises(UsageFault):
        run(plan, folder / "run", resume=True)


def test_a_crash_before_that_end_is_written_changes_nothing(diverged: tuple[Plan, Path]) -> None:
    plan, folder = diverged
    lose(plan, folder / "again", "dprecipe.training.run.attempt.publish_nothing")
    done = run(plan, folder / "again", resume=True)
    assert not done.has_model
    dprecipe.verify(done.release)


def test_a_run_whose_training_has_not_ended_has_not_ended_so(diverged: tuple[Plan, Path]) -> None:
    plan, folder = diverged
    done = run(plan, folder / "whole")
    content = json.loads((done.release / "certificate.json").read_text("utf-8"))
    stated = Statement.model_validate_json(json.dumps(content)).predicate
    charges = read(done.folder / "private" / "ledger.jsonl").charges
    assert find_impossible_end(stated, plan, charges) == []
    fewer = [Charge(charge.event, charge.count - 1) for charge in charges]
    assert "had not ended" in find_impossible_end(stated, plan, fewer)[0]


def test_a_result_that_was_kept_is_asked_for_before_the_run_is_given_up(tmp_path: Path) -> None:
    plan, out = plan_of(tmp_path), tmp_path / "run"

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.training.steps.stepwise.fit_steps", die)
        with pytest.raises(KeyboardInterrupt):
            run(plan, out)
    shutil.rmtree(out / "private" / "stages")
    with pytest.raises(BudgetSpent, match="was lost") as caught:
        run(plan, out, resume=True)
    assert "--accept-lost-steps" in caught.value.remedy
    assert not (out / "release").exists()
    done = run(plan, out, resume=True, accept_lost_steps=True)
    assert not done.has_model
    dprecipe.verify(done.release)


def test_the_command_says_that_nothing_was_learned_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(tmp_path)
    lose(plan, tmp_path / "run")
    capsys.readouterr()
    code = run_command(tmp_path / "lost.yaml", out=tmp_path / "run", resume=True)
    printed = capsys.readouterr().out
    assert code == 3
    assert "nothing was learned" in printed
    assert "no model: spent ε" in printed


def forge(release: Path, target: Path, **changes: Any) -> Path:
    """The release with another certificate."""
    shutil.copytree(release, target)
    content = json.loads((target / "certificate.json").read_text("utf-8"))
    for path, value in changes.items():
        place = content["predicate"]
        *parents, last = path.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = value
    (target / "certificate.json").write_bytes(to_bytes(content))
    return target


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"budget__stop_reason": "completed"}, "events"),
        ({"budget__stop_reason": "budget"}, "tensors|stages"),
        ({"budget__attempts": 1, "budget__resumes": 0}, "one attempt|events_reserved_unsettled"),
        ({"tensors": [{"name": "w", "shape": [1], "made_by": "seed", "dtype": "F32"}]}, "releases none"),
        ({"claim__epsilon": 0.1}, "claim.epsilon"),
        ({"claim__released": ["final weights"]}, "claim"),
    ],
    ids=["completed", "budget", "attempts", "tensors", "epsilon", "released"],
)
def test_another_ending_is_not_taken_for_this_one(
    lost: tuple[Plan, Path], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CertificateInvalid, match=words):
        dprecipe.verify(forge(lost[1] / "release", tmp_path / "forged", **changes))


def test_a_run_that_could_have_gone_on_is_not_lost(tmp_path: Path) -> None:
    """Its budget holds the step again: whoever says that all was lost hides a model, or did not look."""
    plan, out = plan_of(tmp_path, share=0.05), tmp_path / "run"
    lose(plan, out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dprecipe.training.run.stages.holds_again", lambda *_: False)
        with pytest.raises(Exception, match="does not verify") as caught:
            run(plan, out, resume=True)
    assert "once more" in str(caught.value)
    assert not (out / "release").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from dprecipe.training.run import stages
from dprecipe.api import run
stages.release_stage = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run(plan(read(Path(sys.argv[1]))), sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("pnsgd", [False, True])
def test_a_process_that_is_killed_between_noise_and_record_ends_in_a_release(tmp_path: Path, pnsgd: bool) -> None:
    plan = plan_of(tmp_path, pnsgd=pnsgd)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "lost.yaml"), str(tmp_path / "run")],
        capture_output=True, check=False,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    words = [sys.executable, "-m", "dprecipe", "run", str(tmp_path / "lost.yaml"), "--resume", "--out"]
    resumed = subprocess.run(
        [*words, str(tmp_path / "run")], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert resumed.returncode == 3, resumed.stderr
    assert "nothing was learned" in resumed.stdout
    assert dprecipe.verify(tmp_path / "run" / "release").claim.epsilon < plan.budget.epsilon
