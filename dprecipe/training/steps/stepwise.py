"""Runs of the mechanisms that take steps on noisy sums: the program under its trainer, attempt by attempt."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from torch import nn

from dprecipe.contract.facts import NO_MODEL
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.paid.stage import size_share
from dprecipe.faults import InternalFault, Interrupted, NothingLearned, RunFailed, UsageFault
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.audit import canaries_of
from dprecipe.privacy.events import Charge, count_by_event, drop_first, take_first
from dprecipe.privacy.ledger import Ledger, LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.release.origins import quote_names
from dprecipe.training.audit.request import AuditEvidence, AuditRequest
from dprecipe.training.canaries.contract import open_coins
from dprecipe.training.canaries.run import compare_scores, guess_coins, make_canaries
from dprecipe.training.checks.memory import (
    agree_on_size,
    check_memory,
    measure_physical_batch,
    rehearse_step,
    with_size,
)
from dprecipe.training.engine.full_precision import in_run_precision
from dprecipe.training.loggers.run import open_loggers
from dprecipe.training.probe.sums import SumTests
from dprecipe.training.processes.processes import FollowerGate, Processes, is_worker
from dprecipe.training.processes.sharded_weights import check_in_blocks, gathers_weights, whole_on
from dprecipe.training.processes.shards import check_divisible
from dprecipe.training.program.evaluate import METRICS, HeldOut, Sample, Scored, keep_metrics
from dprecipe.training.program.file_digests import check_initial_weights
from dprecipe.training.program.program import (
    Sets,
    StepwiseProgram,
    Synthetic,
    declared_records,
    measure_base,
    store_of,
)
from dprecipe.training.program.program import prepare as program_of
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.publish.draft import check_publishable
from dprecipe.training.publish.provenance import private_of
from dprecipe.training.publish.publish import Finished, check_learned
from dprecipe.training.publish.released import released_names, released_state, tensors_of
from dprecipe.training.run import checkpoint
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.checkpoint import check_trained
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.gate import Gate
from dprecipe.training.run.runner import EndedWithoutModel, PythonInputs, Rehearsal, Run, Runner, Start
from dprecipe.training.steps.contract import Build, StepContext
from dprecipe.training.steps.fit import Stopwatch, fit_steps
from dprecipe.training.steps.keep import BestIterate
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.own_scores import has_own_scores, own_scores_of, try_own_scores
from dprecipe.training.steps.step_failures import StepFailed
from dprecipe.training.steps.together import Shared, processes_of, refuse_answer, telling_end
from dprecipe.training.steps.updates import rehearse_updates
from dprecipe.training.steps.watch import BEST, SpentCurve, Watch


@final
@dataclass(slots=True)
class OpenAttempt:
    """An open attempt, for a trainer."""

    steps: NoisySteps
    watch: Watch
    """Callback that scores, logs and saves."""
    published: Run | None = None

    @property
    def run(self) -> Run:
        """The run, once the attempt has ended."""
        if self.published is None:
            raise InternalFault("a run was asked for before its attempt had ended")
        return self.published


REHEARSED = 20
"""The most steps that a rehearsal takes: one of long steps takes fewer."""


@final
@dataclass(frozen=True, slots=True)
class StepwiseRunner(Runner[StepwiseProgram]):
    """The runner of every mechanism that takes steps on noisy sums, given its module and the tests of its sums."""

    build: Build
    tests: Callable[[Plan, nn.Module], SumTests]
    """The probe's tests of its sums."""

    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> StepwiseProgram:
        """Returns the program of a plan, on its own records or on those from Python."""
        program = program_of(plan, self.tests, lambda: declared_records(plan, root, inputs), inputs.model, inputs.train)
        if gathers_weights(plan):
            check_in_blocks(program.model, program.device, from_python=program.custom_model)
        elif is_worker() and plan.runtime.sharding != "none":
            check_divisible([parameter for parameter in program.model.parameters() if parameter.requires_grad])
        rehearse_updates(plan, program.model)
        if inputs.train is None:
            check_initial_weights(plan, root, program.initial)
        if plan.training.keep is not None and program.sets.custom_test:
            raise UsageFault(
                "training.keep chooses by public records, and nothing says that test records from Python are public",
                "let data.test of the recipe name them, with access: public; or remove training.keep",
            )
        if has_own_scores(program.model):
            held_out = copies_to_score(plan, program)[0]
            try_own_scores(program.model, held_out, program.facts.target, from_python=program.sets.custom_test)
        if not gathers_weights(plan):  # a synthetic step has the weights whole
            program, plan = self._measure(plan, program)
            check_memory(plan, self.build, program)
            rehearse_step(plan, self.build, program)
        rows, target = plan.runtime.physical_batch_size, program.facts.target
        base = measure_base(program.model, program.sets.test, whole_on(plan, program.device), rows, target)
        program = replace(program, base_perplexity=base)
        weights = released_state(plan, program.model, program.model.state_dict())
        trained = released_names(plan, program.model)
        tensors = tensors_of(weights, trained, program.custom_model, program.initial is not None)
        check_publishable(plan, program.provenance, tensors)
        return program

    def _measure(self, plan: Plan, program: StepwiseProgram) -> tuple[StepwiseProgram, Plan]:
        """Returns both with the physical batch that memory allows, if the recipe leaves it to be measured."""
        if plan.runtime.physical_batch != "auto":
            return program, plan
        size = measure_physical_batch(plan, self.build, program)
        return replace(program, physical_batch=size), with_size(plan, size)

    def _assemble(
        self, plan: Plan, program: StepwiseProgram, gate: Gate | FollowerGate, shared: Shared, processes: Processes
    ) -> NoisySteps:
        """Makes the steps of an attempt, in the leader and in the processes that follow it alike."""
        canaries = None
        if shared.coins is not None:
            canaries = make_canaries(plan, shared.coins, program.store.records, program.model, program.device)
        context = StepContext(
            plan,
            program.model,
            program.store,
            gate,
            shared.secrets,
            processes,
            size_share(plan.data, shared.constants),
            canaries,
        )
        return self.build(context)

    def attempt(self, plan: Plan, folder: RunFolder, program: StepwiseProgram, start: Start) -> Run:
        """Trains from the folder's last state to the end of the plan or of the budget, and publishes."""
        with self.open_training(plan, folder, program, start) as training:
            fit_steps(training.steps, training.watch, training.steps.steps_left)
        return training.run

    @contextmanager
    def open_training(
        self, plan: Plan, folder: RunFolder, program: StepwiseProgram, start: Start
    ) -> Iterator[OpenAttempt]:
        """Opens the next attempt. Inside the block a trainer takes its steps; the end of the block settles them in the
        ledger and publishes.

        Raises:
            Interrupted: the trainer stopped before the plan's end; what was drawn is charged, and can be continued.
            EndedWithoutModel: nothing was learned.
        """
        processes, part = processes_of(plan, program), mechanism_of(plan.mechanism).certificate
        plan = agree_on_size(plan, program.physical_batch, processes, folder)
        state: dict[str, Any] | None = None

        def check(before: Ledger | None) -> None:
            nonlocal state
            state = checkpoint.of_ledger(checkpoint.load(folder.checkpoint), before)
            if before is not None:
                charged, trained = part.count_steps_charged(before.charges), checkpoint.steps_of(state)
                check_trained(plan, "steps", charged, trained, str(folder.checkpoint), start.accept_lost_steps)

        private = {"commitment": private_of(program.sets.train)}
        rest = partial(_find_rest, plan, lambda: state)
        opened = open_attempt(plan, folder, start, program.provenance, private, check, program.sets.train, rest)
        with telling_end(processes), opened as attempt:
            program = program.with_constants(plan, attempt.constants)
            gate = Gate(
                plan.mechanism_plan.events,
                attempt.plan.budget,
                attempt.ledger,
                attempt.secrets,
                attempt.charged,
                stages=plan.stage_charges,
            )
            scored = copies_to_score(plan, program)
            coins = None
            if canaries_of(plan):
                has_state = state is not None
                coins = open_coins(folder.private, canaries_of(plan), attempt.secrets, has_state=has_state)
            shared = Shared(attempt.secrets, attempt.constants, coins)
            steps = self._assemble(plan, program, gate, shared, processes)
            with checkpoint.explaining(folder.checkpoint):
                best = _best_iterate(plan, state)
                steps.begin(state, from_python=program.custom_model)
            trained = released_names(plan, program.model)
            processes.agree(lambda: (shared, state))
            curve = SpentCurve(plan, attempt.charged, steps.events_done)
            with open_loggers(plan, folder, program.sets.custom_test) as loggers:
                watch = Watch(
                    plan,
                    curve,
                    *scored,
                    own_scores_of(program.model, scored[0], program.facts.target),
                    folder.record,
                    lambda content: checkpoint.save(folder.checkpoint, {**content, "ledger": attempt.ledger.head}),
                    loggers,
                    best,
                )
                training = OpenAttempt(steps, watch)
                try:
                    yield training
                except StepFailed:
                    if steps.is_whole and steps.is_between_events:
                        watch.save(steps)
                    gate.close(interrupted=True)  # else all events of its block would count as spent
                    raise
                steps.gather()
                watch.save(steps)
                interrupted = gate.stop_reason is None
                try:
                    if not interrupted:
                        watch.score(steps)
                        check_learned(plan, program, watch.released_state(steps))
                except NothingLearned as nothing:
                    if start.trial:
                        raise  # one run of several: the others go on
                    gate.settle()
                    processes.agree(lambda: NO_MODEL)
                    raise EndedWithoutModel(attempt.publish_nothing(nothing.message)) from None
                reason = gate.close(interrupted)
                processes.agree(lambda: reason)
                if reason == "interrupted":
                    raise attempt.interrupted(f"{steps.steps_done} of {plan.length.steps} steps")
                score = watch.score_released(steps)
                keep_metrics(score, folder.private / METRICS, watch.training_score)
                watch.log_covered(steps)
            released = watch.released_state(steps)
        report_moved(steps)
        finished = Finished(
            weights=released_state(plan, program.model, released),
            trained=trained,
            model=None if program.custom_model else plan.model,
            score=score,
            test_from_python=program.sets.custom_test,
            config=program.config,
            steps_lost=part.count_steps_charged(gate.spent) - steps.steps_done,
            kept=None if best is None else best.facts,
            guesses=None if steps.canaries is None else guess_coins(plan, steps.canaries, released),
            scores=None
            if steps.canaries is None
            else compare_scores(plan, steps.canaries, released, from_python=program.custom_model),
        )
        training.published = done = attempt.publish(finished)
        with suppress(RunFailed):  # the release is there, and a process that is lost by now takes nothing from it
            processes.agree(lambda: done)

    def follow(self, plan: Plan, program: StepwiseProgram) -> Run:
        """Takes part in an attempt that another process leads; returns the leader's run.

        Raises:
            Interrupted: the leader was stopped.
        """
        processes = processes_of(plan, program)
        plan = agree_on_size(plan, program.physical_batch, processes, None)
        # The leader sends its secrets, its checkpoint and released constants; this process reads no files of its own.
        begun = processes.agree(refuse_answer)
        if isinstance(begun, Run):
            return begun  # it ended without a model
        shared, state = begun
        program = program.with_constants(plan, shared.constants)
        steps = self._assemble(plan, program, FollowerGate(shared.secrets), shared, processes)
        steps.begin(state, from_python=program.custom_model)
        fit_steps(steps, lightning.Callback(), steps.steps_left)
        steps.gather()
        if processes.agree(refuse_answer) == "interrupted":
            raise Interrupted("stopped by the leading process")
        done: Run = processes.agree(refuse_answer)
        return done

    def rehearse(self, plan: Plan) -> Rehearsal:
        """Takes a few steps on synthetic units, with all records that one may have and, where this is several, with
        one."""
        program, plan = self._measure(plan, program_of(plan, self.tests, lambda: Sets(Synthetic(plan))))
        steps, seconds = self._time_steps(plan, program)
        least = None
        if plan.data.unit != "record" and plan.data.unit.max_records > 1:
            sparse = replace(program, store=store_of(plan, Synthetic(plan, each=1), program.device))
            fewest = self._time_steps(plan, sparse)[1]
            seconds = max(seconds, fewest)  # the machine may have been busier at first
            least = fewest * plan.length.steps
        done = f"{steps.steps_done} steps on synthetic records: {seconds * 1000:.0f} ms per step"
        with in_run_precision():
            remarks = steps.remarks()
        return Rehearsal(done, seconds * plan.length.steps, program.checks, remarks, least)

    def _time_steps(self, plan: Plan, program: StepwiseProgram) -> tuple[NoisySteps, float]:
        """Returns the program after a few steps, and the seconds of one."""
        stopwatch, secrets = Stopwatch(), Secrets()
        with tempfile.TemporaryDirectory() as folder:
            ledger = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest)
            gate = Gate(take_first(plan.mechanism_plan.events, REHEARSED), plan.budget, ledger, secrets)
            steps = self.build(StepContext(plan, program.model, program.store, gate, secrets))
            fit_steps(steps, stopwatch, REHEARSED)
            ledger.abandon()
        return steps, stopwatch.seconds_per_step

    def audit(self, plan: Plan, request: AuditRequest) -> AuditEvidence:
        """Attacks the program of a plan with synthetic records."""
        from dprecipe.training.audit.program import examine_program, open_bench, remark_on
        from dprecipe.training.audit.steps import audit_steps

        parts = []
        with open_bench(plan, self.build, self.tests, lambda: request.show("program", 0, 0), request.inputs) as bench:
            if request.asks("program"):
                tests = tuple(examine_program(bench, plan.runtime.physical_batch_size))
                parts.append(AuditEvidence(tests, remarks=remark_on(bench.program.device)))
            if request.asks("steps"):
                parts.append(audit_steps(bench, request.steps, lambda done: request.show("steps", done, request.steps)))
        return AuditEvidence.joined(parts)


def _best_iterate(plan: Plan, state: dict[str, Any] | None) -> BestIterate | None:
    """Returns the best iterate so far, if the recipe keeps it; takes it out of the state, which all processes get."""
    if plan.training.keep is None:
        return None
    best = BestIterate(plan.training.keep)
    if state is not None:
        best.restore(state.pop(BEST))
    return best


def _find_rest(plan: Plan, state: Callable[[], dict[str, Any] | None], before: Ledger | None) -> tuple[Charge, ...]:
    """Returns what the attempt has still to draw: stages never charged, and the steps that its state lacks."""
    kept = state()
    done = 0 if kept is None else kept.get("events_done")
    charged = count_by_event(() if before is None else before.charges)
    stages = count_by_event(plan.stage_charges) - charged
    own = drop_first(plan.mechanism_plan.events, done if isinstance(done, int) else 0)
    return (*(Charge(event, count) for event, count in stages.items()), *own)


def report_moved(steps: NoisySteps) -> None:
    """Names the tensors that a module from Python changed by itself; their current values are not released."""
    moved = () if steps.snapshot is None else steps.snapshot.moved()
    if moved:
        report_progress(
            f"the module from Python changed tensors outside the noisy steps: {quote_names(moved)}; the release has "
            "their values from before training, and no tensor that was added later"
        )


def copies_to_score(plan: Plan, program: StepwiseProgram) -> tuple[HeldOut | None, HeldOut]:
    """Returns the held-out records, and a sample of the training records, each with a copy of the model.

    The model has to be whole: call it before the weights are divided into shards.
    """

    def copied(records: Scored) -> HeldOut:
        rows, own = plan.runtime.physical_batch_size, program.custom_model
        return HeldOut(
            program.model,
            records,
            whole_on(plan, program.device),
            rows,
            program.facts.target,
            from_python=own,
            base=program.base_perplexity if records is program.sets.test else None,
        )

    held_out = None if program.sets.test is None else copied(program.sets.test)
    return held_out, copied(Sample(program.sets.train))
