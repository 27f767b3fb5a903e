"""A paid step is charged as its events say, and releases with their noise and no other."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dprecipe.data.paid.bounds import ColumnBounds, find_misfit
from dprecipe.data.paid.constants import (
    CountConstants,
    MomentConstants,
    QuantileConstants,
    StageConstants,
    dump_constants,
    parse_constants,
)
from dprecipe.data.paid.moments import BITS, sum_moments
from dprecipe.data.paid.rows import UnitRows
from dprecipe.data.paid.stage import paid_steps, plan_charges, public_units, release_stage, size_share
from dprecipe.data.raw import TextValues
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.stages.events import NoisyCovariance, NoisyMoments, NoisyQuantile, PartitionSelection

ADDED, REPLACED, ZEROED = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
PAY = {"noise_multiplier": 2.0}
STEPS: list[dict[str, Any]] = [
    {"dp_categories": {"columns": ["city"], "width": 3, **PAY}},
    {"dp_count": PAY},
    {"dp_quantiles": {"columns": ["age", "gain"], "low": 0.1, "high": 0.8, **PAY}},
    {"dp_standardize": {"columns": ["age", "gain"], **PAY}},
    {"dp_pca": {"components": 4, "row_norm": 3.0, **PAY}},
]


def data_of(steps: list[dict[str, Any]], size: int | dict[str, int] = 400) -> Data:
    number = {"kind": "numeric", "min": 0, "max": 10}
    columns = {"age": number, "gain": number, "city": {"kind": "text"}}
    train = {"source": "csv", "path": "t", "columns": columns, "label": {"column": "y", "classes": 2}}
    return Data.model_validate_json(json.dumps({"train": train, "size": size, "preprocess": steps}))


def records_of(data: Data, count: int = 400) -> Records:
    rng = np.random.default_rng(0)
    features = np.zeros((count, 6), np.float32)
    features[:, 0], features[:, 1] = rng.uniform(0.2, 0.5, count), rng.uniform(0, 1, count)
    cities = tuple(rng.choice(["Bern", "Rom", "Oslo"], count).tolist())
    texts = {"city": TextValues(2, cities)}
    return Records(features, np.zeros(count, np.int64), None, data.preprocess, texts=texts)


def stream(number: int) -> Stream:
    return Secrets(1).stream("noise", number)


def run(data: Data, records: Records, relation: Neighbouring = ADDED) -> tuple[list[StageConstants], Records]:
    released: list[StageConstants] = []
    for index in paid_steps(data):
        charges = plan_charges(data, index, 2.0, relation)
        constants = release_stage(data, records, charges, released, stream(index))
        records = records.with_constants(constants).prepared()
        released.append(constants)
    return released, records


def test_a_whole_list_of_steps_runs_in_order() -> None:
    data = data_of(STEPS)
    released, records = run(data, records_of(data))
    assert [constants.kind for constants in released] == [next(iter(step)) for step in STEPS]
    quantiles, moments = released[2], released[3]
    assert isinstance(quantiles, QuantileConstants)
    assert isinstance(moments, MomentConstants)
    assert (moments.low, moments.high) == (quantiles.low, quantiles.high)
    assert records.pending == ()
    x, _ = records.batch(slice(None))
    assert x.shape == (400, 4)
    assert np.linalg.norm(x.astype(np.float64), axis=1).max() <= 3.0


@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("of_one", [True, False])
def test_whatever_records_hold_a_release_is_of_the_declared_form(wild: float, of_one: bool) -> None:
    """No noise is drawn for nothing: a release that its own reader refuses would cost a budget."""
    data = data_of(STEPS)
    records = records_of(data)
    records.features[::2] = wild
    units = np.zeros(400, np.int64) if of_one else np.repeat(np.arange(200), 2)
    released, _ = run(data, replace(records, units=units))
    for number, (index, constants) in enumerate(zip(paid_steps(data), released, strict=True)):
        assert parse_constants(dump_constants(constants)) == constants
        charges = plan_charges(data, index, 2.0, ADDED)
        assert find_misfit(data, index, charges, constants, released[:number]) is None
    (count,) = (constants.units for constants in released if isinstance(constants, CountConstants))
    assert abs(count - (1 if of_one else 200)) < 2.0 * 8  # units, however many rows they have: 8 standard deviations


@pytest.mark.parametrize("relation", [ADDED, REPLACED, ZEROED])
def test_charges_say_all_of_a_release(relation: Neighbouring) -> None:
    charges = [plan_charges(data_of(STEPS), index, 2.0, relation) for index in range(5)]
    weight = 1.665 if relation is REPLACED else 1.0
    assert charges[0][0].event == PartitionSelection.with_leak(1, 1e-6, 2.0)
    assert charges[2] == (Charge(NoisyQuantile(0.1, 2.0), 2), Charge(NoisyQuantile(0.8, 2.0), 2))
    assert charges[3] == (Charge(NoisyMoments(2, weight, 1.0, 0.0, 2.0), 1),)
    assert charges[4] == (Charge(NoisyCovariance(6, 2.0), 1),)


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("relation", [ADDED, REPLACED])
def test_the_event_has_the_sensitivity_that_units_attain(columns: int, relation: Neighbouring) -> None:
    charges = plan_charges(data_of([{"dp_standardize": {"columns": ["age"], **PAY}}]), 0, 2.0, relation)
    event = charges[0].event
    assert isinstance(event, NoisyMoments)
    event = replace(event, columns=columns)
    bounds = ColumnBounds(np.arange(columns), np.full(columns, -1.0), np.full(columns, 1.0))
    rows = [np.full((1, columns), value, np.float32) for value in (1.0, -1.0)]
    high, low = (sum_moments(lambda i, x=x: x[i], UnitRows.of(None, 1), bounds) / 2.0**BITS for x in rows)
    moved = high - low if relation is REPLACED else high
    distance = math.hypot(*moved[0], *(event.square_weight * moved[1]))
    assert distance == pytest.approx(event.sensitivity * event.moved(relation), rel=1e-12)


def test_an_unchanged_list_of_charges_is_asked_for() -> None:
    data = data_of(STEPS[1:])
    records = records_of(data)
    (count,) = plan_charges(data, 0, 2.0, ADDED)
    (matrix,) = plan_charges(data, 3, 2.0, ADDED)
    for charges in ([], [matrix], [count, count]):
        with pytest.raises(ValueError, match="charges are not those"):
            release_stage(data, records, charges, [], stream(0))
    with pytest.raises(ValueError, match="no paid step is left"):
        release_stage(data, records, [count], [CountConstants(units=1.0)] * 4, stream(0))
    quantiles = data_of(STEPS[2:3])
    for level in (0.1, 0.5):
        wrong = [Charge(NoisyQuantile(level, 2.0), 1), Charge(NoisyQuantile(0.8, 2.0), 2)]
        with pytest.raises(ValueError, match="of other quantiles"):
            release_stage(quantiles, records_of(quantiles), wrong, [], stream(0))


def test_a_released_count_takes_the_place_of_the_size() -> None:
    public, hidden = data_of(STEPS[1:2], 50), data_of(STEPS[1:2], {"max": 50})
    for units, of_public, of_hidden in ((47.25, 47.25, 47.25), (-3.0, 1.0, 1.0), (1e9, 1e9, 50.0)):
        count = [CountConstants(units=units)]
        assert (public_units(public, count), public_units(hidden, count)) == (of_public, of_hidden)
        assert (size_share(public, count), size_share(hidden, count)) == (1.0, of_hidden / 50)
    assert public_units(public, []) == public_units(hidden, []) == 50.0


def test_noise_is_the_events_own() -> None:
    """Twice the noise multiplier moves what is released twice as far from the truth, for the same stream."""
    data = data_of(STEPS[1:2])
    result = [
        release_stage(data, records_of(data), plan_charges(data, 0, multiplier, ADDED), [], stream(0))
        for multiplier in (4.0, 8.0)
    ]
    first, second = (constants.units - 400 for constants in result if isinstance(constants, CountConstants))
    assert second == pytest.approx(2 * first, abs=1e-4)
