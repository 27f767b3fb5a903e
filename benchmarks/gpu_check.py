"""`make gpu-check`: whether dprecipe does on this GPU what it does on a CPU, and at what cost.

It takes one GPU, no network and no data.

1. Says what there is: device, driver, CUDA, cuDNN, triton, torch, free memory, whatever decides about TF32.
2. Runs the tests that are marked `gpu`; a test that is skipped counts as one that failed.
3. Runs `benchmarks/gpu.py --short`.
4. Writes `gpu-check.json`, and a table for docs/gpu.md to the standard output.

Ends with 0 where all of it passed, with 1 where something did not, with 2 where there is no CUDA device.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).resolve().parents[1]
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)


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
    except OSError:
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def tests() -> dict[str, Any]:
    """How the marked tests went, one by one."""
    environment = {name: value for name, value in os.environ.items() if name != "DPRECIPE_GPU_TESTS_ON"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0", "--maxfail=10", f"--junitxml={report}"]
        code = subprocess.run([*command, "tests/gpu"], cwd=ROOT, env=environment, check=False).returncode
        cases = ElementTree.parse(report).getroot().iter("testcase") if report.exists() else []
        result = {str(case.get("name")): (outcome(case), float(case.get("time", "0"))) for case in cases}
    wrong = sorted(name for name, (went, _) in result.items() if went != "passed")
    slow = sorted(name for name, (_, seconds) in result.items() if seconds > 20)
    return {
        "passed": code == 0 and bool(result) and not wrong,
        "count": len(result),
        "wrong": {name: result[name][0] for name in wrong},
        "over 20 s": slow,
        "seconds": {name: seconds for name, (_, seconds) in result.items()},
    }


def outcome(case: ElementTree.Element) -> str:
    """A skip is no pass: what was not tried is not known."""
    for tag in ("failure", "error", "skipped"):
        if (result := case.find(tag)) is not None:
            return f"{tag}: {(result.get('message') or '').splitlines()[0][:200] if result.get('message') else ''}"
    return "passed"


def benchmark() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--short", "--json", str(path)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"passed": code == 0, **figures}


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("gpu-check: there is no CUDA device here\n")
        return 2
    result: dict[str, Any] = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    for name, value in result["machine"].items():
        print(f"{name}: {value}", flush=True)
    result["tests"] = tests()
    result["benchmark"] = benchmark()
    passed = bool(result["tests"]["passed"] and result["benchmark"]["passed"])
    result["passed"] = passed
    (ROOT / "gpu-check.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    there, went = result["machine"], result["tests"]
    versions = f"driver {there['driver']} | CUDA {there['CUDA']} | torch {there['torch']}"
    summary = f"{went['count']} tests, {len(went['wrong'])} wrong | {'passed' if passed else 'FAILED'}"
    print(f"\n| {there['device']} | {versions} | {summary} |")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
