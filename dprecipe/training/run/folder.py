"""The run folder: `release/` may be published, `private/` never."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml

from dprecipe import __version__, durable
from dprecipe.contract.plan import Plan, PolicyRecord
from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.policy.apply import enforce_on_run
from dprecipe.privacy.ledger import Ledger, LedgerWriter, read_unopened
from dprecipe.release.untrusted import one_line
from dprecipe.timeline import current_timeline
from dprecipe.training.processes.launch import NAME as LAUNCH
from dprecipe.training.processes.launch import name_launch
from dprecipe.training.run import log

WHEN = ("step", "epsilon")
"""The first columns of the metrics; the score's columns follow."""
PHYSICAL_BATCH = "physical_batch.json"
TRAINING = "training_"
"""The prefix of scores on training records, which no release has."""


@final
@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run (`docs/reference/contract.md`)."""

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
    def stages(self) -> Path:
        """The folder of what paid steps of preprocessing have released."""
        return self.private / "stages"

    @property
    def checkpoint(self) -> Path:
        return self.private / "checkpoints" / "last.pt"

    @property
    def refuted(self) -> Path:
        """The file that says why the run has no release, where its canaries refuted its claim."""
        return self.private / "refuted.json"

    @property
    def metrics(self) -> Path:
        return self.private / "metrics.csv"

    @property
    def commitment_key(self) -> bytes:
        """The key of the commitment to the private data.

        Raises:
            RunFailed: it can't be read, so nothing shows whether the records are the run's own.
        """
        path = self.private / "commitment.key"
        try:
            return durable.read_bytes(path)
        except OSError as error:
            raise RunFailed(
                f"{path}: can't be read: {error.strerror}", "restore the run's own files, or start a new run with --out"
            ) from None

    @property
    def physical_batch(self) -> int | None:
        """The records at once that the run has measured, and takes in all attempts; None before that.

        Raises:
            RunFailed: it can't be read, so nothing tells how sums were rounded.
        """
        path = self.private / PHYSICAL_BATCH
        if not os.path.lexists(path):
            return None
        try:
            size = json.loads(durable.read_bytes(path))["physical_batch"]
            if type(size) is not int or size < 1:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError):
            raise RunFailed(
                f"{path}: does not hold a number of records",
                "restore the run's own files; or write that number in runtime.physical_batch",
            ) from None
        return int(size)

    def keep_physical_batch(self, size: int) -> None:
        """Keeps the number for later attempts.

        Raises:
            RunFailed: the disk refuses; nothing was spent.
        """
        path = self.private / PHYSICAL_BATCH
        try:
            durable.replace_file(path, json.dumps({"physical_batch": size}).encode())
        except OSError as error:
            raise RunFailed(
                f"{path}: can't be written: {error.strerror}; nothing was spent",
                "make room on the disk and check the folder's permissions, then continue with --resume",
            ) from None

    @property
    def policies(self) -> tuple[PolicyRecord, ...]:
        """Returns the policies that the run kept to when it began, as its own plan says; none where it can't be
        read."""
        try:
            content = json.loads(durable.read_bytes(self.path / "plan.json")).get("policies", [])
            return tuple(PolicyRecord(str(each["name"]), str(each["digest"])) for each in content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ()

    @property
    def began_under_trainer(self) -> bool:
        """True if somebody's own trainer took steps of the run, as its ledger says."""
        ledger = self._read_ledger()
        return ledger is not None and ledger.trainer == "python"

    def _read_ledger(self) -> Ledger | None:
        with suppress(OSError):
            return read_unopened(self.ledger)
        return None

    @staticmethod
    def default(plan: Plan, base: Path = Path("runs")) -> Path:
        return base / f"{plan.name}-{plan.digest.removeprefix('sha256:')[:8]}"

    @staticmethod
    def absent(path: Path) -> RunFolder:
        """Returns a folder that does not exist yet.

        Raises:
            UsageFault: it exists, and is not an empty folder; a run folder is never overwritten.
            RunFailed: it may not be looked at.
        """
        try:
            is_taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
        except PermissionError as error:
            raise _forbidden(path, error) from None
        if is_taken:
            raise UsageFault(
                f"{path} exists; a run folder is never overwritten",
                "continue it with --resume, or choose another with --out",
            )
        return RunFolder(path)

    @staticmethod
    def create(path: Path, plan: Plan) -> RunFolder:
        """Creates the folder, completely or not at all.

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
                launch = name_launch()
                if launch is not None:
                    durable.replace_file(draft / "private" / LAUNCH, launch.encode())
                overrides = json.dumps(plan.source.overrides).encode()
                durable.replace_file(draft / "private" / "overrides.json", overrides)
                for entry in (*draft.iterdir(), draft):
                    durable.sync_folder(entry)
                if path.exists():
                    path.rmdir()  # it is empty
                os.rename(draft, path)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise RunFailed(
                f"{path}: can't create the run folder: {error.strerror}",
                f"make room and get permission to write in {path.parent}, or choose another place with --out",
            ) from None
        return RunFolder(path).sync_name()

    def sync_name(self) -> RunFolder:
        """Flushes this folder's name to disk, so that a power failure can't remove the folder and the ledger in it.

        Raises:
            RunFailed: the disk refuses; nothing more was spent.
        """
        try:
            durable.sync_folder(self.path.parent)
        except OSError as error:
            raise RunFailed(
                f"{self.path}: can't flush the folder's name to disk: {error.strerror}",
                "check the disk, then continue with --resume; nothing more was spent",
            ) from None
        return self

    def open_ledger(
        self, plan: Plan, program: Mapping[str, Any], check: Callable[[Ledger | None], None]
    ) -> LedgerWriter:
        """Opens the ledger for the next attempt of a run without a release. This is checked under the ledger's lock,
        since another process may have published while this one read its records. See `LedgerWriter` for `check`.

        Raises:
            UsageFault: the run is complete.
            RunFailed: its canaries have refuted its claim.
        """

        def check_unreleased(before: Ledger | None) -> None:
            self._check_unreleased()
            check(before)

        return LedgerWriter(self.ledger, plan.digest, program, check_unreleased)

    def _check_unreleased(self) -> None:
        if os.path.lexists(self.release):
            raise UsageFault(
                f"{self.path}: this run is complete", "its release is in release/; start a new run with --out"
            )
        reason = self.find_refutation()
        if reason is not None:
            raise RunFailed(
                f"{self.path}: this run has ended without a release: {reason}",
                "please report this, with private/ kept; start a new run with --out",
            )

    def find_refutation(self) -> str | None:
        """Says how the run's canaries refuted its claim; None where they did not."""
        if not os.path.lexists(self.refuted):
            return None
        try:
            return str(json.loads(durable.read_bytes(self.refuted))["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return "its canaries refuted its claim"

    @staticmethod
    def find(path: Path, plan: Plan) -> RunFolder:
        """Returns an existing folder, whether its run is complete or not.

        Raises:
            UsageFault: there is none, or it belongs to another plan.
        """
        try:
            digest = str(json.loads(durable.read_bytes(path / "plan.json"))["digest"])
        except PermissionError as error:
            raise _forbidden(path, error) from None
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageFault(f"{path}: no run to resume", "start it without --resume") from None
        if digest != plan.digest:
            how = RunFolder(path)._describe_start()
            message = f"{path}: this run follows another plan ({digest[:15]}…, the recipe gives {plan.digest[:15]}…)"
            raise UsageFault(message, f"resume it as it was started ({how}), or start a new run with --out")
        return RunFolder(path)

    @staticmethod
    def open(path: Path, plan: Plan) -> RunFolder:
        """Returns an existing folder, to be resumed.

        Raises:
            UsageFault: see `find`; or its run is complete.
            RunFailed: its canaries have refuted its claim.
        """
        folder = RunFolder.find(path, plan)
        folder._check_unreleased()
        return folder.sync_name()

    def _describe_start(self) -> str:
        try:
            overrides = [str(each) for each in json.loads(durable.read_bytes(self.private / "overrides.json"))]
        except (OSError, ValueError, TypeError):
            overrides = []
        words = [word for override in overrides for word in ("--set", override)]
        ledger = self._read_ledger()
        version = __version__ if ledger is None else str(ledger.programs[0].get("version", __version__))
        by = [f"by dprecipe {one_line(version)[:40]};"] if version != __version__ else []
        given = ["with", shlex.join(words)] if words else []
        return " ".join([*by, "the recipe is recipe.yaml in the folder", *given])

    def record(self, step: int, epsilon: float, metrics: Mapping[str, float]) -> None:
        """Adds a line to the private metrics, with the same columns each time. A line that can't be written does not
        stop the run.
        """
        figures = {"epsilon": epsilon, **metrics}
        log.append_line(
            self.metrics, {"step": step, **{name: float(f"{value:.6g}") for name, value in figures.items()}}
        )

    def write_timing(self) -> None:
        """Writes how long the attempt took, by phase. A file that can't be written does not stop the run."""
        timeline = current_timeline()
        if timeline is None:
            return
        phases = [
            {"phase": name, "seconds": round(spent.wall, 3), "processor_seconds": round(spent.processor, 3)}
            for name, spent in timeline.totals().items()
        ]
        content = json.dumps({"schema": "dprecipe.timing/v1", "phases": phases}, indent=1) + "\n"
        with suppress(OSError):
            durable.replace_file(self.private / "timing.json", content.encode())

    def history(self) -> tuple[list[dict[str, float]], int]:
        """Reads all recorded metrics, the latest of each step, in order of steps; and how many damaged lines were
        skipped."""
        lines = log.read(self.metrics)
        if lines.names[: len(WHEN)] != WHEN:
            return [], lines.damaged + len(lines.rows)
        by_step = {int(row[WHEN[0]]): row for row in lines.rows}
        return [by_step[step] for step in sorted(by_step)], lines.damaged


def _forbidden(path: Path, error: OSError) -> RunFailed:
    return RunFailed(
        f"{path}: can't be read: {error.strerror}",
        "get permission to read and write the folder and all in it, or choose another with --out",
    )


def _drafts_of(path: Path) -> list[Path]:
    """Lists incomplete folders left beside this one by runs that were killed while they created it: they contain a
    key."""
    named = re.compile(re.escape(f".{path.name}.") + "[0-9a-f]{8}")
    results = [entry for entry in path.parent.iterdir() if named.fullmatch(entry.name) and entry.is_dir()]
    ours = [draft for draft in results if (draft / "private").is_dir() or not any(draft.iterdir())]
    return [draft for draft in ours if not _is_busy(draft)]


@contextmanager
def _busy(draft: Path) -> Iterator[None]:
    """Inside the block, `_is_busy` is true in other processes."""
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


def enforce_policies(
    plan: Plan, out: Path | None, resume: bool, root: str | Path | None, from_python: Sequence[str] = ()
) -> Plan:
    """Returns the plan of a run that begins or goes on in `out`, with its policies: see `enforce_on_run`.

    `root`: the data root, if it is named.
    """
    began = RunFolder(out or RunFolder.default(plan)).policies if resume else None
    return enforce_on_run(plan, find_data_root(root, plan.source.file), from_python, began)
