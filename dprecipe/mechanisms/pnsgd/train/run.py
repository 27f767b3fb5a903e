"""The program of projected noisy SGD: descend out of sight, publish the last iterate.

One event covers the run, whatever number of attempts it takes. It is reserved before the first noise is drawn and
settled after the last step; what an attempt that broke off had done of it nobody saw, so that the next one carries the
reservation on. With a state on disk it goes on from there, with noise of its own for the steps that are left; without
one it starts over, with a new order, a new stop and new noise. Either way one transcript is released: that of the last
iterate, all of whose steps had independent noise of the planned scale, in an order and up to a stop that were drawn
once, before its first step. Once the event is settled, nothing more is drawn: the release is made of the final state,
which is kept, and can be made again.

Guarantees: before the end, what depends on private records is written only into the encrypted state (and, where the
recipe asks for it, the loss into `private/losses.csv`), and shown nowhere: progress counts steps.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.faults import BudgetSpent, RunFailed, UsageFault
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.schema import BallConstraint, BoxConstraint
from dprecipe.mechanisms.pnsgd.train import checks
from dprecipe.mechanisms.pnsgd.train.descent import Descent, Floats, Noise, Objective, OnCpu, State, Where
from dprecipe.mechanisms.pnsgd.train.hidden_state import HiddenState
from dprecipe.mechanisms.pnsgd.train.losses import loss_of
from dprecipe.mechanisms.pnsgd.train.on_device import OnDevice
from dprecipe.models.build import build
from dprecipe.models.schema import Location
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy import accountants
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.progress import Progress
from dprecipe.training import log
from dprecipe.training.attempt import open_attempt
from dprecipe.training.draft import check_publishable
from dprecipe.training.evaluate import HeldOut, Score
from dprecipe.training.folder import RunFolder
from dprecipe.training.program import Sets, Synthetic, check_width, declared_records, device_of
from dprecipe.training.provenance import RunProvenance, private_of
from dprecipe.training.publish import Finished
from dprecipe.training.records import RecordSource
from dprecipe.training.runner import PythonInputs, Rehearsal, Run, Runner, Start
from dprecipe.training.signals import stopping_on_signals

REHEARSED_SECONDS = 1.0
MIN_GPU_OPERATIONS = 1 << 20
"""Products of a step from which on `device: auto` takes an accelerator, if there is one: it needs some ten launches a
step, as long as a processor needs for so many."""


@dataclass(frozen=True, slots=True)
class PnsgdProgram:
    """What a run needs besides its ledger."""

    objective: Objective
    stages: tuple[Stage, ...]
    sets: Sets
    facts: DataFacts
    provenance: RunProvenance

    def where(self) -> Where:
        """What makes the steps."""
        return _where(self.objective, self.provenance.device)


def prepare(plan: Plan, root: Path, inputs: PythonInputs) -> PnsgdProgram:
    """Probe the engine on synthetic records, and only then bring in the plan's own, or those that were given.

    Raises:
        UsageFault: a model was given, whose constants nobody has proved, or public records.
        DataFault: the data is not what the recipe declares.
        RunFailed: the engine does not do what the accounting assumes.
    """
    if inputs.model is not None:
        raise UsageFault("nothing is proved of a model from Python", "leave `model` out: the recipe names one")
    if inputs.public is not None:
        raise UsageFault(f"mechanism {plan.mechanism} asks nothing of public records", "leave `public` out")
    program = _prepared(plan, lambda: declared_records(plan, root, inputs))
    check_publishable(plan, program.provenance)
    return program


def _prepared(plan: Plan, records: Callable[[], Sets]) -> PnsgdProgram:
    own, data_facts, objective = plan.room_as(PnsgdPlan), describe_data(plan.data), objective_of(plan)
    device = _device(plan, objective)
    tried = checks.run_checks(objective, own.descent, own.contraction, own.stages, lambda: _where(objective, device))
    sets = records()
    check_width(plan, sets.train)
    provenance = RunProvenance(tried, device, data="python" if sets.from_python else "recipe")
    return PnsgdProgram(objective, own.stages, sets, data_facts, provenance)


def objective_of(plan: Plan) -> Objective:
    """What the plan descends, and where."""
    own, data_facts = plan.room_as(PnsgdPlan), describe_data(plan.data)
    constraint, location = own.constraint, isinstance(plan.model, Location)
    return Objective(
        loss=loss_of(plan.model, data_facts.classes),
        width=0 if location else data_facts.width,
        bias=location or own.bias,
        feature_norm=own.feature_norm or 0.0,
        l2=own.l2,
        radius=constraint.radius if isinstance(constraint, BallConstraint) else None,
        bound=constraint.bound if isinstance(constraint, BoxConstraint) else None,
    )


def _device(plan: Plan, objective: Objective) -> torch.device:
    numbers = plan.room_as(PnsgdPlan).descent.batch_size * math.prod(objective.shape)
    if plan.runtime.device == "auto" and numbers < MIN_GPU_OPERATIONS:
        return torch.device("cpu")
    return device_of(plan.runtime.device)


def _where(objective: Objective, device: torch.device) -> Where:
    return OnCpu(objective) if device.type == "cpu" else OnDevice(objective, device)


@final
class HiddenRunner(Runner[PnsgdProgram]):
    """The runner of projected noisy SGD."""

    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> PnsgdProgram:
        """See the function `prepare`."""
        return prepare(plan, root, inputs)

    def attempt(self, plan: Plan, folder: RunFolder, program: PnsgdProgram, start: Start) -> Run:
        """Go on from where the folder is: unless the run has ended, in which case its release is made."""
        checkpoints = folder.private / "checkpoints"
        kept = HiddenState(checkpoints / "last.hidden", folder.private / "checkpoint.key", plan.digest)
        (event,) = (charge.event for charge in plan.events)
        state: State | None = None

        def check(before: Ledger | None) -> None:
            nonlocal state
            state = kept.load(before)
            _check_standing(plan, event, before, state)

        private, stopped = {"commitment": private_of(program.sets.train)}, threading.Event()
        with open_attempt(plan, folder, start, program.provenance, private, check) as attempt:
            ledger = attempt.ledger
            if not _settled(event, ledger.before):
                if _left(event, ledger.before):
                    ledger.carry(event)
                else:
                    ledger.reserve(event, 1)
                state = _descend(plan, program, attempt.secrets, state, kept, ledger, folder, stopped)
                if not state.finished:
                    raise attempt.interrupted(f"{state.step} of {state.stop} steps")
                ledger.settle(event, 1)
            ledger.close("completed")
        assert state is not None  # noqa: S101
        weights, score = weights_of(plan, program.facts, state.iterate), None
        if program.sets.test is not None:
            score = _score(plan, folder, program, program.sets.test, weights, state.step)
        finished = Finished(
            weights=weights,
            trained=frozenset(weights),
            model=plan.model,
            score=score,
            test_from_python=program.sets.custom_test,
        )
        return attempt.publish(finished)

    def rehearse(self, plan: Plan) -> Rehearsal:
        """Some steps on synthetic records."""
        program = _prepared(plan, lambda: Sets(Synthetic(plan)))
        objective, secrets, asked = program.objective, Secrets(), plan.room_as(PnsgdPlan).descent
        state = State(np.zeros(objective.shape), 0, plan.length.steps, None)
        noise = Noise(Distribution(asked.family), secrets, math.prod(objective.shape))
        where = program.where()
        descent = Descent(objective, program.stages, asked.batch_size, program.sets.train, noise, state, where)
        clock = time.monotonic()
        while time.monotonic() - clock < REHEARSED_SECONDS and not state.finished:
            descent.advance()
        where.fetch()
        seconds = (time.monotonic() - clock) / descent.step
        done = f"{descent.step} steps on synthetic records: {seconds * 1e6:.3g} µs a step"
        return Rehearsal(done, seconds * plan.length.steps, program.provenance.checks)


RUNNER = HiddenRunner()


def _settled(event: Event, before: Ledger | None) -> bool:
    """Whether an earlier attempt made the last step."""
    return before is not None and any(charge.event == event for charge in before.settled)


def _left(event: Event, before: Ledger | None) -> bool:
    """Whether an earlier attempt reserved the event and did not settle it: this one goes on with it."""
    return before is not None and before.unsettled[-1:] == (Charge(event, 1),)


def _check_standing(plan: Plan, event: Event, before: Ledger | None, state: State | None) -> None:
    """What the ledger and the state say together is something that an attempt can go on from.

    Raises:
        RunFailed: the run has ended, and its final state is gone.
        BudgetSpent: the budget does not hold the event.
    """
    if _settled(event, before):
        if state is None or not state.finished:
            raise RunFailed(
                "this run has ended, and its final state is not in private/: there is nothing to publish, and to "
                "descend once more would be to spend once more",
                "put the run's own files back, or start anew in another folder",
            )
        return
    if _left(event, before):
        return
    budget = plan.budget
    charges = [*(() if before is None else before.charges), Charge(event, 1)]
    if not accountants.epsilon(charges, budget.delta, budget.neighbouring, budget.accountant) <= budget.epsilon:
        raise BudgetSpent("the ledger leaves no room for this run", "start anew in another folder")


def _descend(
    plan: Plan,
    program: PnsgdProgram,
    secrets: Secrets,
    state: State | None,
    kept: HiddenState,
    ledger: LedgerWriter,
    folder: RunFolder,
    stopped: threading.Event,
) -> State:
    """Make the steps that are left, or as many as come before a stop; the state of the end is kept before it returns.

    The event has to be reserved.
    """
    own, train, objective = plan.room_as(PnsgdPlan), program.sets.train, program.objective
    asked = own.descent
    if state is None:
        state = State.fresh(
            objective.shape,
            len(train),
            plan.length.steps,
            secrets,
            permuted=asked.order == "permuted",
            random_stop=asked.stop == "random",
        )
    noise = Noise(Distribution(asked.family), secrets, math.prod(objective.shape))
    descent = Descent(objective, program.stages, asked.batch_size, train, noise, state, program.where())
    encrypted, saved = own.checkpoint == "encrypted", time.monotonic()
    progress = Progress("descent", "step", state.stop, state.step)
    with stopping_on_signals(stopped.set, "block of steps"):
        while not (state.finished or stopped.is_set()):
            descent.advance()
            progress.show(descent.step)
            if own.private_log and descent.pass_ended:
                loss = objective.mean_loss(descent.state.iterate, train)
                log.append_line(folder.private / "losses.csv", {"step": descent.step, "loss": loss})
            if encrypted and time.monotonic() - saved >= plan.runtime.checkpoint_seconds:
                kept.save(descent.state, ledger.head)
                saved = time.monotonic()
        progress.end(descent.step)
        state = descent.state
        if encrypted or state.finished:
            kept.save(state, ledger.head)
    return state


def weights_of(plan: Plan, data_facts: DataFacts, iterate: Floats) -> dict[str, Tensor]:
    """The state of the module that the plan's model builds, in single precision.

    Where a classifier of two classes has one predictor, the outputs of its module are 0 and that predictor.
    """
    state = _module(plan, data_facts).state_dict()
    bias = plan.room_as(PnsgdPlan).bias
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
    return build(plan.model, data_facts.shape, data_facts.classes, plan.runtime.seed, data_facts.target)


def _score(
    plan: Plan, folder: RunFolder, program: PnsgdProgram, test: RecordSource, weights: dict[str, Tensor], step: int
) -> Score:
    """Of the model that is released, after the ledger was closed."""
    held_out = HeldOut(
        _module(plan, program.facts), test, torch.device("cpu"), plan.runtime.physical_batch, program.facts.target
    )
    score = held_out.score(weights)
    folder.record(step, plan.guarantee.epsilon, score.metrics)
    return score
