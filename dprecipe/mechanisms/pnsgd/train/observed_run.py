"""A real run on a few synthetic records, in a folder that is thrown away, under observation.

The observer stands between the descent and its backend. It sees the records and the noise of each step, the iterate
afterwards, and the content of the run's files at that moment. The run is the runner's own, with its ledger, its
encrypted state and its own secret randomness. It is interrupted once in the middle of a step, as by a crash, and
resumed. No private record is read and nothing is spent.

Axes: N records, D features with the bias, P parameters, T steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.descent import Backend, Floats, Objective
from dprecipe.mechanisms.pnsgd.train.losses import Huber, Softmax, Squared
from dprecipe.mechanisms.pnsgd.train.run import RUNNER, PnsgdProgram, assemble_program
from dprecipe.privacy import ledger
from dprecipe.privacy.events import Charge
from dprecipe.training.program.program import Sets
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import Start

BATCH = 3
SIZE = 8
"""Number of records: the last batch of a pass is short."""
NOISES = 60_000
"""Approximate number of noise values that a run draws: enough to see an error of 2 % in their scale."""
MAX_STEPS, MAX_STAGES = 3_000, 4
SCANNED = 60
"""Number of blocks of steps after which the files are read."""
RECENT = 3
"""Number of iterates that are looked for after each block."""
CHECKPOINT_SECONDS = 0.05
ENDLESS = 1e9


class Crash(Exception):
    """The observer's interruption of an attempt."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SeenStep:
    """The input of one step."""

    number: int
    records: tuple[int, ...]
    """Numbers of the records; -1: a row that is none of the records."""
    noise: Floats
    """The noise as the backend adds it, (P,)."""


@final
@dataclass(slots=True, eq=False)
class SeenAttempt:
    """The record of one attempt."""

    start: Floats
    first: int
    """The number of its first step."""
    reached: list[int]
    """Numbers of steps after which earlier attempts were where this one begins."""
    steps: list[SeenStep] = field(default_factory=list)
    iterates: dict[int, Floats] = field(default_factory=dict)
    """The iterates, by the number of steps made."""

    def shift(self, first: int) -> None:
        """Renumbers the steps: the first of the attempt had this number."""
        by = first - self.first
        self.first = first
        self.steps = [replace(step, number=step.number + by) for step in self.steps]
        self.iterates = {number + by: iterate for number, iterate in self.iterates.items()}


@final
@dataclass(slots=True, eq=False)
class SeenRun:
    """The record of a run: each attempt, its ledger and its files."""

    plan: Plan
    """The plan of this run: that of the recipe with few records and steps."""
    records: Records
    attempts: list[SeenAttempt] = field(default_factory=list)
    unpaid: int = 0
    """Number of attempts whose first noise met a ledger that did not hold the event."""
    wrong_charges: int = 0
    held: int = 0
    """Number of times that a file held an iterate other than the last, or the loss at one."""
    compared: int = 0
    """Number of searches for an iterate in a file."""
    files: set[str] = field(default_factory=set)

    @property
    def own(self) -> PnsgdPlan:
        return self.plan.as_plan_of(PnsgdPlan)

    @property
    def last(self) -> Floats:
        """The last iterate of the run."""
        attempt = self.attempts[-1]
        return attempt.iterates[max(attempt.iterates)]


def shorten(plan: Plan, size: int = SIZE, batch: int = BATCH) -> Plan:
    """Returns the plan with few records, small batches and some steps of a few of its stages; charged to no account.
    Its constants, learning rates and noise scales are the plan's own."""
    own = plan.as_plan_of(PnsgdPlan)
    numbers = sorted({round(at) for at in np.linspace(0, len(own.stages) - 1, MAX_STAGES)})
    batches = -(-size // batch)
    wanted = min(MAX_STEPS, max(3 * batches + 1, NOISES // own.descent.proven.parameters))
    steps = -(-wanted // len(numbers))
    planned = replace(
        own,
        descent=replace(own.descent, size=size, batch_size=batch),
        stages=tuple(Stage(steps, own.stages[n].learning_rate, own.stages[n].noise_scale) for n in numbers),
        phase_steps=None,
    )
    runtime = plan.runtime.model_copy(
        update={"checkpoint_seconds": CHECKPOINT_SECONDS, "loggers": (), "insecure": None}
    )
    return replace(
        plan,
        mechanism_plan=planned,
        runtime=runtime,
        budget=replace(plan.budget, epsilon=ENDLESS, account=None, held=None),
        release=plan.release.model_copy(update={"report": False}),
        stages=(),
        spending=(),
        tuning=None,
    )


def make_records(objective: Objective, shape: tuple[int, ...], size: int, seed: int = 0) -> Records:
    """Returns records that all differ, also as a step sees them: one is too long, and one target is beyond its
    range."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((size, *shape)).astype(np.float32)
    lengths = objective.feature_norm * np.linspace(0.05, 0.95, size)
    lengths[0] = 10 * objective.feature_norm
    norms = np.linalg.norm(features.reshape(size, -1), axis=1)
    features *= (lengths / norms).reshape(-1, *[1] * len(shape)).astype(np.float32)
    if isinstance(objective.loss, Softmax):
        return Records(features, generator.integers(objective.loss.classes, size=size))
    if isinstance(objective.loss, Squared | Huber):
        labels = np.linspace(-1, 0.9, size, dtype=np.float32)
        labels[-1] = 9
        return Records(features, labels)
    return Records(features, np.arange(size) % 2)


def observe_run(plan: Plan, seed: int = 0, show: Callable[[], None] = lambda: None) -> SeenRun:
    """Runs the shortened plan twice: an attempt that a crash ends, and one that resumes it. `show` is called between
    blocks of steps.

    Raises:
        RunFailed: the run itself refuses to go on.
    """
    short = shorten(plan)
    program = assemble_program(short)
    records = make_records(program.objective, program.facts.shape, SIZE, seed)
    seen = SeenRun(short, records)
    steps = short.length.steps
    with tempfile.TemporaryDirectory(prefix="dprecipe-audit-") as scratch:
        folder = RunFolder.create(Path(scratch) / "run", short)
        for crash in (steps // 3, None):
            observer = _Observer(seen, folder, program.objective, crash, show)
            watched = WatchedProgram(
                program.objective, program.stages, Sets(records), program.facts, program.provenance, observer
            )
            try:
                RUNNER.attempt(short, folder, watched, Start(datetime.now(UTC), trial=True))
            except Crash:
                continue
            if crash is not None and short.as_plan_of(PnsgdPlan).descent.stop == "last":
                raise RuntimeError("internal fault: the observed run was not broken off")
            break
        observer.scan(everything=True)
        last = seen.attempts[-1]
        if (needed := steps - len(last.steps)) in last.reached and needed != last.first:
            last.shift(needed)
        seen.wrong_charges = int(ledger.read(folder.ledger).settled != (Charge(seen.own.event, 1),))
    return seen


@dataclass(frozen=True, slots=True)
class WatchedProgram(PnsgdProgram):
    """The program, with a watched backend."""

    observer: _Observer

    def backend(self) -> Backend:
        return WatchedBackend(PnsgdProgram.backend(self), self.observer)


@final
class WatchedBackend:
    """A backend that reports its inputs."""

    def __init__(self, inner: Backend, observer: _Observer) -> None:
        self._inner = inner
        self._observer = observer
        self._rows: list[tuple[Floats, NDArray[Any]]] = []

    def place(self, w: Floats) -> None:
        self._inner.place(w)
        self._observer.begin(w)

    def fetch(self) -> Floats:
        return self._inner.fetch()

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Any:
        self._rows.append((x_BD, y_B))
        return self._inner.gradient(x_BD, y_B)

    def step(self, gradient: Any, shrink: float, noise_P: Floats) -> None:
        rows, self._rows = self._rows, []
        x_ND, y_N = (np.concatenate([part[side] for part in rows]) for side in (0, 1))
        self._observer.give(x_ND, y_N, noise_P)
        self._inner.step(gradient, shrink, noise_P)
        self._observer.look(self._inner.fetch())

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        for x_BD, y_B, noise_P in zip(x_TBD, y_TB, noise_TP, strict=True):
            self._observer.give(x_BD, y_B, noise_P)
        self._inner.steps(x_TBD, y_TB, factor, shrink, noise_TP)
        self._observer.look(self._inner.fetch())


@final
class _Observer:
    """Records what an attempt does, and looks into its files."""

    def __init__(
        self, seen: SeenRun, folder: RunFolder, objective: Objective, crash: int | None, show: Callable[[], None]
    ) -> None:
        self._seen = seen
        self._folder = folder
        self._objective = objective
        self._crash = crash
        self._show = show
        self._known = {_key(x, y): n for n, (x, y) in enumerate(zip(*objective.rows(*seen.records.batch(slice(None))),
                                                                   strict=True))}  # fmt: skip
        self._public = (folder.path / "plan.json").read_bytes()
        self._read: dict[Path, tuple[int, int]] = {}
        self._scans = 0

    def begin(self, w: Floats) -> None:
        """Begins an attempt where the run starts, or where an earlier attempt has been."""
        earlier = [attempt.iterates for attempt in self._seen.attempts]
        reached = [at for iterates in earlier for at, iterate in iterates.items() if np.array_equal(iterate, w)]
        if np.array_equal(self._objective.start(), w):
            reached.insert(0, 0)
        # -1: it begins at a point that no attempt has reached. On a boundary, several iterates may be equal.
        self._seen.attempts.append(SeenAttempt(w.copy(), max(reached, default=-1), reached))

    def give(self, x_BD: Floats, y_B: NDArray[Any], noise_P: Floats) -> None:
        attempt = self._seen.attempts[-1]
        if not attempt.steps:
            charges = ledger.read(self._folder.ledger).charges
            self._seen.unpaid += charges != (Charge(self._seen.own.event, 1),)
        records = tuple(self._known.get(_key(x, y), -1) for x, y in zip(x_BD, y_B, strict=True))
        attempt.steps.append(SeenStep(max(attempt.first, 0) + len(attempt.steps), records, noise_P.copy()))

    def look(self, w: Floats) -> None:
        attempt = self._seen.attempts[-1]
        done = attempt.steps[-1].number + 1
        self._show()
        if self._crash is not None and done > self._crash:
            raise Crash
        self.scan()
        attempt.iterates[done] = w

    def scan(self, *, everything: bool = False) -> None:
        """Looks for the last few iterates, or for all, except the one that is made public, in every file that has
        changed."""
        if not everything and self._scans >= SCANNED:
            return
        self._scans += 1
        iterates = [w for attempt in self._seen.attempts for w in attempt.iterates.values()]
        iterates = iterates[-SCANNED if everything else -RECENT :]
        start = self._objective.start()
        hidden = [tuple(self._traces(w)) for w in iterates if not np.array_equal(w, start)]
        for path in sorted(self._folder.path.rglob("*")):
            if not path.is_file():
                continue
            self._seen.files.add(path.relative_to(self._folder.path).as_posix())
            stat = path.stat()
            if self._read.get(path) == (stat.st_mtime_ns, stat.st_size) and not everything:
                continue
            self._read[path] = stat.st_mtime_ns, stat.st_size
            content = path.read_bytes()
            released = everything and path.is_relative_to(self._folder.path / "result")
            for traces in hidden[:-1] if released else hidden:
                self._seen.compared += 1
                self._seen.held += any(
                    trace in content and not (is_coarse and (released or trace in self._public))
                    for trace, is_coarse in traces
                )

    def _traces(self, w: Floats) -> Iterator[tuple[bytes, bool]]:
        """Yields the forms that an iterate can have in a file: the bytes of a coordinate, or of two of them in single
        precision, or its digits; or the loss at it. Each has a flag that is True for digits so few that the plan may
        have them, too."""
        flat = w.reshape(-1)
        telling = np.abs(flat) * (
            flat != np.round(flat, 3)
        )  # without values that the set's boundary gives to many iterates
        place = int(telling.argmax())
        numbers = [self._objective.mean_loss(w, self._seen.records)]
        if telling[place]:
            numbers.append(float(flat[place]))
            if place + 1 < len(flat) and telling[place + 1]:
                yield flat[place : place + 2].astype(np.float32).tobytes(), False
        for number in numbers:
            yield np.float64(number).tobytes(), False
            yield np.float64(number).byteswap().tobytes(), False
            yield f"{number:.12g}"[:12].encode(), False
            yield f"{number:.6g}".encode(), True


def _key(x_D: Floats, y: Any) -> bytes:
    return x_D.tobytes() + np.float64(y).tobytes()
