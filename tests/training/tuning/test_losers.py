"""Runs that were not chosen, encrypted for somebody who is not here."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprecipe import libraries
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.release.verify import verify
from dprecipe.training.run.trial_result import locate_result
from dprecipe.training.tuning.losers import LOSERS, keep_losers, load_recipient
from dprecipe.training.tuning.run import tune
from dprecipe.training.tuning.trials import Trials

Tuned = Callable[..., Plan]
KEEP = "tuning.keep={encrypt_to: owner.pub}"
SCATTERED = "age1fvuxyelru4z64gmmsxq5lda8ajm9vd7qhc3yk2emnmqtu90kg9tqykww04"


@pytest.fixture
def identity(tmp_path: Path) -> Any:
    """A private key, whose public key is beside the recipe."""
    age = pytest.importorskip("pyrage", reason="pyrage is not installed: pip install 'dprecipe[keep]'")
    made = age.x25519.Identity.generate()
    (tmp_path / "owner.pub").write_text(f"{made.to_public()}\n", "utf-8")
    return made


def open_losers(path: Path, identity: Any) -> dict[str, bytes]:
    import pyrage

    plain = pyrage.decrypt(path.read_bytes(), [identity])
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]


def test_all_but_the_winner_are_in_the_file_and_open_with_its_key_alone(
    tuned: Tuned, tmp_path: Path, identity: Any
) -> None:
    import pyrage

    plan = tuned(KEEP)
    trials = Trials(plan.source, tmp_path / "trials", tmp_path)
    for number in (0, 1):
        result = locate_result(trials.folder(number))
        result.mkdir(parents=True)
        (result / "model.safetensors").write_bytes(b"weights of %d" % number)
    (tmp_path / "trials" / "2.lost").touch()
    points = [{"training.optimizer.lr": float(number)} for number in range(3)]
    keep_losers(tmp_path / LOSERS, load_recipient(plan), trials, points, winner=1)
    files = open_losers(tmp_path / LOSERS, identity)
    assert files == {
        "0/values.json": b'{"training.optimizer.lr": 0.0}',
        "0/model.safetensors": b"weights of 0",
        "2/values.json": b'{"training.optimizer.lr": 2.0}',
    }
    content = (tmp_path / LOSERS).read_bytes()
    assert content.startswith(b"age-encryption.org/v1\n-> X25519 ")
    assert b"weights" not in content
    assert (tmp_path / LOSERS).stat().st_mode & 0o777 == 0o600
    with pytest.raises(pyrage.DecryptError):
        open_losers(tmp_path / LOSERS, pyrage.x25519.Identity.generate())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can be read"),
        (b"\xff\xfe", "can be read"),
        (b"", "expected one public key"),
        (f"{SCATTERED}\n{SCATTERED}".encode(), "expected one public key"),
        (b"ssh-ed25519 AAAA", "expected one public key"),
        (b"AGE-SECRET-KEY-1QQQ", "a private key"),
        (SCATTERED.replace("fv", "vf").encode(), "wrong letter"),
    ],
)
def test_a_file_without_a_public_key_is_refused_before_anything_is_spent(
    content: bytes | None, words: str, tuned: Tuned, tmp_path: Path
) -> None:
    pytest.importorskip("pyrage", reason="pyrage is not installed: pip install 'dprecipe[keep]'")
    plan = tuned(KEEP)
    if content is not None:
        (tmp_path / "owner.pub").write_bytes(content)
    with pytest.raises(UsageFault, match=words) as caught:
        tune(plan, tmp_path / "run")
    assert "age-keygen" in caught.value.remedy
    assert not (tmp_path / "run").exists()


def test_without_the_library_the_remedy_installs_it(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tuned(KEEP)
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    with pytest.raises(UsageFault, match="not installed") as caught:
        load_recipient(plan)
    assert caught.value.remedy == "pip install 'dprecipe[keep]'"
    assert load_recipient(tuned()) is None
    losses = next(each for each in plan.assumptions if each.id == "tuning_losses")
    assert losses.checked_by == "declaration"
    assert "kept encrypted" in next(each.text for each in plan.assumptions if each.id == "tuning_secrecy")


@pytest.mark.slow
def test_losers_of_a_tuned_run_are_kept_and_nothing_else_of_them(tuned: Tuned, tmp_path: Path, identity: Any) -> None:
    done = tune(tuned(KEEP, "tuning.runs={kind: fixed, count: 3}", "training.steps=60"), tmp_path / "run")
    verify(done.release)
    private = done.folder / "private"
    assert not (private / "trials").exists()
    files = open_losers(private / LOSERS, identity)
    runs = {name.partition("/")[0] for name in files}
    assert len(runs) == 2
    points = json.loads((private / "draws.json").read_text("utf-8"))["points"]
    assert done.plan.tuning is not None
    for run in runs:
        assert json.loads(files[f"{run}/values.json"]) == points[int(run)] != dict(done.plan.tuning.chosen or {})
        assert len(files[f"{run}/model.safetensors"]) == (done.release / "model.safetensors").stat().st_size
