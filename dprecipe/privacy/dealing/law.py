"""The law of an epoch's likelihood ratio by the method that suits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from dprecipe.privacy.dealing.epoch import EpochRatio, MixedRatio
from dprecipe.privacy.dealing.geometric import sum_geometric
from dprecipe.privacy.dealing.linear import sum_linear
from dprecipe.privacy.dealing.ratio import RatioLaw, mix_laws
from dprecipe.privacy.loss import GridError, LossPair

_FEW = 4
"""The number of terms up to which points near A = 0 must be close to each other."""
_LOST = 3e4
"""The mass that a law may lose, over that of a loss distribution's tails: about 10⁻⁴ of δ in a run."""
_MUCH = 1e6
"""The same, where a grid of equal ratios would have to be coarse: about 1 % of δ in a run."""
_LARGEST_TAIL = 1e-9
"""The largest mass that is cut off at either end of a law, however improbable its case is."""
_FINE, _COARSE = (0.03, 0.06, 0.12), (0.25, 0.5, 1.0, 2.0, 6.0, 20.0)
"""Steps of a grid of equal ratios, over the standard deviation of A, or over 1 where that is more."""


def epoch_losses(ratio: EpochRatio | MixedRatio, step: float, tail: float) -> LossPair:
    """Returns the privacy losses of removing and of adding a unit, on a grid of `step`.

    Guarantees: dominates both directions; about 10⁵ `tail` is charged to infinity at most, unless no method gives a
    law that loses so little.

    Raises:
        GridError: too many points.
    """
    return _find_law(ratio, tail).to_losses(step, tail)


@lru_cache(maxsize=8)
def _find_law(ratio: EpochRatio | MixedRatio, tail: float) -> RatioLaw:
    return _mix_cases(ratio, tail, _find_law_of_one)


def _find_law_of_one(ratio: EpochRatio, tail: float) -> RatioLaw:
    linear = _sum_linear(ratio, _LOST * tail)
    if linear is not None and linear.lost <= 3 * _LOST * tail:
        return linear
    return _find_geometric(ratio, linear, tail)


def find_other_law(ratio: EpochRatio | MixedRatio, tail: float) -> RatioLaw:
    """Returns a law by the other method than that of `epoch_losses`, where it can be had.

    Raises:
        GridError: no method gives one.
    """
    return _mix_cases(ratio, tail, lambda one, tail: _find_geometric(one, _sum_linear(one, tail), tail))


def _mix_cases(ratio: EpochRatio | MixedRatio, tail: float, find: Callable[[EpochRatio, float], RatioLaw]) -> RatioLaw:
    """Returns the law that `find` gives; of several cases, each may lose the more, the less probable it is."""
    if isinstance(ratio, EpochRatio):
        return find(ratio, tail)
    laws = [(chance, find(case, min(tail / chance, max(tail, _LARGEST_TAIL)))) for chance, case in ratio.cases]
    return mix_laws(laws, ratio.rest)


def _find_geometric(ratio: EpochRatio, linear: RatioLaw | None, tail: float) -> RatioLaw:
    """Returns a law on a grid of equal ratios; `linear`, where that grid would be coarser than what `linear` loses."""
    fine = next(_list_geometric(ratio, _FINE, tail), None)
    if fine is None and linear is not None and linear.lost <= _MUCH * tail:
        return linear
    law = fine or next(_list_geometric(ratio, _COARSE, tail), None) or linear
    if law is None:
        raise GridError
    return law


def _sum_linear(ratio: EpochRatio, tail: float) -> RatioLaw | None:
    try:
        return None if ratio.count <= _FEW else sum_linear(ratio, tail)
    except GridError:
        return None


def _list_geometric(ratio: EpochRatio, shares: tuple[float, ...], tail: float) -> Iterator[RatioLaw]:
    """Yields the laws on grids of these steps that have few enough points."""
    for share in shares:
        try:
            yield sum_geometric(ratio, share * min(1.0, ratio.variance**0.5), tail)
        except GridError:
            continue
