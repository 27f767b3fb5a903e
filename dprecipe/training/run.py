"""`dprecipe run`: carry out a plan, stop within the budget, publish what the certificate covers."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.data.facts import Role
from dprecipe.data.files import data_root as find_data_root
from dprecipe.data.records import RecordSource
from dprecipe.faults import Interrupted, UsageFault
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.release.folder import signing_key
from dprecipe.training.folder import RunFolder
from dprecipe.training.gather import Gathered, gather

if TYPE_CHECKING:
    from torch import nn

    from dprecipe.training.evaluate import Score
    from dprecipe.training.probe.program import Check


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run."""

    folder: Path
    release: Path
    plan: Plan
    epsilon: float
    stop_reason: str
    score: Score | None
    seconds: float
    remarks: tuple[str, ...] = ()
    """What else there is to say of it, in words."""
    verified: bool = True
    """The release verifies. Not so where an attempt's randomness was fixed: it is none, and says so."""


@dataclass(frozen=True, slots=True)
class Start:
    """How an attempt begins."""

    moment: datetime
    accept_lost_steps: bool = False
    """Release a model that lacks most of the steps charged, rather than none: see `training.lost`."""


@dataclass(frozen=True, slots=True)
class Given:
    """What came from Python in the place of what the recipe names, and all records, wherever they came from."""

    model: nn.Module | None = None
    train: object | None = None
    public: object | None = None
    test: object | None = None
    gathered: Gathered | None = None

    def records(self, role: Role, plan: Plan, root: Path) -> RecordSource | None:
        """The records of a role, prepared; read now where that has not been done.

        Raises:
            UsageFault, DataFault: see `dprecipe.training.gather.gather`.
        """
        found = self.gathered
        if found is None:
            objects: dict[Role, object | None] = {"train": self.train, "public": self.public, "test": self.test}
            found = gather(plan, root, objects)
        return found.prepared(role)


def run(
    plan: Plan,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    train: object | None = None,
    public: object | None = None,
    test: object | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
    accept_lost_steps: bool = False,
) -> Run:
    """Train by `plan` and write the run folder.

    `model`, `train`, `public` and `test` replace what the recipe names, from Python: what the last three may be is in
    `dprecipe.data.given`. They, and all files, are checked before torch is imported. Where several processes run it
    together (`torchrun`), the first of them alone writes. `accept_lost_steps`: release the model even
    where interruptions, or files that are gone, took more than half of the steps planned from it.

    Guarantees: every draw of noise is in the ledger before its result is used; the ledger never holds more than the
    budget; `release/` appears whole, at the end, verified, or not at all.

    Raises:
        UsageFault: the folder exists (or, with `resume`, does not).
        BudgetSpent: so many steps were lost, and that was not accepted.
        DataFault, PlanRefused, RunFailed: see `prepare`; nothing was spent, or the ledger says what.
        Interrupted: stopped by the user; `resume` continues.
    """
    signing_key(plan)  # one that can't be used should be known before anything is spent
    path = Path(out) if out is not None else RunFolder.default(plan)
    root = find_data_root(data_root, plan.source.file)
    started = Start(datetime.now(UTC), accept_lost_steps)
    several, follows = "WORLD_SIZE" in os.environ, int(os.environ.get("RANK", "0")) > 0
    if several and not mechanism_of(plan.mechanism).several:
        raise UsageFault(f"{plan.mechanism} runs in one process", "start it without torchrun")
    folder = None if several and follows else RunFolder.open(path, plan) if resume else RunFolder.absent(path)
    objects: dict[Role, object | None] = {"train": train, "public": public, "test": test}
    given = Given(model, train, public, test, gather(plan, root, objects))
    runner = mechanism_of(plan.mechanism).import_runner()  # imports torch: what is wrong with the data has been told
    program = runner.prepare(plan, root, given)
    if folder is None:
        led: Run = runner.follow(plan, program)
        return led
    if not resume:
        RunFolder.create(path, plan)
    if given.gathered is not None:
        given.gathered.write(folder.private)
    finished: Run = runner.attempt(plan, folder, program, started)
    return finished


def interrupted(plan: Plan, folder: RunFolder, done: str) -> Interrupted:
    """The fault of a run that was stopped after `done`, and how it is continued."""
    words = ["dprecipe", "run", plan.source.file, "--resume", "--out", str(folder.path)]
    words += [word for override in plan.source.overrides for word in ("--set", override)]
    return Interrupted(
        f"stopped after {done}; the ledger is closed",
        f"continue with: {shlex.join(words)} (and the same --data-root)",
    )


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal found out."""

    done: str
    """What was tried, and how fast it was, in words."""
    seconds: float
    """How long the whole run will take."""
    checks: tuple[Check, ...]
    remarks: tuple[str, ...] = ()
    """How gradients are taken, where it makes a difference, in words."""


def rehearse(plan: Plan) -> Rehearsal:
    """Try a little of a run on synthetic records of the declared shape: reads no data, spends nothing, leaves nothing.

    Raises:
        PlanRefused, RunFailed: as `run` would, before any data is at stake.
    """
    rehearsal: Rehearsal = mechanism_of(plan.mechanism).import_runner().rehearse(plan)
    return rehearsal
