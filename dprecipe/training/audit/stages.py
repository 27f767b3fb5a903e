"""Paid steps of preprocessing, released over and over on synthetic records: what is published carries the noise that is
charged, and one unit moves it by no more than that is for.

From what a step publishes the noisy statistic is computed back, in scales of the noise: so nothing of the step is
replaced or watched.

Legend: R releases, P numbers of a statistic, N records, U units.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.contract.stages import PaidStage
from dprecipe.data.facts import column_facts, source_shape
from dprecipe.data.paid.bounds import find_bounds
from dprecipe.data.paid.constants import (
    CountConstants,
    ItemConstants,
    MomentConstants,
    ProjectionConstants,
    QuantileConstants,
    StageConstants,
)
from dprecipe.data.paid.schema import DpCategories, DpPca, DpVocabulary, item_columns
from dprecipe.data.paid.stage import paid_step, public_units, release_stage
from dprecipe.data.raw import TextValues
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.results import Distance, Excess, Frequency, Variance
from dprecipe.privacy.stages.events import (
    NoisyCount,
    NoisyCovariance,
    NoisyMoments,
    NoisyQuantile,
    PartitionSelection,
)
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import UNBOUNDED
from dprecipe.training.checks.stages import quantile_cdf

RELEASES, MIN_RELEASES = 400, 40
SECONDS = 2.0
"""Approximate seconds for the releases of one step; there are `MIN_RELEASES` at least."""
PLACES = 16
"""Values that a feature has."""
FEW, OFTEN = "few", "often"
"""The items of texts: of one unit, and of as many as the threshold."""
LATTICE = 1e-3
"""Largest part that a lattice of the noise may add to a move, over the sensitivity."""
Floats = NDArray[np.float64]


def examine_stages(plan: Plan, beat: Callable[[], None]) -> Iterator[AuditFinding]:
    """Yields the tests of all paid steps, in order; each on records that the ones before it have prepared."""
    constants: list[StageConstants] = []
    plan = replace(plan, data=_publish_all(plan))
    records = make_records(plan)
    for stage in plan.stages:
        ready, secrets = records.with_all_constants(constants), Secrets()
        yield from _examine_stage(plan, stage, ready, constants, secrets, beat)
        stream = secrets.stream("stages", 0)
        constants.append(release_stage(plan.data, ready, stage.charges, constants, stream))


def _publish_all(plan: Plan) -> Data:
    """Returns the plan's data; where its last paid step is a projection, with all components, so that its noisy matrix
    can be computed back. The matrix is the same."""
    data, steps = plan.data, list(plan.data.preprocess)
    last = plan.stages[-1]
    step, event = paid_step(data, last.step), last.charges[0].event
    if not (isinstance(step, DpPca) and isinstance(event, NoisyCovariance)):
        return data
    whole = step.model_copy(update={"components": event.dimension, "explained": None})
    steps[last.step] = steps[last.step].model_copy(update={"dp_pca": whole})
    return data.model_copy(update={"preprocess": tuple(steps)})


def make_records(plan: Plan) -> Records:
    """Makes as many units as planned; the first, of the most records it may have, is at the end of every range."""
    data, unit = plan.data, plan.data.unit
    columns = column_facts(data.train.table_columns or {}, data.preprocess)
    shape, count = source_shape(columns, data.train.record_shape), data.max_units
    sizes = np.ones(count, np.int64) if unit == "record" else 1 + np.arange(count)[::-1] % unit.max_records
    units = np.repeat(np.arange(count), sizes)
    generator = np.random.default_rng(0)
    places = (generator.permutation(len(units))[:, None] + np.arange(math.prod(shape))) % PLACES
    features = ((places + 0.5) / PLACES).astype(np.float32).reshape(len(units), *shape)
    features[units == 0] = 1.0
    texts: dict[str, TextValues] = {}
    named = {column.name: column for column in columns}
    for stage in plan.stages:
        step = paid_step(data, stage.step)
        for name in item_columns(step) if isinstance(step, DpCategories | DpVocabulary) else ():
            start = named[name].start
            features[:, start : start + named[name].width] = 0.0
            texts[name] = TextValues(start, (OFTEN,) * len(units))
    labels, of_unit = np.zeros(len(units), np.int64), None if unit == "record" else units
    return Records(features, labels, of_unit, data.preprocess, texts=texts)


def _examine_stage(
    plan: Plan,
    stage: PaidStage,
    records: Records,
    earlier: Sequence[StageConstants],
    secrets: Secrets,
    beat: Callable[[], None],
) -> Iterator[AuditFinding]:
    name, event = f"stage_{stage.step}", stage.charges[0].event
    if isinstance(event, PartitionSelection):
        records = _count_items(records, event, plan.data)

    def release(number: int, of: Records) -> StageConstants:
        beat()
        return release_stage(plan.data, of, stage.charges, earlier, secrets.stream("stages", number))

    begun = time.monotonic()
    released: list[StageConstants] = []
    while len(released) < MIN_RELEASES or (len(released) < RELEASES and time.monotonic() - begun < SECONDS):
        released.append(release(1 + len(released), records))
    if isinstance(event, PartitionSelection):
        yield from _examine_items(name, event, [c for c in released if isinstance(c, ItemConstants)])
        return
    if isinstance(event, NoisyQuantile):
        yield from _examine_quantiles(name, stage, plan.data, earlier, released, records)
        return
    units = public_units(plan.data, earlier)
    parts = [_invert(constants, event, plan.data, stage, earlier, units) for constants in released]
    for part in parts[0]:
        scores_RP = np.array([each[part] for each in parts])
        if scores_RP.size == 0:
            continue
        spread = float(np.square(scores_RP - scores_RP.mean(axis=0)).sum())
        degrees = (len(scores_RP) - 1) * scores_RP.shape[1]
        text = f"{stage.path}: what is published of the {part} has the noise that is charged"
        evidence = Variance(sum_squares=min(spread, UNBOUNDED), degrees=degrees)
        yield AuditFinding("program", f"{name}_{part}_noise", text, evidence)
    without = _invert(release(1, _drop_first(records)), event, plan.data, stage, earlier, units)
    moved = math.sqrt(sum(float(np.square(np.subtract(parts[0][part], without[part])).sum()) for part in without))
    text = f"{stage.path}: a unit, removed, moves the statistic by no more than its noise is for"
    evidence_of_move = Excess(largest=min(moved * event.multipliers[0], UNBOUNDED), allowed=1 + LATTICE)
    yield AuditFinding("program", f"{name}_move", text, evidence_of_move)


def _drop_first(records: Records) -> Records:
    """Returns the records without the first unit."""
    kept = np.flatnonzero(np.arange(len(records)) > 0 if records.units is None else records.units > 0)
    units = None if records.units is None else records.units[kept] - 1
    return replace(records, features=records.features[kept], labels=records.labels[kept], units=units)


def _invert(
    constants: StageConstants, event: Any, data: Data, stage: PaidStage, earlier: Sequence[StageConstants], units: float
) -> Mapping[str, Floats]:
    """Returns the noisy statistic that constants were computed from, part by part, in scales of its noise."""
    match constants, event:
        case CountConstants(units=counted), NoisyCount():
            return {"count": np.array([counted / event.noise_scale])}
        case MomentConstants(), NoisyMoments():
            bounds = find_bounds(data, stage.step, earlier)
            mean = (np.array(constants.mean) - bounds.middle) / bounds.half
            second = np.square(np.array(constants.std) / bounds.half) - 1 + mean**2
            weight = units / event.noise_scale
            return {"means": weight * mean, "squares": weight * event.square_weight * second}
        case ProjectionConstants(), NoisyCovariance():
            basis = constants.matrix.astype(np.float64)
            if basis.shape[0] != basis.shape[1]:
                return {"values": np.zeros(0)}  # some of the matrix is not published
            matrix = units * (basis * np.array(constants.eigenvalues)) @ basis.T / event.noise_scale
            above = np.triu_indices(len(matrix), 1)
            return {"diagonal": matrix.diagonal().copy(), "products": math.sqrt(2) * matrix[above]}
    raise TypeError(f"constants of {stage.kind} for a {event.kind}")


def _examine_quantiles(
    name: str,
    stage: PaidStage,
    data: Data,
    earlier: Sequence[StageConstants],
    released: Sequence[StageConstants],
    records: Records,
) -> Iterator[AuditFinding]:
    """Examines the lower quantile of all columns: the first unit is at an end, and counts for little."""
    event, bounds = stage.charges[0].event, find_bounds(data, stage.step, earlier)
    if not isinstance(event, NoisyQuantile):
        return
    lows = np.array([constants.low for constants in released if isinstance(constants, QuantileConstants)])
    drawn = np.sort(((lows - bounds.low) / (bounds.high - bounds.low)).ravel())
    places = (np.arange(PLACES) + 0.5) / PLACES
    expected = quantile_cdf(drawn, places, max(1, round(records.unit_count / PLACES)), event)
    ranks = np.arange(len(drawn) + 1) / len(drawn)
    distance = max(float((expected - ranks[:-1]).max()), float((ranks[1:] - expected).max()))
    text = f"{stage.path}: quantiles are drawn as the exponential mechanism that is charged draws them"
    yield AuditFinding("program", f"{name}_draws", text, Distance(statistic=distance, sample=len(drawn)))


def _count_items(records: Records, event: PartitionSelection, data: Data) -> Records:
    """Returns the same records with two items: one of the first unit alone, one of as many units as the threshold; the
    texts of the others are empty."""
    often = max(2, math.floor(event.threshold))
    unit_of = np.arange(len(records)) if records.units is None else records.units
    values = tuple(FEW if u == 0 else OFTEN if u <= often else "" for u in unit_of.tolist())
    return replace(records, texts={key: TextValues(text.start, values) for key, text in records.texts.items()})


def _examine_items(name: str, event: PartitionSelection, released: Sequence[ItemConstants]) -> Iterator[AuditFinding]:
    from scipy import stats

    for item, count in ((FEW, 1), (OFTEN, max(2, math.floor(event.threshold)))):
        times = [item in items for constants in released for items in constants.items]
        expected = float(stats.norm.sf((event.threshold - count) / event.noise_scale))
        text = f"an item of {count:,} units is released as often as the noise and the threshold say"
        evidence = Frequency(successes=sum(times), trials=len(times), expected=expected)
        yield AuditFinding("program", f"{name}_item_{item}", text, evidence)
