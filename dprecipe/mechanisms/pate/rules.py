"""Checks of the `pate` block, one small function each: what can't be accounted for, and what wastes budget.

No data is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.stages import list_paid_steps, path_of
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.faults import Finding, Severity
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, LnMax, Pate, Queries, VotingRound
from dprecipe.mechanisms.pate.teacher_rules import (
    check_augmentation,
    check_ensemble,
    check_identity,
    check_part_sizes,
    check_sanitised_teachers,
    check_student_weights,
    check_teacher_model,
    check_training,
)
from dprecipe.mechanisms.pate.votes_rules import check_labels_alone, check_votes, count_pool
from dprecipe.noise.schema import Noise

MAX_QUERIES = 10_000_000


def check(spec: Pate, facts: Facts) -> list[Finding]:
    """Returns all findings of the block, errors and warnings."""
    return [finding for rule in RULES for finding in rule(spec, facts)]


def check_noise_family(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """The noise on votes has a distribution that is accounted for."""
    kind, path = spec.aggregator.kind, "mechanism.aggregator"
    family = spec.aggregator.noise.family
    if isinstance(spec.aggregator, LnMax):
        if family == "gaussian":
            reason, remedy = "Gaussian noise on the votes is gnmax", f"set {path}.kind to gnmax"
        else:
            reason, remedy = _WHY_NO_BOUND, f"set {path}.noise.family to laplace"
        if family != "laplace":
            yield _unbounded(family, kind, reason, remedy, f"{path}.noise")
    elif family == "laplace":
        if spec.selection is None:
            reason, remedy = "Laplace noise on the votes is lnmax", f"set {path}.kind to lnmax"
        else:
            reason = "how many queries are answered depends on the votes, and the filter that allows it is Gaussian"
            remedy = f"set {path}.noise.family to gaussian, or use kind: lnmax, which answers every query"
        yield _unbounded(family, kind, reason, remedy, f"{path}.noise")
    elif family != "gaussian":
        yield _unbounded(family, kind, _WHY_NO_BOUND, f"set {path}.noise.family to gaussian", f"{path}.noise")
    if spec.selection is not None:
        yield from _selection_noise(spec.selection.noise, kind)


_WHY_NO_BOUND = "a moved vote changes two counts, and no bound is proved for choosing the largest under this noise"


def _unbounded(family: str, kind: str, reason: str, remedy: str, path: str) -> Finding:
    return Finding("P101", f"{family} noise can't be accounted for in {kind}: {reason}", remedy, f"{path}.family")


def _selection_noise(noise: Noise, kind: str) -> Iterator[Finding]:
    path = "mechanism.aggregator.selection.noise"
    if noise.family != "gaussian":
        reason = "the filter that allows queries to be selected by the votes is Gaussian"
        yield _unbounded(noise.family, kind, reason, f"set {path}.family to gaussian", path)
    if noise.multiplier == "auto":
        yield Finding(
            "R276",
            "the noise of the check can't be `auto`; the noise of the answers can",
            f"give {path}.multiplier a number; the literature uses two to four times that of the answers",
            f"{path}.multiplier",
        )


def check_threshold(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A check wastes budget if it turns no query away, or lets none pass."""
    selection = spec.selection
    if selection is None or selection.noise.multiplier == "auto":
        return
    count, deviation = spec.teachers.count, selection.noise.multiplier
    thresholds = {"selection.threshold": selection.threshold}
    deviations: dict[str, float] = {}
    if isinstance(spec.aggregator, InteractiveGnMax):
        interaction = spec.aggregator.interaction
        if interaction.threshold is not None:
            thresholds["interaction.threshold"] = interaction.threshold
        for number, own in enumerate(() if isinstance(interaction.rounds, int) else interaction.rounds):
            if own.threshold is not None:
                thresholds[f"interaction.rounds.{number}.threshold"] = own.threshold
                deviations[f"interaction.rounds.{number}.threshold"] = own.selection_multiplier or deviation
    for name, value in thresholds.items():
        deviation = deviations.get(name, selection.noise.multiplier)
        if value > count + 3 * deviation:
            yield Finding(
                "P153",
                f"hardly any query is answered: even if all {count} teachers agree, the check passes with probability "
                f"{math.erfc((value - count) / deviation / math.sqrt(2)) / 2:.0e}",
                f"set mechanism.aggregator.{name} to at most {count}",
                f"mechanism.aggregator.{name}",
                severity=Severity.WARNING,
            )
    min_largest = count / data_facts(facts.data).outputs
    if selection.threshold <= min_largest:
        yield Finding(
            "P153",
            f"some class always has {math.ceil(min_largest)} votes or more: every query passes the check with "
            "probability 1/2 or more, whatever the teachers vote",
            "raise mechanism.aggregator.selection.threshold, or use kind: gnmax, which pays for no check",
            "mechanism.aggregator.selection.threshold",
            severity=Severity.WARNING,
        )


def check_interaction(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Every round has a query, and the student's confidence says something."""
    if not isinstance(spec.aggregator, InteractiveGnMax):
        return
    chosen, queries, path = spec.aggregator.interaction, spec.queries.max, "mechanism.aggregator.interaction"
    if not isinstance(chosen.rounds, int):
        yield from _check_rounds(chosen.rounds, spec.queries, f"{path}.rounds")
    elif queries != "auto" and chosen.rounds > queries:
        yield Finding(
            "R277",
            f"{chosen.rounds} rounds for {queries:,} queries: some rounds would have none",
            f"set {path}.rounds to at most {queries}" if queries > 1 else "raise mechanism.queries.max",
            f"{path}.rounds",
        )
    classes = data_facts(facts.data).outputs
    if chosen.confidence <= 1 / classes:
        yield Finding(
            "R277",
            f"of {classes} classes one always has a score of 1/{classes} or more: the student would label everything",
            f"set {path}.confidence to a number near 1, such as 0.95",
            f"{path}.confidence",
        )


def _check_rounds(rounds: Sequence[VotingRound], queries: Queries, path: str) -> Iterator[Finding]:
    """All rounds but the last state their queries, and leave at least one query to the last."""
    for number, chosen in enumerate(rounds):
        last = number == len(rounds) - 1
        if last is (chosen.queries is not None):
            yield Finding(
                "R277",
                "the last round takes the queries that are left, and states no number"
                if last
                else "a round before the last says how many queries it has",
                "remove queries" if last else "add queries",
                f"{path}.{number}" + (".queries" if last else ""),
            )
    stated = {
        name: getattr(rounds[0], name)
        for name in ("threshold", "selection_multiplier", "multiplier")
        if getattr(rounds[0], name) is not None
    }
    for name in stated:
        yield Finding(
            "R277",
            f"the first round has a {name} of its own; its constants are those of selection and noise",
            f"remove {name}",
            f"{path}.0.{name}",
        )
    earlier = sum(chosen.queries or 0 for chosen in rounds[:-1])
    if queries.max != "auto" and earlier >= queries.max:
        yield Finding(
            "R277",
            f"the rounds before the last have {earlier:,} of {queries.max:,} queries: the last one would have none",
            f"raise mechanism.queries.max to {earlier + 1} or more, or lower queries of a round",
            path,
        )
    if queries.answers is not None and queries.answers < len(rounds):
        yield Finding(
            "R277",
            f"{queries.answers:,} answers for {len(rounds)} rounds: some would have none",
            f"raise mechanism.queries.answers to {len(rounds)} or more",
            path,
        )


def check_queries(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """There are no more queries than public records, and no more answers than queries."""
    max_queries, answers, records = spec.queries.max, spec.queries.answers, count_pool(spec, facts.data)
    if answers is not None and spec.selection is None:
        yield Finding(
            "R278",
            f"{spec.aggregator.kind} answers every query",
            "remove mechanism.queries.answers, and set mechanism.queries.max",
            "mechanism.queries.answers",
        )
    if max_queries == "auto":
        return
    if answers is not None and spec.selection is not None and answers > max_queries:
        yield Finding(
            "R278",
            f"{answers:,} answers of {max_queries:,} queries",
            f"set mechanism.queries.answers to at most {max_queries}",
            "mechanism.queries.answers",
        )
    if records is not None and 0 < records < max_queries:
        yield Finding(
            "R278",
            f"{max_queries:,} queries of {records:,} public records: a record is asked about once",
            f"set mechanism.queries.max to at most {records}",
            "mechanism.queries.max",
        )
    elif max_queries > MAX_QUERIES:
        yield Finding(
            "P109",
            f"{max_queries:,} queries; the limit is {MAX_QUERIES:,}",
            "lower mechanism.queries.max",
            "mechanism.queries.max",
        )


def check_sanitising(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """A data-dependent ε is published only where it has an analysis, a fixed list of queries, and a finite cost."""
    chosen, path = spec.sanitize, "mechanism.sanitize"
    if chosen is None:
        return
    if isinstance(spec.aggregator, InteractiveGnMax):
        yield Finding(
            "P154",
            "the queries of interactive_gnmax depend on earlier answers, so the cost of the votes is no function of "
            "the data and has no smooth sensitivity",
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
    elif spec.teachers.count > (max_teachers := _max_sanitised_teachers()):
        yield Finding(
            "P154",
            f"the smooth sensitivity of {spec.teachers.count:,} teachers' votes can't be computed: its table does not "
            "fit into memory",
            f"set mechanism.teachers.count to at most {max_teachers}, or remove mechanism.sanitize",
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


def check_paid_steps(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Paid steps of preprocessing come before the teachers, so teachers are trained here and the cost of their votes
    stays private."""
    paid = list_paid_steps(facts.data)
    if not paid:
        return
    index, step = paid[0]
    if spec.teachers.votes is not None:
        yield Finding(
            "P124",
            "the votes come from a file, so this run reads no private records, and no step can learn from them",
            "remove the step; or remove mechanism.teachers.votes, so that teachers are trained in the run",
            path_of(index, step),
        )
    elif spec.sanitize is not None:
        yield Finding(
            "P124",
            "a published data-dependent ε holds for the votes behind the constants that were drawn, and not for those "
            "behind other constants that could have been drawn: no bound is known for both together",
            "remove mechanism.sanitize: the worst-case claim covers paid steps and votes",
            path_of(index, step),
        )


def check_split(spec: Pate, facts: Facts) -> Iterator[Finding]:
    """Teachers that voted elsewhere may have learned from records that a split would hold out."""
    if spec.teachers.votes is not None and facts.data.split is not None:
        yield Finding(
            "P128",
            "the votes come from a file, so this run reads no private records, and none can be held out of them",
            "name other records as data.test; or remove mechanism.teachers.votes: teachers are then trained in the run",
            "data.test.split",
        )


def _max_sanitised_teachers() -> int:
    from dprecipe.mechanisms.pate.theory.vote_sensitivity import MAX_TEACHERS  # needs scipy

    return MAX_TEACHERS


def _below(value: float, largest: float) -> float:
    """Returns a round number near `value` and below `largest`."""
    return float(f"{min(value, 0.8 * largest):.1e}")


RULES: Sequence[Callable[[Pate, Facts], Iterator[Finding]]] = (
    check_ensemble,
    check_training,
    check_teacher_model,
    check_student_weights,
    check_identity,
    check_augmentation,
    check_votes,
    check_labels_alone,
    check_noise_family,
    check_threshold,
    check_interaction,
    check_queries,
    check_part_sizes,
    check_sanitising,
    check_paid_steps,
    check_split,
    check_sanitised_teachers,
)
