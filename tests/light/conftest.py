"""An environment with `dependencies` alone, in which the wheel is installed; and releases from this one."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dprecipe.policy.find import POLICY_FILE
from tests.recipe_texts import FULL_BATCH, STEPS

ROOT = Path(__file__).parents[2]
POLICY = "policy: dprecipe/v1\nname: house\nrules:\n  - {name: all, max_epsilon: 10.0}\n"


@dataclass(frozen=True, slots=True)
class Light:
    """The environment, and the folder in which its commands run."""

    environment: Path
    folder: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, which sees neither this checkout nor this environment."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DPRECIPE"))}
        return subprocess.run(
            [str(self.environment / "bin" / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
        )


@dataclass(frozen=True, slots=True)
class Built:
    """The files to upload, a source distribution and the wheel made of it; and the Python that made them."""

    sdist: Path
    wheel: Path
    python: Path

    def wheel_of(self, source: Path, folder: Path) -> Path:
        """Build a wheel of a source tree into a folder, without a network."""
        _call(self.python, "-m", "build", "-n", "-w", "-o", folder, source)
        (wheel,) = folder.glob("*.whl")
        return wheel


def _call(*command: object) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, check=False, cwd=ROOT, env=variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The packages of `make package`, made in an environment of their own."""
    folder = tmp_path_factory.mktemp("built")
    builder, dist = folder / "builder", folder / "dist"
    _call("make", "package", f"PYTHON={sys.executable}", f"VENV={builder}", f"DIST={dist}")
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return Built(sdist, wheel, builder / "bin" / "python")


@pytest.fixture(scope="session")
def light(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """An environment of this Python, or of the one that LIGHT_PYTHON names: it needs no torch."""
    folder = tmp_path_factory.mktemp("light")
    _call(os.environ.get("LIGHT_PYTHON", sys.executable), "-m", "venv", folder / "environment")
    python = folder / "environment" / "bin" / "python"
    _call(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", built.wheel)
    (folder / "work").mkdir()
    return Light(folder / "environment", folder / "work")


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Light:
    """With releases of every kind, recipes and records in the folder. They are made while the environment is."""
    folder = tmp_path_factory.mktemp("released")
    command = [sys.executable, "-m", "tests.light.releases", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as publishing:
        light: Light = request.getfixturevalue("light")
        said, _ = publishing.communicate()
    assert publishing.returncode == 0, said
    _write_records(folder)
    shutil.copytree(ROOT / "recipes", folder / "recipes")
    return Light(light.environment, folder)


def _write_records(folder: Path) -> None:
    """The table of the README in several formats, and a recipe for each source that is no part of Python."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^```yaml\n(recipe: [^`]*\nname: visits\n.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    table = (ROOT / "examples" / "visits" / "visits.csv").read_text(encoding="utf-8")
    (folder / "visits.csv").write_text(table, encoding="utf-8")
    rows = list(csv.DictReader(table.splitlines()))
    _write_csv(folder / "long.csv", [{**row, "note": "of some length " * 180} for row in rows])
    (folder / "visits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "visits.parquet").write_bytes(b"PAR1, and more that only its library can read")
    random = np.random.default_rng(0)
    np.savez(folder / "arrays.npz", features=random.random((100, 5), np.float32), labels=np.arange(100) % 2)
    (folder / "images" / "a").mkdir(parents=True)
    (folder / "images" / "b").mkdir()
    for name in ("a", "b"):
        (folder / "images" / name / "x.png").write_bytes(b"\x89PNG")
    query = "source: {}\n    query: SELECT * FROM visits\n    tables: {{visits: {}}}"
    csv_source = "source: csv\n    path: visits.csv"
    recipe = recipe.replace("path: examples/visits/visits.csv", "path: visits.csv")
    assert csv_source in recipe
    sources = {
        "visits": csv_source,
        "long": "source: csv\n    path: long.csv",
        "parquet": "source: parquet\n    path: visits.parquet",
        "duckdb": query.format("duckdb", "visits.csv"),
        "postgres": query.format("postgres", "clinic.visits") + "\n    connection: VISITS",
    }
    for name, source in sources.items():
        text = recipe.replace(csv_source, source).replace("name: visits", f"name: {name}")
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    images = "{source: image_folder, path: images, shape: [8, 8, 3], label: {column: folder, values: [a, b]}}"
    data = f"data:\n  train: {images}\n  size: 2\n"
    text = "recipe: dprecipe/v1\nname: images\n" + data + FULL_BATCH.replace("1e-5", "1e-3") + STEPS
    (folder / "images.yaml").write_text(text, encoding="utf-8")
    (folder / "house").mkdir()
    (folder / "house" / POLICY_FILE).write_text(POLICY, encoding="utf-8")


def _write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
