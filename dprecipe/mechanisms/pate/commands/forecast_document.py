"""A forecast: costs, the expected end of a run and the tables; and its document, `dprecipe.votes/v1`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.commands.suggest import PublishedCost
from dprecipe.mechanisms.pate.theory.votes import Voting


@dataclass(frozen=True, slots=True)
class Costs:
    """The ε of all queries, at the budget's δ.

    `papers` is the literature's expected cost by the classic conversion, and not a bound. `bound` is a bound, by a
    theorem. `exact` is a bound by integration; None where it is not computed: for Laplace noise, or too many classes.
    """

    papers: float
    bound: float
    exact: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """The expected end of a run, on average.

    `reason`: `filter`, its limit is reached; `answers`, as many were given as planned; `queries`, all were put.
    `max_queries`: the queries that fit the filter, with no other limit; None: there is no filter.
    """

    queries: float
    answers: float
    reason: str
    max_queries: float | None


@dataclass(frozen=True, slots=True)
class ForecastRelease:
    """A data-dependent ε that may be published, and the claim and the end of the run that publishes it.

    The latter two are None where no plan with such a release keeps the budget.
    """

    published: PublishedCost
    worst_case: float | None
    stop: Stop | None


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """The recipe with a threshold and a noise of the check.

    Fields are None where no such plan keeps the budget; `right` is None also where hardly any answer is given.
    """

    threshold: float
    deviation: float
    chosen: bool
    """True for the recipe's own threshold and noise."""
    answered: float
    multiplier: float | None
    right: float | None
    stop: Stop | None
    worst_case: float | None


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """The ε of a plan for `queries` queries; `sanitised` is for the constants of `Forecast.release`."""

    queries: int
    worst_case: float
    data_dependent: float
    sanitised: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast. `answered` is a share of the queries, `right` the share of answers that are the class with the most
    votes. `worst_case` is the claim of the recipe, `unpublished` that of the recipe without `sanitize`."""

    aggregator: str
    voting: Voting
    agreement: Agreement
    seed: int
    delta: float
    planned: int
    queries: int
    """The queries that the simulation covers: all that are planned, or those of the first round."""
    answered: float
    right: float
    stop: Stop
    has_paid_steps: bool
    """True if steps of preprocessing cost privacy too: only the worst case includes them."""
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
        """The release with the recipe's own constants, else the suggested one."""
        return self.own or self.suggested

    @property
    def pays(self) -> bool:
        """True if the ε that may be published is expected to be smaller than the claim of a run that publishes none."""
        result = self.release
        return result is not None and result.worst_case is not None and result.published.epsilon < self.unpublished

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the document `dprecipe.votes/v1`."""
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
            "has_paid_steps": self.has_paid_steps,
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
    """Returns None for an infinite value: JSON has no infinity."""
    return value if value is not None and math.isfinite(value) else None
