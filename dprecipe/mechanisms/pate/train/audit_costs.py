"""Audit of the cost of one query, by enumeration.

For every histogram of a small ensemble and every vote that moves, the exact distributions of the outcome are compared
with the events that are charged and with the data-dependent bounds.

Axes: A orders, O outcomes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pate.aggregators import (
    Aggregator,
    ConfidentGnMaxAggregator,
    GnMaxAggregator,
    InteractiveGnMaxAggregator,
    LnMaxAggregator,
    list_rounds,
)
from dprecipe.mechanisms.pate.cost_statement import sanitiser_of
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.theory import exact_votes, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.mechanisms.pate.train.answer_distribution import (
    Histogram,
    answer_distribution,
    hockey_stick,
    list_moves,
    release_distribution,
    renyi_divergences,
    small_histograms,
)
from dprecipe.mechanisms.pate.train.audit_ballot import list_telling
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import Excess, TestEvidence
from dprecipe.privacy.events import Charge, Event

Found = tuple[str, str, TestEvidence]
Floats = NDArray[np.float64]

TEACHERS, CLASSES = 5, 3
ORDERS = (1.5, 2.0, 4.0, 8.0, 32.0)
DELTAS = (0.1, 1e-3, 1e-6)
EXPECTED = (0.55, 0.3, 0.15)
"""Scores of a student: times `TEACHERS`, none is a whole number of votes."""
LARGE = 1e300
"""Stand-in for infinity, which evidence can't contain."""
MARGIN = 1e-6
"""Relative tolerance of a divergence, for the error of quadrature."""


def examine_costs(plan: Plan) -> Iterator[Found]:
    """Tests the cost of a query in the plan's first three rounds.

    Each round is tested twice: all votes of a small ensemble, with noise in proportion, and the most revealing votes of
    the plan's own ensemble.
    """
    planned = plan.as_plan_of(PatePlan)
    teachers, classes = planned.ensemble.count, planned.classes
    for number, (_, aggregator) in enumerate(list_rounds(planned)[:3]):
        suffix = f"_round_{number + 1}" if planned.interaction is not None else ""
        small = scale_aggregator(aggregator, TEACHERS / teachers)
        expected = np.array(EXPECTED) if number else None
        histograms = small_histograms(TEACHERS, min(CLASSES, classes))
        tables = {
            "small": (small, histograms, expected if classes >= CLASSES else None,
                      f"among all votes of {TEACHERS} teachers for {min(CLASSES, classes)} classes"),
            "own": (aggregator, votes_that_tell(aggregator, teachers, classes, planned.threshold), None,
                    "among the most revealing votes of all teachers"),
        }  # fmt: skip
        for name, (audited, counts, student, words) in tables.items():
            renyi, stick = _largest_ratios(audited, counts, student)
            yield (
                f"renyi_{name}{suffix}",
                f"one query costs no more than its events at any order, for any moved vote {words}",
                Excess(largest=renyi, allowed=1.0),
            )
            yield (
                f"delta_{name}{suffix}",
                f"one query has at most the δ of its events at their ε, for any moved vote {words}",
                Excess(largest=stick, allowed=1.0),
            )
    if planned.analysis == "data_dependent" or planned.publication is not None:
        yield from _examine_bounds(plan)


def scale_aggregator(aggregator: Aggregator, share: float) -> Aggregator:
    """Returns the aggregator of an ensemble with this share of the teachers.

    Noise and thresholds are in proportion, but noise is at least half a vote.
    """

    def noise(scale: float) -> float:
        return max(0.5, scale * share)

    if isinstance(aggregator, LnMaxAggregator):
        return LnMaxAggregator(noise(aggregator.scale))
    if isinstance(aggregator, GnMaxAggregator):
        return GnMaxAggregator(noise(aggregator.sigma))
    sigma, check, threshold = noise(aggregator.sigma), noise(aggregator.check_sigma), aggregator.threshold * share
    if isinstance(aggregator, InteractiveGnMaxAggregator):
        return InteractiveGnMaxAggregator(sigma, threshold, check, aggregator.further * share, aggregator.confidence)
    return ConfidentGnMaxAggregator(sigma, threshold, check)


def votes_that_tell(aggregator: Aggregator, teachers: int, classes: int, threshold: float | None) -> list[Histogram]:
    """Lists the most revealing histograms of the plan's teachers, and those that one moved vote makes of them.

    The vote moves among the first three classes.
    """
    spread = 0.0 if aggregator.check is None else aggregator.check.noise_multiplier
    found = set()
    for counts in list_telling(teachers, classes, threshold, spread):
        found.add(counts)
        for source, target in itertools.permutations(range(min(classes, 3)), 2):
            if counts[source]:
                moved = list(counts)
                moved[source] -= 1
                moved[target] += 1
                found.add(tuple(moved))
    return sorted(found)


def _largest_ratios(
    aggregator: Aggregator, histograms: Sequence[Histogram], expected_M: Floats | None
) -> tuple[float, float]:
    """Returns the largest ratio of exact to claimed divergence, over all moves and orders, and that of δ."""
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    distributions = [release_distribution(aggregator, counts, expected_M) for counts in histograms]
    checked: list[Event] = [] if aggregator.check is None else [aggregator.check]
    parts: list[tuple[list[Event], list[Floats]]] = [([*checked, aggregator.answer], distributions)]
    if aggregator.check is not None:
        # Test each of the two alone as well: together, slack in one may hide a shortfall of the other.
        parts.append((checked, [np.array([1 - d[-1], d[-1]]) for d in distributions]))
        parts.append(([aggregator.answer], [answer_distribution(aggregator.answer, counts) for counts in histograms]))
    moves, renyi, stick = list_moves(histograms), 0.0, 0.0
    for events, tables in parts:
        claimed_A = np.sum([_claimed_curve(event, relation) for event in events], axis=0)
        charges = [Charge(event, 1) for event in events]
        epsilons = [accountants.epsilon(charges, delta, relation, "pld") for delta in DELTAS]
        for one, other in moves:
            exact_A = renyi_divergences(tables[one], tables[other], ORDERS)
            renyi = max(renyi, float((exact_A / (claimed_A * (1 + MARGIN) + 1e-12)).max()))
            for delta, epsilon in zip(DELTAS, epsilons, strict=True):
                stick = max(stick, hockey_stick(tables[one], tables[other], epsilon) / (delta * (1 + MARGIN) + 1e-10))
    return min(renyi, LARGE), min(stick, LARGE)


def _claimed_curve(event: Event, relation: Neighbouring) -> Floats:
    """Returns the Rényi curve of an event, as it is accounted, (A,)."""
    squared_mu = event.squared_mu(1, relation)
    if squared_mu is not None:
        return np.asarray(ORDERS) * squared_mu / 2
    return np.asarray(event.rdp(ORDERS, relation))


def _examine_bounds(plan: Plan) -> Iterator[Found]:
    """Tests the data-dependent cost of votes and, if the plan publishes it, its smooth sensitivity."""
    planned = plan.as_plan_of(PatePlan)
    share = TEACHERS / planned.ensemble.count
    _, aggregator = list_rounds(planned)[0]
    small = scale_aggregator(aggregator, share)
    classes = min(CLASSES, planned.classes)
    own = voting_of(plan)
    selection = None
    if own.selection is not None and small.check is not None:
        selection = VoteSelection(own.selection.threshold * share, small.check.noise_multiplier)
    voting = Voting(TEACHERS, classes, own.family, small.answer.noise_multiplier, selection)
    histograms = small_histograms(TEACHERS, classes)
    distributions = [release_distribution(small, counts) for counts in histograms]
    counts_HM = np.array(histograms)
    bounds = {"bound": votes.bound_rdp(counts_HM, voting, ORDERS)}
    if own.family == "gaussian":
        answers = exact_votes.exact_gnmax_rdp(counts_HM, voting.multiplier, ORDERS)
        bounds["exact"] = votes.bound_rdp(counts_HM, voting, ORDERS, answer_QA=answers)
    for name, bound_HA in bounds.items():
        largest = 0.0
        for one, other in list_moves(histograms):
            exact_A = renyi_divergences(distributions[one], distributions[other], ORDERS)
            largest = max(largest, float((exact_A / (bound_HA[one] * (1 + MARGIN) + 1e-12)).max()))
        yield (
            f"data_dependent_{name}",
            "the data-dependent cost of one query is at least the exact cost of any moved vote, among all votes of "
            f"{TEACHERS} teachers",
            Excess(largest=min(largest, LARGE), allowed=1.0),
        )
    if planned.publication is not None:
        yield from _examine_sanitiser(plan, voting, histograms)


def _examine_sanitiser(plan: Plan, voting: Voting, histograms: Sequence[Histogram]) -> Iterator[Found]:
    """Tests the smooth sensitivity of the summed cost of two queries, over all votes and all moves of one teacher."""
    chosen = sanitiser_of(plan)
    table_ST = vote_sensitivity.local_sensitivities(vote_sensitivity.query_costs(voting, chosen.order))
    values, logs = {}, {}
    for pair in itertools.product(range(len(histograms)), repeat=2):
        largest = vote_sensitivity.two_largest(np.array([histograms[number] for number in pair]))
        values[pair] = float(vote_sensitivity.query_cost(*largest, voting, chosen.order).sum())
        logs[pair] = vote_sensitivity.log_smooth(vote_sensitivity.at_distances(table_ST, *largest), chosen.smoothness)
    moves = [*list_moves(histograms), *((number, number) for number in range(len(histograms)))]
    beyond = steep = 0.0
    for (a, b), (c, d) in itertools.product(moves, repeat=2):
        change = abs(values[a, c] - values[b, d])
        beyond = max(beyond, change / np.exp(logs[a, c]))
        steep = max(steep, abs(logs[a, c] - logs[b, d]))
    yield (
        "smooth_sensitivity",
        "one teacher moves the published cost by at most its smooth sensitivity, whatever it votes",
        Excess(largest=beyond, allowed=1 + MARGIN),
    )
    yield (
        "smoothness",
        "one teacher moves the logarithm of the smooth sensitivity by at most β",
        Excess(largest=steep, allowed=chosen.smoothness * (1 + MARGIN) + 1e-12),
    )
