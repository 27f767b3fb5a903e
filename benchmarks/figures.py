"""What the benchmarks share: rounds that alternate, whole processes, ratios, tables, and a JSON of the ratios.

Rounds alternate A B C A B C …, so that a machine whose speed drifts gives honest ratios. A ratio is of two times of
one round; of all rounds the median and the range are kept. `benchmarks/check.py` compares them with `ratios.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Spread:
    """Median and range of some rounds."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values), len(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Of times of the same rounds."""
    return Spread.of([mine / other for mine, other in zip(ours, theirs, strict=True)])


def alternate(ways: Mapping[str, Callable[[], float]], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
    """The seconds that each way returned in each round, after rounds that only warm up."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm_up + rounds):
        for name, way in ways.items():
            seconds = way()
            if number >= warm_up:
                times[name].append(seconds)
    return times


def seconds_of(work: Callable[[], object], repeats: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """Of one call. The processor's time unless told otherwise: other programs lengthen it less."""
    start = clock()
    for _ in range(repeats):
        work()
    return (clock() - start) / repeats


class Usage(NamedTuple):
    """Of a whole process and the children that it waited for."""

    wall: float
    processor: float
    peak_mb: float
    """Of the largest single process."""
    code: int
    output: str


def run_process(command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> Usage:
    """Run it to its end, with both output streams in `output`.

    Bytecode is cached, as it is where dprecipe is used. A child's peak is at least that of the process that started it:
    a caller that tells of memory imports no large library.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.monotonic()
    with subprocess.Popen(
        command, cwd=folder, env={**inherited, **(environment or {})}, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, used = os.wait4(child.pid, 0)
        wall = time.monotonic() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return Usage(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / unit, child.returncode, output)


class Unmeasured(Exception):
    """What can't be measured here, and why."""


def run_checked(command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path = ROOT) -> Usage:
    """Of a process that has to succeed.

    Raises:
        Unmeasured: it failed; with the last line of what it said.
    """
    used = run_process(command, environment, folder)
    if used.code:
        raise Unmeasured(f"ended with {used.code}: {(used.output.strip().splitlines() or [''])[-1][:160]}")
    return used


def peak_of(script: str, *words: str) -> float:
    """Peak memory in MB of a fresh process of a benchmark that is told to do only that."""
    return run_checked([sys.executable, script, "peak", *words]).peak_mb


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """With the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the ratios, with what measured them")
    parser.add_argument("--quick", action="store_true", help="fewer cases and fewer rounds, for `make bench-check`")
    parser.add_argument("--rounds", type=int, metavar="N", help="in place of each case's own number")
    return parser


def describe_machine() -> dict[str, Any]:
    """What decides about figures, as far as it is known without a library."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processor = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"processor": processor, "cores": cores, "python": platform.python_version(), "load": load}


def find_commit() -> str:
    """Of the checkout, marked where it has changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write_json(path: Path | None, benchmark: str, ratios: Mapping[str, Spread], **details: object) -> None:
    """Nothing where no file is asked for."""
    if path is None:
        return
    content = {
        "benchmark": benchmark,
        "commit": find_commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "ratios": {name: {key: rounded(value) for key, value in asdict(each).items()} for name, each in ratios.items()},
        **details,
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rounded(value: float) -> float:
    """To four figures: more are noise."""
    return value if isinstance(value, int) else float(f"{value:.4g}")
