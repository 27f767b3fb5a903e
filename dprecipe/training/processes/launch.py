"""Launches of `torchrun` and their run folders: the launch that made a folder may continue it, without `--resume`.

When a process of a run is lost, `torchrun --max-restarts` ends the others and starts the same command again.

| the folder | what the command does |
|---|---|
| was made by this launch | continues: a new attempt, for which all that was reserved counts as spent |
| the same, and the run is complete, on one machine | verifies its release: what was lost ended after it |
| is of another launch, or of none | refuses, as a first start does: a run folder is never overwritten |
| is not there, on one machine | begins: what was lost had not begun |
| is not there, on several machines, after a restart | refuses: it may be on another of them |
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from dprecipe import durable
from dprecipe.faults import UsageFault

LAUNCHER = "DPRECIPE_LAUNCHER"
"""Environment variable of processes that this program started by itself: the launcher's process id."""
UNSET = "unset WORLD_SIZE RANK LOCAL_RANK MASTER_ADDR MASTER_PORT"
"""The command after which a process runs alone."""
NAME = "launch"
"""The file in a run's private folder."""


def name_launch() -> str | None:
    """Names the launch of this process, the same after each of its restarts; `None` without torchrun."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    # The parent process starts the others again, and lives as long as the launch does.
    return None if run is None else f"{run} {socket.gethostname()} {os.getppid()}"


def is_of_launch(path: Path) -> bool:
    """Returns True if this launch has made the run folder, as far as this machine has it.

    Raises:
        UsageFault: it was restarted on several machines, and the folder is not on this one.
    """
    launch = name_launch()
    if launch is None:
        return False
    restarts, machines = _count_restarts(), _count_machines()
    if restarts and machines > 1 and int(os.environ.get("RANK", "0")) == 0 and not os.path.lexists(path):
        raise UsageFault(
            f"{path}: not on this machine, which leads the run since the launcher restarted it",
            "give all machines one folder for --out; or continue on the machine that has it, with --resume",
        )
    try:
        return durable.read_bytes(path / "private" / NAME).decode("utf-8", "replace") == launch
    except OSError:
        return False


def is_restart_of_complete(path: Path) -> bool:
    """Returns True if the launcher has started this command again after its run was complete: a process was lost so
    late that nothing is left to do. Always False on several machines: the others may not see the folder, and would wait
    for this one."""
    return _count_restarts() > 0 and _count_machines() == 1 and is_of_launch(path) and os.path.lexists(path / "release")


def describe_wait() -> str:
    """Says that this process waits for others, where neither torchrun nor this program started it with any: only the
    environment says that there are more. Empty where it waits for none."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1" or "TORCHELASTIC_RUN_ID" in os.environ or LAUNCHER in os.environ:
        return ""
    return (
        f"process {os.environ.get('RANK', '0')} of {count} waits for the others: the environment has "
        f"WORLD_SIZE={count}; if there are none, stop it, and {UNSET}"
    )


def _count_restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _count_machines() -> int:
    return int(os.environ.get("GROUP_WORLD_SIZE", "1"))
