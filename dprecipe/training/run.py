"""`dprecipe run`: train by a plan, stop within the budget, publish what the certificate covers."""

from __future__ import annotations

import logging
import shlex
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from dprecipe.data.files import data_root as find_data_root
from dprecipe.faults import Interrupted, UsageFault
from dprecipe.mechanisms.rooms import trainer_of
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.model import Plan
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import Ledger, LedgerWriter, read
from dprecipe.release.folder import signing_key
from dprecipe.training import checkpoint
from dprecipe.training.evaluate import HeldOut, Score
from dprecipe.training.folder import RunFolder
from dprecipe.training.gate import Gate
from dprecipe.training.probe import Check
from dprecipe.training.program import Program, Sets, Synthetic, declared, prepare
from dprecipe.training.publish import identity_of, publish
from dprecipe.training.records import RecordSource
from dprecipe.training.watch import SpentCurve, Watch, stopping_on_signals


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


def run(
    plan: Plan,
    out: str | Path | None = None,
    *,
    model: nn.Module | None = None,
    train: RecordSource | None = None,
    test: RecordSource | None = None,
    data_root: str | Path | None = None,
    resume: bool = False,
) -> Run:
    """Train by `plan` and write the run folder.

    `model`, `train` and `test` replace what the recipe names, from Python.

    Guarantees: every noisy sum is in the ledger before it is used; the ledger never holds more than the budget;
    `release/` appears whole, at the end, or not at all.

    Raises:
        UsageFault: the folder exists (or, with `resume`, does not).
        DataFault, PlanRefused, RunFailed: see `prepare`; nothing was spent, or the ledger says what.
        Interrupted: stopped by the user; `resume` continues.
    """
    signing_key(plan)  # one that can't be used should be known before anything is spent
    path = Path(out) if out is not None else RunFolder.default(plan)
    folder = RunFolder.open(path, plan) if resume else RunFolder.absent(path)
    root = find_data_root(data_root, plan.source.file)
    started = datetime.now(UTC)
    program = prepare(plan, lambda: declared(plan, root, train, test), model)
    if not resume:
        RunFolder.create(path, plan)
    return _attempt(plan, folder, program, started)


def _attempt(plan: Plan, folder: RunFolder, program: Program, started: datetime) -> Run:
    insecure = None if plan.runtime.insecure is None else plan.runtime.insecure.seed
    identity = identity_of(folder, program)
    state: dict[str, Any] | None = None

    def hold(before: Ledger | None) -> None:
        nonlocal state
        hold_identity(identity, before)
        state = checkpoint.of_ledger(checkpoint.load(folder.checkpoint, program.device), before)

    ledger = LedgerWriter(folder.ledger, plan.digest, {"insecure_seed": insecure, **identity}, hold)
    try:
        secrets = Secrets(insecure, ledger.attempt)
        charged = ledger.before.charges if ledger.before is not None else ()
        gate = Gate(plan.events, plan.budget, ledger, secrets, charged)
        module = trainer_of(plan.mechanism).build(plan, program.model, program.store, gate, secrets)
        if state is not None:
            checkpoint.restore(module, state, folder.checkpoint)
        watch = watch_of(plan, folder, program, SpentCurve(plan, charged, module.events_done), ledger)
        clock = time.monotonic()
        fit(module, watch, program.device, module.steps_left)
        watch.save(module)
        reason = gate.close(interrupted=module.stop_requested and gate.stop_reason is None)
    finally:
        ledger.abandon()
    seconds = time.monotonic() - clock
    if reason == "interrupted":
        words = ["dprecipe", "run", plan.source.file, "--resume", "--out", str(folder.path)]
        words += [word for override in plan.source.overrides for word in ("--set", override)]
        raise Interrupted(
            f"stopped after {module.steps_done} of {plan.length.steps} steps; the ledger is closed",
            f"continue with: {shlex.join(words)} (and the same --data-root)",
        )
    score = watch.score(module)
    spent = publish(plan, folder, program, module.released_state(), read(folder.ledger), started, score)
    return Run(folder.path, folder.release, plan, spent, reason, score, seconds)


def watch_of(plan: Plan, folder: RunFolder, program: Program, curve: SpentCurve, ledger: LedgerWriter) -> Watch:
    """The callback that shows, scores and saves, into the run's own folder."""
    held_out = None
    if program.sets.test is not None:
        held_out = HeldOut(program.sets.test, program.device, plan.runtime.physical_batch)
    return Watch(
        plan,
        curve,
        held_out,
        lambda step, epsilon, score: folder.record(step, epsilon, score.accuracy, score.loss),
        lambda content: checkpoint.save(folder.checkpoint, {**content, "ledger": ledger.head}),
    )


def hold_identity(identity: Mapping[str, Any], before: Ledger | None) -> None:
    """A resumed run goes on with the records and the kind of model it was started with.

    Raises:
        UsageFault: it was started with others.
    """
    for earlier in () if before is None else before.programs:
        for name, value in identity.items():
            if earlier.get(name) != value:
                what = "other training records" if name == "commitment" else f"its {name} from elsewhere"
                raise UsageFault(
                    f"this run was started with {what}",
                    "resume with what it was started with, or start anew with --out",
                )


def fit(module: Any, watch: lightning.Callback, device: torch.device, steps: int) -> None:
    """Run the program under a trainer whose every argument is ours: none that could break privacy can be passed."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"lightning\..*")
        trainer = lightning.Trainer(
            accelerator={"cuda": "gpu"}.get(device.type, device.type),
            devices=1,
            max_epochs=1,
            precision="32-true",
            logger=False,
            callbacks=[watch],
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
        )
        # The trainer counts steps; the lots are drawn inside the step, by the event that is accounted. One step
        # more than planned, so that the refusal that ends a run is the gate's.
        counter: DataLoader[int] = DataLoader(range(steps + 1), batch_size=None)  # type: ignore[arg-type]
        with stopping_on_signals(module.request_stop):
            try:
                trainer.fit(module, counter)
            except SystemExit:  # what the trainer makes of a second Ctrl-C
                raise KeyboardInterrupt from None


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What a rehearsal found out."""

    steps: int
    seconds_per_step: float
    checks: tuple[Check, ...]


def rehearse(plan: Plan, steps: int = 5) -> Rehearsal:
    """Run a few steps on synthetic records of the declared shape: reads no data, spends nothing, leaves nothing.

    Raises:
        PlanRefused, RunFailed: as `run` would, before any data is at stake.
    """
    program = prepare(plan, lambda: Sets(Synthetic(plan)))
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest)
        secrets = Secrets()
        gate = Gate(take_first(plan.events, steps), plan.budget, ledger, secrets)
        module = trainer_of(plan.mechanism).build(plan, program.model, program.store, gate, secrets)
        stopwatch = Stopwatch()
        fit(module, stopwatch, program.device, steps)
        ledger.abandon()
    return Rehearsal(module.steps_done, stopwatch.seconds_per_step, program.checks)


class Stopwatch(lightning.Callback):
    """Times the steps after the first, which warms up."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def on_train_batch_end(self, *_: Any) -> None:
        self._ends.append(time.monotonic())

    @property
    def seconds_per_step(self) -> float:
        return (self._ends[-1] - self._ends[0]) / max(1, len(self._ends) - 1)
