"""The document of a forecast: infinity is null, and publishing pays only if it lowers the claim."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from dprecipe.mechanisms.pate.commands.forecast_document import Costs, Forecast, ForecastPoint, ForecastRelease, Stop
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.commands.suggest import PublishedCost
from dprecipe.mechanisms.pate.commands.votes_schema import votes_schema
from dprecipe.mechanisms.pate.theory.sanitise import Sanitiser
from dprecipe.mechanisms.pate.theory.votes import Voting

FORECAST = Forecast(
    aggregator="gnmax",
    voting=Voting(100, 10, "gaussian", 40.0, None),
    agreement=Agreement(),
    seed=0,
    delta=1e-5,
    planned=20,
    queries=20,
    answered=1.0,
    right=0.9,
    stop=Stop(20, 20, "queries", None),
    worst_case=3.0,
    has_paid_steps=False,
    unpublished=3.0,
    costs=Costs(math.inf, 2.5, None),
    own=None,
    suggested=None,
    rows=(),
    thresholds=(),
    points=(ForecastPoint(20, 3.0, math.inf, None),),
)


def release(epsilon: float, worst_case: float | None) -> ForecastRelease:
    constants = Sanitiser(order=6.0, smoothness=0.02, value_multiplier=9.0, sensitivity_multiplier=9.0, failure=1e-6)
    published = PublishedCost(constants, epsilon, 1e-5, 0.1, epsilon, 0.5)
    return ForecastRelease(published, worst_case, None)


def test_infinity_and_what_is_unknown_are_null() -> None:
    document = json.loads(json.dumps(FORECAST.to_json(), allow_nan=False))
    assert document["data_dependent"] == {"papers": None, "bound": 2.5, "exact": None}
    assert document["points"] == [{"queries": 20, "worst_case": 3.0, "data_dependent": None, "sanitised": None}]
    assert document["sanitised"] is document["suggested"] is document["threshold"] is None


def test_the_body_satisfies_its_schema() -> None:
    schema = votes_schema()
    body = replace(FORECAST, own=release(1.0, 3.5)).to_json()
    for name, value in body.items():
        Draft202012Validator(schema["properties"][name] | {"$defs": schema.get("$defs", {})}).validate(value)


@pytest.mark.parametrize(
    ("own", "pays"),
    [(None, False), (release(2.9, 3.5), True), (release(3.0, 3.5), False), (release(1.0, None), False)],
)
def test_publishing_pays_only_if_it_is_planned_and_lowers_the_claim(own: ForecastRelease | None, pays: bool) -> None:
    assert replace(FORECAST, own=own).pays is pays


def test_the_recipes_own_release_comes_before_a_suggested_one() -> None:
    own, suggested = release(1.0, 3.5), release(0.5, 3.5)
    assert replace(FORECAST, own=own, suggested=suggested).release is own
    assert replace(FORECAST, suggested=suggested).release is suggested
