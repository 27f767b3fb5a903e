"""Tests that run in a process of their own, which pretends: torch is long imported in that which runs the suite."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pretend_cuda.guard import explain_absence
from tests.pretend_cuda.roads import PLUGIN, ROOT, USUAL, VARIABLE, Settings, environment

REASON = explain_absence()
needs_device = pytest.mark.skipif(REASON is not None, reason=REASON or "")
"""Skips where no device can be pretended, and says why."""
DROPPED = ("CUBLAS_WORKSPACE_CONFIG", "DPRECIPE_GPU_TESTS_ON")
"""What would change what the tests find."""


def run_tests(folder: Path, *options: str, settings: Settings = USUAL, plugin: bool = False, least: int) -> list[str]:
    """Run tests on the device; return the ids of those that passed, which are all that ran, and `least` at least.

    Warnings are no errors, as libraries of other versions raise some. `plugin`: by the plugin of pytest alone.
    """
    base = {name: value for name, value in os.environ.items() if name not in DROPPED and not name.startswith("PYTEST_")}
    base["OMP_NUM_THREADS"] = "1"
    variables = environment(settings, base)
    if plugin:
        variables = {**base, VARIABLE: variables[VARIABLE]}
        options = ("-p", PLUGIN, *options)
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n0",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-o",
        "filterwarnings=default",
    ]
    command += ["-q", "--import-mode=importlib", f"--basetemp={folder / 'tests'}", f"--junitxml={report}", *options]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    printed = f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    assert report.exists(), printed
    assert find_failures(report) == {}, printed
    assert done.returncode == 0, printed
    cases = ElementTree.parse(report).iter("testcase")
    names = [f"{str(case.get('classname')).replace('.', '/')}.py::{case.get('name')}" for case in cases]
    assert len(names) >= least, names
    return names


def find_failures(report: Path) -> dict[str, str]:
    """Return the tests that did not pass: a skip is no pass."""
    return {
        str(case.get("name")): "\n".join([f"{part.tag}: {part.get('message')}", part.text or ""])
        for case in ElementTree.parse(report).iter("testcase")
        for part in case
        if part.tag in ("failure", "error", "skipped")
    }


def run_python(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Python on the device; it must end well."""
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment(USUAL), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done
