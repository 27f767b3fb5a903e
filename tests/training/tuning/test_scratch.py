"""A folder for one run is gone after it, or with the next run on its machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dprecipe.training.tuning.order import make_scratch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="folders have no locks")
WORKER = """
import sys
from pathlib import Path
from dprecipe.training.tuning.order import make_scratch

with make_scratch(Path(sys.argv[1])) as place:
    (place / "weights").write_bytes(b"secret")
    print(flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_what_a_killed_worker_left_goes_with_the_next_run_and_no_folder_in_use_does(tmp_path: Path) -> None:
    words = [sys.executable, "-c", WORKER, str(tmp_path)]
    (tmp_path / "other").mkdir()
    (tmp_path / "dprecipe-run-link").symlink_to(tmp_path / "other")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        (left,) = tmp_path.glob("*/weights")
        with make_scratch(tmp_path) as own:
            assert own.is_dir()
            assert left.exists()
        assert not own.exists()
        worker.kill()
    assert left.exists()
    with make_scratch(tmp_path) as own:
        assert not left.parent.exists()
        assert own.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dprecipe-run-link", "other"]


def test_a_folder_that_is_deleted_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dprecipe.training.tuning import order

    honest, left = order._lock, [1]

    def slow(path: Path) -> int | None:
        if left and left.pop():
            path.rmdir()
        return honest(path)

    monkeypatch.setattr(order, "_lock", slow)
    with make_scratch(tmp_path) as own:
        assert own.is_dir()


def test_where_files_have_no_locks_a_run_still_has_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dprecipe.training.tuning import order

    monkeypatch.setattr(order, "_lock", lambda path: None)
    with make_scratch(tmp_path) as own:
        assert list(tmp_path.iterdir()) == [own]
    assert not own.exists()
