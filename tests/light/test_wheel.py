"""The wheel: all that the light commands need, the same from a source distribution, and nothing else."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.light.conftest import ROOT, Built

pytestmark = pytest.mark.light
COPIED = {"docs/reference/findings": "dprecipe/findings", "recipes": "dprecipe/gallery"}
"""Folders of the repository, and their places in the wheel."""


def read_wheel(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def test_the_wheel_holds_the_package_the_pages_of_findings_and_the_recipes(built: Built) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "dprecipe", *COPIED], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pages = {
        name.replace(folder, inside, 1)
        for folder, inside in COPIED.items()
        for name in listed
        if name.startswith(f"{folder}/")
    }
    package = {name for name in listed if name.startswith("dprecipe/")}
    package -= {name for name in package if name.startswith("dprecipe/mechanisms/") and name.endswith("README.md")}
    files = {name: content for name, content in read_wheel(built.wheel).items() if ".dist-info/" not in name}
    assert set(files) == package | pages
    assert {Path(name).suffix for name in files} >= {".py", ".md", ".toml", ".typed"}
    assert all((ROOT / name).read_bytes() == files[name] for name in package)


def test_a_wheel_of_the_source_distribution_is_the_same(built: Built) -> None:
    assert read_wheel(built.wheel_of_sdist) == read_wheel(built.wheel)
