"""Several processes that run one program: what they agree on, between two that are really two.

A second process is started, which joins this one as the processes of a run do. Both take their parts of batches, add up
sums, and hand out a noisy one; the second writes what it has, and this one compares.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.results import Equality
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.processes import ProcessGroup

UNITS, NUMBERS, ROUNDS = 101, 64, 3
GROUP = 3
"""Units of a group, which one process takes whole."""
PATIENCE = timedelta(seconds=120)
COMMAND = "import sys; from dprecipe.training.audit.several import follow; follow(sys.argv[1])"
_ROOT = Path(__file__).resolve().parents[3]


def examine_processes() -> Iterator[AuditFinding]:
    """The tests of two processes.

    Raises:
        RunFailed: the second process ended before it was done.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        second = subprocess.Popen(
            [sys.executable, "-c", COMMAND, folder], env=environment, stderr=subprocess.PIPE, text=True
        )
        try:
            own = _take_part(Path(folder), 0)
            _, said = second.communicate(timeout=PATIENCE.total_seconds())
        except (RuntimeError, subprocess.TimeoutExpired, RunFailed) as error:
            second.kill()
            second.communicate()
            raise RunFailed(f"two processes of the program can't work together: {str(error).splitlines()[0]}") from None
        if second.returncode:
            raise RunFailed(f"the second process of the audit ended: {said.strip().splitlines()[-1]}")
        other = json.loads((Path(folder) / "second.json").read_text("utf-8"))
    yield from _compare(own, other)


def follow(folder: str) -> None:
    """The second process."""
    torch.set_num_threads(1)
    content = _take_part(Path(folder), 1)
    (Path(folder) / "second.json").write_text(json.dumps(content), encoding="utf-8")


def _compare(own: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[AuditFinding]:
    wrong = sum(
        sorted([*mine, *theirs]) != list(range(UNITS)) or not _groups_of(mine).isdisjoint(_groups_of(theirs))
        for mine, theirs in zip(own["parts"], other["parts"], strict=True)
    )
    text = "every unit of a batch is in the part of one process, with all of its group"
    yield AuditFinding("program", "processes_parts", text, Equality(differing=wrong, compared=ROUNDS))
    wrong = 0
    for mine, theirs, one, two in zip(own["sums"], other["sums"], own["given"], other["given"], strict=True):
        expected = np.add(one, two)
        wrong += int(not np.array_equal(mine, expected)) + int(not np.array_equal(theirs, expected))
    text = "the sum over processes is that of all parts, in each of them"
    yield AuditFinding("program", "processes_sums", text, Equality(differing=wrong, compared=2 * ROUNDS))
    wrong = sum(
        int(not np.array_equal(noisy, mine)) + int(not np.array_equal(noisy, theirs))
        for noisy, mine, theirs in zip(own["noisy"], own["released"], other["released"], strict=True)
    )
    text = "every process goes on with the noisy sum of the leader, and with nothing else"
    yield AuditFinding("program", "processes_noise", text, Equality(differing=wrong, compared=2 * ROUNDS))
    equal = sum(one == two for one, two in zip(own["seeds"], other["seeds"], strict=True))
    text = "no two processes draw from one seed"
    yield AuditFinding("program", "processes_seeds", text, Equality(differing=equal, compared=ROUNDS))


def _groups_of(units: list[int]) -> set[int]:
    return {unit // GROUP for unit in units}


def _take_part(folder: Path, rank: int) -> dict[str, Any]:
    """What a process has of each round. Its own sums are of its rank; the noisy one is of the leader alone."""
    results: dict[str, Any] = {key: [] for key in ("parts", "given", "sums", "noisy", "released", "seeds")}
    with _joined(folder, rank):
        processes = ProcessGroup(torch.device("cpu"))
        for number in range(ROUNDS):
            generator = torch.Generator().manual_seed(2 * number + rank)
            given = torch.randn(NUMBERS, dtype=torch.float64, generator=generator)
            noisy = torch.randn(NUMBERS, dtype=torch.float64, generator=generator)
            results["parts"].append(processes.part(np.arange(UNITS), np.arange(UNITS) // GROUP).tolist())
            results["given"].append(given.tolist())
            summed = processes.summed(given)
            results["sums"].append(summed.tolist())
            results["noisy"].append(noisy.tolist())
            results["released"].append(processes.released(noisy.clone, summed).tolist())
            results["seeds"].append(processes.seed(Secrets(number).stream("augmentation", number)))
    return results


@contextmanager
def _joined(folder: Path, rank: int) -> Iterator[None]:
    """One of two processes, which meet in a file."""
    store = (folder / "meeting").resolve().as_uri()
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()
