"""What a kill between the release and the removal of the other runs leaves is removed by the next attempt."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning import losers, winner
from dprecipe.training.tuning.losers import LOSERS
from dprecipe.training.tuning.run import tune
from dprecipe.training.tuning.trials import Trials

Tuned = Callable[..., Plan]
ACCURACIES = (0.5, 0.75, 0.25)


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], RunFolder]:
    """A tuned run of three runs, killed once its release was there."""

    def read_result(kept: Path) -> object:
        assert kept.is_dir()
        return SimpleNamespace(score=SimpleNamespace(accuracy=ACCURACIES[int(kept.parent.name)], loss=0.0))

    monkeypatch.setattr(winner, "read_result", read_result)
    monkeypatch.setattr(winner, "score_of", lambda score, metric: score.accuracy)

    def make(plan: Plan) -> RunFolder:
        folder = RunFolder.create(tmp_path / "run", plan)
        ledger = LedgerWriter(folder.ledger, plan.digest, {}, lambda before: None)
        ledger.close("completed")
        point = {"training.optimizer.lr": 1.0, "mechanism.clip.norm": 0.5}
        drawn = {"plan": plan.digest, "stages": ["a digest"], "points": [point] * 3, "ties": [1, 2, 3]}
        (folder.private / "draws.json").write_text(json.dumps(drawn), "utf-8")
        trials = Trials(plan.source, folder.private / "trials", tmp_path)
        for number in range(3):
            result = locate_result(trials.folder(number))
            result.mkdir(parents=True)
            (result / "model.safetensors").write_bytes(b"weights of %d" % number)
        folder.release.mkdir()
        return folder

    return make


def resume(plan: Plan, folder: RunFolder) -> None:
    with pytest.raises(UsageFault, match="this run is complete"):
        tune(plan, folder.path, resume=True)


def test_the_other_runs_are_deleted_before_a_run_is_called_complete(
    tuned: Tuned, released: Callable[[Plan], RunFolder]
) -> None:
    plan = tuned()
    folder = released(plan)
    resume(plan, folder)
    assert not (folder.private / "trials").exists()
    assert len((folder.private / "trials.csv").read_text("utf-8").splitlines()) == 4
    assert (folder.private / "trials.svg").read_text("utf-8").count('font-weight="600"') == 2  # titles of panels
    assert not (folder.private / LOSERS).exists()
    resume(plan, folder)


def test_they_are_encrypted_first_and_no_kill_leaves_half_of_them(
    tuned: Tuned, released: Callable[[Plan], RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    age = pytest.importorskip("pyrage", reason="pyrage is not installed: pip install 'dprecipe[keep]'")
    identity = age.x25519.Identity.generate()
    (tmp_path / "owner.pub").write_text(f"{identity.to_public()}\n", "utf-8")
    plan = tuned("tuning.keep={encrypt_to: owner.pub}")
    folder = released(plan)

    def die_halfway(place: Path) -> None:
        (place / "0" / "result" / "model.safetensors").unlink()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(losers, "shutil", SimpleNamespace(rmtree=die_halfway))
        with pytest.raises(Killed):
            tune(plan, folder.path, resume=True)
    assert (folder.private / "trials" / "1").exists()
    resume(plan, folder)
    assert not (folder.private / "trials").exists()
    plain = age.decrypt((folder.private / LOSERS).read_bytes(), [identity])
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        weights = {name for name in archive.getnames() if name.endswith(".safetensors")}
    assert weights == {"0/model.safetensors", "2/model.safetensors"}


def test_without_what_was_drawn_nothing_is_deleted_and_a_note_says_why(
    tuned: Tuned, released: Callable[[Plan], RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tuned()
    folder = released(plan)
    (folder.private / "draws.json").unlink()
    resume(plan, folder)
    assert (folder.private / "trials" / "2").exists()
    assert "draws.json" in capsys.readouterr().err


def test_another_plan_touches_nothing(tuned: Tuned, released: Callable[[Plan], RunFolder]) -> None:
    folder = released(tuned())
    with pytest.raises(UsageFault, match="another plan"):
        tune(tuned("tuning.runs.mean=3"), folder.path, resume=True)
    assert (folder.private / "trials" / "0").exists()
