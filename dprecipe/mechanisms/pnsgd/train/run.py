"""The program of projected noisy SGD: it descends in private and publishes the last iterate.

One event covers the run, however many attempts it takes. It is reserved before the first noise is drawn and settled
after the last step. An interrupted attempt has released nothing, so the next attempt carries the reservation. If there
is a state on disk, it continues from there, with new noise for the remaining steps; otherwise it starts over, with a
new order, a new stop and new noise. In both cases one transcript is released: a last iterate whose steps all had
independent noise of the planned scale, in an order and up to a stop that were drawn once, before the first step. After
the event is settled, nothing is drawn: the release is written from the final state, which stays on disk, and can be
written again.

`DeviceBackend` has the formulas and the double precision of the CPU, in torch. Blocks of features, and of noise from
the same streams, are copied to the device. Nothing is read back until it is needed, so steps queue up.

Guarantees: before the end, what depends on private records is written only to the encrypted state (and, if the recipe
asks for it, the loss to `private/losses.csv`). It is shown nowhere: progress counts steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.data.paid.constants import StageConstants
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train import checks
from dprecipe.mechanisms.pnsgd.train.descent import (
    Backend,
    CpuBackend,
    Descent,
    Floats,
    Noise,
    Objective,
    State,
    shape_of,
)
from dprecipe.mechanisms.pnsgd.train.encrypted_state import EncryptedState
from dprecipe.mechanisms.pnsgd.train.losses import choose_loss
from dprecipe.mechanisms.pnsgd.train.sets import Ball, Box, Simplex, set_of
from dprecipe.models.build import build
from dprecipe.models.schema import Location
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.progress import Progress
from dprecipe.training.audit.request import AuditEvidence, AuditRequest
from dprecipe.training.checks.stages import stage_noise
from dprecipe.training.loggers.run import log_release
from dprecipe.training.program.evaluate import METRICS, HeldOut, Score, keep_metrics
from dprecipe.training.program.program import Sets, Synthetic, check_width, declared_records, device_of
from dprecipe.training.program.records import RecordSource
from dprecipe.training.publish.draft import check_publishable
from dprecipe.training.publish.provenance import RunProvenance, private_of
from dprecipe.training.publish.publish import Finished
from dprecipe.training.run import log
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.checkpoint import SaveSchedule
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import PythonInputs, Rehearsal, Run, Runner, Start
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.run.spend_once import check_affordable, is_settled, spend_once

REHEARSED_SECONDS = 1.0
MIN_GPU_OPERATIONS = 1 << 20
"""Number of products in a step from which `device: auto` uses an accelerator, if there is one: its ten or so launches
for a step take as long as this many products on a CPU."""


@dataclass(frozen=True, slots=True)
class PnsgdProgram:
    """The objective, the records and the device of a run: everything but the ledger."""

    objective: Objective
    stages: tuple[Stage, ...]
    sets: Sets
    facts: DataFacts
    provenance: RunProvenance

    def with_constants(self, constants: Sequence[StageConstants]) -> PnsgdProgram:
        """Returns the same program on its records as they are after the paid steps that have released these
        constants."""
        return replace(self, sets=self.sets.with_constants(constants))

    def backend(self) -> Backend:
        """Returns a new backend for the steps."""
        return _backend(self.objective, self.provenance.device)


def prepare(plan: Plan, root: Path, inputs: PythonInputs) -> PnsgdProgram:
    """Probes the engine on synthetic records, and only then reads the plan's records, or takes those that were given.

    Raises:
        DataFault: the data is not what the recipe declares.
        RunFailed: the engine does not do what the accounting assumes.
    """
    program = _build_program(plan, lambda: declared_records(plan, root, inputs))
    check_publishable(plan, program.provenance)
    return program


def _build_program(plan: Plan, records: Callable[[], Sets]) -> PnsgdProgram:
    own, program = plan.as_plan_of(PnsgdPlan), assemble_program(plan)
    passed_checks = checks.run_checks(
        program.objective, own.descent, own.contraction, own.stages, lambda: program.backend()
    )
    passed_checks = (*passed_checks, *stage_noise(plan))
    sets = records()
    if not plan.stages:  # else their width follows from constants that are not there yet
        check_width(plan, sets.train)
    provenance = replace(program.provenance, checks=passed_checks, data="python" if sets.from_python else "recipe")
    return replace(program, sets=sets, provenance=provenance)


def assemble_program(plan: Plan) -> PnsgdProgram:
    """Returns the program of a plan on synthetic records, before any check."""
    objective = build_objective(plan)
    provenance = RunProvenance((), _device(plan, objective))
    own, data_facts = plan.as_plan_of(PnsgdPlan), describe_data(plan.data)
    return PnsgdProgram(objective, own.stages, Sets(Synthetic(plan)), data_facts, provenance)


def build_objective(plan: Plan) -> Objective:
    """Returns the plan's objective."""
    own, data_facts = plan.as_plan_of(PnsgdPlan), describe_data(plan.data)
    location, loss = isinstance(plan.model, Location), choose_loss(plan.model, data_facts.outputs)
    width, bias = 0 if location else data_facts.width, location or own.bias
    return Objective(
        loss=loss,
        width=width,
        bias=bias,
        feature_norm=own.feature_norm or 0.0,
        l2=own.l2,
        within=set_of(own.constraint, shape_of(loss, width + bias)),
    )


def _device(plan: Plan, objective: Objective) -> torch.device:
    numbers = plan.as_plan_of(PnsgdPlan).descent.batch_size * math.prod(objective.shape)
    if plan.runtime.device == "auto" and numbers < MIN_GPU_OPERATIONS:
        return torch.device("cpu")
    return device_of(plan.runtime.device)


def _backend(objective: Objective, device: torch.device) -> Backend:
    return CpuBackend(objective) if device.type == "cpu" else DeviceBackend(objective, device)


@final
class PnsgdRunner(Runner[PnsgdProgram]):
    """The runner of projected noisy SGD."""

    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> PnsgdProgram:
        """Prepares a run: see the function `prepare`."""
        return prepare(plan, root, inputs)

    def attempt(self, plan: Plan, folder: RunFolder, program: PnsgdProgram, start: Start) -> Run:
        """Continues the folder's run, or starts it; if it has ended, only publishes."""
        checkpoints = folder.private / "checkpoints"
        state_file = EncryptedState(checkpoints / "last.encrypted", folder.private / "checkpoint.key", plan.digest)
        event = plan.as_plan_of(PnsgdPlan).event
        state: State | None = None

        def check(before: Ledger | None) -> None:
            nonlocal state
            state = state_file.load(before)
            if is_settled(event, before) and (state is None or not state.finished):
                raise RunFailed(
                    "this run has ended, and its final state is not in private/: there is nothing to publish, and "
                    "running again would spend again",
                    "restore the run's own files, or start over in a new folder",
                )
            check_affordable(plan, event, before)

        private, stopped = {"commitment": private_of(program.sets.train)}, threading.Event()
        records = program.sets.train
        with open_attempt(plan, folder, start, program.provenance, private, check, records) as attempt:
            program = program.with_constants(attempt.constants)

            def descend() -> None:
                nonlocal state
                state = _descend(plan, program, attempt.secrets, state, state_file, attempt.ledger, folder, stopped)
                if not state.finished:
                    raise attempt.interrupted(f"{state.step} of {state.stop} steps")

            spend_once(attempt.ledger, event, descend)
            attempt.ledger.close("completed")
        assert state is not None  # noqa: S101
        weights, score = build_weights(plan, program.facts, state.iterate), None
        if program.sets.test is not None:
            score = _score(plan, folder, program, program.sets.test, weights, state.step)
        finished = Finished(
            weights=weights,
            trained=frozenset(weights),
            model=plan.model,
            score=score,
            test_from_python=program.sets.custom_test,
        )
        done = attempt.publish(finished)
        log_release(plan, folder, done.epsilon, done.score, finished.test_from_python)
        return done

    def rehearse(self, plan: Plan) -> Rehearsal:
        """Makes steps on synthetic records, for about a second."""
        program = _build_program(plan, lambda: Sets(Synthetic(plan)))
        objective, secrets, planned = program.objective, Secrets(), plan.as_plan_of(PnsgdPlan).descent
        state = State(objective.start(), 0, plan.length.steps, None)
        noise = Noise(Distribution(planned.family), secrets, math.prod(objective.shape))
        backend = program.backend()
        descent = Descent(objective, program.stages, planned.batch_size, program.sets.train, noise, state, backend)
        clock = time.monotonic()
        while time.monotonic() - clock < REHEARSED_SECONDS and not state.finished:
            descent.advance()
        backend.fetch()
        seconds = (time.monotonic() - clock) / descent.step
        done = f"{descent.step} steps on synthetic records: {seconds * 1e6:.3g} µs a step"
        return Rehearsal(done, seconds * plan.length.steps, program.provenance.checks)

    def audit(self, plan: Plan, request: AuditRequest) -> AuditEvidence:
        """Audits the program: see `audit.audit`."""
        from dprecipe.mechanisms.pnsgd.train.audit import audit

        return audit(plan, request)


RUNNER = PnsgdRunner()


def _descend(
    plan: Plan,
    program: PnsgdProgram,
    secrets: Secrets,
    state: State | None,
    state_file: EncryptedState,
    ledger: LedgerWriter,
    folder: RunFolder,
    stopped: threading.Event,
) -> State:
    """Makes the remaining steps, or those before an interruption. The final state is saved before this returns.

    The event must be reserved.
    """
    own, train, objective = plan.as_plan_of(PnsgdPlan), program.sets.train, program.objective
    planned = own.descent
    if state is None:
        state = State.fresh(
            objective.start(),
            len(train),
            plan.length.steps,
            secrets,
            permuted=planned.order == "permuted",
            random_stop=planned.stop == "random",
        )
    noise = Noise(Distribution(planned.family), secrets, math.prod(objective.shape))
    descent = Descent(objective, program.stages, planned.batch_size, train, noise, state, program.backend())
    saves_state = own.checkpoint == "encrypted"
    schedule = SaveSchedule(plan.length.steps, state.step, plan.runtime.checkpoint_seconds)
    progress = Progress("descent", "step", state.stop, state.step)
    with stopping_on_signals(stopped.set, "block of steps"):
        while not (state.finished or stopped.is_set()):
            descent.advance()
            progress.show(descent.step)
            if own.private_log and descent.pass_ended:
                loss = objective.mean_loss(descent.state.iterate, train)
                log.append_line(folder.private / "losses.csv", {"step": descent.step, "loss": loss})
            if saves_state and schedule.is_due(descent.step):
                state_file.save(descent.state, ledger.head)
                schedule.saved(descent.step)
        progress.end(descent.step)
        state = descent.state
        if saves_state or state.finished:
            state_file.save(state, ledger.head)
    return state


def build_weights(plan: Plan, data_facts: DataFacts, iterate: Floats) -> dict[str, Tensor]:
    """Returns the state of the plan's module, in single precision.

    If a classifier of two classes has one predictor, its module's outputs are 0 and that predictor.
    """
    state = _module(plan, data_facts).state_dict()
    bias = plan.as_plan_of(PnsgdPlan).bias
    for name, tensor in state.items():
        part = iterate
        if name.endswith("weight") and bias:
            part = iterate[..., :-1]
        elif name.endswith("bias"):
            part = iterate[..., -1]
        filled = np.zeros(tensor.shape)
        if filled.size == part.size:
            filled[...] = part.reshape(filled.shape)
        else:
            filled[1] = part
        state[name] = torch.from_numpy(filled).to(tensor.dtype)
    return state


def _module(plan: Plan, data_facts: DataFacts) -> nn.Module:
    return build(plan.model, data_facts.shape, data_facts.outputs, plan.runtime.seed)


def _score(
    plan: Plan, folder: RunFolder, program: PnsgdProgram, test: RecordSource, weights: dict[str, Tensor], step: int
) -> Score:
    """Returns the score of the released model, after the ledger was closed."""
    module, cpu = _module(plan, program.facts), torch.device("cpu")
    held_out = HeldOut(module, test, cpu, plan.runtime.physical_batch_size, program.facts.target)
    score = held_out.score(weights, full=True)
    folder.record(step, plan.guarantee.epsilon, score.metrics)
    keep_metrics(score, folder.private / METRICS)
    return score


@final
class DeviceBackend:
    """Steps in torch (`dprecipe.mechanisms.pnsgd.train.descent.Backend`)."""

    def __init__(self, objective: Objective, device: torch.device) -> None:
        self._objective = objective
        self._device = device
        within = objective.within
        if isinstance(within, Box):
            self._low, self._high = (
                torch.tensor(np.zeros(objective.shape) + end, device=device) for end in (within.low, within.high)
            )
        elif isinstance(within, Ball) and within.centre is not None:
            self._centre = torch.tensor(within.centre, device=device)

    def place(self, w: Floats) -> None:
        self._w = torch.tensor(w, device=self._device)

    def fetch(self) -> Floats:
        fetched: Floats = self._w.cpu().numpy().copy()
        return fetched

    def gradient(self, x_BD: Floats, y_B: NDArray[Any]) -> Tensor:
        return self._of(self._to_device(x_BD), self._to_device(y_B))

    def step(self, gradient: Tensor, shrink: float, noise_P: Floats) -> None:
        self._step(gradient, shrink, self._to_device(noise_P))

    def steps(self, x_TBD: Floats, y_TB: NDArray[Any], factor: float, shrink: float, noise_TP: Floats) -> None:
        batches = zip(self._to_device(x_TBD), self._to_device(y_TB), self._to_device(noise_TP), strict=True)
        for x_BD, y_B, noise_P in batches:
            self._step(self._of(x_BD, y_B).mul_(factor), shrink, noise_P)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _of(self, x_BD: Tensor, y_B: Tensor) -> Tensor:
        gradient: Tensor = self._objective.gradient(self._w, x_BD, y_B, torch)
        return gradient

    def _step(self, gradient: Tensor, shrink: float, noise_P: Tensor) -> None:
        self._w.mul_(shrink).add_(gradient).add_(noise_P.reshape(gradient.shape))
        self._project(self._w)

    def _project(self, w: Tensor) -> None:
        """Does what `Objective.project` does, in torch."""
        within = self._objective.within
        match within:
            case Ball(centre=None):
                w.mul_(within.max_norm / w.norm().clamp_min(within.max_norm))
            case Ball():
                w.sub_(self._centre)
                w.mul_(within.max_norm / w.norm().clamp_min(within.max_norm)).add_(self._centre)
            case Box():
                torch.minimum(torch.maximum(w, self._low, out=w), self._high, out=w)
            case Simplex(total=total):
                falling = w.flatten().sort(descending=True).values
                excess = falling.cumsum(0) - total
                counts = torch.arange(1, len(falling) + 1, device=w.device)
                last = (falling * counts > excess).sum() - 1
                w.sub_(excess[last] / (last + 1)).clamp_(min=0.0)
