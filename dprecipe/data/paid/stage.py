"""A paid step of a recipe: the events that it is charged as, and its release.

`plan_charges` is for the plan, and `release_stage` for the run, which has those very charges in its ledger before.
Noise is asked of the events; nothing about it is read from the recipe a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.data.facts import column_facts, feature_shape, source_shape
from dprecipe.data.paid import release
from dprecipe.data.paid.bounds import find_bounds
from dprecipe.data.paid.constants import CountConstants, StageConstants
from dprecipe.data.paid.moments import second_moment_weight
from dprecipe.data.paid.release import PrivateRows
from dprecipe.data.paid.rows import UnitRows
from dprecipe.data.paid.schema import (
    DpCategories,
    DpCount,
    DpPca,
    DpQuantiles,
    DpStandardize,
    DpVocabulary,
    ItemStep,
    PaidStep,
    items_of_unit,
)
from dprecipe.data.preprocess import prepare_features
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.noise.entropy import Stream
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.stages.events import (
    NoisyCount,
    NoisyCovariance,
    NoisyMoments,
    NoisyQuantile,
    PartitionSelection,
)


def paid_steps(data: Data) -> tuple[int, ...]:
    """Returns the places in `data.preprocess` of the steps that pay, in order."""
    return tuple(n for n, step in enumerate(data.preprocess) if isinstance(step.operation, PaidStep))


def paid_step(data: Data, index: int) -> PaidStep:
    """Returns the paid step at a place of `data.preprocess`. Raises ValueError where there is another one."""
    step = data.preprocess[index].operation
    if not isinstance(step, PaidStep):
        raise ValueError(f"data.preprocess.{index} is no paid step")
    return step


def plan_charges(data: Data, index: int, noise_multiplier: float, relation: Neighbouring) -> tuple[Charge, ...]:
    """Returns the charges for the release of step `index`, all known from the recipe.

    `noise_multiplier` is the event's own, relative to its add-or-remove sensitivity. A recipe without findings is
    assumed.
    """
    step = paid_step(data, index)
    match step:
        case DpCount():
            return (Charge(NoisyCount(noise_multiplier), 1),)
        case DpPca():
            facts = column_facts(data.train.table_columns or {}, data.preprocess)
            (dimension,) = feature_shape(source_shape(facts, data.train.record_shape), data.preprocess[:index])
            return (Charge(NoisyCovariance(dimension, noise_multiplier), 1),)
        case DpQuantiles():
            columns = len(find_bounds(data, index).features)
            return tuple(Charge(NoisyQuantile(level, noise_multiplier), columns) for level in (step.low, step.high))
        case DpCategories() | DpVocabulary():
            return (Charge(_selection(step, noise_multiplier), 1),)
        case _:
            columns = len(find_bounds(data, index).features)
            weight = second_moment_weight(relation)
            return (Charge(NoisyMoments(columns, weight, 1.0, 0.0, noise_multiplier), 1),)


def _selection(step: ItemStep, noise_multiplier: float) -> PartitionSelection:
    if step.min_units == "auto":
        return PartitionSelection.with_leak(items_of_unit(step), step.leak, noise_multiplier)
    return PartitionSelection(items_of_unit(step), float(step.min_units), noise_multiplier)


def public_units(data: Data, earlier: Sequence[StageConstants]) -> float:
    """Returns the number of units that later steps divide by: a released count, where there is one, else the planned
    number.

    Guarantees: at least 1, and at most the planned number where a bound is declared; a function of what was released
    and of the recipe.
    """
    counts = [constants.units for constants in earlier if isinstance(constants, CountConstants)]
    if not counts:
        return float(data.planned_units)
    return max(min(counts[-1], float(data.planned_units)) if data.hides_size else counts[-1], 1.0)


def size_share(data: Data, constants: Sequence[StageConstants]) -> float:
    """Returns the factor for divisors of sums, in (0, 1].

    It is the released number of units over the bound that they are planned for, where the number is protected; else 1.
    """
    return public_units(data, constants) / data.planned_units if data.hides_size else 1.0


def read_private(records: Records) -> PrivateRows:
    """Returns what the first pending paid step reads of the training records."""
    ready = records.pending[: records.next_stage]
    return PrivateRows(
        lambda rows: prepare_features(records.features.take(rows, axis=0), ready),
        UnitRows.of(records.units, len(records)),
        {name: column.values for name, column in records.texts.items()},
    )


def release_stage(
    data: Data, records: Records, charges: Sequence[Charge], earlier: Sequence[StageConstants], stream: Stream
) -> StageConstants:
    """Draws the noise of the next paid step, and returns what may be published.

    `records`: training records, on which that step is the first that is pending. `charges`: those of `plan_charges`, in
    the ledger already. `earlier`: what the paid steps before it have released. `stream`: secret, of this release alone.

    Raises:
        ValueError: the charges are not those of the step, the records wait for another one, or none is left.
    """
    places = paid_steps(data)
    if len(earlier) >= len(places):
        raise ValueError("no paid step is left")
    index = places[len(earlier)]
    if records.next_stage is None or records.pending[records.next_stage] != data.preprocess[index]:
        raise ValueError("the records wait for another step")
    step, private = paid_step(data, index), read_private(records)
    units, counts = public_units(data, earlier), {charge.count for charge in charges}
    if counts != {1} and not isinstance(step, DpQuantiles):
        raise ValueError("the charges are not those of the step")
    match step, *(charge.event for charge in charges):
        case DpCount(), NoisyCount() as count:
            return release.release_count(private, count.noise_scale, stream)
        case DpPca() as pca, NoisyCovariance() as matrix:
            return release.release_projection(pca, private, units, matrix.noise_scale, stream)
        case DpQuantiles() as quantiles, NoisyQuantile() as low, NoisyQuantile() as high:
            bounds = find_bounds(data, index, earlier)
            if (low.level, high.level) != (quantiles.low, quantiles.high) or counts != {len(bounds.features)}:
                raise ValueError("the charges are of other quantiles")
            levels, weights = (low.level, high.level), (low.rank_weight, high.rank_weight)
            return release.release_quantiles(private, bounds, levels, weights, stream)
        case (DpCategories() | DpVocabulary()) as own, PartitionSelection() as items:
            if items.max_items != items_of_unit(own):
                raise ValueError("the charge is of another number of items")
            return release.release_items(own, private, items.noise_scale, items.threshold, stream)
        case DpStandardize(), NoisyMoments() as moments:
            bounds = find_bounds(data, index, earlier)
            if moments.columns != len(bounds.features) or (moments.centre, moments.count_weight) != (1.0, 0.0):
                raise ValueError("the charge is of other moments")
            return release.release_moments(private, bounds, units, moments.noise_scale, moments.square_weight, stream)
        case _:
            raise ValueError("the charges are not those of the step")
