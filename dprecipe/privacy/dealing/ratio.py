"""The law of a likelihood ratio on a grid, and the two privacy-loss distributions that it gives.

With A = dP/dQ under Q, both δ(ε) of (P, Q) and δ(ε) of (Q, P) are means of convex functions of A. So a law that is
larger in convex order dominates in both directions at once: each part of a law may be split over two points that keep
its mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprecipe.privacy.loss import Array, Loss, LossPair, from_atoms


@dataclass(frozen=True, slots=True, eq=False)
class RatioLaw:
    """A distribution of A on increasing `ratios` >= 0: masses under Q and under P.

    `infinity`: P-mass of ratios beyond all points. `lost`: a bound of what rounding took from either, charged to
    infinity in both directions.
    """

    ratios: Array
    q_masses: Array
    p_masses: Array
    infinity: float
    lost: float = 0.0

    def to_losses(self, step: float, tail: float) -> LossPair:
        """Returns the privacy losses of removing a unit and of adding one; at most `tail`, and what is lost, is
        charged to infinity besides."""
        cut = max(tail, self.lost)
        with np.errstate(divide="ignore"):
            losses_K = np.log(self.ratios)
        removed = _to_loss(losses_K, self.p_masses, self.q_masses, step, cut)
        added = _to_loss(-losses_K[::-1], self.q_masses[::-1], self.p_masses[::-1], step, cut)
        return LossPair(_charge(removed, self.infinity + self.lost, 0.0), _charge(added, self.lost, self.infinity))


def mix_laws(laws: Sequence[tuple[float, RatioLaw]], rest: float) -> RatioLaw:
    """Returns the law of a ratio that is one of several, each with its probability, where it is known which one;
    `rest`: what is left of the probability, charged to infinity in both directions."""
    ratios_K = np.concatenate([law.ratios for _, law in laws])
    q_K = np.concatenate([chance * law.q_masses for chance, law in laws])
    p_K = np.concatenate([chance * law.p_masses for chance, law in laws])
    order = np.argsort(ratios_K, kind="stable")
    infinity = math.fsum(chance * law.infinity for chance, law in laws)
    lost = rest + math.fsum(chance * law.lost for chance, law in laws)
    return RatioLaw(ratios_K[order], q_K[order], p_K[order], infinity, lost)


def _to_loss(losses_K: Array, mass_K: Array, other_K: Array, step: float, cut: float) -> Loss:
    """Returns the distribution of increasing losses under `mass_K`; `other_K` are the masses of the other side.

    The top points whose masses together are at most `cut` go to infinity: there a mass may be rounding alone, and a
    tilt would raise it above all others.
    """
    kept_K = (np.cumsum(mass_K[::-1])[::-1] > cut) & (losses_K < np.inf)
    some_K = kept_K & (mass_K > 0) & (losses_K > -np.inf)
    return from_atoms(
        losses_K[some_K],
        mass_K[some_K],
        step,
        infinity=float(mass_K[~kept_K].sum()),
        missing=float(other_K[kept_K & ~some_K].sum()),
    )


def _charge(loss: Loss, infinity: float, missing: float) -> Loss:
    return Loss(loss.step, loss.first, loss.masses, loss.infinity + infinity, loss.missing + missing)
