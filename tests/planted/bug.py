"""A planted bug: exact texts of the real program, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Depth = Literal["probe", "program", "steps", "canaries", "releases"]
"""What catches a bug: the checks that every run makes before its first record, or an audit of some depth."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In one file of the package, `old`, which is in it exactly once, becomes `new`."""

    path: str
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The text with the edit made.

        Raises:
            ValueError: `old` is not in it exactly once: the code has moved on, and the edit has to follow.
        """
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.path}: {count} places with {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Bug:
    """A fault of the program that makes its claim wrong, a recipe that shows it, and the cheapest depth that must catch
    it."""

    name: str
    recipe: str
    why: str
    """How the claim is broken."""
    edits: tuple[Edit, ...]
    caught_by: Depth = "program"
    always: bool = False
    """It is among those that the long tests try; the others are tried by `benchmarks/planted.py`."""

    def texts(self, package: Path) -> dict[str, str]:
        """The files that it changes, by their paths in `package`, as they are with it.

        Raises:
            ValueError: see `Edit.apply`.
        """
        texts: dict[str, str] = {}
        for edit in self.edits:
            text = texts.get(edit.path)
            texts[edit.path] = edit.apply((package / edit.path).read_text(encoding="utf-8") if text is None else text)
        return texts


def bug(
    name: str,
    recipe: str,
    why: str,
    path: str,
    old: str,
    new: str,
    *more: Edit,
    caught_by: Depth = "program",
    always: bool = False,
) -> Bug:
    """A bug whose first edit, and most often the only one, is given by its parts."""
    return Bug(name, recipe, why, (Edit(path, old, new), *more), caught_by, always)
