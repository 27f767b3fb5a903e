"""The distribution of an epoch for the cross-check accountant: its law by the other method than the claim's, where that
can be had; composed by the library."""

from __future__ import annotations

from typing import Any

from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.dealing.law import find_other_law
from dprecipe.privacy.loss import GridError, Loss


def distribution_of_epoch(ratio: EpochRatio, step: float, tail: float) -> Any:
    """Returns the library's distribution of an epoch on a grid of `step`; `tail`: mass that may be cut off.

    Where no method gives one, that of an epoch in which everyone knows who takes part, as the claim's accountants do.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

    def dense(loss: Loss) -> Any:
        return DensePLDPmf(loss.step, loss.first, loss.masses, loss.infinity, True)

    try:
        pair = find_other_law(ratio, tail).to_losses(step, tail)
    except GridError:
        return from_gaussian_mechanism(1 / ratio.mu, value_discretization_interval=step)
    return PrivacyLossDistribution(dense(pair.removed), dense(pair.removed if pair.added is None else pair.added))
