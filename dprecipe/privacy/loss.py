"""Privacy-loss distributions on a grid: pairs (P, Q) that dominate the pair they were computed from.

Notation: h grid step; l privacy loss log(dP/dQ); p mass under P; the mass under Q at loss l is p exp(-l).

Connecting the dots: a mass at loss l between two grid points is split over both so that its P-mass and its
Q-mass are kept. The hockey-stick curve of the result interpolates the true one linearly in exp(ε) between
grid points, and the true curve is convex there, so the result dominates; composition and sampling keep
domination. The price is a variance of at most h²/4 a step (h²/6 on average).

Source: Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022, "Connect the dots"; Zhu, Dong & Wang 2022
(domination).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

LARGEST_LOSS = 600.0
"""The largest loss of one step: beyond it exp(-loss) leaves the range of doubles and the grid would be loose."""
MAX_BINS = 1 << 21
"""The largest number of points of a grid, for one step and for a composition."""


class LossRangeError(Exception):
    """The error that one step's losses are beyond what doubles can hold."""


class NoPairError(Exception):
    """The error that no dominating pair is known, or that it can't be computed."""


class GridError(Exception):
    """The error that the grid would need more points than allowed: a coarser one may do."""


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A pair of distributions as the distribution of its loss under P.

    `masses[k]` is the P-mass at loss `step * (first + k)`. `infinity` is the P-mass where Q has none,
    `missing` the Q-mass where P has none.
    """

    step: float
    first: int
    masses: Array
    infinity: float = 0.0
    missing: float = 0.0

    @property
    def losses(self) -> Array:
        return self.step * (self.first + np.arange(len(self.masses)))

    @property
    def last(self) -> int:
        return self.first + len(self.masses) - 1


@dataclass(frozen=True, slots=True, eq=False)
class LossPair:
    """The loss of one event in both directions: when a unit is removed (or replaced), and when one is added. `added`
    is None if the pair is its own mirror image."""

    removed: Loss
    added: Loss | None = None


def from_atoms(losses: Array, masses: Array, step: float, infinity: float = 0.0, missing: float = 0.0) -> Loss:
    """Returns the distribution with P-mass `masses[k]` at `losses[k]` (finite, in any order), on the grid of `step`.

    Guarantees: dominates the given pair; keeps its P-mass and its Q-mass.
    Source: `loss` module, connecting the dots.

    Raises:
        ValueError: no atom, a loss that is not finite, a mass that is negative or NaN, step <= 0.
    """
    if not (step > 0 and len(losses) == len(masses) and len(losses) > 0):
        raise ValueError("expected a positive step and as many losses as masses, at least one")
    if not (np.isfinite(losses).all() and (masses >= 0).all()):
        raise ValueError("expected finite losses and masses >= 0")
    cells = np.floor(losses / step)
    first, last = int(cells.min()), int(cells.max()) + 1
    index = (cells - first).astype(np.int64)
    above = np.clip(np.expm1(cells * step - losses) / np.expm1(-step), 0.0, 1.0)
    size = last - first + 1
    below = np.bincount(index, masses * (1 - above), size)
    grid = below + np.bincount(index + 1, masses * above, size)
    return Loss(step, first, grid.astype(np.float64), infinity, missing)


def from_cells(step: float, first: int, p_cells: Array, q_cells: Array, infinity: float, missing: float) -> Loss:
    """Returns the pair with P-mass `p_cells[k]` and Q-mass `q_cells[k]` somewhere in [h (first+k), h (first+k+1)].

    Guarantees: as `from_atoms`, for any distribution of the masses inside the cells.
    """
    low = step * (first + np.arange(len(p_cells)))
    # the part moved to the upper point keeps the Q-mass; rounding is clipped; if the Q-mass underflowed, all moves up
    q_at_low = np.where(q_cells > 0, np.exp(np.minimum(low, 700.0)) * q_cells, 0.0)
    above = np.clip((p_cells - q_at_low) / -np.expm1(-step), 0.0, p_cells)
    grid = np.zeros(len(p_cells) + 1)
    grid[:-1] += p_cells - above
    grid[1:] += above
    return Loss(step, first, grid, infinity, missing)


def swap_loss(loss: Loss) -> Loss:
    """Returns the same pair with P and Q exchanged.

    Guarantees: exact; `swap_loss(swap_loss(loss))` is `loss` up to rounding.
    """
    masses = np.exp(np.log(np.maximum(loss.masses, 1e-320)) - loss.losses)[::-1]
    return Loss(loss.step, -loss.last, np.minimum(masses, 1.0), loss.missing, loss.infinity)


def sample_loss(loss: Loss, q: float, step: float) -> Loss:
    """Returns the pair ((1-q) Q + q P, Q): any pair (P, Q) after Poisson sampling at rate q, 0 < q <= 1.

    This is the direction of removing a unit. `swap_loss` of the result is the direction of adding one;
    `sample_loss_added` is tighter.

    Guarantees: dominates the sampled pair when `loss` dominates (P, Q).
    Source: Zhu, Dong & Wang 2022, Theorem 11; Balle, Barthe & Gaboardi 2018, Theorem 2.
    """
    if not 0 < q <= 1:
        raise ValueError(f"expected 0 < q <= 1, got {q}")
    if q == 1:
        return from_atoms(loss.losses, loss.masses, step, loss.infinity, loss.missing)
    w, log_p = loss.losses, np.log(np.maximum(loss.masses, 1e-320))
    mixed = np.where(w < 30, np.log1p(q * np.expm1(np.minimum(w, 30.0))), np.logaddexp(np.log1p(-q), np.log(q) + w))
    masses = q * loss.masses + np.exp(np.minimum(np.log1p(-q) + log_p - w, 0.0))
    losses = np.append(mixed, np.log1p(-q))
    masses = np.append(masses, (1 - q) * loss.missing)
    return from_atoms(losses, masses, step, q * loss.infinity)


def sample_loss_added(loss: Loss, q: float, step: float) -> Loss:
    """Returns the pair (Q, (1-q) Q + q P): like `sample_loss`, in the direction of adding a unit.

    Q-mass without P-mass has the finite loss -log(1-q), but is charged to infinity: at large q that loss is far beyond
    all others, where a tilt would let a negligible mass dominate.

    Guarantees: dominates the sampled pair when `loss` dominates (P, Q).
    """
    removed = sample_loss(replace(loss, missing=0.0), q, step)
    some = np.flatnonzero(removed.masses)
    masses = removed.masses[some[0] : some[-1] + 1]
    added = swap_loss(replace(removed, first=removed.first + int(some[0]), masses=masses))
    return replace(added, infinity=added.infinity + loss.missing)


def mix_losses(usual: Loss, other: Loss, share: float) -> Loss:
    """Mixes two pairs on one grid, the second with probability `share`, where the outcome reveals which it is.

    Guarantees: dominates the mixture when both dominate theirs; exact.
    """
    if usual.step != other.step:
        raise ValueError("expected two pairs on one grid")
    first, last = min(usual.first, other.first), max(usual.last, other.last)
    masses = np.zeros(last - first + 1)
    masses[usual.first - first : usual.last - first + 1] = (1 - share) * usual.masses
    masses[other.first - first : other.last - first + 1] += share * other.masses
    return Loss(
        usual.step,
        first,
        masses,
        (1 - share) * usual.infinity + share * other.infinity,
        (1 - share) * usual.missing + share * other.missing,
    )


def symmetrise_loss(loss: Loss) -> Loss:
    """Returns the pair whose δ(ε), ε >= 0, is that of `loss` in either direction: losses above 0, their mirror image,
    and the rest at 0.

    Guarantees: dominates (P, Q) and (Q, P) wherever `loss` has the larger δ(ε) of the two for every ε >= 0.
    Source: Dong, Roth & Su 2022, Definition 2 and Theorem 9 (C_p(f) is the least convex function below both f_p and its
    inverse).
    """
    above = max(0, 1 - loss.first)
    p_N, l_N = loss.masses[above:], loss.losses[above:]
    mirrored_N = p_N * np.exp(-l_N)
    rest = 1.0 - math.fsum((float(p_N.sum()), float(mirrored_N.sum()), loss.infinity))
    masses = np.concatenate([mirrored_N[::-1], np.zeros(loss.first + above - 1), [max(rest, 0.0)]])
    masses = np.concatenate([masses, np.zeros(loss.first + above - 1), p_N])
    return Loss(loss.step, -loss.last, masses, loss.infinity, loss.infinity)
