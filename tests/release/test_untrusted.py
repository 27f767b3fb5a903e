"""What a stranger's certificate may cost: processor time and memory, and what is said when it wants more."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import CertificateInvalid
from dprecipe.privacy import cross_check
from dprecipe.release import rebuild, recompute, untrusted
from dprecipe.release.verify import verify

POSIX = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers there")
LINUX = pytest.mark.skipif(not untrusted.STATUS.exists(), reason="no such count of memory there")


def spin(*_: Any) -> Any:
    """Takes processor time, and takes every exception for something that it can go on after."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            sum(range(1000))
        except Exception:
            continue
    pytest.fail("nobody stopped it")


@POSIX
def test_time_is_bounded_and_what_was_there_is_left() -> None:
    previous = signal.getsignal(signal.SIGPROF)
    with pytest.raises(untrusted.Exceeded), untrusted.bound_resources(0.05, None):
        spin()
    assert signal.getsignal(signal.SIGPROF) is previous
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


@POSIX
def test_waiting_costs_nothing() -> None:
    """Processor time is counted: a busy machine makes no certificate invalid."""
    with untrusted.bound_resources(0.2, None):
        time.sleep(0.5)


@POSIX
@pytest.mark.parametrize(
    ("module", "name", "unfinished"),
    [
        (rebuild, "rebuild_predicate", "its plan, what its events cost, what its files say, its ledger"),
        (recompute, "recompute_numbers", "what its events cost, what its files say, its ledger"),
    ],
)
def test_what_was_not_recomputed_is_said(
    module: Any, name: str, unfinished: str, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, spin)
    with pytest.raises(CertificateInvalid) as caught:
        verify(finished.release, max_seconds=0.05)
    (failure,) = caught.value.failures
    assert "0.05 s of processor time" in failure
    assert failure.endswith(f"(not recomputed: {unfinished})")
    assert caught.value.exit_code == 3


def test_memory_that_is_not_there_is_said_too(finished: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(rebuild, "rebuild_predicate", greedy)
    with pytest.raises(CertificateInvalid, match="allowed memory, so nothing of it is verified"):
        verify(finished.release)


def test_a_lack_of_memory_is_no_other_opinion(finished: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other library's question stays open; the honest certificate is not called false."""
    from dp_accounting import pld

    def greedy(*_: Any) -> Any:
        raise MemoryError

    # asked anew: neither its own cache nor that of these tests answers
    monkeypatch.setattr(
        cross_check, "ask_library", lambda charges, *rest: cross_check._ask_once.__wrapped__(tuple(charges), *rest)
    )
    monkeypatch.setattr(pld, "PLDAccountant", greedy)
    with pytest.raises(CertificateInvalid) as caught:
        verify(finished.release)
    (failure,) = caught.value.failures
    assert "allowed memory, so nothing of it is verified" in failure


@pytest.mark.slow
@LINUX
def test_memory_is_bounded() -> None:
    code = (
        "import numpy as np\nfrom dprecipe.release.untrusted import bound_resources\n"
        "with bound_resources(None, 256 << 20):\n"
        "    kept = np.ones(16 << 20)\n"  # 128 MiB
        "    try:\n        np.ones(64 << 20)\n    except MemoryError:\n        print('bounded')\n"
        "print(len(np.ones(64 << 20)) >> 20)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bounded", "64"]


@LINUX
def test_the_limit_is_left_as_it_was() -> None:
    previous = resource.getrlimit(resource.RLIMIT_DATA)
    with untrusted.bound_resources(None, 1 << 30):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != previous[0]
    assert resource.getrlimit(resource.RLIMIT_DATA) == previous


def test_another_thread_verifies_without_a_timer(finished: Any) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(verify(finished.release)))
    thread.start()
    thread.join()
    assert results[0].claim.epsilon <= 2.0


def test_a_sound_release_has_room(finished: Any) -> None:
    assert verify(finished.release, max_seconds=60).claim == verify(finished.release, None, None, None).claim


@pytest.mark.slow
def test_a_hundred_thousand_codewords_are_verified_in_little_memory(
    tmp_path: Path, plan_of: Any, facts_of: Any, finish: Any
) -> None:
    text = (
        "recipe: dprecipe/v1\nname: dear\n"
        "data: {train: {source: digits, split: train}, size: 1438}\nmodel: {kind: logistic_regression}\n"
        "mechanism:\n  kind: encoded\n"
        "  codebook: {source: gaussian, size: 100000, floor: 1e-5, norm: 0.1, seed: 0}\n"
        "  noise: {family: gaussian, multiplier: auto}\n  sampling: {scheme: poisson, batch_size: 64}\n"
        "budget: {epsilon: 2.0, delta: 1e-5}\ntraining: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}\n"
    )
    run = finish(tmp_path / "run", plan_of(text), facts_of(mechanism="encoded", score=None))
    code = (
        # Not `ru_maxrss`: a program that was just started has that of the process that started it.
        "import re, sys, time\nfrom pathlib import Path\nfrom dprecipe.release.verify import verify\n"
        "verify(Path(sys.argv[1]))\nstatus = Path('/proc/self/status').read_text()\n"
        "print(int(re.search(r'VmHWM:\\s*(\\d+)', status)[1]) >> 10, time.process_time())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, run.release], capture_output=True, text=True, check=True)
    mebibytes, seconds = map(float, done.stdout.split())
    assert mebibytes < 700
    assert seconds < 60


@POSIX
def test_the_command_has_both_bounds(finished: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "rebuild_predicate", spin)
    result = CliRunner().invoke(app, ["verify", str(finished.release), "--max-seconds", "1", "--max-memory", "2"])
    assert result.exit_code == 3
    assert "allow more with --max-seconds" in result.stderr
    assert "verified\n" not in result.stdout
