"""Checks of the `pate` block that are about its teachers and what they learn from. No data is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dprecipe.contract.mechanism import Facts
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.names import is_name, misnamed_finding
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.models import checks as model_checks
from dprecipe.models.schema import GradientBoosting, Model, Pretrained, RandomForest

FEW_TEACHERS = 1000
"""Below this, the noise that makes a data-dependent bound publishable takes what the bound gains."""
RECORDS_A_TEACHER = 7
"""Records a teacher on average, with which fewer than 1 % of the parts have at most one record."""


def check_ensemble(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Teachers are trained here, or their votes come from a file."""
    teachers = spec.teachers
    if (teachers.model is None) == (teachers.votes is None):
        both = teachers.model is not None
        yield Finding(
            "R270",
            "the teachers have both a model and a file of votes"
            if both
            else "the teachers have neither model nor votes",
            "remove one of the two"
            if both
            else "add mechanism.teachers.model, or votes of an ensemble trained elsewhere",
            "mechanism.teachers",
        )


def check_training(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Networks learn by gradient steps, trees are fitted at once, logistic regression can do either."""
    teachers = spec.teachers
    model, training, path = teachers.model, teachers.training, "mechanism.teachers.training"
    if training is None:
        if isinstance(model, Pretrained):
            yield Finding(
                "R271",
                f"the teachers' {model.kind} has no training",
                f"add {path}: {{epochs: …, optimizer: {{kind: adam, lr: …}}}}",
                path,
            )
        return
    if model is None or isinstance(model, RandomForest | GradientBoosting):
        problem = (
            "the votes come from a file, so no teacher is trained"
            if model is None
            else f"a {model.kind} is fitted at once"
        )
        yield Finding("R271", problem, f"remove {path}", path)
    elif (training.epochs is None) == (training.steps is None):
        both = training.epochs is not None
        yield Finding(
            "R271",
            f"the teachers' training has {'both epochs and steps' if both else 'no length'}",
            "remove one of them" if both else f"set {path}.epochs (passes over a part of average size) or {path}.steps",
            f"{path}.steps" if both else path,
        )


def check_teacher_model(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A teacher's model takes the same features as the student's, and is one that teachers can learn."""
    teachers = spec.teachers
    if teachers.model is None:
        return
    results = [
        *model_checks.check_data(teachers.model, data_facts(facts.data)),
        *model_checks.find_unsupported(teachers.model, spec.kind, fitted=teachers.training is None, convex="pnsgd"),
        *_begins_elsewhere(teachers.model),
    ]
    for finding in results:
        remedy = finding.remedy.replace("model.", "mechanism.teachers.model.")
        remedy = remedy.replace("training.optimizer", "mechanism.teachers.training.optimizer")
        yield replace(finding, path=f"mechanism.teachers.{finding.path}", remedy=remedy)


def check_student_weights(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A student begins from the random weights of its seed, as teachers do."""
    yield from _begins_elsewhere(facts.model)


def _begins_elsewhere(model: Model) -> Iterator[Finding]:
    if isinstance(model, Pretrained) and model.starts_elsewhere:
        yield Finding(
            "R280",
            "teachers and students of pate start from random weights; the file would not be used",
            "remove model.init (and what comes with it: model.train, model.lora), or choose mechanism.kind dpsgd",
            "model.init" if model.init is not None else "model",
        )


def check_identity(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """The column that names records exists, and a unit's records stay together."""
    column, path = spec.teachers.identity, "mechanism.teachers.identity"
    if column is None:
        return
    if not is_name(column):
        yield misnamed_finding(path, column)
    source, unit = facts.data.train, facts.data.unit
    if spec.teachers.votes is not None:
        yield Finding(
            "R273", "the votes come from a file, so no record is assigned to a teacher", f"remove {path}", path
        )
    elif unit != "record":
        yield Finding(
            "R273",
            f"records of one {unit.column} stay together: that column names them already",
            f"remove {path}",
            path,
        )
    elif not source.has_names:
        yield Finding(
            "R273",
            f"source {source.source} has no column {column!r} that could name records",
            f"remove {path}: records are then named by their number",
            path,
        )
    elif column in source.described:
        yield Finding(
            "R273",
            f"column {column!r} describes records and does not name them: many share a value, and a record that is "
            "replaced would change teachers",
            f"remove {path}: records are then named by their number; or name a column of record numbers",
            path,
        )


def check_augmentation(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Only teachers that learn by gradient steps can be augmented, not those fitted at once or trained elsewhere."""
    if spec.teachers.training is not None:
        return
    for index, step in enumerate(facts.data.preprocess):
        if step.crop is not None or step.flip is not None:
            name = "crop" if step.crop is not None else "flip"
            yield Finding(
                "R275",
                f"{name} changes what teachers learn from at random, step by step, and these teachers take no steps",
                "remove the step (a student has training.augment), or train the teachers by gradient steps",
                f"data.preprocess.{index}",
            )


def check_part_sizes(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A teacher without records votes a constant; parts are dealt by chance, so some get few records."""
    count, size = spec.teachers.count, facts.size
    mean = size / count
    share_idle = math.exp(-mean) * (1 + mean)
    if facts.data.size is None:
        return
    if size < count:
        yield Finding(
            "P152",
            f"{size:,} records for {count:,} teachers: some teachers would have none",
            f"set mechanism.teachers.count to at most {max(2, size // RECORDS_A_TEACHER)}",
            "mechanism.teachers.count",
        )
    elif spec.teachers.votes is None and mean < RECORDS_A_TEACHER:
        max_teachers = size // RECORDS_A_TEACHER
        yield Finding(
            "P152",
            f"{size:,} records for {count:,} teachers: about {share_idle:.0%} of the teachers get one record or none, "
            "and vote a constant",
            f"set mechanism.teachers.count to at most {max_teachers}" if max_teachers >= 2 else "find more records",
            "mechanism.teachers.count",
            severity=Severity.WARNING,
        )


def check_sanitised_teachers(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Sanitising costs the same for ten teachers as for ten thousand, but gains less with few."""
    count = spec.teachers.count
    if spec.sanitize is not None and count < FEW_TEACHERS:
        yield Finding(
            "P156",
            f"with {count:,} teachers a data-dependent ε that may be published is seldom smaller than the worst-case "
            "one, and its noise takes budget from the answers",
            "remove mechanism.sanitize: analysis: data_dependent alone writes a report to private/ and costs nothing",
            "mechanism.sanitize",
            severity=Severity.WARNING,
        )
