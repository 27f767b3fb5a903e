"""A release appears whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import RunFailed, UsageFault
from dprecipe.release import folder


def test_it_appears_with_all_it_was_given(tmp_path: Path) -> None:
    with folder.open_draft(tmp_path / "release") as draft:
        (draft / "a").write_bytes(b"1")
        assert not (tmp_path / "release").exists()
    assert (tmp_path / "release" / "a").read_bytes() == b"1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["release"]


def test_what_exists_is_left_alone(finished: Any) -> None:
    with pytest.raises(UsageFault, match="never overwritten"), folder.open_draft(finished.release):
        pytest.fail("entered")


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, "No space left on device"), ValueError("a defect"), KeyboardInterrupt()]
)
def test_nothing_is_left_of_one_that_failed(failure: BaseException, tmp_path: Path) -> None:
    expected = RunFailed if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected), folder.open_draft(tmp_path / "release") as draft:
        fail(draft, failure)
    assert not list(tmp_path.iterdir())


def fail(draft: Path, failure: BaseException) -> None:
    (draft / "a").write_bytes(b"1")
    raise failure


def test_a_full_disk_while_syncing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match="No space left"), folder.open_draft(tmp_path / "release") as draft:
        (draft / "a").write_bytes(b"1")
    assert not list(tmp_path.iterdir())


def test_the_draft_of_a_killed_run_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / ".release.dead").mkdir()
    (tmp_path / ".release.dead" / "model").write_bytes(b"1")
    with folder.open_draft(tmp_path / "release"):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["release"]


def test_scores_along_the_way_are_published_only_where_every_iterate_is_paid_for(finished: Any) -> None:
    class Other:
        mechanism = "pnsgd"
        tuning = None

    assert folder.select_history(finished.plan, [{"step": 1.0}])
    assert not folder.select_history(Other(), [{"step": 1.0}])  # type: ignore[arg-type]


def test_a_key_that_can_not_sign_is_found_before_anything_is_written(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    plan = plan_of(overrides=("release.sign.key=absent.pem",), file=str(tmp_path / "recipe.yaml"))
    with pytest.raises(UsageFault, match=r"absent\.pem"):
        folder.load_signing_key(plan)
    with pytest.raises(UsageFault, match=r"absent\.pem"):
        finish(tmp_path / "run", plan, facts_of())
    assert not (tmp_path / "run" / "release").exists()
