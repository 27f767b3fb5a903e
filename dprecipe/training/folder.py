"""The run folder: `release/` may be published, `private/` never."""

from __future__ import annotations

import csv
import json
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import yaml

from dprecipe.durable import sync
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.planning.model import Plan

WHEN = ("step", "epsilon")
"""The first columns of the metrics; those that follow are the score's."""


@final
@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run keeps its things (`docs/contract.md`)."""

    path: Path

    @property
    def release(self) -> Path:
        return self.path / "release"

    @property
    def private(self) -> Path:
        return self.path / "private"

    @property
    def ledger(self) -> Path:
        return self.private / "ledger.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.private / "checkpoints" / "last.pt"

    @property
    def metrics(self) -> Path:
        return self.private / "metrics.csv"

    @property
    def commitment_key(self) -> bytes:
        """The key of the commitment to the private data.

        Raises:
            RunFailed: it can't be read, so that nobody can tell whether the records are the run's own.
        """
        path = self.private / "commitment.key"
        try:
            return path.read_bytes()
        except OSError as error:
            raise RunFailed(
                f"{path}: can't be read: {error.strerror}", "put the run's own files back, or start anew with --out"
            ) from None

    @staticmethod
    def default(plan: Plan, base: Path = Path("runs")) -> Path:
        return base / f"{plan.name}-{plan.digest.removeprefix('sha256:')[:8]}"

    @staticmethod
    def absent(path: Path) -> RunFolder:
        """A folder that is still to be made.

        Raises:
            UsageFault: it exists, and is not an empty folder; a run folder is never overwritten.
        """
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UsageFault(
                f"{path} exists; a run folder is never overwritten",
                "continue it with --resume, or choose another with --out",
            )
        return RunFolder(path)

    @staticmethod
    def create(path: Path, plan: Plan) -> RunFolder:
        """Make the folder, whole or not at all.

        Raises:
            UsageFault: it exists.
            RunFailed: the disk refuses.
        """
        RunFolder.absent(path)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            (draft / "private" / "checkpoints").mkdir(parents=True)
            (draft / "private").chmod(0o700)
            (draft / "recipe.yaml").write_text(plan.source.text, encoding="utf-8")
            resolved = yaml.safe_dump(dict(plan.resolved), sort_keys=False, allow_unicode=True)
            (draft / "resolved.yaml").write_text(resolved, encoding="utf-8")
            (draft / "plan.json").write_text(json.dumps(plan.to_json(), indent=1), encoding="utf-8")
            (draft / "private" / "commitment.key").write_bytes(secrets.token_bytes(32))
            (draft / "private" / "overrides.json").write_text(json.dumps(plan.source.overrides), encoding="utf-8")
            for file in (draft / "private").glob("*.*"):
                file.chmod(0o600)
            for entry in (*draft.iterdir(), *(draft / "private").iterdir(), draft):
                sync(entry)
            if path.exists():
                path.rmdir()  # it is empty
            os.rename(draft, path)
            sync(path.parent)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise RunFailed(f"{path}: can't make the run folder: {error.strerror}") from None
        return RunFolder(path)

    @staticmethod
    def open(path: Path, plan: Plan) -> RunFolder:
        """An existing folder, to be resumed.

        Raises:
            UsageFault: there is none, it is of another plan, or its run is complete.
        """
        try:
            digest = json.loads((path / "plan.json").read_text(encoding="utf-8"))["digest"]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageFault(f"{path}: no run to resume", "start it without --resume") from None
        if digest != plan.digest:
            raise UsageFault(
                f"{path}: this run follows another plan ({digest[:15]}…, the recipe gives {plan.digest[:15]}…)",
                f"resume as it was started ({RunFolder(path)._started_with()}), or start anew with --out",
            )
        folder = RunFolder(path)
        if folder.release.exists():
            raise UsageFault(f"{path}: this run is complete", "see its release/ folder; start a new run with --out")
        return folder

    def _started_with(self) -> str:
        try:
            overrides = [str(each) for each in json.loads((self.private / "overrides.json").read_text("utf-8"))]
        except (OSError, ValueError, TypeError):
            overrides = []
        words = [word for override in overrides for word in ("--set", override)]
        return " ".join(["the recipe is recipe.yaml in the folder", *(["with", shlex.join(words)] if words else [])])

    def record(self, step: int, epsilon: float, metrics: Mapping[str, float]) -> None:
        """Add a line to the private metrics: the same ones each time."""
        fresh = not self.metrics.exists()
        try:
            with self.metrics.open("a", newline="", encoding="utf-8") as file:
                self.metrics.chmod(0o600)
                writer = csv.writer(file)
                if fresh:
                    writer.writerow([*WHEN, *metrics])
                writer.writerow([step, f"{epsilon:.6g}", *(f"{value:.6g}" for value in metrics.values())])
        except OSError as error:
            raise RunFailed(
                f"{self.metrics}: can't be written: {error.strerror}",
                "make room, then continue with --resume",
            ) from None

    def history(self) -> list[dict[str, float]]:
        """All recorded metrics, the latest of each step, in order of steps, which are whole numbers."""
        if not self.metrics.exists():
            return []
        by_step: dict[int, dict[str, float]] = {}
        with self.metrics.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            names = next(rows, [])
            for row in rows:
                if len(row) == len(names) and row[0].isdigit():
                    by_step[int(row[0])] = {**dict(zip(names, map(float, row), strict=True)), names[0]: int(row[0])}
        return [by_step[step] for step in sorted(by_step)]
