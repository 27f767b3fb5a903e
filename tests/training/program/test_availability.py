"""A run that has spent its budget ends in a release that verifies, whatever has happened to its other files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe import durable
from dprecipe.api import run
from dprecipe.cli.verify import verified_lines
from dprecipe.contract.plan import Plan
from dprecipe.faults import BudgetSpent, CertificateInvalid, RunFailed, UsageFault
from dprecipe.privacy.ledger import LedgerWriter, lock_ledger, read
from dprecipe.release import verify as verifying
from dprecipe.training.publish import provenance, publish
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.steps.stepwise import StepwiseRunner

Small = Callable[..., Plan]


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """A pipe that is opened and waited for ends the test, not the suite."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hung"))
    signal.alarm(120)
    yield
    signal.alarm(0)


Spent = Callable[[Plan, Path], Path]


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Spent:
    """A run whose budget is spent, and whose release is still to be made: run once for each plan, and copied."""
    runs: dict[str, Path] = {}

    def copied(plan: Plan, out: Path) -> Path:
        if plan.digest not in runs:
            runs[plan.digest] = tmp_path_factory.mktemp("spent") / "run"
            run(plan, runs[plan.digest])
            shutil.rmtree(runs[plan.digest] / "release")
        shutil.copytree(runs[plan.digest], out)
        return out

    return copied


def predicate(release: Path) -> Any:
    return json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]


TORN = [b"", b"step", b"step,epsilon,accuracy,loss\n1,0.", b"\xff\xfe\x00\n\n,,,", bytes(4096), b"other,columns\n1,2\n",
        b"step,epsilon,accuracy,loss\n6,9e99,0.5,0.5\n99999,0.1,0.5,0.5\n6,0.1,0.5,0.5\n"]  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(torn, id=str(i), marks=pytest.mark.slow if i in (0, 1, 2, 3, 5) else ())
        for i, torn in enumerate(TORN)
    ],
)
def test_no_log_is_needed_for_a_release(small: Small, spent: Spent, tmp_path: Path, content: bytes) -> None:
    plan = small("training.steps=9")
    out = spent(plan, tmp_path / "run")
    (out / "private" / "metrics.csv").write_bytes(content)
    done = run(plan, out, resume=True)
    dprecipe.verify(done.release)
    history = json.loads((done.release / "metrics.json").read_text("utf-8"))["history"]
    assert all("epsilon" not in point and point["step"] <= 9 for point in history)


def test_damaged_lines_are_counted_in_words(
    small: Small, spent: Spent, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = small("training.steps=9")
    out = spent(plan, tmp_path / "run")
    (out / "private" / "metrics.csv").write_bytes(TORN[-1])
    monkeypatch.setattr(RunFolder, "record", lambda *_: None)
    run(plan, out, resume=True)
    assert "metrics.csv: damaged lines, left out of metrics.json: 1" in capsys.readouterr().err


def test_a_clock_that_is_set_back_has_no_say(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class SetBack:
        @staticmethod
        def now(zone: Any) -> datetime:
            return datetime.now(UTC) - timedelta(hours=2)

    monkeypatch.setattr(publish, "datetime", SetBack)
    done = run(small("training.steps=9"), tmp_path / "run")
    provenance = predicate(done.release)["provenance"]
    assert provenance["started"] <= provenance["finished"]
    dprecipe.verify(done.release)


def test_a_release_that_does_not_verify_is_none(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out = small("training.steps=9"), tmp_path / "run"
    versions = provenance.list_versions()
    monkeypatch.setattr(provenance, "list_versions", lambda: {**versions, "dp-accounting": "0.0.1"})
    with pytest.raises(RunFailed, match=r"does not verify, so there is none: .*dp-accounting") as failed:
        run(plan, out)
    assert failed.value.exit_code == 4
    assert not (out / "release").exists()
    assert not list(out.glob(".release.*"))
    unverified = out / "private" / "unverified-release"
    with pytest.raises(CertificateInvalid):
        dprecipe.verify(unverified)
    monkeypatch.undo()
    done = run(plan, out, resume=True)
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_model_without_most_of_its_steps_is_released_on_demand_alone(
    small: Small, spent: Spent, tmp_path: Path
) -> None:
    plan = small("training.steps=20", "release.report=true")
    out = spent(plan, tmp_path / "run")
    (out / "private" / "checkpoints" / "last.pt").unlink()
    ledger = (out / "private" / "ledger.jsonl").read_bytes()
    with pytest.raises(BudgetSpent, match="20 of 20 steps are charged, and the model has 0 of them") as refused:
        run(plan, out, resume=True)
    assert refused.value.exit_code == 3
    assert "--accept-lost-steps" in refused.value.remedy
    assert (out / "private" / "ledger.jsonl").read_bytes() == ledger
    done = run(plan, out, resume=True, accept_lost_steps=True)
    assert predicate(done.release)["sampling"]["steps_trained"] == 0
    assert "The model has 0 of the 20 steps charged" in (done.release / "card.md").read_text("utf-8")
    shown = "\n".join(verified_lines(dprecipe.verify(done.release)))
    assert "lacks         the model has 0 of the 20 steps charged" in shown


def test_what_the_model_lacks_is_held_against_the_ledger(small: Small, tmp_path: Path) -> None:
    done = run(small("training.steps=9"), tmp_path / "run")
    certificate = done.release / "certificate.json"
    whole = certificate.read_text("utf-8")
    for stated in ("8", "10", "null"):
        certificate.write_text(whole.replace('"steps_trained": 9', f'"steps_trained": {stated}'), encoding="utf-8")
        with pytest.raises(CertificateInvalid, match="steps_trained"):
            dprecipe.verify(done.release)


def test_a_late_resume_leaves_a_finished_run_alone(
    small: Small, spent: Spent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was reading its records while another resume made the release."""
    plan = small("training.steps=9")
    out, honest, calls = spent(plan, tmp_path / "run"), StepwiseRunner.prepare, []

    def slow(*given: Any) -> Any:
        program = honest(*given)
        calls.append(1)
        if len(calls) == 1:
            run(plan, out, resume=True)
        return program

    monkeypatch.setattr(StepwiseRunner, "prepare", slow)
    with pytest.raises(UsageFault, match="complete"):
        run(plan, out, resume=True)
    assert len(calls) == 2
    verified = dprecipe.verify(out / "release")
    assert any("ledger beside it has exactly" in line for line in verified.checked)


def failing(monkeypatch: pytest.MonkeyPatch, name: str, code: int, when: Callable[[Any], bool]) -> None:
    honest = getattr(os, name)

    def fail(file: Any, *rest: Any) -> Any:
        if when(file):
            raise OSError(code, os.strerror(code))
        return honest(file, *rest)

    monkeypatch.setattr(os, name, fail)


def at(path: Path) -> Callable[[Any], bool]:
    """Whether a descriptor is of this path."""
    return lambda file: path.exists() and os.path.samestat(os.fstat(file), path.stat())


def test_a_release_whose_name_the_disk_does_not_confirm_is_one(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = small("training.steps=9"), tmp_path / "run"
    failing(monkeypatch, "fsync", errno.EIO, lambda file: (out / "release").exists() and at(out)(file))
    done = run(plan, out)
    assert "did not confirm its name" in capsys.readouterr().err
    dprecipe.verify(done.release)


def test_nothing_is_spent_in_a_folder_whose_name_the_disk_does_not_confirm(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = small("training.steps=9"), tmp_path / "run"
    failing(monkeypatch, "fsync", errno.EIO, at(tmp_path))
    for resume in (False, True):
        with pytest.raises(RunFailed, match="can't flush the folder's name") as failed:
            run(plan, out, resume=resume)
        assert "--resume" in failed.value.remedy
        assert not (out / "private" / "ledger.jsonl").exists()
    monkeypatch.undo()
    dprecipe.verify(run(plan, out, resume=True).release)


def test_a_torn_line_that_cannot_be_cut_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.jsonl"
    failing(monkeypatch, "ftruncate", errno.EIO, lambda _: True)
    with pytest.raises(RunFailed, match="can't write the ledger: Input/output error"):
        LedgerWriter(path, "sha256:" + "0" * 64)
    monkeypatch.undo()
    LedgerWriter(path, "sha256:" + "0" * 64).close("interrupted")  # and its lock is free


def test_an_attempt_spends_on_no_ledger_whose_name_an_earlier_one_left_unsafe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest, synced = tmp_path / "ledger.jsonl", "sha256:" + "0" * 64, []

    def died(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(durable, "sync_folder", died)
    with pytest.raises(KeyboardInterrupt):
        LedgerWriter(path, digest)
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    LedgerWriter(path, digest)
    assert read(path).attempts == 2
    assert synced == [tmp_path]


def test_a_file_system_without_locks_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(RunFailed, match="this file system can't lock the ledger") as failed:
        LedgerWriter(tmp_path / "ledger.jsonl", "sha256:" + "0" * 64)
    assert "local disk" in failed.value.remedy


@pytest.mark.parametrize(
    "name",
    [
        "ledger.jsonl",
        pytest.param("commitment.key", marks=pytest.mark.slow),
        "checkpoints/last.pt",
        "metrics.csv",
        pytest.param("overrides.json", marks=pytest.mark.slow),
    ],
)
def test_a_pipe_in_the_place_of_a_private_file_makes_nobody_wait(
    small: Small, spent: Spent, tmp_path: Path, name: str
) -> None:
    plan = small("training.steps=9")
    path = spent(plan, tmp_path / "run") / "private" / name
    path.unlink()
    os.mkfifo(path)
    if name in ("metrics.csv", "overrides.json"):
        dprecipe.verify(run(plan, tmp_path / "run", resume=True).release)
        return
    with pytest.raises(RunFailed, match="not a regular file"):
        run(plan, tmp_path / "run", resume=True)
    if name == "ledger.jsonl":
        with pytest.raises(RunFailed, match="not a regular file"):
            read(path)
        with pytest.raises(RunFailed, match="not a regular file"), lock_ledger(path):
            pass


def test_a_pipe_in_the_place_of_the_ledger_does_not_pass_for_none(small: Small, tmp_path: Path) -> None:
    done = run(small("training.steps=9"), tmp_path / "run")
    ledger = tmp_path / "run" / verifying.LEDGER
    ledger.unlink()
    assert any("ledger is not here" in note for note in dprecipe.verify(done.release).notes)
    os.mkfifo(ledger)
    with pytest.raises(CertificateInvalid, match="not a regular file"):
        dprecipe.verify(done.release)


def test_what_is_private_is_its_owners_alone(small: Small, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run(small("training.steps=9"), tmp_path / "run")
    finally:
        os.umask(before)
    private = tmp_path / "run" / "private"
    for path in (private, *private.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_folder_that_a_killed_run_was_making_goes_with_the_next(small: Small, tmp_path: Path) -> None:
    plan, out = small("training.steps=9"), tmp_path / "run"
    dead, busy, foreign = (tmp_path / name for name in (".run.0123abcd", ".run.4567cdef", ".run.backup"))
    for folder in (dead, busy, foreign):
        (folder / "private").mkdir(parents=True)
        (folder / "private" / "commitment.key").touch()
    import fcntl

    file = os.open(busy, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    run(plan, out)
    os.close(file)
    assert (dead.exists(), busy.exists(), foreign.exists()) == (False, True, True)


def test_folders_that_are_missing_are_made_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    durable.make_folders(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]
    durable.make_folders(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "key"
    durable.replace_file(path, b"old")
    with pytest.raises(TypeError), durable.replacing_file(path) as file:
        file.write("no bytes")  # type: ignore[arg-type]
    assert durable.read_bytes(path) == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["key"]
    with pytest.raises(OSError, match="not a regular file"):
        durable.read_bytes(tmp_path)


def test_a_data_check_that_cannot_be_written_stops_no_run(
    small: Small, spent: Spent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = small("training.steps=9")
    out = spent(plan, tmp_path / "run")
    for name in ("data-check.json", "data-check.txt"):
        (out / "private" / name).unlink()
        (out / "private" / name).mkdir()
    dprecipe.verify(run(plan, out, resume=True).release)
    assert "data-check.json: can't be written" in capsys.readouterr().err
