"""Probabilities of full batches for the cross-check accountant, by scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.questions import CappedSum, LibraryLoss, Question


def find_full_chance(question: Question) -> float:
    """Returns the probability, at most, that a batch in a release has its maximum size."""
    match question:
        case CappedSum(_, rate, size, cap):
            return _find_tail(size, rate, cap)
        case LibraryLoss(_, full):
            return full
    return 0.0


def list_full_chances(batches: int, taken: int, size: int, cap: int) -> NDArray[np.floating[Any]]:
    """Returns the probability, at most, that 0, 1, … `taken` + 1 of the first `taken` of `batches` batches have `cap`
    of the `size` units that are dealt to them."""
    from scipy import special

    least = np.arange(taken + 2)
    logs = special.gammaln(taken + 1) - special.gammaln(least + 1) - special.gammaln(taken - least + 1)
    logs = logs + special.xlogy(least, _find_tail(size, 1 / batches, cap))
    chances: NDArray[np.floating[Any]] = np.exp(np.minimum(logs, 0.0))
    return chances


def _find_tail(size: int, rate: float, cap: int) -> float:
    from scipy import stats

    return float(stats.binom.sf(cap - 1, size, rate))
