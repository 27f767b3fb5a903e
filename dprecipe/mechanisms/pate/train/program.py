"""Preparation of a PATE run from its plan: reads and names records, chooses queries, tries the program; spends nothing.

Axes: R public records, Q queries, M classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.paid.constants import StageConstants
from dprecipe.data.records import Records
from dprecipe.data.units import Identities
from dprecipe.faults import DataFault, InternalFault, UsageFault
from dprecipe.mechanisms.pate import votes_file
from dprecipe.mechanisms.pate.aggregators import Counts
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.schema import Teachers
from dprecipe.mechanisms.pate.train import checks
from dprecipe.mechanisms.pate.train.cluster_teachers import TeacherMachines, check_machines
from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Lesson, Take
from dprecipe.mechanisms.pate.train.merge import ShardVotes, find_key, make_terms
from dprecipe.mechanisms.pate.train.partition import ChosenQueries, choose_queries, deal_parts, digest_pending
from dprecipe.mechanisms.pate.train.shards import ShardTerms, VoteStore
from dprecipe.mechanisms.pate.train.student import check_student
from dprecipe.mechanisms.pate.train.teachers import train_teachers
from dprecipe.mechanisms.pate.votes_file import Expected
from dprecipe.training.checks.stages import stage_noise
from dprecipe.training.program.program import apply_all, device_of
from dprecipe.training.program.records import RecordSource
from dprecipe.training.publish.draft import check_publishable
from dprecipe.training.publish.provenance import RunProvenance, private_of
from dprecipe.training.publish.released import refuse_python_tensors, tensors_of, trained_names
from dprecipe.training.run.runner import PythonInputs


@final
@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Teachers that are trained in the run, on private records that have names."""

    lesson: Lesson
    teachers: int
    records: RecordSource
    identities: Identities
    shards: ShardVotes | None = None
    """Shards in which the teachers have already voted, if they have."""
    machines: TeacherMachines | None = None
    """Cluster that trains them; None: this machine does."""

    def dealt(self, key: bytes) -> NDArray[np.int64]:
        """Returns the teacher of each record."""
        of_name = deal_parts(self.identities.texts(), key, self.teachers)
        return of_name[self.identities.of_record]

    def private(self, key: bytes) -> Sequence[NDArray[Any] | bytes] | None:
        """Returns the content that a commitment covers: the records and the teacher of each.

        None for a custom source of records, which has no digest.
        """
        parts = private_of(self.records)
        return None if parts is None else [*parts, self.dealt(key)]

    def with_constants(self, constants: Sequence[StageConstants]) -> Trained:
        """Returns the same teachers on records that are prepared with these constants."""
        records = apply_all(self.records, constants)
        if records is None:
            raise InternalFault("teachers without records")
        return replace(self, records=records)

    def counts(
        self, key: bytes, asked: Floats, folder: Path, device: torch.device, stop: Callable[[], bool]
    ) -> Counts | None:
        """Returns the votes on the queries `asked`; None if `stop` came first. `folder` keeps each teacher's votes."""
        ensemble = DealtParts.of(self.dealt(key), self.teachers)
        store = VoteStore(folder, len(asked), self.lesson.classes)
        if self.shards is not None:
            self.shards.keep_votes(store)
        take = cast(Take, self.records.batch)  # numeric labels were refused: these are classes
        if not train_teachers(self.lesson, ensemble, take, asked, store, device, stop, machines=self.machines):
            return None
        return store.counts(self.teachers)

    def train(
        self,
        key: bytes,
        asked: Floats,
        store: VoteStore,
        device: torch.device,
        stop: Callable[[], bool],
        teachers: Sequence[int],
    ) -> bool:
        """Trains these teachers and puts their votes in the store; returns false if `stop` came first."""
        ensemble, take = DealtParts.of(self.dealt(key), self.teachers), cast(Take, self.records.batch)
        return train_teachers(self.lesson, ensemble, take, asked, store, device, stop, teachers)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Voted:
    """Teachers that were trained elsewhere, as their votes on the queries, (Q, M)."""

    votes: Counts
    records: None = None

    def with_constants(self, constants: Sequence[StageConstants]) -> Voted:
        """Returns itself: votes from elsewhere depend on no constants of this run."""
        return self

    def private(self, key: bytes) -> tuple[NDArray[Any], ...]:
        """Returns the content that a commitment covers: the votes."""
        return (self.votes,)


@final
@dataclass(frozen=True, eq=False)
class PateProgram:
    """Inputs of a run besides its ledger: teachers, public records, queries, test records, provenance."""

    ensemble: Trained | Voted
    public_records: RecordSource | None
    """None where queries are known by the rows of their votes alone."""
    shape: tuple[int, ...]
    """Shape of a record's features after preprocessing."""
    queries: ChosenQueries
    test: RecordSource | None
    inputs: PythonInputs
    provenance: RunProvenance

    def with_constants(self, constants: Sequence[StageConstants]) -> PateProgram:
        """Returns the program on records prepared with these constants, which paid steps have released.

        It prepares the records of teachers and student, and those of the test.
        """
        if not constants:
            return self
        public = apply_all(self.public_records, constants)
        ensemble, test = self.ensemble.with_constants(constants), apply_all(self.test, constants)
        return replace(self, ensemble=ensemble, public_records=public, test=test)

    @cached_property
    def public(self) -> Floats:
        """Returns the public records' features, (R, …), prepared; only after all paid steps have released constants.

        Raises:
            DataFault: their shape is not the recipe's.
        """
        if self.public_records is None:
            raise InternalFault("a run without public records")
        return features_of(self.public_records, self.shape)

    def counts(self, key: bytes, folder: Path, stop: Callable[[], bool]) -> Counts | None:
        """Returns the votes on the queries; None if `stop` came first. `folder` keeps those of each teacher."""
        if isinstance(self.ensemble, Voted):
            return self.ensemble.votes
        return self.ensemble.counts(key, self.asked, folder, self.device, stop)

    @property
    def device(self) -> torch.device:
        """Returns the device on which teachers and students learn."""
        return self.provenance.device

    def terms(self, plan: Plan, key: bytes) -> ShardTerms:
        """Returns the terms that determine the votes of teachers trained on this machine.

        Raises:
            UsageFault: the votes depend on paid steps, which only a run takes; or see `make_terms`.
        """
        ensemble = self.ensemble
        if isinstance(ensemble, Voted):
            raise ValueError("the votes come from a file: there are no teachers to train")
        if plan.stages:
            raise UsageFault(
                "teachers learn behind paid steps of preprocessing, which only the run takes",
                "train them in the run: on this machine, or on a cluster with --ray",
            )
        records = ensemble.private(key)
        return make_terms(plan, ensemble.lesson, ensemble.teachers, records, self.asked, self.device, key)

    @property
    def asked(self) -> Floats:
        """Returns the features of the queries, (Q, …)."""
        return self.public[self.queries.records]


def prepare(plan: Plan, root: Path, inputs: PythonInputs) -> PateProgram:
    """Tries the program on synthetic records, and only then reads its own records.

    Raises:
        DataFault: the data or the votes are not what the recipe declares.
        UsageFault: training records are given although the votes come from a file; or the recipe refuses tensors of
            the student.
        RunFailed: the program does not do what the accounting assumes.
    """
    if inputs.model is not None:
        refuse_python_tensors(plan, inputs.model)
    teachers, device = teachers_of(plan), device_of(plan.runtime.device)
    lesson = None if teachers.votes is not None else lesson_of(plan, teachers)
    if lesson is None and inputs.train is not None:
        raise UsageFault("the votes come from a file, so no training records are read", "leave `train` out")
    tried = [checks.noise_scale(plan)]
    if lesson is not None:
        tried += [checks.check_parts(teachers.count), checks.check_vote_sensitivity(lesson, device)]
    tried += stage_noise(plan)
    public, shape = inputs.records("public", plan, root), describe_data(plan.data).shape
    chosen = _choose(plan, public, inputs.model, device)
    ensemble: Trained | Voted
    if lesson is None:
        ensemble = _voted(plan, teachers, root, chosen)
        tried.append(checks.check_votes(len(ensemble.votes), teachers.count))
    else:
        ensemble = _trained(plan, teachers, lesson, inputs.records("train", plan, root))
    test = inputs.records("test", plan, root)
    model, ours = inputs.model, inputs.train is None and inputs.public is None and inputs.test is None
    provenance = RunProvenance(
        tuple(tried), device, "recipe" if model is None else "python", "recipe" if ours else "python"
    )
    student = () if model is None else tensors_of(model.state_dict(), trained_names(model), True, False)
    check_publishable(plan, provenance, student)
    program = PateProgram(ensemble, public, shape, chosen, test, inputs, provenance)
    return program if isinstance(ensemble, Voted) else _bring_machines(plan, program, ensemble, inputs)


def _choose(plan: Plan, public: RecordSource | None, model: nn.Module | None, device: torch.device) -> ChosenQueries:
    """Chooses the public records that are asked; without any, the queries are the first rows of the votes.

    Raises:
        DataFault: there are too few public records, or none where a recipe needs them.
        RunFailed: the student from Python can't read them.
    """
    queries = plan.as_plan_of(PatePlan).queries
    if plan.data.is_elsewhere:
        return ChosenQueries(np.arange(queries), np.arange(queries))
    if public is None:
        raise DataFault("there are no public records to ask about", "name data.public, or pass public=")
    pending = digest_pending(public)
    if pending is not None:
        return choose_queries(pending, queries)
    features = features_of(public, describe_data(plan.data).shape)
    if model is not None:
        check_student(plan, model, features, device)
    return choose_queries(features, queries)


def _bring_machines(plan: Plan, program: PateProgram, ensemble: Trained, inputs: PythonInputs) -> PateProgram:
    """Adds to the program the shards of teachers that have voted elsewhere, or the cluster that will train them.

    Raises:
        UsageFault, DataFault: see `ShardVotes.find` and `check_machines`.
    """
    if inputs.teachers:
        key = find_key(inputs.teachers)
        shards = ShardVotes.find(inputs.teachers, program.terms(plan, key), key)
        return replace(program, ensemble=replace(ensemble, shards=shards))
    if inputs.cluster is not None:
        return replace(program, ensemble=replace(ensemble, machines=check_machines(inputs.cluster, program.device)))
    return program


def teachers_of(plan: Plan) -> Teachers:
    """Returns the teachers of a plan."""
    return plan.as_plan_of(PatePlan).ensemble


def lesson_of(plan: Plan, teachers: Teachers) -> Lesson:
    """Returns the public settings that the plan's teachers share."""
    result, training = describe_data(plan.data), teachers.training
    if teachers.model is None:
        raise ValueError("the votes come from a file: there are no teachers to train")
    # A small part takes as many steps as a large one: the length is public.
    an_epoch = 1 if training is None else math.ceil(plan.mechanism_plan.expected_batch / training.batch_size)
    steps = 1
    if training is not None:
        steps = training.steps or max(1, round((training.epochs or 0) * an_epoch))
    return Lesson(
        model=teachers.model,
        training=training,
        shape=result.shape,
        classes=result.outputs,
        preprocess=plan.data.preprocess,
        seed=plan.runtime.seed,
        steps=steps,
        steps_per_epoch=an_epoch,
        physical_batch=plan.runtime.physical_batch_size,
    )


def features_of(records: RecordSource, expected: tuple[int, ...]) -> Floats:
    """Returns the public records' features, (R, …), prepared; never uses their labels.

    They are in memory, or mapped from a file if they take more than `storage.IN_MEMORY_BYTES`.

    Raises:
        DataFault: they have another shape, or can't be written to disk.
    """
    if isinstance(records, Records) and (records.pending or records.features.dtype != np.float32):
        records = records.prepared(math.inf)
    features, _ = records.batch(slice(None))
    if features.shape[1:] != expected:
        raise DataFault(
            f"public records have the shape {list(features.shape[1:])}, those of the recipe {list(expected)}",
            "pass records of the recipe's shape, prepared in the same way",
        )
    return features


def _voted(plan: Plan, teachers: Teachers, root: Path, chosen: ChosenQueries) -> Voted:
    if teachers.votes is None:
        raise ValueError("the teachers are trained, no votes are read")
    rows = None if plan.data.is_elsewhere else len(chosen.of_record)
    votes_RM = votes_file.read(teachers.votes, root, Expected.of(plan, rows))
    return Voted(votes_RM[chosen.records])


def _trained(plan: Plan, teachers: Teachers, lesson: Lesson, records: RecordSource | None) -> Trained:
    if records is None:
        raise DataFault("there are no training records", "name data.train, or pass train=")
    identities = records.identities if isinstance(records, Records) else None
    if identities is None:
        partition_by = plan.as_plan_of(PatePlan).partition_by
        if partition_by != "record number":
            raise DataFault(
                f"the training records have no names, and the plan deals them by {partition_by!r}",
                "give Records.identities: Identities.named(…)",
            )
        identities = Identities.numbered(len(records))
    _hold_names(records, identities)
    return Trained(lesson, teachers.count, records, identities)


def _hold_names(records: RecordSource, identities: Identities) -> None:
    """Refuses records without a name, and units with several names, which would go to several teachers.

    Raises:
        DataFault: a record has no name, or a unit has several.
    """
    names, units = identities.of_record, records.units
    if len(names) != len(records):
        raise DataFault(
            "not every training record has a name",
            "name each of them in Records.identities",
            f"{len(names)} of {len(records)}",
        )
    if units is None:
        return
    of_unit = np.zeros(records.unit_count, np.int64)
    of_unit[units] = names
    if not np.array_equal(of_unit[units], names):
        raise DataFault(
            "a unit's training records have several names, so they would go to several teachers",
            "give all records of a unit one name: Records.identities and Records.units have to agree",
        )
