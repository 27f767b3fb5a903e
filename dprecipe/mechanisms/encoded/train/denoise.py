"""The step multiplier: the distance of a noisy sum from its noise alone. As post-processing, it costs no privacy.

The argument is the noisy sum and what is public: never the noise, the clean sum or the size of a batch.

Legend: P parameters, D coordinates of a group, G groups.
Source: Nasr, Shokri and Houmansadr 2020, Algorithm 1; docs/explanation/encoding.md, denoising.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dprecipe.noise.distributions import Distribution

NULL = 0.87
"""Mean Kolmogorov-Smirnov distance of D draws from their own distribution, times sqrt(D): just below this value, which
is Kolmogorov's limit, sqrt(π/2) log 2."""
STRIDE = 16
"""Spacing of the sorted values that are compared with the distribution at first."""
At = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""A function from ranks, counted from 0, to the values there."""


def kolmogorov_smirnov(
    noisy: Tensor | NDArray[np.float64],
    distribution: Distribution,
    scale: float,
    groups: Sequence[int] | None = None,
    *,
    shrink: bool = False,
) -> tuple[float, ...]:
    """Returns the Kolmogorov-Smirnov distance of the coordinates of a noisy sum from its noise: one, or one for each
    group.

    `noisy`: (P,) float64, the sum before it is divided by anything; `distribution` has scale 1 and `scale` is the
    noise's; `groups`: how many coordinates each group has, in order; `shrink` takes off what noise alone is expected to
    show, `NULL` / sqrt(coordinates).

    Guarantees: each is in [0, 1], and the same wherever the sum is: where it is on a GPU it is sorted there, and only
    one value in `STRIDE` and a few more are fetched.
    """
    sizes = [len(noisy)] if groups is None else list(groups)
    ordered: Iterator[At]
    if isinstance(noisy, Tensor) and sorts_on_device(noisy.device):
        # Divides by a tensor: to divide by a number, a GPU multiplies by its reciprocal, which may round differently.
        values = noisy / noisy.new_full((), scale)
        ordered = (_fetch_from(part.sort().values) for part in torch.split(values, sizes))
    else:
        values_P = np.asarray(noisy) / scale
        parts = [values_P] if groups is None else np.split(values_P, np.cumsum(groups)[:-1])
        ordered = (np.sort(part).__getitem__ for part in parts)
    return tuple(
        max(0.0, _distance(at, size, distribution) - (NULL / math.sqrt(size) if shrink else 0.0))
        for at, size in zip(ordered, sizes, strict=True)
    )


def sorts_on_device(device: torch.device) -> bool:
    """Returns True if a sum is sorted on this device."""
    return device.type == "cuda"


def _fetch_from(ordered_D: Tensor) -> At:
    return lambda ranks: ordered_D[torch.from_numpy(ranks).to(ordered_D.device)].cpu().numpy()


def _distance(at: At, size: int, distribution: Distribution) -> float:
    """Returns the largest difference of the empirical distribution function from the distribution's, on either side of
    a value; `at` returns some of the `size` values, in order.

    Both functions ascend, so every `STRIDE`-th value bounds where the largest difference may be.
    """
    some = np.append(np.arange(0, size - 1, STRIDE), size - 1)
    cdf = distribution.cdf(at(some))
    largest = _largest(some, cdf, size)
    upper = np.maximum(some[1:] / size - cdf[:-1], cdf[1:] - (some[:-1] + 1) / size)
    between = np.add.outer(some[:-1][upper > largest], np.arange(1, STRIDE)).ravel()
    between = between[between < size]
    return max(largest, _largest(between, distribution.cdf(at(between)), size))


def _largest(ranks: NDArray[np.int64], cdf: NDArray[np.float64], size: int) -> float:
    return float(np.max([(ranks + 1) / size - cdf, cdf - ranks / size], initial=0.0))
