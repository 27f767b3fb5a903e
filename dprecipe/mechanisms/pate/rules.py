"""Checks of the `pate` block, each a small function: what can't be accounted for, what would not be worth its budget.

No data is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dprecipe.data.facts import facts as data_facts
from dprecipe.data.facts import table_columns
from dprecipe.data.names import is_name, misnamed
from dprecipe.data.schema import Csv, Data, Npz, Parquet, Source
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, LnMax, Pate
from dprecipe.models import checks as model_checks
from dprecipe.models.schema import GradientBoosting, Pretrained, RandomForest
from dprecipe.noise.schema import Noise

MOST_QUERIES = 10_000_000
FEW_TEACHERS = 1000
"""Below this, the noise that makes a data-dependent bound publishable takes what the bound gains."""
RECORDS_A_TEACHER = 7
"""With as many on average, fewer than 1 % of the parts have no record or one."""


def check(spec: Pate, facts: Facts) -> list[Finding]:
    """All findings of the block, errors and warnings."""
    return [finding for rule in RULES for finding in rule(spec, facts)]


def pool(data: Data) -> int | None:
    """How many public records there are; None where only the file knows."""
    records = None if data.public is None else data.public.records
    return None if records is None else records[1] - records[0]


def one_ensemble(spec: Pate, facts: Facts) -> Iterator[Finding]:
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


def teachers_training(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Networks learn by gradient steps, trees are fitted at once, logistic regression can do either."""
    teachers = spec.teachers
    model, training, path = teachers.model, teachers.training, "mechanism.teachers.training"
    if training is None:
        if isinstance(model, Pretrained):
            yield Finding(
                "R271",
                f"nothing says how a teacher trains its {model.kind}",
                f"add {path}: {{epochs: …, optimizer: {{kind: adam, lr: …}}}}",
                path,
            )
        return
    if model is None or isinstance(model, RandomForest | GradientBoosting):
        what = "votes from a file come of no training here" if model is None else f"a {model.kind} is fitted at once"
        yield Finding("R271", what, f"remove {path}", path)
    elif (training.epochs is None) == (training.steps is None):
        both = training.epochs is not None
        yield Finding(
            "R271",
            f"the teachers' training has {'both epochs and steps' if both else 'no length'}",
            "remove one of them" if both else f"set {path}.epochs (passes over a part of average size) or {path}.steps",
            f"{path}.steps" if both else path,
        )


def teachers_read_the_data(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A teacher's model takes the same features as the student's, and is one that teachers can learn."""
    teachers = spec.teachers
    if teachers.model is None:
        return
    useless = model_checks.useless(teachers.model, spec.kind, fitted=teachers.training is None)
    for finding in (*model_checks.check(teachers.model, data_facts(facts.data)), *useless):
        remedy = finding.remedy.replace("model.", "mechanism.teachers.model.")
        remedy = remedy.replace("training.optimizer", "mechanism.teachers.training.optimizer")
        yield replace(finding, path=f"mechanism.teachers.{finding.path}", remedy=remedy)


def identity(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """What names a record has to be there, and a unit's records stay together."""
    column, path = spec.teachers.identity, "mechanism.teachers.identity"
    if column is None:
        return
    if not is_name(column):
        yield misnamed(path, column)
    source, unit = facts.data.train.source, facts.data.unit
    if spec.teachers.votes is not None:
        yield Finding("R273", "votes from a file: no record is dealt to a teacher here", f"remove {path}", path)
    elif unit != "record":
        yield Finding(
            "R273",
            f"records of one {unit.column} stay together: that column names them already",
            f"remove {path}",
            path,
        )
    elif source in ("digits", "idx"):
        yield Finding(
            "R273",
            f"source {source} has no column {column!r} that could name records",
            f"remove {path}: records are then named by their number",
            path,
        )
    elif column in _described(facts.data.train):
        yield Finding(
            "R273",
            f"column {column!r} describes records and does not name them: many share a value, and a record that is "
            "replaced would change teachers",
            f"remove {path}: records are then named by their number; or name a column of record numbers",
            path,
        )


def _described(source: Source) -> frozenset[str]:
    """The columns that are features, and the label."""
    if isinstance(source, Csv | Parquet):
        return frozenset((*(table_columns(source) or {}), source.label.column))
    return frozenset((source.features, source.labels)) if isinstance(source, Npz) else frozenset()


def augmentation(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Augmentation is of training by gradient steps: what is fitted at once, or was voted elsewhere, has none."""
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


def votes_match_the_records(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Each public record has its row of votes."""
    votes, path = spec.teachers.votes, "mechanism.teachers.votes.records"
    if votes is None or votes.records is None:
        return
    first, end = votes.records
    records = pool(facts.data)
    if first >= end:
        yield Finding("R274", f"[{first}, {end}] holds no row of votes", "write [first, end) with first < end", path)
    elif records is not None and end - first != records:
        yield Finding(
            "R274",
            f"{end - first:,} rows of votes for {records:,} public records",
            f"write [{first}, {first + records}], or change data.public.records",
            path,
        )


def noise_has_a_bound(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Which laws of noise on votes are accounted for."""
    kind, path = spec.aggregator.kind, "mechanism.aggregator"
    family = spec.aggregator.noise.family
    if isinstance(spec.aggregator, LnMax):
        if family == "gaussian":
            why, remedy = "Gaussian noise on the votes is gnmax", f"set {path}.kind to gnmax"
        else:
            why, remedy = _WHY_NO_BOUND, f"set {path}.noise.family to laplace"
        if family != "laplace":
            yield _unbounded(family, kind, why, remedy, f"{path}.noise")
    elif family == "laplace":
        if spec.selection is None:
            why, remedy = "Laplace noise on the votes is lnmax", f"set {path}.kind to lnmax"
        else:
            why = "how many queries are answered depends on the votes, and the filter that allows it is Gaussian"
            remedy = f"set {path}.noise.family to gaussian, or use kind: lnmax, which answers every query"
        yield _unbounded(family, kind, why, remedy, f"{path}.noise")
    elif family != "gaussian":
        yield _unbounded(family, kind, _WHY_NO_BOUND, f"set {path}.noise.family to gaussian", f"{path}.noise")
    if spec.selection is not None:
        yield from _selection_noise(spec.selection.noise, kind)


_WHY_NO_BOUND = "a vote that moves changes two counts, and what the choice of the largest then spends is not proved"


def _unbounded(family: str, kind: str, why: str, remedy: str, path: str) -> Finding:
    return Finding("P101", f"{family} noise can't be accounted for in {kind}: {why}", remedy, f"{path}.family")


def _selection_noise(noise: Noise, kind: str) -> Iterator[Finding]:
    path = "mechanism.aggregator.selection.noise"
    if noise.family != "gaussian":
        why = "the filter that allows queries to be selected by the votes is Gaussian"
        yield _unbounded(noise.family, kind, why, f"set {path}.family to gaussian", path)
    if noise.multiplier == "auto":
        yield Finding(
            "R276",
            "the noise of the check is not solved for: that of the answers can be",
            f"give {path}.multiplier a number; the literature has two to four times that of the answers",
            f"{path}.multiplier",
        )


def threshold(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A check that turns nothing away spends budget for nothing; one that lets nothing pass, too."""
    selection = spec.selection
    if selection is None or selection.noise.multiplier == "auto":
        return
    count, deviation = spec.teachers.count, selection.noise.multiplier
    thresholds = {"selection.threshold": selection.threshold}
    if isinstance(spec.aggregator, InteractiveGnMax) and spec.aggregator.interaction.threshold is not None:
        thresholds["interaction.threshold"] = spec.aggregator.interaction.threshold
    for name, value in thresholds.items():
        if value > count + 3 * deviation:
            yield Finding(
                "P153",
                f"hardly a query is answered: even if all {count} teachers agree, the check passes with a chance of "
                f"{math.erfc((value - count) / deviation / math.sqrt(2)) / 2:.0e}",
                f"set mechanism.aggregator.{name} to at most {count}",
                f"mechanism.aggregator.{name}",
                severity=Severity.WARNING,
            )
    least = count / data_facts(facts.data).classes
    if selection.threshold <= least:
        yield Finding(
            "P153",
            f"some class always has {math.ceil(least)} votes or more: every query passes the check with a chance of "
            "one half or more, whatever the teachers say",
            "raise mechanism.aggregator.selection.threshold, or use kind: gnmax, which pays for no check",
            "mechanism.aggregator.selection.threshold",
            severity=Severity.WARNING,
        )


def interaction(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Every round has a query, and the student's confidence says something."""
    if not isinstance(spec.aggregator, InteractiveGnMax):
        return
    chosen, queries, path = spec.aggregator.interaction, spec.queries.max, "mechanism.aggregator.interaction"
    if queries != "auto" and chosen.rounds > queries:
        yield Finding(
            "R277",
            f"{chosen.rounds} rounds of {queries:,} queries: some would have none",
            f"set {path}.rounds to at most {queries}" if queries > 1 else "raise mechanism.queries.max",
            f"{path}.rounds",
        )
    classes = data_facts(facts.data).classes
    if chosen.confidence <= 1 / classes:
        yield Finding(
            "R277",
            f"of {classes} classes one always has a score of 1/{classes} or more: the student would label everything",
            f"set {path}.confidence to a number near 1, such as 0.95",
            f"{path}.confidence",
        )


def queries(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """As many queries as there can be, and no more answers than that."""
    most, answers, records = spec.queries.max, spec.queries.answers, pool(facts.data)
    if answers is not None and spec.selection is None:
        yield Finding(
            "R278",
            f"{spec.aggregator.kind} answers every query",
            "remove mechanism.queries.answers, and set mechanism.queries.max",
            "mechanism.queries.answers",
        )
    if most == "auto":
        return
    if answers is not None and spec.selection is not None and answers > most:
        yield Finding(
            "R278",
            f"{answers:,} answers of {most:,} queries",
            f"set mechanism.queries.answers to at most {most}",
            "mechanism.queries.answers",
        )
    if records is not None and 0 < records < most:
        yield Finding(
            "R278",
            f"{most:,} queries of {records:,} public records: a record is asked about once",
            f"set mechanism.queries.max to at most {records}",
            "mechanism.queries.max",
        )
    elif most > MOST_QUERIES:
        yield Finding(
            "P109",
            f"{most:,} queries; the most is {MOST_QUERIES:,}",
            "lower mechanism.queries.max",
            "mechanism.queries.max",
        )


def records_for_every_teacher(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A teacher without records votes a constant; parts are dealt by chance, so that some get few."""
    count, size = spec.teachers.count, facts.size
    mean = size / count
    few = math.exp(-mean) * (1 + mean)
    if size < count:
        yield Finding(
            "P152",
            f"{size:,} records for {count:,} teachers: some teacher would have none",
            f"set mechanism.teachers.count to at most {max(2, size // RECORDS_A_TEACHER)}",
            "mechanism.teachers.count",
        )
    elif spec.teachers.votes is None and mean < RECORDS_A_TEACHER:
        fewer = size // RECORDS_A_TEACHER
        yield Finding(
            "P152",
            f"{size:,} records for {count:,} teachers: about {few:.0%} of the teachers get one record or none, and "
            "vote a constant",
            f"set mechanism.teachers.count to at most {fewer}" if fewer >= 2 else "find more records",
            "mechanism.teachers.count",
            severity=Severity.WARNING,
        )


def sanitised(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A data-dependent ε is published only where it has an analysis, a fixed list of queries, and a finite cost."""
    chosen, path = spec.sanitize, "mechanism.sanitize"
    if chosen is None:
        return
    if isinstance(spec.aggregator, InteractiveGnMax):
        yield Finding(
            "P154",
            "interactive_gnmax asks what earlier answers suggest: what the votes cost is then no function of the data, "
            "and has no smooth sensitivity",
            "remove mechanism.sanitize (and keep the analysis private), or use kind: confident_gnmax",
            path,
        )
    elif spec.analysis != "data_dependent":
        yield Finding(
            "P154",
            "there is no data-dependent ε to publish",
            "set mechanism.analysis to data_dependent, or remove mechanism.sanitize",
            path,
        )
    elif spec.teachers.count > (most := _most_sensitive()):
        yield Finding(
            "P154",
            f"the smooth sensitivity of {spec.teachers.count:,} teachers' votes is not worked out: its table would not "
            "fit into memory",
            f"set mechanism.teachers.count to at most {most}, or remove mechanism.sanitize",
            path,
        )
    # chosen.order - (chosen.order - 1) exp(2 β) > 0, written so that nothing overflows
    largest = -math.log1p(-1 / chosen.order) / 2
    if not chosen.beta < largest:
        yield Finding(
            "P155",
            f"publishing costs without bound: at order {chosen.order:g} β has to be below {largest:.4g}",
            f"set mechanism.sanitize.beta to {_below(0.37 / chosen.order, largest):g}",
            f"{path}.beta",
        )


def _most_sensitive() -> int:
    from dprecipe.mechanisms.pate.theory.vote_sensitivity import MOST_TEACHERS  # needs scipy

    return MOST_TEACHERS


def _below(value: float, largest: float) -> float:
    """A round number near `value`, less than `largest`."""
    return float(f"{min(value, 0.8 * largest):.1e}")


def few_teachers(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """What sanitising costs is the same for ten teachers as for ten thousand; what it gains is not."""
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


RULES: Sequence[Callable[[Pate, Facts], Iterator[Finding]]] = (
    one_ensemble,
    teachers_training,
    teachers_read_the_data,
    identity,
    augmentation,
    votes_match_the_records,
    noise_has_a_bound,
    threshold,
    interaction,
    queries,
    records_for_every_teacher,
    sanitised,
    few_teachers,
)
