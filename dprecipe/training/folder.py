"""The run folder: `release/` may be published, `private/` never."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml

from dprecipe import durable
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.mechanisms.plan import Plan
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.training import log

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
            return durable.read_bytes(path)
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
            durable.make_folders(path.parent)
            for abandoned in _drafts_of(path):
                shutil.rmtree(abandoned, ignore_errors=True)
            draft.mkdir()
            with _busy(draft):
                for folder in (draft / "private", draft / "private" / "checkpoints"):
                    folder.mkdir(mode=durable.FOLDER_MODE)
                (draft / "recipe.yaml").write_text(plan.source.text, encoding="utf-8")
                resolved = yaml.safe_dump(dict(plan.resolved), sort_keys=False, allow_unicode=True)
                (draft / "resolved.yaml").write_text(resolved, encoding="utf-8")
                (draft / "plan.json").write_text(json.dumps(plan.to_json(), indent=1), encoding="utf-8")
                durable.replace_file(draft / "private" / "commitment.key", secrets.token_bytes(32))
                overrides = json.dumps(plan.source.overrides).encode()
                durable.replace_file(draft / "private" / "overrides.json", overrides)
                for entry in (*draft.iterdir(), draft):
                    durable.sync_folder(entry)
                if path.exists():
                    path.rmdir()  # it is empty
                os.rename(draft, path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise RunFailed(f"{path}: can't make the run folder: {error.strerror}") from None
        return RunFolder(path).sync_name()

    def sync_name(self) -> RunFolder:
        """This folder, whose name is on disk: a ledger in it can't be lost with it.

        Raises:
            RunFailed: the disk refuses; nothing more was spent.
        """
        try:
            durable.sync_folder(self.path.parent)
        except OSError as error:
            raise RunFailed(
                f"{self.path}: the disk would not keep its name: {error.strerror}",
                "see to the disk, then continue with --resume; nothing more was spent",
            ) from None
        return self

    def open_ledger(
        self, plan: Plan, program: Mapping[str, Any], check: Callable[[Ledger | None], None]
    ) -> LedgerWriter:
        """The next attempt on the ledger, where the run has no release yet: asked under the ledger's lock, since
        another process may have made one while this one read its records. See `LedgerWriter` for `check`.

        Raises:
            UsageFault: the run is complete.
        """

        def check_unreleased(before: Ledger | None) -> None:
            self._check_unreleased()
            check(before)

        return LedgerWriter(self.ledger, plan.digest, program, check_unreleased)

    def _check_unreleased(self) -> None:
        if os.path.lexists(self.release):
            raise UsageFault(
                f"{self.path}: this run is complete", "see its release/ folder; start a new run with --out"
            )

    @staticmethod
    def open(path: Path, plan: Plan) -> RunFolder:
        """An existing folder, to be resumed.

        Raises:
            UsageFault: there is none, it is of another plan, or its run is complete.
        """
        try:
            digest = str(json.loads(durable.read_bytes(path / "plan.json"))["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageFault(f"{path}: no run to resume", "start it without --resume") from None
        if digest != plan.digest:
            raise UsageFault(
                f"{path}: this run follows another plan ({digest[:15]}…, the recipe gives {plan.digest[:15]}…)",
                f"resume as it was started ({RunFolder(path)._started_with()}), or start anew with --out",
            )
        folder = RunFolder(path)
        folder._check_unreleased()
        return folder.sync_name()

    def _started_with(self) -> str:
        try:
            overrides = [str(each) for each in json.loads(durable.read_bytes(self.private / "overrides.json"))]
        except (OSError, ValueError, TypeError):
            overrides = []
        words = [word for override in overrides for word in ("--set", override)]
        return " ".join(["the recipe is recipe.yaml in the folder", *(["with", shlex.join(words)] if words else [])])

    def record(self, step: int, epsilon: float, metrics: Mapping[str, float]) -> None:
        """Add a line to the private metrics: the same ones each time. One that can't be written stops no run."""
        figures = {"epsilon": epsilon, **metrics}
        log.append_line(
            self.metrics, {"step": step, **{name: float(f"{value:.6g}") for name, value in figures.items()}}
        )

    def history(self) -> tuple[list[dict[str, float]], int]:
        """All recorded metrics, the latest of each step, in order of steps, which are whole numbers; and how many
        damaged lines were left out."""
        lines = log.read(self.metrics)
        if lines.names[: len(WHEN)] != WHEN:
            return [], lines.damaged + len(lines.rows)
        by_step = {int(row[WHEN[0]]): row for row in lines.rows}
        return [by_step[step] for step in sorted(by_step)], lines.damaged


def _drafts_of(path: Path) -> list[Path]:
    """What runs that were killed while they made this folder left beside it: it holds a key."""
    named = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{8}")
    results = [entry for entry in path.parent.iterdir() if named.fullmatch(entry.name) and entry.is_dir()]
    ours = [draft for draft in results if (draft / "private").is_dir() or not any(draft.iterdir())]
    return [draft for draft in ours if not _is_busy(draft)]


@contextmanager
def _busy(draft: Path) -> Iterator[None]:
    """While the block lasts, `_is_busy` says so to other processes."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    file = os.open(draft, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_busy(draft: Path) -> bool:
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        file = os.open(draft, os.O_RDONLY)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False
