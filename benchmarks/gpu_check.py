"""`make gpu-check`: does dprecipe do on this GPU what it does on a CPU, and at what cost?

It takes one GPU, no network, no data and at most eight minutes. Stages run in the order in which their results matter,
each within its own limit of time, and each writes its result before the next one starts:

| stage | what it shows |
|---|---|
| wrn | a step of WRN-16-4, plain and private |
| tests | the tests marked `gpu`, in several processes |
| alone | those that measure memory, time or waits, one after the other |
| mnist, transformer | a step of the MNIST CNN, and of the transformer with 100 million parameters |
| compiled, compiled-wrn | tests and steps of compiled passes |

The folder given by `--out` gets four files: `check.json` (all results, with device, driver, versions and whatever
decides about TF32), `summary.txt` (a table), `log.txt` (what the stages printed), and `part.*`, the results of a stage
that did not end. They are written again after each stage. A test that is skipped counts as one that failed.
The exit code is 0 if everything passed, 1 if something failed or ran out of time, 2 without a CUDA device.

Run: python benchmarks/gpu_check.py [--out FOLDER] [--stages wrn,tests,…] [--seconds 460]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch
from gpu import line

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
ALONE = "test_05_copied or test_17 or test_18 or test_19 or test_20 or test_21_an_encoder or test_27 or test_28_memory"
"""Tests that other processes on the same device would disturb."""
STEPS_FILE, TESTS_FILE = "part.json", "part.xml"
LEAST = 10.0
"""Seconds without which no stage begins."""
STEPS = "sgd,engine,sgd tf32,sgd bf16,bf16,opacus"


@dataclass(frozen=True)
class Stage:
    """A part of the check: a command, how long it may take, and how its result is read."""

    command: Callable[[Path], list[str]]
    seconds: int
    read: Callable[[Path, str], dict[str, Any]]
    """From the folder and from what the command printed."""


def time_steps(case: str, ways: str, seconds: int, *options: str) -> Stage:
    """A row of benchmarks/gpu.py."""
    script = str(ROOT / "benchmarks" / "gpu.py")

    def command(out: Path) -> list[str]:
        return [sys.executable, script, "--only", case, "--ways", ways, *options, "--json", str(out / STEPS_FILE)]

    return Stage(command, seconds, lambda out, log: read_steps(out / STEPS_FILE))


def run_tests(chosen: str, processes: int, seconds: int, each: int) -> Stage:
    """Tests of tests/gpu; a test that hangs ends after `each` seconds."""

    def command(out: Path) -> list[str]:
        pytest = [sys.executable, "-m", "pytest", "-o", "addopts=", "-o", "filterwarnings=default"]
        options = ["--import-mode=importlib", "-m", "gpu", "-k", chosen, "-v", "-rfEs", f"--timeout={each}"]
        options += ["-p", "no:cacheprovider"]
        shared = ["-n", str(processes), "--dist", "worksteal"] if processes > 1 else ["-p", "no:xdist"]
        return [*pytest, *options, *shared, f"--junitxml={out / TESTS_FILE}", "tests/gpu"]

    return Stage(command, seconds, lambda out, log: read_tests(out / TESTS_FILE, log))


STAGES = {
    "wrn": time_steps("WRN-16-4", STEPS, 110, "--short"),
    "tests": run_tests(f"not test_14 and not ({ALONE})", 6, 120, 60),
    "alone": run_tests(ALONE, 1, 60, 40),
    "mnist": time_steps("MNIST CNN", STEPS, 40, "--short", "--operations"),
    "transformer": time_steps("transformer 100M", STEPS, 110, "--short"),
    "compiled": run_tests("test_14", 4, 80, 80),
    "compiled-wrn": time_steps("WRN-16-4", "sgd,compiled", 80, "--short"),
}


def machine() -> dict[str, Any]:
    """What there is."""
    device = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "devices": torch.cuda.device_count(),
        "driver": driver(),
        "CUDA": torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "torch": torch.__version__,
        "triton": installed("triton"),
        "lightning": installed("lightning"),
        "dprecipe": installed("dprecipe"),
        "python": platform.python_version(),
        "free GiB": round(free / 2**30, 2),
        "total GiB": round(total / 2**30, 2),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "fp32_precision": {} if getter is None else {op: getter("cuda", op) for op in ("all", "matmul", "conv", "rnn")},
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def driver() -> str:
    try:
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def read_tests(report: Path, log: str) -> dict[str, Any]:
    """Returns how each test went: from pytest's report, or from its log if the report was not reached."""
    complete = False
    with suppress(OSError, ElementTree.ParseError):  # what ended while it was written is not read
        cases = ElementTree.parse(report).getroot().iter("testcase")
        result = {str(case.get("name")): (outcome(case), float(case.get("time", "0"))) for case in cases}
        complete = True
    if not complete:
        pairs = re.findall(r"(PASSED|FAILED|ERROR|SKIPPED) \S+::(\S+)", log)  # as several processes report
        pairs += [(went, name) for name, went in re.findall(r"::(\S+) (PASSED|FAILED|ERROR|SKIPPED)", log)]
        result = {name: (went.lower(), 0.0) for went, name in pairs}
    wrong = {name: went for name, (went, _) in sorted(result.items()) if went != "passed"}
    return {
        "passed": complete and bool(result) and not wrong,
        "count": len(result),
        "wrong": wrong,
        "seconds": {name: seconds for name, (_, seconds) in result.items()},
    }


def outcome(case: ElementTree.Element) -> str:
    """A skip is no pass: what was not tried is not known."""
    for tag in ("failure", "error", "skipped"):
        if (result := case.find(tag)) is not None:
            return f"{tag}: {((result.get('message') or '').splitlines() or [''])[0][:300]}"
    return "passed"


def read_steps(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # what ended while it was written is not read
        figures = json.loads(path.read_text(encoding="utf-8"))
    rows = [row for case in figures.get("cases", {}).values() for way, row in case.items() if way != "opacus"]
    return {"passed": bool(rows) and all("failed" not in row for row in rows), **figures}


def run_stage(name: str, stage: Stage, out: Path, seconds: float) -> dict[str, Any]:
    """Run a stage within its time; its processes end with it, and whatever it has written by then is read."""
    environment = {key: value for key, value in os.environ.items() if key != "DPRECIPE_GPU_TESTS_ON"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("OMP_NUM_THREADS", "4")
    drop_parts(out)  # of a check that was ended
    began = time.monotonic()
    with (out / "log.txt").open("a+b") as file:
        file.write(f"\n=== {name}\n".encode())
        file.flush()
        first = file.tell()
        process = subprocess.Popen(
            stage.command(out), cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code: int | None = process.wait(min(stage.seconds, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        file.seek(first)
        printed = file.read().decode(errors="replace")
    result = {"exit": code, "wall seconds": round(time.monotonic() - began, 1), **stage.read(out, printed)}
    drop_parts(out)
    result["passed"] = bool(result["passed"] and code == 0)
    return result


def drop_parts(out: Path) -> None:
    for part in (STEPS_FILE, TESTS_FILE):
        (out / part).unlink(missing_ok=True)


def summarise(result: dict[str, Any]) -> list[str]:
    """The lines of a table for docs/project/gpu.md."""
    there = result["machine"]
    lines = [f"{there['device']}, driver {there['driver']}, CUDA {there['CUDA']}, torch {there['torch']}"]
    for name, stage in result["stages"].items():
        went = "passed" if stage["passed"] else "out of time" if stage["exit"] is None else "FAILED"
        lines.append(f"{name}: {went}, {stage['wall seconds']} s")
        if "count" in stage:
            lines.append(f"  {stage['count']} tests, {len(stage['wrong'])} wrong")
            lines += [f"  {test}: {how}" for test, how in stage["wrong"].items()]
        for case, rows in stage.get("cases", {}).items():
            lines += [f"  {line(case, way, rows)}" for way in rows]
    return lines + [f"{name}: not begun" for name in result["asked"] if name not in result["stages"]]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="tests and times what runs on a GPU")
    parser.add_argument("--out", type=Path, default=ROOT / "gpu-check")
    parser.add_argument("--stages", default=",".join(STAGES), help="these alone, in this order")
    parser.add_argument("--seconds", type=float, default=460.0, help="no stage goes on after so long")
    given = parser.parse_args(arguments)
    names = given.stages.split(",")
    if unknown := [name for name in names if name not in STAGES]:
        parser.error(f"no such stage: {', '.join(unknown)}; there are {', '.join(STAGES)}")
    if not torch.cuda.is_available():
        sys.stderr.write("gpu-check: there is no CUDA device here\n")
        return 2
    end = time.monotonic() + given.seconds
    out: Path = given.out.resolve()  # stages run in the root
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    result |= {"asked": names, "stages": {}, "passed": False}
    stages = result["stages"]
    write(result, out)
    for name in names:
        if (left := end - time.monotonic()) < LEAST:
            break
        print(f"{name} …", flush=True)
        stages[name] = run_stage(name, STAGES[name], out, left)
        result["passed"] = list(stages) == names and all(stage["passed"] for stage in stages.values())
        write(result, out)
    print("\n".join(summarise(result)))
    return 0 if result["passed"] else 1


def write(result: dict[str, Any], out: Path) -> None:
    (out / "check.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (out / "summary.txt").write_text("\n".join(summarise(result)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
