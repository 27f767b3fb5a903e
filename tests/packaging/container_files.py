"""The container files, read as far as their tests need it: no builder is asked."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTAINERS = sorted((ROOT / "containers").glob("*.Dockerfile"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """Returns each instruction and its text; lines that go on are joined, comments left out."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, text.strip()) for name, _, text in (line.partition(" ") for line in joined.splitlines()) if name]


def copied(path: Path) -> dict[str, str]:
    """Returns what is copied of the repository, and where it lies in the working folder."""
    found: dict[str, str] = {}
    for name, text in instructions(path):
        if name == "COPY" and not text.startswith("--from="):
            *sources, target = shlex.split(text)
            found |= {source: source if target == "./" else target for source in sources}
    return found


def copy_as_container(path: Path, folder: Path) -> None:
    """Copy what the container file copies."""
    for source, target in copied(path).items():
        there = folder / target
        there.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, there, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / source, there)
