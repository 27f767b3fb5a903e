"""Kernels, waits, bytes over the bus and memory of a step of large models, held to a table that is in the repository.

`python -m pytest tests/pretend_cuda/test_launches.py -m "" --update-golden` writes the table anew: read the diff.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.needs_time import needs_time
from tests.pretend_cuda.child import needs_device
from tests.pretend_cuda.roads import ROOT, Settings, environment

TABLE = Path(__file__).with_name("launches.json")
H100 = Settings(backing="meta", mib=78 << 10)
LEVEL = 0.97
"""What is so much lower, or less, should be what the table says."""
LONG = ["WRN-16-4", "transformer 100M", "decoder 100M", "decoder 100M, LoRA"]
CASES = [
    "MNIST CNN",
    *(pytest.param(name, marks=[pytest.mark.slow, *[needs_time] * ("100M" in name)]) for name in LONG),
]


@pytest.mark.slow
@needs_device
@pytest.mark.parametrize("case", CASES)
def test_a_step_starts_no_more_kernels_and_waits_no_more(case: str, update_golden: bool) -> None:
    found = count_step(case)
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if update_golden:
        TABLE.write_text(json.dumps(table | {case: found}, indent=1) + "\n", encoding="utf-8")
        return
    expected = table[case]
    assert found["waits"] == expected["waits"]
    for key in ("kernels", "bytes to the device", "bytes to the host", "peak MiB"):
        assert LEVEL * expected[key] <= found[key] <= expected[key], key


def test_all_that_waits_is_one_look_a_part_for_numbers_that_are_not_finite() -> None:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    assert set(table) == {"MNIST CNN", *LONG}
    for measured in table.values():
        assert list(measured["waits"]) == [
            "dprecipe/training/engine/bookkeeping.py sound = bool((weights_GN > 0).all())"
        ]


def count_step(case: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.pretend_cuda.count_step", case, "engine"],
        cwd=ROOT, env=environment(H100), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted
