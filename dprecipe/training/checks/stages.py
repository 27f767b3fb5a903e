"""Before anything is spent: noise is drawn as paid steps of preprocessing draw it, and measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dprecipe.contract.certificate import STAGE_NOISE
from dprecipe.contract.plan import Plan
from dprecipe.data.paid import covariance, items, moments
from dprecipe.data.paid.quantiles import WEIGHT_BITS, Ranks, draw_quantile
from dprecipe.faults import RunFailed
from dprecipe.noise import lattice
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.events import Event
from dprecipe.privacy.stages.events import (
    NoisyCount,
    NoisyCovariance,
    NoisyMoments,
    NoisyQuantile,
    PartitionSelection,
)
from dprecipe.training.checks.noise import DISTANCE, DRAWS, measure_noise
from dprecipe.training.probe.program import Check

QUANTILES = 5_000
CLUSTERS = 16
"""Places of the synthetic values that a quantile is drawn from; each has as many units as one unit's e-fold takes."""


def stage_noise(plan: Plan) -> tuple[Check, ...]:
    """Returns the check of the noise of paid steps, one for all of them; none where the plan has no such step.

    Gaussian noise is added to zeros, on the lattice of each statistic and at the scale of each event. Quantiles are
    drawn from synthetic values, and compared with the exponential mechanism's distribution function.

    Raises:
        RunFailed: a draw is not of its distribution.
    """
    if not plan.stages:
        return ()
    secrets, events = Secrets(), dict.fromkeys(charge.event for stage in plan.stages for charge in stage.charges)
    measured = []
    for number, event in enumerate(events):
        if isinstance(event, NoisyQuantile):
            measured.append(_measure_quantiles(event, secrets, number))
            continue
        for part, (bits, scale) in enumerate(_list_scales(event)):
            stream = secrets.stream("stages", number << 1 | part)
            drawn = lattice.add_gaussian(np.zeros(DRAWS, np.int64), bits, scale, stream)
            measured.append(measure_noise(drawn, Distribution("gaussian"), scale))
    ((name, text),) = STAGE_NOISE.items()
    return (Check(name, text, True, "; ".join(measured)),)


def _list_scales(event: Event) -> Iterator[tuple[int, float]]:
    """Yields the bits of the terms, and the noise's scale, of each part of what an event releases."""
    match event:
        case NoisyCount():
            yield items.COUNT_BITS, event.noise_scale
        case PartitionSelection():
            yield items.COUNT_BITS, event.noise_scale
        case NoisyMoments():
            yield moments.BITS, event.noise_scale
            yield moments.BITS, event.noise_scale / event.square_weight
        case NoisyCovariance():
            yield covariance.BITS, event.noise_scale
            yield covariance.BITS, event.noise_scale / math.sqrt(2.0)
        case _:
            raise RunFailed(f"internal fault: no check of the noise of a {event.kind}", "please report this")


def _measure_quantiles(event: NoisyQuantile, secrets: Secrets, number: int) -> str:
    units = max(1, round(1 / event.rank_weight))
    places_V = (np.arange(CLUSTERS) + 0.5) / CLUSTERS
    ranks = Ranks((places_V * 2.0**32).astype(np.int64), np.full(CLUSTERS, units << WEIGHT_BITS))
    stream = secrets.stream("stages", number << 1)
    drawn = np.sort([draw_quantile(ranks, event.level, event.rank_weight, 0.0, 1.0, stream) for _ in range(QUANTILES)])
    expected = quantile_cdf(drawn, places_V, units, event)
    shares = np.arange(QUANTILES + 1) / QUANTILES
    distance = float(max((expected - shares[:-1]).max(), (shares[1:] - expected).max()))
    measured = (
        f"quantile {event.level:g}: distance {distance:.5f} from the planned distribution over {QUANTILES:,} draws"
    )
    if not distance < DISTANCE / math.sqrt(QUANTILES):
        raise RunFailed(f"the noise is not what the plan says: {measured}", "don't trust this installation")
    return measured


def quantile_cdf(
    x: NDArray[np.float64], places_V: NDArray[np.float64], units: int, event: NoisyQuantile
) -> NDArray[np.float64]:
    """Returns the share of candidates in [0, 1] up to x, each with the weight exp(-β |rank − level · all|)."""
    edges = np.concatenate([[0.0], places_V, [1.0]])
    away = np.abs(units * (np.arange(CLUSTERS + 1) - event.level * CLUSTERS))
    density = np.exp(-event.rank_weight * (away - away.min()))
    mass = np.concatenate([[0.0], np.cumsum(density * np.diff(edges))])
    result: NDArray[np.float64] = np.interp(x, edges, mass) / mass[-1]
    return result
