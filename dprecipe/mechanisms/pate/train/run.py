"""The runner of PATE: trains teachers on their parts, puts the queries, trains the student, publishes.

From the ballot on, everything is computed from public records and released labels: the student's modules receive
nothing else.

Axes: R public records, Q queries, M classes.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import final

import numpy as np
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.paid.constants import StageConstants
from dprecipe.faults import NothingLearned
from dprecipe.mechanisms.pate import labels
from dprecipe.mechanisms.pate.aggregators import Scores, aggregator_of, list_rounds
from dprecipe.mechanisms.pate.charges import count_queries
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.train import analysis, checks
from dprecipe.mechanisms.pate.train.answers import UNASKED, AnswersFile
from dprecipe.mechanisms.pate.train.ballot import Ballot, RemainingBudget, noise_streams
from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, collect_votes
from dprecipe.mechanisms.pate.train.partition import load_key
from dprecipe.mechanisms.pate.train.pool import count_cpus
from dprecipe.mechanisms.pate.train.program import PateProgram, Trained, lesson_of, prepare, teachers_of
from dprecipe.mechanisms.pate.train.student import no_labels, score_student, train_plan_student
from dprecipe.mechanisms.pate.train.teachers import one_thread
from dprecipe.privacy import accountants
from dprecipe.release.stages import digest_constants
from dprecipe.training.audit.request import AuditEvidence, AuditRequest
from dprecipe.training.loggers.run import log_release
from dprecipe.training.program.evaluate import METRICS, HeldOut, Score, keep_metrics
from dprecipe.training.program.program import device_of
from dprecipe.training.publish.provenance import private_of
from dprecipe.training.publish.publish import Finished
from dprecipe.training.publish.released import trained_names
from dprecipe.training.run.attempt import open_attempt
from dprecipe.training.run.checkpoint import check_trained
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.run.runner import EndedWithoutModel, PythonInputs, Rehearsal, Run, Runner, Start
from dprecipe.training.run.signals import stopping_on_signals
from dprecipe.training.steps.step_failures import locate_failures

REHEARSED = 100
"""Largest number of queries that a rehearsal asks."""
STUDENT_REMEDY = (
    "mend the module, and continue with --resume (resume=True): the answers are kept, and cost nothing more"
)


@final
class VotingRunner(Runner[PateProgram]):
    """The runner of PATE."""

    def prepare(self, plan: Plan, root: Path, inputs: PythonInputs) -> PateProgram:
        """Prepares the program: see `pate.train.program`."""
        return prepare(plan, root, inputs)

    def attempt(self, plan: Plan, folder: RunFolder, program: PateProgram, start: Start) -> Run:
        """Continues from the folder's state: teachers that have voted and queries that were put are not asked again."""
        planned, insecure = plan.as_plan_of(PatePlan), plan.runtime.insecure
        if isinstance(program.ensemble, Trained) and program.ensemble.shards is not None:
            program.ensemble.shards.keep_key(folder.private / "partition.key")
        key = load_key(folder.private / "partition.key", None if insecure is None else insecure.seed)
        public = private_of(program.public_records) if plan.stages else _digested_public(program)
        private = {"commitment": program.ensemble.private(key), "public": public, "partition": [key]}
        stopped, records = threading.Event(), program.ensemble.records
        with open_attempt(plan, folder, start, program.provenance, private, records=records) as attempt:
            ledger, program = attempt.ledger, program.with_constants(attempt.constants)
            with stopping_on_signals(stopped.set, "part of the run"):
                counts_QM = program.counts(key, folder.private / name_votes(attempt.constants), stopped.is_set)
                if counts_QM is None:
                    raise attempt.interrupted("some of the teachers")
                remaining_budget, streams = (
                    RemainingBudget(attempt.plan, ledger, attempt.charged),
                    noise_streams(attempt.secrets),
                )
                ballot = Ballot(
                    counts_QM,
                    aggregator_of(planned),
                    planned.answers,
                    remaining_budget,
                    streams,
                    AnswersFile(folder.private / "answers.jsonl", ledger.before, *counts_QM.shape),
                )
                check_trained(
                    plan,
                    "queries",
                    count_queries(remaining_budget.charged),
                    ballot.queries_put,
                    str(folder.private / "answers.jsonl"),
                    start.accept_lost_steps,
                )
                student = _Student(plan, program, stopped) if plan.has_model else None
                judge = partial(_score, plan, folder, program, ballot, remaining_budget)
                try:
                    _put(plan, ballot, student, stopped, judge)
                    module = None if stopped.is_set() else _learn(student, ballot)
                except NothingLearned as nothing:
                    if start.trial:
                        raise  # one run of several: the others go on
                    remaining_budget.charge_rest()
                    raise EndedWithoutModel(attempt.publish_nothing(nothing.message)) from None
            if (module is None and student is not None) or ballot.stop_reason is None:
                raise attempt.interrupted(f"{ballot.queries_put} of {plan.length.steps} queries")
            published = analysis.release_sanitised_cost(
                plan, counts_QM, ballot, remaining_budget, streams, folder.private / "sanitised.json", ledger.before
            )
            remaining_budget.charge_rest()
            ledger.close(ballot.stop_reason)
        remarks = [f"answered {ballot.answered:,} of {plan.length.steps:,} queries"]
        if planned.analysis == "data_dependent":
            analysis.write_analysis(plan, counts_QM, ballot, folder.private)
            remarks.append(f"what these votes cost is in {folder.private / 'analysis.json'}: never publish it")
        inputs = program.inputs
        fitted = inputs.model is None and plan.training.optimizer is None
        finished = Finished(
            weights={} if module is None else module.state_dict(),
            trained=frozenset() if module is None else trained_names(module, fitted=fitted),
            model=plan.model if inputs.model is None else None,
            score=None if module is None else judge(module),
            test_from_python=inputs.test is not None,
            published=published,
            steps_lost=count_queries(remaining_budget.charged) - ballot.queries_put,
            write=lambda path: _write_labels(plan, program, ballot, path),
            remarks=tuple(remarks),
        )
        done = attempt.publish(finished)
        log_release(plan, folder, done.epsilon, done.score, finished.test_from_python)
        return done

    def rehearse(self, plan: Plan) -> Rehearsal:
        """Trains a group of teachers on synthetic records, and takes their votes on a few synthetic queries."""
        teachers, device = teachers_of(plan), device_of(plan.runtime.device)
        tried = [checks.noise_scale(plan)]
        if teachers.votes is not None:
            return Rehearsal("the noise alone: the votes come from a file", None, tuple(tried))
        lesson, size = lesson_of(plan, teachers), max(1, round(plan.mechanism_plan.expected_batch))
        tried += [checks.check_parts(teachers.count), checks.check_vote_sensitivity(lesson, device)]
        group = min(lesson.group(device), teachers.count)
        generator = np.random.default_rng(0)
        ensemble = DealtParts.of(np.arange(group * size) % group, group)
        features = generator.random((group * size, *lesson.shape), dtype=np.float32)
        labels = generator.integers(lesson.classes, size=len(features))
        queries = generator.random((min(REHEARSED, plan.length.steps), *lesson.shape), dtype=np.float32)
        clock = time.monotonic()
        with one_thread():
            collect_votes(
                lesson, range(group), ensemble, lambda numbers: (features[numbers], labels[numbers]), queries, device
            )
        seconds = (time.monotonic() - clock) / group
        beside = 1 if device.type != "cpu" and lesson.training is not None else count_cpus()
        done = f"{group} of {teachers.count} teachers on synthetic records, and no student: {seconds:.2g} s a teacher"
        return Rehearsal(done, seconds * teachers.count / beside, tuple(tried))

    def audit(self, plan: Plan, request: AuditRequest) -> AuditEvidence:
        """Audits the program: see `audit.audit`."""
        from dprecipe.mechanisms.pate.train.audit import audit

        return audit(plan, request)


RUNNER = VotingRunner()


def name_votes(constants: Sequence[StageConstants]) -> str:
    """Names the folder in `private/` for the teachers' votes.

    Each set of preprocessing constants has a folder of its own: if a paid step was lost and drawn again, votes from
    before are not used.
    """
    if not constants:
        return "teachers"
    digest = hashlib.sha256("".join(map(digest_constants, constants)).encode()).hexdigest()
    return f"teachers-{digest[:16]}"


@final
class _Student:
    """The student of the answers so far, trained from scratch on each call of `learned`."""

    def __init__(self, plan: Plan, program: PateProgram, stopped: threading.Event) -> None:
        self._plan = plan
        self._public = program.public
        self._queries = program.queries
        self._model = program.inputs.model
        self._device = program.device
        self._stopped = stopped

    def learned(self, ballot: Ballot) -> nn.Module | None:
        """Trains the student on all labels so far; returns None if a stop came first.

        Raises:
            NothingLearned: there is no label, or the training diverged to numbers that are not finite.
        """
        labels_R = self._queries.labels(ballot.outcomes)
        with nullcontext() if self._model is None else locate_failures(self._model, "it learned", STUDENT_REMEDY):
            return train_plan_student(
                self._plan, self._model, self._public, labels_R, self._device, self._stopped.is_set
            )

    def expects(self, module: nn.Module, queries: range) -> Scores:
        """Returns the scores that the student `module` gives these queries."""
        features = self._public[self._queries.records[queries.start : queries.stop]]
        return score_student(module, features, self._device, self._plan.runtime.physical_batch_size)


def _digested_public(program: PateProgram) -> list[Floats]:
    return [] if program.public_records is None else [program.public]


def _learn(student: _Student | None, ballot: Ballot) -> nn.Module | None:
    """Trains the student, if there is one; returns None if a stop came first.

    Raises:
        NothingLearned: there is no label, or see `_Student.learned`.
    """
    if student is not None:
        return student.learned(ballot)
    if not ballot.answered:
        raise no_labels()
    return None


def _put(
    plan: Plan, ballot: Ballot, student: _Student | None, stopped: threading.Event, judge: Callable[[nn.Module], object]
) -> None:
    """Puts all queries, as far as the budget goes: at once, or in rounds.

    Before each further round a student is trained, shown to `judge`, and scores the round's queries. While there is no
    label there is no student, and no scores.
    """
    for part, aggregator in list_rounds(plan.as_plan_of(PatePlan)):
        expected = None
        waiting = ballot.stop_reason is None and bool((ballot.outcomes[part.start : part.stop] == UNASKED).any())
        if student is not None and part.start > 0 and waiting and bool((ballot.outcomes >= 0).any()):
            module = student.learned(ballot)
            if module is not None:
                judge(module)
                expected = student.expects(module, part)
        ballot.put(part, expected, stopped.is_set, aggregator)
        if stopped.is_set():
            return


def _score(
    plan: Plan,
    folder: RunFolder,
    program: PateProgram,
    ballot: Ballot,
    remaining_budget: RemainingBudget,
    module: nn.Module,
) -> Score | None:
    if program.test is None:
        return None
    target = describe_data(plan.data).target
    held_out = HeldOut(module, program.test, program.device, plan.runtime.physical_batch_size, target)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    score = held_out.score(state, full=True)
    keep_metrics(score, folder.private / METRICS)
    budget = plan.budget
    epsilon = accountants.epsilon(remaining_budget.charged, budget.delta, budget.neighbouring, budget.accountant)
    folder.record(ballot.queries_put, epsilon, score.metrics)
    return score


def _write_labels(plan: Plan, program: PateProgram, ballot: Ballot, folder: Path) -> None:
    """Writes `labels.csv`, a row for each answer; records equal to an asked one have no row of their own."""
    if not plan.release.labels:
        return
    first, names = labels.first_record(plan, program.inputs.public is not None), labels.label_names(plan)
    rows = [
        (first + int(program.queries.records[query]), names[int(ballot.outcomes[query])])
        for query in np.flatnonzero(ballot.answered_queries)
    ]
    (folder / labels.LABELS).write_text(labels.label_lines(rows), encoding="utf-8", newline="\n")
