"""What a PATE recipe will bring on simulated votes: answers, how many of them are right, and ε in every currency.

Threshold, noise and the constants of sanitising have to be chosen without the private votes; this is what to choose
them by. Costs are means over simulated queries, times the queries planned; the worst case is the plan's own.

Axes: Q queries, M classes, A orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.faults import PlanRefused
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.pate import account
from dprecipe.mechanisms.pate.commands import simulate, suggest
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.commands.suggest import PublishedCost
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan, pate_plan
from dprecipe.mechanisms.pate.schema import Pate, SmoothSensitivity
from dprecipe.mechanisms.pate.theory import exact_votes, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.mechanisms.pate.train.analysis import voting_of
from dprecipe.mechanisms.plan import Plan
from dprecipe.privacy import accountants, conversion, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.divergence import Array
from dprecipe.privacy.events import Charge

SIMULATED = 5000
"""Most queries that are simulated; of more, their mean stands for the rest."""
EXACT_QUERIES, EXACT_CLASSES = 250, 20
"""Up to as many classes the exact cost is worked out, of as many queries: seconds."""
THRESHOLDS = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
"""What the table has beside the recipe's: shares of the teachers that have to agree."""
DEVIATIONS = (0.25, 0.5, 0.75)
"""And standard deviations of the check's noise, as shares of the teachers."""
POINTS = 12
DELTA = 1e-6
"""δ' of what is suggested, or a tenth of δ where that is less."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Costs:
    """ε of all queries, at the budget's δ. `papers` is the literature's expected cost, no bound, classic conversion;
    `bound` is one, by a theorem; `exact` the same by integration, None where there are too many classes for that."""

    papers: float
    bound: float
    exact: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a run is expected to end, as means. `reason`: `filter`, it holds no more; `answers`, there are as many as
    were asked for; `queries`, all were put. `held` is how many queries the filter alone would let through."""

    queries: float
    answers: float
    reason: str
    held: float | None


@dataclass(frozen=True, slots=True)
class ForecastRelease:
    """A data-dependent ε that may be published, and what publishing it makes of the run: None where no plan with it
    keeps the budget."""

    published: PublishedCost
    worst_case: float | None
    stop: Stop | None


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """The recipe with a threshold and a noise of the check. Nothing is known of what can't be planned, nor of answers
    where there are none."""

    threshold: float
    deviation: float
    chosen: bool
    """It is the recipe's own."""
    answered: float
    multiplier: float | None
    right: float | None
    stop: Stop | None
    worst_case: float | None


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """ε of a plan for `queries` queries. What is sanitised has the constants of `Forecast.release`."""

    queries: int
    worst_case: float
    data_dependent: float
    sanitised: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """What to expect. `answered` is a share of the queries, `right` the share of answers that are the class with the
    most votes. `worst_case` is the claim of the recipe, `unpublished` that of the recipe without `sanitize`."""

    aggregator: str
    voting: Voting
    agreement: Agreement
    seed: int
    delta: float
    planned: int
    queries: int
    """Of which the simulation is: all that are planned, or those of the first round."""
    answered: float
    right: float
    stop: Stop
    worst_case: float
    unpublished: float
    costs: Costs
    own: ForecastRelease | None
    suggested: ForecastRelease | None
    rows: tuple[ForecastRow, ...]
    thresholds: tuple[tuple[float, float, float | None], ...]
    """(threshold, answered, right) with the recipe's noise, finer than the rows."""
    points: tuple[ForecastPoint, ...]

    @property
    def release(self) -> ForecastRelease | None:
        """The recipe's own, else what is suggested."""
        return self.own or self.suggested

    @property
    def pays(self) -> bool:
        """Whether what may be published is expected to be smaller than what is claimed without it."""
        result = self.release
        return result is not None and result.worst_case is not None and result.published.epsilon < self.unpublished

    def to_json(self) -> dict[str, Any]:
        """The body of the document `dprecipe.votes/v1`."""
        selection = self.voting.selection
        return {
            "aggregator": self.aggregator,
            "teachers": self.voting.teachers,
            "classes": self.voting.classes,
            "noise_multiplier": self.voting.multiplier,
            "threshold": None if selection is None else selection.threshold,
            "selection_multiplier": None if selection is None else selection.multiplier,
            "simulated": {"agreement": [self.agreement.low, self.agreement.high], "seed": self.seed},
            "delta": self.delta,
            "planned": self.planned,
            "queries": self.queries,
            "answered": self.answered,
            "right": self.right,
            "stop": _stop_json(self.stop),
            "worst_case": _finite(self.worst_case),
            "unpublished": _finite(self.unpublished),
            "data_dependent": {
                "papers": _finite(self.costs.papers),
                "bound": _finite(self.costs.bound),
                "exact": _finite(self.costs.exact),
            },
            "sanitised": _release_json(self.own),
            "suggested": _release_json(self.suggested),
            "rows": [
                {
                    "threshold": row.threshold,
                    "selection_multiplier": row.deviation,
                    "chosen": row.chosen,
                    "noise_multiplier": row.multiplier,
                    "answered": row.answered,
                    "right": row.right,
                    "stop": _stop_json(row.stop),
                    "worst_case": _finite(row.worst_case),
                }
                for row in self.rows
            ],
            "points": [
                {
                    "queries": point.queries,
                    "worst_case": _finite(point.worst_case),
                    "data_dependent": _finite(point.data_dependent),
                    "sanitised": _finite(point.sanitised),
                }
                for point in self.points
            ],
            "pays": self.pays,
        }


def forecast_plan(plan: Plan, spec: Pate, facts: Facts, agreement: Agreement, seed: int, report: Report) -> Forecast:
    """What the plan of `spec` will bring if teachers agree as is assumed. `report` is told what is being worked out."""
    voting, planned, delta = voting_of(plan), pate_plan(plan), plan.budget.delta
    queries, interaction = _first_round(planned), planned.interaction
    report("simulated votes")
    counts_QM = simulate.simulate_counts(voting.teachers, voting.classes, min(queries, SIMULATED), agreement, seed)
    right_Q = simulate.plurality_chance(counts_QM, voting)
    pass_Q = _pass(counts_QM, voting.selection)
    answered = float(pass_Q.mean())
    report("costs of the votes")
    bound_A = votes.bound_rdp(counts_QM, voting, votes.ORDERS).mean(axis=0)
    epsilon = conversion.epsilon(votes.ORDERS, queries * bound_A, delta)
    costs = Costs(
        papers=conversion.epsilon(
            votes.ORDERS,
            votes.expected_cost(counts_QM, voting, votes.ORDERS) * (queries / len(counts_QM)),
            delta,
            "classic",
        ).value,
        bound=epsilon.value,
        exact=_exact(counts_QM, voting, queries, delta, report),
    )
    look = _Look(spec, facts, counts_QM, voting, queries, answered)
    own = suggested = None
    if interaction is None and voting.teachers <= vote_sensitivity.MAX_TEACHERS:
        failure = min(DELTA, delta / 10) if spec.sanitize is None else spec.sanitize.delta
        own = None if spec.sanitize is None else look.release(_constants(spec.sanitize))
        suggested = look.release(
            suggest.suggest_constants(counts_QM, voting, queries, delta, failure, epsilon.order, report)
        )
    unpublished = plan.guarantee.epsilon
    if spec.sanitize is not None:
        unpublished = look.planned(spec.model_copy(update={"sanitize": None}))[1] or unpublished
    forecast = Forecast(
        aggregator=spec.aggregator.kind,
        voting=voting,
        agreement=agreement,
        seed=seed,
        delta=delta,
        planned=planned.queries,
        queries=queries,
        answered=answered,
        right=_share(pass_Q, right_Q) or 0.0,
        stop=_stop(planned, queries, answered),
        worst_case=plan.guarantee.epsilon,
        unpublished=unpublished,
        costs=costs,
        own=own,
        suggested=suggested,
        rows=_rows(plan, look, right_Q, report),
        thresholds=_thresholds(counts_QM, voting, right_Q),
        points=(),
    )
    return replace(forecast, points=_points(plan, forecast, counts_QM, bound_A, report))


@dataclass(frozen=True, slots=True)
class _Look:
    """Other plans of the recipe, on the same simulated votes."""

    spec: Pate
    facts: Facts
    counts: NDArray[np.int64]
    voting: Voting
    queries: int
    answered: float

    def planned(self, spec: Pate) -> tuple[PatePlan | None, float | None]:
        """A plan and its ε; None where it is refused."""
        budget = self.facts.budget
        try:
            plan = account.plan(spec, self.facts).plan
        except PlanRefused:
            return None, None
        relation = Neighbouring(budget.neighbouring)
        epsilon = accountants.epsilon(plan.events, budget.delta, relation, budget.accountant)
        return plan, rounding.round_up(epsilon)

    def release(self, constants: Sanitiser) -> ForecastRelease:
        """What publishing with these constants is expected to bring, in the plan that does."""
        sanitize = SmoothSensitivity(
            method="smooth_sensitivity",
            order=constants.order,
            beta=constants.smoothness,
            multiplier=constants.value_multiplier,
            scale_multiplier=constants.sensitivity_multiplier,
            delta=constants.failure,
        )
        spec = self.spec.model_copy(update={"analysis": "data_dependent", "sanitize": sanitize})
        plan, worst = self.planned(spec)
        voting, queries, stop = self.voting, self.queries, None
        if plan is not None:  # what the recipe leaves to be solved comes out differently
            voting = replace(voting, multiplier=plan.answer.noise_multiplier)
            queries = plan.queries
            stop = _stop(plan, queries, self.answered)
        sums = suggest.simulate_sums(self.counts, voting, constants.order)
        return ForecastRelease(sums.published(constants, voting, queries, self.facts.budget.delta), worst, stop)


def _first_round(plan: PatePlan) -> int:
    """The queries of which nothing is known but the votes: all, or those of an interactive run's first round."""
    queries, interaction = plan.queries, plan.interaction
    return queries if interaction is None else max(1, round(queries / interaction.rounds))


def _constants(chosen: SmoothSensitivity) -> Sanitiser:
    return Sanitiser(chosen.order, chosen.beta, chosen.multiplier, chosen.scale_multiplier, chosen.delta)


def _exact(counts_QM: NDArray[np.int64], voting: Voting, queries: int, delta: float, report: Report) -> float | None:
    """ε with the exact cost of the answers, of some of the queries for all."""
    if voting.family != "gaussian" or voting.classes > EXACT_CLASSES:
        return None
    some_QM = counts_QM[:EXACT_QUERIES]

    def told(done: int, of: int) -> None:
        report(f"exact costs, {done} of {of} queries")

    answer_QA = exact_votes.exact_gnmax_rdp(some_QM, voting.multiplier, votes.ORDERS, told)
    mean_A = votes.bound_rdp(some_QM, voting, votes.ORDERS, answer_QA=answer_QA).mean(axis=0)
    return conversion.epsilon(votes.ORDERS, queries * mean_A, delta).value


def _pass(counts_QM: NDArray[np.int64], selection: VoteSelection | None) -> Array:
    """Pr[the query is answered]: (Q,)."""
    if selection is None:
        return np.ones(len(counts_QM))
    chances_Q: Array = np.exp(votes.log_pass(counts_QM.max(axis=1), selection)[0])
    return chances_Q


def _share(pass_Q: Array, right_Q: Array) -> float | None:
    """Of the answers, how many are right; None where hardly one is given."""
    total = float(pass_Q.sum())
    return float(pass_Q @ right_Q) / total if total > 1e-6 else None


def _stop(plan: PatePlan, queries: int, answered: float) -> Stop:
    """Where the mean spend has used the filter up; the last query needs room for its check and its answer."""
    most = float(plan.answers)
    ends = {"queries": float(queries), "answers": most / answered if answered > 0 else math.inf}
    if plan.check is not None and plan.filter_limit is not None:
        check, answer = 1 / plan.check.noise_multiplier**2, 2 / plan.answer.noise_multiplier**2
        left = plan.filter_limit * (1 + 1e-9) - check - answer
        ends["filter"] = 1 + math.floor(left / (check + answered * answer)) if left >= 0 else 0.0
    reason = min(ends, key=lambda name: ends[name])
    return Stop(ends[reason], min(answered * ends[reason], most), reason, ends.get("filter"))


def _rows(plan: Plan, look: _Look, right_Q: Array, report: Report) -> tuple[ForecastRow, ...]:
    """The table over thresholds and the check's noise; empty where every query is answered."""
    own = look.voting.selection
    if own is None:
        return ()
    rows: list[ForecastRow] = []
    teachers, pluralities = look.voting.teachers, {look.voting.multiplier: right_Q}
    for deviation in sorted({own.multiplier, *(round(share * teachers, 6) for share in DEVIATIONS)}):
        report(f"thresholds with noise {deviation:g} of the check")
        here = deviation == own.multiplier
        result, worst = look.planned(_with_deviation(look.spec, deviation))
        there = pate_plan(plan) if here else result
        if here:
            worst = plan.guarantee.epsilon
        multiplier = None if there is None else there.answer.noise_multiplier
        if multiplier is not None and multiplier not in pluralities:
            voting = replace(look.voting, multiplier=multiplier)
            pluralities[multiplier] = simulate.plurality_chance(look.counts, voting)
        shares = {round(share * teachers, 6) for share in THRESHOLDS}
        for threshold in sorted(shares | {own.threshold} if here else shares):
            pass_Q = _pass(look.counts, VoteSelection(threshold, deviation))
            answered, right, stop = float(pass_Q.mean()), None, None
            if there is not None and multiplier is not None:
                right = _share(pass_Q, pluralities[multiplier])
                stop = _stop(there, _first_round(there), answered)
            chosen = here and threshold == own.threshold
            rows.append(ForecastRow(threshold, deviation, chosen, answered, multiplier, right, stop, worst))
    return tuple(rows)


def _with_deviation(spec: Pate, deviation: float) -> Pate:
    """The recipe with another noise of the check."""
    selection = spec.selection
    if selection is None:
        return spec
    noise = selection.noise.model_copy(update={"multiplier": deviation})
    selection = selection.model_copy(update={"noise": noise})
    return spec.model_copy(update={"aggregator": spec.aggregator.model_copy(update={"selection": selection})})


def _thresholds(
    counts_QM: NDArray[np.int64], voting: Voting, right_Q: Array
) -> tuple[tuple[float, float, float | None], ...]:
    if voting.selection is None:
        return ()
    results = []
    for threshold in np.linspace(0.3, 1.1, 41) * voting.teachers:
        pass_Q = _pass(counts_QM, VoteSelection(float(threshold), voting.selection.multiplier))
        results.append((float(threshold), float(pass_Q.mean()), _share(pass_Q, right_Q)))
    return tuple(results)


def _points(
    plan: Plan, made: Forecast, counts_QM: NDArray[np.int64], bound_A: Array, report: Report
) -> tuple[ForecastPoint, ...]:
    """ε against queries; the worst case never above the plan's, for there its run would stop."""
    voting, budget, release = made.voting, plan.budget, made.release
    sums = None if release is None else suggest.simulate_sums(counts_QM, voting, release.published.constants.order)
    answer = NoisyMax(voting.family, voting.multiplier)
    released = [charge for charge in plan.events if isinstance(charge.event, SanitisedCost)]
    points = []
    for queries in sorted({max(1, round(made.queries * i / POINTS)) for i in range(1, POINTS + 1)}):
        report(f"ε of {queries:,} queries")
        charges = [Charge(answer, min(queries, pate_plan(plan).answers)), *released]
        if voting.selection is not None:
            charges.append(Charge(NoisyThreshold(voting.selection.multiplier), queries))
        worst = accountants.epsilon(charges, budget.delta, budget.neighbouring, budget.accountant)
        sanitised = None
        if sums is not None and release is not None:
            sanitised = sums.published(release.published.constants, voting, queries, budget.delta).epsilon
        data = conversion.epsilon(votes.ORDERS, queries * bound_A, budget.delta).value
        points.append(ForecastPoint(queries, min(worst, made.worst_case), data, sanitised))
    return tuple(points)


def _stop_json(stop: Stop | None) -> dict[str, Any] | None:
    return None if stop is None else asdict(stop)


def _release_json(release: ForecastRelease | None) -> dict[str, Any] | None:
    if release is None:
        return None
    result = release.published
    chosen = result.constants
    return {
        "order": chosen.order,
        "beta": chosen.smoothness,
        "multiplier": chosen.value_multiplier,
        "scale_multiplier": chosen.sensitivity_multiplier,
        "failure": chosen.failure,
        "epsilon": _finite(result.epsilon),
        "delta": result.delta,
        "deviation": _finite(result.deviation),
        "total": _finite(result.total),
        "cost": _finite(result.cost),
        "worst_case": _finite(release.worst_case),
        "stop": _stop_json(release.stop),
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
