"""The best of several runs, computed a second time for the cross-check; `selection` and `base` are not used.

One run's distribution, and the composition of the result with anything else, are dp-accounting's. The expectation over
one run's losses is added up loss by loss; F(x), the largest probability that a share x of the outcomes can have on the
other data set, is read off the sorted outcomes (Neyman & Pearson); the generating functions are written out again.

Source: Papernot & Steinke 2022; Koskela, Redberg & Wang 2024.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.curves import DEFAULT_ORDERS
from dprecipe.privacy.hockey_stick import lower_hull
from dprecipe.privacy.library_sums import compose_batches
from dprecipe.privacy.questions import (
    BoundedRange,
    CappedSum,
    FixedSizeSum,
    GaussianSum,
    LibraryLoss,
    SelectedRuns,
    WholeRun,
)

Array = NDArray[np.floating[Any]]

_CELLS = 10_000
_MAX_LOSSES = 4000
_MIN_SHARE = 1e-18
_MAX_SHIFT = 10.0
"""The farthest that ε are computed beyond one run's losses."""


def can_ask(question: SelectedRuns) -> bool:
    """Returns True if the library has a distribution of everything that one run releases."""
    known = GaussianSum | CappedSum | FixedSizeSum | BoundedRange | LibraryLoss
    return all(isinstance(asked, known) for asked, _ in question.run)


def selected_distribution(question: SelectedRuns, neighbouring: Neighbouring, delta: float, step: float) -> Any:
    """Returns dp-accounting's distribution of the best of the runs, on the grid of `step`.

    Raises:
        ValueError: the library has no distribution of some part of a run (`can_ask`).
    """
    if not can_ask(question):
        raise ValueError("the library has no distribution of one run")
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    moved = 2.0 if neighbouring is Neighbouring.REPLACE_ONE else 1.0
    squares = math.fsum(
        count / asked.sigma**2 for asked, count in question.run if isinstance(asked, GaussianSum) and asked.rate == 1
    )
    # each kind of step has a distribution of its own, which takes the library a second on the finest grid
    coarser = max(1, math.ceil(len(question.run) / 4))
    fine, step = step, coarser * step
    one, _, _, left = compose_batches(question.run, moved * math.sqrt(squares), neighbouring, delta, step)
    if one is None:
        raise ValueError("the library has no distribution of any part of one run")
    rest = delta - left  # the probability of a full batch, in each run
    many = one.self_compose(int(question.mean), 1e-15) if question.distribution == "fixed" else None
    removed, added = one._pmf_remove.to_dense_pmf(), one._pmf_add.to_dense_pmf()
    curve = None if question.distribution == "fixed" else _renyi_curve((removed, added), question)
    stride = -(-max(removed.size, added.size) // _MAX_LOSSES)

    def select(forward: Any, backward: Any, composed: Any) -> Array:
        return _selected_deltas(forward, backward, question, step, stride, composed, rest, curve)

    def pair(above: Array, reverse: Array) -> Any:
        places, deltas = _both_sides(above, reverse, stride * step)
        return create_pmf_pessimistic_connect_dots(fine, (places * stride * coarser).tolist(), deltas.tolist())

    first = select(removed, added, None if many is None else many._pmf_remove)
    if one._symmetric:
        return library.PrivacyLossDistribution(pair(first, first))
    other = select(added, removed, None if many is None else many._pmf_add)
    return library.PrivacyLossDistribution(pair(first, other), pair(other, first))


def _both_sides(above: Array, reverse: Array, width: float) -> tuple[NDArray[np.int64], Array]:
    """Returns δ at ε of either sign on the grid of `width`, from the values at ε >= 0 of a pair and of its reverse:
    places, and the greatest convex function of exp(ε) below those points."""
    count = max(len(above), len(reverse))
    above, reverse = (np.append(one, np.full(count - len(one), one[-1])) for one in (above, reverse))
    places = np.arange(-count + 1, count)
    falls = np.exp(-width * np.arange(1, count))
    below = 1 - falls + falls * reverse[1:]
    deltas = np.minimum.accumulate(np.append(below[::-1], above))
    corners = lower_hull(np.exp(width * places), deltas)
    chords = np.interp(np.exp(width * places), np.exp(width * places[corners]), deltas[corners])
    return places, np.maximum(chords, -np.expm1(width * np.minimum(places, 0)))


def _selected_deltas(
    forward: Any,
    backward: Any,
    question: SelectedRuns,
    step: float,
    stride: int,
    many: Any,
    rest: float,
    curve: Array | None,
) -> Array:
    """Returns upper bounds of δ at ε = 0, `stride` steps, twice as many, …; `many`: the composition of a fixed number;
    `curve`: the Rényi divergences of a secret number; `rest`: the unused part of one run's δ."""
    losses = forward._lower_loss + np.arange(forward.size)
    coarse = -(-losses // stride)  # a loss is rounded up
    first = int(coarse[0])
    masses = np.bincount(coarse - first, forward._probs)
    share, image = _best_images(backward, step)
    density = _Density(question)
    near_end = 1 - np.geomspace(1e-9, 1.0, _CELLS // 3)
    x = np.concatenate(
        [
            np.geomspace(_MIN_SHARE, 1e-3, _CELLS // 3),
            np.linspace(1e-3, 1.0, _CELLS)[:-1],
            near_end,
            np.interp(near_end, image, share),  # where few outcomes of the other data set remain
        ]
    )
    x = np.unique(x[(x > 0) & (x < 1)])
    starts, ends = np.append(0.0, x), np.append(x, 1.0)
    heights, slopes = density(starts), density(np.interp(ends, share, image)) * (1 - 1e-12)
    # h at every s = exp(k * stride * step) that a loss and an ε make, up to where it is 0
    width = stride * step
    usual = heights > _MIN_SHARE * question.mean
    most = float(np.max(np.log(heights[usual] / np.maximum(slopes[usual], 1e-30))))  # beyond it h is 0
    losses_reach = max(int(abs(first)), int(abs(coarse[-1]))) + 1
    reach = losses_reach + math.ceil(min(most, _MAX_SHIFT) / width)
    k = np.arange(-losses_reach, reach + losses_reach + 1)
    h = _largest_line(heights, slopes, np.exp(np.minimum(k * width, 600.0)))
    places = np.arange(reach)
    # Σ p h(exp(ε - l)) over the losses l, for every ε
    sums = np.convolve(h, masses)
    deltas = sums[places - first + losses_reach] + question.mean * forward._infinity_mass
    if many is not None:
        deltas = np.minimum(deltas, np.array(many.get_delta_for_epsilon((places * width).tolist())))
    elif curve is not None:
        deltas = np.minimum(deltas, _deltas_of_curve(curve, places * width) + question.mean * forward._infinity_mass)
    return np.asarray(np.clip(deltas + question.mean * rest, 0.0, 1.0))


def _largest_line(heights: Array, slopes: Array, at: Array) -> Array:
    """Returns the largest of the lines `heights` - `slopes` s, and of 0, at each s > 0."""
    b, a = np.append(slopes, 0.0), np.append(heights, 0.0)
    order = np.lexsort((-a, b))
    b, a = b[order], a[order]
    highest = np.append(True, np.diff(b) > 0)  # among lines of one slope
    b, a = b[highest], a[highest]
    corners = np.array(lower_hull(b, -a))
    corners = corners[: int(np.argmax(a[corners])) + 1]
    b, a = b[corners], a[corners]
    changes = np.diff(a) / np.diff(b)  # decreasing: the largest line is the first one above the first change
    line = np.searchsorted(-changes, -at, side="left")
    return np.asarray(np.maximum(a[line] - b[line] * at, 0.0))


def _renyi_curve(pair: tuple[Any, Any], question: SelectedRuns) -> Array:
    """Returns Rényi divergences of the best of a secret number, which bound better if a Poisson number is large;
    without the mass at infinite losses."""
    orders, mean = np.array(DEFAULT_ORDERS), question.mean
    curves = []
    for pmf in pair:
        losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        logs = np.log(np.maximum(pmf._probs, 1e-320))
        divergences = []
        for order in orders:
            terms = logs + (order - 1) * losses
            peak = float(terms.max())
            divergences.append((peak + math.log(float(np.exp(terms - peak).sum()))) / (order - 1))
        curves.append(divergences)
    one = np.maximum(np.max(curves, axis=0), 0.0)
    if question.distribution == "poisson":
        near = np.log1p(1 / (orders[::-1] - 1)).tolist()  # the library asks for a rising list
        missed = np.max([pmf.get_delta_for_epsilon(near) for pmf in pair], axis=0)
        rate = _Density(question).rate
        moments = (orders - 1) * (one + rate * missed[::-1]) + math.log(max(rate, 1.0))
        # in the moment of a number that may be 0, the case of no run contributes exp(-rate)
        return np.asarray((np.log(-np.expm1(-rate - moments)) + moments - math.log(-math.expm1(-rate))) / (orders - 1))
    shape, gamma = float(question.shape or 0.0), _Density(question)._gamma
    chosen = one + (1 + shape) * float(np.min((1 - 1 / orders) * one - math.log(gamma) / orders))
    return np.asarray(chosen + math.log(mean) / (orders - 1))


def _deltas_of_curve(curve: Array, epsilons: Array) -> Array:
    """Returns δ at each ε >= 0."""
    orders = np.array(DEFAULT_ORDERS)
    logs = np.zeros(len(epsilons))
    for order, divergence in zip(orders, curve, strict=True):  # Canonne, Kamath & Steinke 2020, Proposition 12
        logs = np.minimum(logs, (order - 1) * (divergence - epsilons + math.log1p(-1 / order)) - math.log(order))
    return np.asarray(np.exp(logs))


def _best_images(backward: Any, step: float) -> tuple[Array, Array]:
    """Returns (Q(S), Q'(S)) of the events that take the outcomes likelier under Q' first; `backward`: the losses
    log dQ'/dQ."""
    losses = step * (backward._lower_loss + np.arange(backward.size))
    masses = np.asarray(backward._probs)
    shares = masses * np.exp(np.minimum(-losses, 600.0))
    share = np.append(0.0, np.cumsum(shares[::-1]))
    image = np.append(0.0, np.cumsum(masses[::-1])) + backward._infinity_mass
    return np.append(share, max(1.0, share[-1])), np.minimum(np.append(image, 1.0), 1.0)


class _Density:
    """The density f'(1 - x), with f the generating function of the number of runs."""

    def __init__(self, question: SelectedRuns) -> None:
        self._question = question
        self._gamma = self.rate = 1.0
        if question.distribution == "poisson":
            from scipy import special

            mean = question.mean  # rate/(1 - exp(-rate))
            self.rate = mean + float(np.real(special.lambertw(-mean * math.exp(-mean))))
        if question.distribution == "negative_binomial":
            from dp_accounting.rdp import rdp_privacy_accountant as library

            self._gamma = float(library._gamma_truncated_negative_binomial(question.shape, question.mean))

    def __call__(self, x: Array) -> Array:
        mean, gamma = self._question.mean, self._gamma
        if self._question.distribution == "poisson":
            return np.asarray(mean * np.exp(-self.rate * x))
        if self._question.distribution == "fixed":
            return np.asarray(mean * np.maximum(1 - x, 0.0) ** (mean - 1))
        return np.asarray(mean * (1 + (1 / gamma - 1) * x) ** -(1 + float(self._question.shape or 0.0)))


def whole_epsilon(
    run: WholeRun, count: int, distribution: str, mean: float, shape: float | None, delta: float
) -> float:
    """Returns ε at δ if one run does not compose: composition of a fixed number; otherwise the closed form
    e1 + (1+η) e2, δ(e1) = δ/E[K], δ(e2) = γ (exp(e2) - 1)/(1 - γ), from one run's ε at a δ alone."""
    if distribution == "fixed":
        return mean * count * run.epsilon(delta / (mean * count))
    density = _Density(SelectedRuns((), distribution, mean, shape))
    ratio = density._gamma / (1 - density._gamma)

    def one(at: float) -> float:
        return count * run.epsilon(at / count)

    low, high = math.log(1e-12), math.log(0.999)
    while high - low > 1e-4:  # the largest δ with δ >= γ (exp(ε(δ)) - 1)/(1 - γ) is not far above the least
        middle = (low + high) / 2
        if math.exp(middle) <= ratio * math.expm1(min(one(math.exp(middle)), 600.0)):
            low = middle
        else:
            high = middle
    return one(delta / mean) + (1 + float(shape or 0.0)) * one(math.exp(low))
