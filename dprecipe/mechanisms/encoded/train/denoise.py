"""How far a noisy sum is from noise alone: the multiplier of the step. Post-processing, it costs no privacy.

The argument is the noisy sum and what is public: never the noise, the clean sum or the size of a lot.

Legend: P parameters, D coordinates of a group, G groups.
Source: Nasr, Shokri and Houmansadr 2020, Algorithm 1; docs/encoding.md, denoising.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.noise.laws import Law

NULL = 0.87
"""D draws are on average this over sqrt(D), or just less, from their own law: sqrt(π/2) log 2, Kolmogorov's mean."""
STRIDE = 16
"""Of the sorted values, one in this many is held against the law at first."""


def kolmogorov_smirnov(
    noisy: Tensor | NDArray[np.float64],
    law: Law,
    scale: float,
    groups: Sequence[int] | None = None,
    *,
    shrink: bool = False,
) -> tuple[float, ...]:
    """Kolmogorov-Smirnov distance of the coordinates of a noisy sum from its noise: one, or one for each group.

    `noisy`: (P,) float64 on the CPU, the sum before it is divided by anything; `law` has scale 1 and `scale` is the
    noise's; `groups`: how many coordinates each group has, in order; `shrink` takes off what noise alone is expected to
    show, `NULL` / sqrt(coordinates).

    Guarantees: each is in [0, 1].
    """
    values_P = np.asarray(noisy) / scale
    parts = [values_P] if groups is None else np.split(values_P, np.cumsum(groups)[:-1])
    return tuple(max(0.0, _distance(part, law) - (NULL / math.sqrt(len(part)) if shrink else 0.0)) for part in parts)


def _distance(values_D: NDArray[np.float64], law: Law) -> float:
    """The largest difference of the empirical distribution function from the law's, on either side of a value.

    Both functions ascend, so every `STRIDE`-th value tells between which of them the largest difference may be.
    """
    values_D = np.sort(values_D)
    size = len(values_D)
    some = np.append(np.arange(0, size - 1, STRIDE), size - 1)
    cdf = law.cdf(values_D[some])
    largest = _largest(some, cdf, size)
    most = np.maximum(some[1:] / size - cdf[:-1], cdf[1:] - (some[:-1] + 1) / size)
    between = np.add.outer(some[:-1][most > largest], np.arange(1, STRIDE)).ravel()
    between = between[between < size]
    return max(largest, _largest(between, law.cdf(values_D[between]), size))


def _largest(ranks: NDArray[np.int64], cdf: NDArray[np.float64], size: int) -> float:
    return float(np.max([(ranks + 1) / size - cdf, cdf - ranks / size], initial=0.0))
