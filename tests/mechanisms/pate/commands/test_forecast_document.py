"""The document of a forecast: infinity is null, and publishing pays only if it lowers the claim."""

from __future__ import annotations

import json
import math

import pytest

from dprecipe.cli.schema import SCHEMAS
from dprecipe.contract.document import RecipeName
from dprecipe.mechanisms.pate.commands.forecast_document import (
    Costs,
    Forecast,
    ForecastPoint,
    ForecastRelease,
    Simulated,
    Stop,
)
from dprecipe.mechanisms.pate.schema import SmoothSensitivity
from tests.schemas import validator_of

FORECAST = Forecast(
    recipe=RecipeName(name="example", digest="sha256:" + "0" * 64),
    aggregator="gnmax",
    teachers=100,
    classes=10,
    noise_multiplier=40.0,
    threshold=None,
    selection_multiplier=None,
    simulated=Simulated(agreement=(0.5, 1.0), student=0.8, seed=0),
    delta=1e-5,
    planned=20,
    queries=20,
    answered=1.0,
    right=0.9,
    stop=Stop(queries=20, answers=20, reason="queries", max_queries=None),
    worst_case=3.0,
    rounds=(),
    has_paid_steps=False,
    unpublished=3.0,
    data_dependent=Costs(papers=math.inf, bound=2.5, exact=None),
    sanitised=None,
    suggested=None,
    rows=(),
    thresholds=(),
    points=(ForecastPoint(queries=20, worst_case=3.0, data_dependent=math.inf, sanitised=None),),
)


def release(epsilon: float, worst_case: float | None) -> ForecastRelease:
    constants = SmoothSensitivity(
        method="smooth_sensitivity", order=6.0, beta=0.02, multiplier=9.0, scale_multiplier=9.0, delta=1e-6
    )
    return ForecastRelease(
        sanitize=constants,
        epsilon=epsilon,
        delta=1e-5,
        deviation=0.1,
        total=epsilon,
        cost=0.5,
        worst_case=worst_case,
        stop=None,
    )


def test_infinity_and_what_is_unknown_are_null() -> None:
    document = json.loads(FORECAST.to_text())
    assert document["data_dependent"] == {"papers": None, "bound": 2.5, "exact": None}
    assert document["points"] == [{"queries": 20, "worst_case": 3.0, "data_dependent": None, "sanitised": None}]
    assert document["sanitised"] is document["suggested"] is document["threshold"] is None


def test_the_document_satisfies_its_schema() -> None:
    for forecast in (FORECAST, FORECAST.model_copy(update={"sanitised": release(1.0, 3.5)})):
        validator_of(SCHEMAS["votes.schema.json"]).validate(json.loads(forecast.to_text()))


@pytest.mark.parametrize(
    ("own", "pays"),
    [(None, False), (release(2.9, 3.5), True), (release(3.0, 3.5), False), (release(1.0, None), False)],
)
def test_publishing_pays_only_if_it_is_planned_and_lowers_the_claim(own: ForecastRelease | None, pays: bool) -> None:
    assert FORECAST.model_copy(update={"sanitised": own}).pays is pays


def test_the_recipes_own_release_comes_before_a_suggested_one() -> None:
    own, suggested = release(1.0, 3.5), release(0.5, 3.5)
    assert FORECAST.model_copy(update={"sanitised": own, "suggested": suggested}).release is own
    assert FORECAST.model_copy(update={"suggested": suggested}).release is suggested
