"""PATE's accounting: from a recipe's constants to the events of a run, with the free variable solved.

Guarantees: the events returned by `plan` spend at most the budget, by the accountant the budget names. Where the votes
select queries, how many are answered is not known in advance: a Gaussian filter then limits the run. The events are
those that are sure to fit, and one for what the filter leaves, so the plan states the filter's own limit.

Paid steps of preprocessing come first. Let A be what they release, and B_y the vote whose teachers, queries and student
are prepared with A = y. For every y, a unit belongs to one teacher: the key and the unit's identity decide which, and
constants map records one by one. So one vote moves, and for every y the same pairs dominate the events of B_y: those of
the answers, or under a filter the Gaussian of μ² = limit, whatever is asked (`theory.filter`). Pairs of
A and of B_y multiply (Zhu, Dong & Wang 2022, Theorem 10), and the limit is solved for that product. Votes from a file
come from another run's teachers, and a published data-dependent cost is a bound only at the y that was drawn. Both are
refused together with paid steps (`rules.check_paid_steps`).

Source: Papernot et al. 2018, Algorithms 1 and 2; the accountants and the filter cite theirs in `dprecipe.privacy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dprecipe.contract.mechanism import Account, Facts, Planned
from dprecipe.contract.plan import Assumption
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.facts import describe_size
from dprecipe.data.names import quote_name
from dprecipe.faults import Finding
from dprecipe.mechanisms.pate import rules
from dprecipe.mechanisms.pate.auto_budget import suggest_cap
from dprecipe.mechanisms.pate.plan import PatePlan, PlannedInteraction, PlannedRelease, PlannedRound
from dprecipe.mechanisms.pate.queries import PateRun
from dprecipe.mechanisms.pate.schema import InteractiveGnMax, Pate
from dprecipe.models.schema import NoModel
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge


def check(spec: Pate, facts: Facts) -> list[Finding]:
    """Returns the findings that make this block impossible or unaccountable."""
    findings = rules.check(spec, facts)
    if any(finding.is_error for finding in findings):
        return findings
    run = PateRun(spec, facts)
    return [*findings, *run.check(), *suggest_cap(run)]


def plan(spec: Pate, facts: Facts) -> Planned[PatePlan]:
    """Plans the run and solves the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or is so large that it protects nothing (P107).
    """
    run = PateRun(spec, facts)
    multiplier, queries, solved = run.solve()
    planned = PatePlan(
        size=spec.teachers.count if facts.data.size is None else facts.size,
        ensemble=spec.teachers,
        partition_by=_identity(spec, facts),
        classes=data_facts(facts.data).outputs,
        aggregator=spec.aggregator.kind,
        queries=queries,
        answers=run.answers(queries),
        votes=run.plan_votes(multiplier, queries),
        threshold=None if spec.selection is None else spec.selection.threshold,
        interaction=_interaction(spec, run, multiplier, queries),
        analysis=spec.analysis,
        publication=_publication(spec, run),
    )
    return Planned(planned, solved, _assumptions(spec, facts))


def _identity(spec: Pate, facts: Facts) -> str:
    """Returns the permanent name of a unit: its column, or the number of its record in the source."""
    named = spec.teachers.identity or facts.data.unit_column
    return "record number" if named is None else quote_name(named)


def _interaction(spec: Pate, run: PateRun, multiplier: float, queries: int) -> PlannedInteraction | None:
    aggregator = spec.aggregator
    if not isinstance(aggregator, InteractiveGnMax):
        return None
    first, chosen = aggregator.selection.threshold, aggregator.interaction
    later = first if chosen.threshold is None else chosen.threshold
    planned = []
    for number, (size, (check, answer), own) in enumerate(run.list_rounds(multiplier, queries)):
        threshold = first if number == 0 else later if own is None else own
        planned.append(PlannedRound(Charge(check, size), Charge(answer, size), threshold))
    return PlannedInteraction(tuple(planned), chosen.confidence)


def _publication(spec: Pate, run: PateRun) -> PlannedRelease | None:
    if spec.sanitize is None:
        return None
    (charge,) = run.sanitising
    return PlannedRelease(charge, spec.sanitize.order, spec.sanitize.delta)


def _assumptions(spec: Pate, facts: Facts) -> tuple[Assumption, ...]:
    teachers, unit = spec.teachers, facts.unit
    family = "Laplace" if spec.aggregator.kind == "lnmax" else "Gaussian"
    if teachers.votes is None:
        named = f" of its {_identity(spec, facts)}" if unit == "record" else ""
        ensemble: tuple[Assumption, ...] = (
            # Units are dealt independently, so the parts keep their distribution when a record that leaves renumbers
            # those after it.
            Assumption(
                "parts",
                f"a hash{named} under a fresh, secret key assigns each {unit} to one of {teachers.count} parts, at "
                "random and independently of the others",
                "code",
            ),
            Assumption(
                "vote_sensitivity", f"each teacher learns only from its own part: one {unit} changes one vote", "test"
            ),
        )
        if teachers.identity is not None:
            stability = f"which records share a {_identity(spec, facts)} does not depend on other records"
            if Neighbouring(facts.budget.neighbouring) is Neighbouring.REPLACE_ONE:
                # If it took the name of another record, it would leave one part and enter another: two votes.
                stability += (
                    f"; a record that replaces another has the {_identity(spec, facts)} of that one, or one of its own"
                )
            ensemble = (*ensemble, Assumption("identity", stability, "declaration"))
    else:
        votes = (
            f"the votes are of {teachers.count} teachers with disjoint parts: one {unit} changes one vote on a query"
        )
        ensemble = (Assumption("vote_sensitivity", votes, "declaration"),)
    selected = (
        ()
        if spec.selection is None
        else (
            Assumption("filter", "the run stops at a limit that was set in advance, whatever the answers are", "code"),
            Assumption("selection", "checks of the votes use Gaussian noise of their own", "code"),
        )
    )
    return (
        *ensemble,
        Assumption("noise", f"independent {family} noise is added to every count before a class is chosen", "code"),
        *selected,
        Assumption("replay", "a repeated query gets the answer that was already paid for", "code"),
        *_assume_queries(facts),
        *(() if facts.data.size is None else (Assumption("size", describe_size(facts.data), "declaration"),)),
        Assumption(
            "choices",
            "the recipe's constants were chosen without looking at the private records or at votes on them",
            "declaration",
        ),
        Assumption(
            "floating_point",
            "rounding of float64 noise leaks nothing, and nobody measures timing: "
            "docs/explanation/accounting.md#what-is-assumed",
            "declaration",
        ),
    )


def _assume_queries(facts: Facts) -> tuple[Assumption, ...]:
    student = "the student learns only from public records and released labels"
    asked = "data.public is public, and was chosen without looking at data.train"
    if facts.data.is_elsewhere:
        asked = "what the teachers were asked is public, and was chosen without looking at their records"
    queries = Assumption("queries", asked, "declaration")
    return (queries,) if isinstance(facts.model, NoModel) else (Assumption("student", student, "test"), queries)


if TYPE_CHECKING:
    from dprecipe.mechanisms.pate import account

    _: Account[Pate] = account
