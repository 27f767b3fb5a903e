"""Tasks in processes: a process that is lost, a fault, and tasks that wait when their process is stopped."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from dprecipe.faults import Interrupted, RunFailed
from dprecipe.training.processes import workers
from dprecipe.training.processes.workers import MAX_LOSSES, Task, Workers


def is_done(task: Task) -> bool:
    return (Path(task[0]) / f"{task[1]}.done").exists()


def finish(folder: str, number: int) -> None:
    (Path(folder) / f"{number}.done").touch()


def die_once(folder: str, number: int) -> None:
    """Kills its process at the first try of the second task."""
    mark = Path(folder) / "killed"
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    finish(folder, number)


def die(folder: str, number: int) -> None:
    with (Path(folder) / "deaths").open("a", encoding="utf-8") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


def refuse(folder: str, number: int) -> None:
    raise RunFailed(f"no task {number}")


def make_tasks(folder: Path, count: int) -> list[Task]:
    return [(str(folder), number) for number in range(count)]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_a_task_whose_process_is_killed_is_done_again(tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path, 3)
    Workers(2, die_once).do_all(tasks, is_done, lambda: None)
    assert all(map(is_done, tasks))
    assert (tmp_path / "killed").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_processes_that_are_killed_again_and_again_end_it(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="killed again and again"):
        Workers(2, die).do_all(make_tasks(tmp_path, 1), is_done, lambda: None)
    assert (tmp_path / "deaths").read_text(encoding="utf-8") == "x" * (MAX_LOSSES + 1)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_done_is_not_done_again_and_a_fault_arrives(jobs: int, tmp_path: Path) -> None:
    tasks = make_tasks(tmp_path, 3)
    finish(*tasks[0])
    with pytest.raises(RunFailed, match=r"no task [12]"):
        Workers(jobs, refuse).do_all(tasks, is_done, lambda: None)
    Workers(jobs, refuse).do_all(tasks[:1], is_done, lambda: None)


def test_a_process_that_was_stopped_begins_no_task_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_is_stopped", False)

    def stop(*task: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        workers._do(stop, (str(tmp_path), 0))
    with pytest.raises(Interrupted):
        workers._do(finish, (str(tmp_path), 1))
    assert list(tmp_path.iterdir()) == []
