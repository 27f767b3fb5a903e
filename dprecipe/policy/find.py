"""The search for policies, apart from their reader: most recipes have none above them, and the reader is slow to
import."""

from __future__ import annotations

import os
from pathlib import Path

POLICY_FILE = "dprecipe.policy.yaml"
"""The file name of policies that are found from a recipe's folder upwards."""


def is_policy_file(path: Path) -> bool:
    """Returns True if a file is, by its name, a policy and not a recipe."""
    return path.name == POLICY_FILE or path.name.endswith(".policy.yaml")


def find_policies(recipe: str | os.PathLike[str], more: Path | None = None) -> list[Path]:
    """Returns the policies in the folder of a recipe and in those above it, nearest first: along its path as written
    and, if that has a link, along its real path; and `more`. All of them apply, each once."""
    folders = dict.fromkeys([*Path(recipe).absolute().parents, *Path(os.path.realpath(recipe)).parents])
    found: dict[str, Path] = {}
    for folder in folders:
        if os.path.lexists(folder / POLICY_FILE):
            found.setdefault(os.path.realpath(folder / POLICY_FILE), folder / POLICY_FILE)
    if more is not None:
        found.setdefault(os.path.realpath(more), more)
    return list(found.values())
