"""The probability that a Poisson batch reaches its maximum size, with the standard library alone."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=64)
def full_batch_probability(size: int, rate: float, cap: int) -> float:
    """Returns an upper bound of Pr[at least `cap` of `size` units join, each with probability `rate`]; 1 where `cap` is
    no more than their mean.

    The first term by Stirling's formula, which bounds a binomial coefficient from above, the others by their ratios.

    Guarantees: if below 1, too large by at most 1/(11 m), relatively, m the lesser of `cap` and `size` - `cap`.
    Source: MacWilliams & Sloane 1977, Chapter 10, Lemma 7.
    """
    if cap <= size * rate:
        return 1.0
    if cap >= size:
        return rate**size if cap == size else 0.0
    part = cap / size
    divergence = cap * math.log(part / rate) + (size - cap) * math.log1p(-(part - rate) / (1 - rate))
    first = math.exp(-divergence) * math.sqrt(size / (2 * math.pi * cap * (size - cap)))
    total = term = 1.0
    for k in range(cap, size):
        term *= (size - k) / (k + 1) * rate / (1 - rate)
        total += term
        if term < 1e-17 * total:
            break
    return min(1.0, first * total * (1 + 1e-9))
