"""What can be told of `make gpu-check` without a GPU: how it ends, what it counts as failed, what its steps compute."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from dprecipe.training.engine import full_precision
from tests.sweeps import sweep

ROOT = Path(__file__).parents[1]
none = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    beside = [str(ROOT / "benchmarks"), *sys.path]
    with mock.patch.object(sys, "path", beside):  # as for a script that Python runs
        spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@none
@pytest.mark.parametrize("name", sweep(["gpu", "gpu_check"], (1,)))
def test_without_a_gpu_it_says_so_and_writes_nothing(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert "there is no CUDA device" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_test_that_is_skipped_has_not_passed() -> None:
    check = loaded("gpu_check")
    outcomes = [
        check.outcome(ElementTree.fromstring(f"<testcase>{inside}</testcase>"))
        for inside in ("", "<skipped message='no GPU'/>", "<failure message='wrong'/>", "<error/>")
    ]
    assert outcomes == ["passed", "skipped: no GPU", "failure: wrong", "error: "]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_stage_that_hangs_ends_with_its_time_and_what_it_had_written_counts(tmp_path: Path) -> None:
    """Its results and its output are kept, it counts as failed, and its processes end with it."""
    check = loaded("gpu_check")
    figures = {"cases": {"small": {"sgd": {"ms": 1.0}}}}
    script = f"""
import json, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({str(tmp_path / check.STEPS_FILE)!r}).write_text(json.dumps({figures}))
print("measured", child.pid, flush=True)
time.sleep(600)
"""
    stage = check.Stage(
        lambda out: [sys.executable, "-c", script], 600, lambda out, log: check.read_steps(out / check.STEPS_FILE)
    )
    result = check.run_stage("wrn", stage, tmp_path, 5.0)
    assert (result["passed"], result["exit"], result["cases"]) == (False, None, figures["cases"])
    log = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert log.startswith("\n=== wrn\nmeasured ")
    end = time.monotonic() + 10
    while time.monotonic() < end and is_running(int(log.split()[-1])):
        time.sleep(0.01)
    assert not is_running(int(log.split()[-1]))
    assert [file.name for file in tmp_path.iterdir()] == ["log.txt"]  # the next stage begins with files of its own


@pytest.mark.parametrize(
    "log",
    [
        "[gw0] [ 50%] PASSED tests/gpu/test_a.py::test_1 \n[gw1] [100%] FAILED tests/gpu/test_a.py::test_2[x] \n",
        "tests/gpu/test_a.py::test_1 PASSED [ 50%]\ntests/gpu/test_a.py::test_2[x] FAILED [ 99%]\ntests/gpu/t",
    ],
)
def test_tests_that_did_not_reach_their_report_are_read_from_the_log(log: str, tmp_path: Path) -> None:
    result = loaded("gpu_check").read_tests(tmp_path / "part.xml", log)
    assert (result["passed"], result["count"], result["wrong"]) == (False, 2, {"test_2[x]": "failed"})


def test_what_ended_while_it_was_written_is_no_result(tmp_path: Path) -> None:
    """And ends no check: the stages that follow are worth as much."""
    check = loaded("gpu_check")
    (tmp_path / "part.json").write_text('{"cases": {"small": {"sgd": {"ms"', encoding="utf-8")
    assert check.read_steps(tmp_path / "part.json") == {"passed": False}
    (tmp_path / "part.xml").write_text("<testsuites><testcase name='test_1'/><testcase", encoding="utf-8")
    result = check.read_tests(tmp_path / "part.xml", "tests/gpu/test_a.py::test_1 PASSED [ 50%]\n")
    assert (result["passed"], result["count"]) == (False, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "stages", "seconds", "code", "told"),
    [
        ("True", "a,b", 60.0, 0, ["a: passed", "b: passed"]),
        ("name != 'b'", "b,a", 60.0, 1, ["b: FAILED", "a: passed"]),
        ("time.sleep(60)", "a", 11.0, 1, ["a: out of time"]),
        ("True", "a,b", 9.0, 1, ["a: not begun", "b: not begun"]),
        ("time.sleep(2) or True", "a,b", 11.0, 1, ["a: passed", "b: not begun"]),
    ],
    ids=["all pass", "the first fails", "out of time", "no time", "time for one"],
)
def test_results_are_written_after_each_stage(
    ends: str, stages: str, seconds: float, code: int, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the folder, which may be named from where one is; nothing of a check before it counts."""
    check = loaded("gpu_check")

    def stage(name: str) -> Any:
        script = f"""
import json, pathlib, sys, time
name, out = {name!r}, pathlib.Path(sys.argv[1])
assert not (out / "part.json").exists()
if name == {stages.split(",")[-1]!r} and {stages.count(",")}:
    assert len(json.loads((out / "check.json").read_text())["stages"]) == 1
if {ends}:
    (out / "part.json").write_text(json.dumps({{"cases": {{"small": {{"sgd": {{"ms": 1.0}}}}}}}}))
"""
        return check.Stage(
            lambda out: [sys.executable, "-c", script, str(out)],
            60,
            lambda out, log: check.read_steps(out / check.STEPS_FILE),
        )

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(check.torch.cuda, "is_available", lambda: True)
    there = {"device": "none", "driver": "none", "CUDA": None, "torch": "none"}
    monkeypatch.setattr(check, "machine", lambda: there)
    monkeypatch.setattr(check, "line", lambda case, way, rows: way)
    monkeypatch.setattr(check, "STAGES", {name: stage(name) for name in "ab"})
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "part.json").write_text('{"cases": {"small": {"sgd": {"ms": 9.0}}}}', encoding="utf-8")
    assert check.main(["--out", "there", "--stages", stages, "--seconds", str(seconds)]) == code
    summary = (tmp_path / "there" / "summary.txt").read_text(encoding="utf-8").splitlines()
    assert [line.partition(",")[0] for line in summary[1:] if not line.startswith(" ")] == told
    result = json.loads((tmp_path / "there" / "check.json").read_text(encoding="utf-8"))
    assert result["passed"] is (code == 0)
    assert {name: stage["passed"] for name, stage in result["stages"].items()} == {
        line[0]: line.endswith("passed") for line in told if not line.endswith("not begun")
    }


@pytest.mark.parametrize(
    ("way", "precisions"), [("sgd", []), ("engine", ["tf32", "ieee"]), ("sgd tf32", ["tf32", "ieee"])]
)
def test_only_the_engine_and_sgd_tf32_use_tensor_cores(
    way: str, precisions: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, seen = loaded("gpu"), []
    monkeypatch.setattr(full_precision, "has_tensor_cores", lambda device: True)
    monkeypatch.setattr(full_precision, "set_cuda_precision", seen.append)
    cpu = torch.device("cpu")
    with gpu.in_precision_of(way, cpu):
        inside = list(seen)
        with full_precision.before_norms(cpu):
            pass
    assert seen == precisions
    assert inside == (["tf32"] if way == "sgd tf32" else [])


def test_a_ratio_that_has_grown_by_a_fifth_is_told() -> None:
    gpu = loaded("gpu")

    def figures(engine: float) -> dict[str, Any]:
        return {"cases": {"WRN-16-4": {"sgd": {"ms": 10.0}, "engine": {"ms": engine}, "vmap": {"failed": "memory"}}}}

    assert gpu.above(figures(17.9), figures(15.0)) == []
    assert gpu.above(figures(18.1), figures(15.0)) == ["WRN-16-4, engine: 1.81, was 1.50"]
    assert gpu.above(figures(18.1), {"cases": {}}) == []


@pytest.mark.parametrize("way", ["sgd", "engine", "bf16", "vmap"])
def test_each_way_takes_a_step(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = loaded("gpu")
    monkeypatch.setattr(gpu, "free_bytes", lambda device: 1 << 30)
    nets: list[nn.Module] = []

    def build() -> nn.Module:
        nets.append(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 10)))
        return nets[-1]

    case = gpu.Case(build, (6,), 40, 16)
    step = gpu.step_of(case, way, torch.device("cpu"), 3)
    before = [parameter.detach().clone() for parameter in nets[0].parameters()]
    taken = [step(number) for number in range(3)]
    assert taken == gpu.sizes_of(case, 3)
    assert len(set(taken)) > 1
    assert not any(torch.equal(a, b) for a, b in zip(before, nets[0].parameters(), strict=True))


def test_the_cases_are_what_they_are_called() -> None:
    gpu = loaded("gpu")
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in gpu.CASES[name].build().parameters()) for name in gpu.CASES}
    assert 95e6 < sizes["transformer 100M"] < 110e6
    assert 2.7e6 < sizes["WRN-16-4"] < 2.8e6
    assert 20e6 < sizes["ViT-small"] < 24e6
    assert set(gpu.SHORT) < set(gpu.CASES)
