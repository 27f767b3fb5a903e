"""The simulated disk loses what it should, and a small part of `make chaos` holds."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def disk() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chaos_disk", HERE / "disk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


WRITES = """\
import os, sys
sys.path.insert(0, sys.argv[1])
from disk import KILL, Disk, Fault
from pathlib import Path
root = Path(sys.argv[2])
disk = Disk(root, root.with_name("shadow"))
disk.start()
disk.install(Fault(int(sys.argv[3]), KILL) if sys.argv[3] != "0" else None)
with open(root / "safe", "wb") as file:
    file.write(b"synced ")
    file.flush()
    os.fsync(file.fileno())
    folder = os.open(root, os.O_RDONLY)
    os.fsync(folder)
    file.write(b"unsynced")
(root / "unnamed").write_bytes(b"nobody asked for it to be kept")
os.kill(os.getpid(), 9)
"""


def write(root: Path, kill_at: int) -> None:
    root.mkdir()
    done = subprocess.run([sys.executable, "-c", WRITES, str(HERE), str(root), str(kill_at)], check=False)
    assert done.returncode == -9


@pytest.mark.slow
def test_a_power_failure_leaves_what_was_synced_and_may_take_the_rest(tmp_path: Path, disk: ModuleType) -> None:
    seen = set()
    for seed in range(40):
        root = tmp_path / str(seed) / "root"
        root.parent.mkdir()
        write(root, 0)
        assert (root / "safe").read_bytes() == b"synced unsynced"
        disk.Disk(root, root.with_name("shadow")).lose_power(random.Random(seed))
        content = (root / "safe").read_bytes()
        assert content.startswith(b"synced ")
        seen.add(("unnamed" if (root / "unnamed").exists() else "", content[7:] == b"unsynced"))
    assert seen == {("unnamed", True), ("unnamed", False), ("", True), ("", False)}


def test_a_kill_strikes_at_the_change_that_is_asked_for(tmp_path: Path) -> None:
    left = []
    for number in range(1, 6):
        write(tmp_path / str(number), number)
        left.append([(path.name, path.read_bytes()) for path in sorted((tmp_path / str(number)).iterdir())])
        (tmp_path / "shadow").rename(tmp_path / f"shadow-{number}")
    assert left[0] == []  # before the first file is there
    assert left[4] != left[0]
    assert len({json.dumps(each, default=str) for each in left}) >= 3


@pytest.mark.slow
def test_some_of_everything_ends_in_a_release(tmp_path: Path) -> None:
    command = [sys.executable, str(HERE / "chaos.py"), "--kills", "4", "--faults", "4", "--races", "2", "--seed", "7"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"failures": 0, "kills": 4}
