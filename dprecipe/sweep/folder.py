"""The folder of a sweep: what was asked, a run folder for each cell, the table and the figures.

A cell is done when its run has written what it releases; nothing else says so. So a kill at any moment loses no
finished run, and a second call makes those that are left.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from dprecipe import durable
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.nonprivate.documents import FOLDER
from dprecipe.sweep.cells import PlannedCell
from dprecipe.sweep.grid import Grid, SweepCell

SCHEMA = "dprecipe.sweep/v1"
FILE, CELLS, TABLE, FIGURES = "sweep.json", "runs", "table.csv", "figures.svg"


@final
@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The files of a sweep."""

    path: Path

    def locate(self, cell: SweepCell) -> Path:
        """Returns the run folder of a cell, which may not be there."""
        return self.path / CELLS / cell.name

    def is_done(self, cell: SweepCell) -> bool:
        """Returns True if the run of a cell has ended in order."""
        place = self.locate(cell)
        return (place / "release").is_dir() or (place / FOLDER).is_dir()

    def has_begun(self, cell: SweepCell) -> bool:
        """Returns True if the run of a cell has begun, whatever became of it."""
        place = self.locate(cell)
        return place.exists() or os.path.lexists(place.with_name(f"{place.name}.interrupted"))

    def read_failure(self, cell: SweepCell) -> str:
        """Returns why the run of a cell failed; empty where it did not."""
        try:
            return durable.read_bytes(self._locate_failure(cell)).decode("utf-8", "replace")
        except OSError:
            return ""

    def keep_failure(self, cell: SweepCell, reason: str) -> None:
        """Keeps why the run of a cell failed. Raises `RunFailed`."""
        with durable.writing(self.path, "free space on the disk, then continue with --resume"):
            durable.replace_file(self._locate_failure(cell), reason.encode("utf-8", "replace"), durable.PUBLIC_MODE)

    def forget_failure(self, cell: SweepCell) -> None:
        """Forgets that a run failed: it is tried once more."""
        self._locate_failure(cell).unlink(missing_ok=True)

    def _locate_failure(self, cell: SweepCell) -> Path:
        place = self.locate(cell)
        return place.with_name(f"{place.name}.failed")

    def check(self, grid: Grid, planned: Sequence[PlannedCell], resume: bool) -> list[str]:
        """Checks that the sweep may begin here, or go on; returns what is to be said of a grid that has changed.

        Raises:
            UsageFault: the folder exists or, with `resume`, does not; it is of other keys; or of another recipe.
        """
        if not resume:
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise UsageFault(
                    f"{self.path} exists, and nothing is overwritten",
                    "continue it with --resume, or choose another folder with --out",
                )
            return []
        before = read_sweep(self.path)
        keys = [each["key"] for each in before["over"]]
        if keys != list(grid.keys):
            raise UsageFault(
                f"{self.path} is a sweep over {', '.join(keys)}, and not over {', '.join(grid.keys)}",
                "write the keys as they were, or choose another folder with --out",
            )
        known: dict[str, str] = before["cells"]
        now = {each.cell.name: each.texts for each in planned}
        changed = [name for name, texts in now.items() if known.get(name, texts) != texts]
        if changed:
            raise UsageFault(
                f"the recipe is not the one with which {self.path} began: {changed[0]} is another run now",
                "put the recipe and --set back as they were, or choose another folder with --out",
            )
        new, left = [name for name in now if name not in known], [name for name in known if name not in now]
        said = []
        if new:
            said.append(f"the grid has changed: {len(new)} runs are new")
        if left:
            said.append(f"the grid has changed: {len(left)} runs of before are not in it, and stay where they are")
        return said

    def begin(self, name: str, grid: Grid, planned: Sequence[PlannedCell], resume: bool) -> None:
        """Writes what is asked, and makes the folder of all runs. Raises `RunFailed`."""
        known = read_sweep(self.path)["cells"] if resume else {}
        content = {
            "schema": SCHEMA,
            "recipe": name,
            "over": [{"key": each.key, "values": list(each.values)} for each in grid.over],
            "seeds": list(grid.seeds),
            "cells": {**known, **{each.cell.name: each.texts for each in planned}},
        }
        with durable.writing(self.path, "free space on the disk, or choose another folder with --out"):
            durable.make_folders(self.path / CELLS)
            self._write(FILE, json.dumps(content, indent=1) + "\n")

    def write_results(self, table: str, figures: str | None) -> None:
        """Writes the table and the figures, which are replaced. Raises `RunFailed`."""
        with durable.writing(self.path, "free space on the disk, then continue with --resume"):
            self._write(TABLE, table)
            if figures is not None:
                self._write(FIGURES, figures)

    def _write(self, name: str, text: str) -> None:
        durable.replace_file(self.path / name, text.encode(), durable.PUBLIC_MODE)


def read_sweep(path: Path) -> Mapping[str, Any]:
    """Returns what a sweep's folder says of itself.

    Raises:
        UsageFault: it is the folder of no sweep.
        RunFailed: its file is damaged.
    """
    if not (path / FILE).is_file():
        raise UsageFault(f"{path}: there is no sweep to continue", "leave --resume out, or name its folder with --out")
    try:
        content = json.loads(durable.read_bytes(path / FILE))
        keys = [str(each["key"]) for each in content["over"]]
        cells = {str(name): str(texts) for name, texts in content["cells"].items()}
        if content["schema"] != SCHEMA or any(Path(name).name != name for name in cells):
            raise ValueError
        return {"over": [{"key": key} for key in keys], "cells": cells}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise RunFailed(f"{path / FILE}: damaged", "put the sweep's own file back, or begin another") from None
