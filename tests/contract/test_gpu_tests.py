"""The tests that take a GPU are tried on a CPU: names that they use may change, and nobody would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.slow
@pytest.mark.skipif(
    "DPRECIPE_ALL_TESTS" not in os.environ, reason="minutes; most run on the pretended device (tests/pretend_cuda)"
)
def test_the_tests_that_a_cpu_can_run_pass_there() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    environment = {**os.environ, "DPRECIPE_GPU_TESTS_ON": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_the_benchmark_runs_where_there_is_no_gpu() -> None:
    command = [sys.executable, "benchmarks/gpu.py", "--try", "--only", "texts"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pytest.importorskip("transformers", reason="transformers is not installed")
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "| texts | engine |" in done.stdout
