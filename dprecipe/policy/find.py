"""Where policies are found. Most recipes have none above them, and what reads one takes time to import."""

from __future__ import annotations

import os
from pathlib import Path

POLICY_FILE = "dprecipe.policy.yaml"
"""The name of a policy that is found from a recipe's folder upwards."""


def is_policy_file(path: Path) -> bool:
    """Whether a file is a policy by its name, and no recipe."""
    return path.name == POLICY_FILE or path.name.endswith(".policy.yaml")


def find_policies(recipe: str | os.PathLike[str], more: Path | None = None) -> list[Path]:
    """The policies in the folder of a recipe and in those above it, nearest first: as its path is written, and where it
    lies, if a link leads there; and `more`. All of them apply, each once."""
    folders = dict.fromkeys([*Path(recipe).absolute().parents, *Path(os.path.realpath(recipe)).parents])
    found: dict[str, Path] = {}
    for folder in folders:
        if os.path.lexists(folder / POLICY_FILE):
            found.setdefault(os.path.realpath(folder / POLICY_FILE), folder / POLICY_FILE)
    if more is not None:
        found.setdefault(os.path.realpath(more), more)
    return list(found.values())
