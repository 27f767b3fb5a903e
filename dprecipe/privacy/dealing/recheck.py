"""The distribution of an epoch for the cross-check accountant: its law by the other method than the claim's, where that
can be had; composed by the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dprecipe.privacy.dealing.epoch import EpochRatio, MixedRatio
from dprecipe.privacy.dealing.law import find_other_law
from dprecipe.privacy.library_caps import list_full_chances
from dprecipe.privacy.loss import GridError, Loss


def distribution_of_epoch(ratio: EpochRatio, step: float, tail: float) -> Any:
    """Returns the library's distribution of an epoch on a grid of `step`; `tail`: mass that may be cut off.

    Where no method gives one, that of an epoch in which everyone knows who takes part, as the claim's accountants do.
    """
    return _distribute_law(ratio, 1 / ratio.mu, step, tail)


def distribution_of_capped_epoch(
    sigma: float, batches: int, taken: int, size: int, cap: int, step: float, tail: float
) -> Any:
    """Returns the library's distribution of a dealt epoch whose batches have `cap` of `size` units at most.

    Binomial tails by scipy; every number of full batches by itself, up to a probability of `tail`.
    """
    tails = list_full_chances(batches, taken, size, cap)
    last = int(np.argmax(tails < tail))
    chances = -np.diff(tails[: last + 1])
    ratio = EpochRatio(1 / sigma, 1 / batches, taken)
    cases = tuple((float(q), replace(ratio, doubled=f)) for f, q in enumerate(chances) if q > 0)
    return _distribute_law(MixedRatio(cases, float(tails[last])), sigma / 2, step, tail)


def _distribute_law(ratio: EpochRatio | MixedRatio, known: float, step: float, tail: float) -> Any:
    """Returns the library's distribution by the other law; `known`: σ if everyone knows who takes part."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

    def dense(loss: Loss) -> Any:
        return DensePLDPmf(loss.step, loss.first, loss.masses, loss.infinity, True)

    try:
        pair = find_other_law(ratio, tail).to_losses(step, tail)
    except GridError:
        return from_gaussian_mechanism(known, value_discretization_interval=step)
    return PrivacyLossDistribution(dense(pair.removed), dense(pair.removed if pair.added is None else pair.added))
