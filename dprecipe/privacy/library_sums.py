"""Compositions of dp-accounting's distributions: of noisy counts, of sums over batches with a maximum or fixed size,
and of releases whose distribution the library makes itself."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.library_stages import distribution_of_range, distribution_of_run, epsilon_by_curves
from dprecipe.privacy.questions import (
    BoundedRange,
    CappedSum,
    FixedSizeSum,
    GaussianSum,
    LibraryLoss,
    NoisyCounts,
    Question,
    SelectedRuns,
    WholeRun,
)

_TOLERANCE = 2e-4
"""The share of ε that the grid of the composition may add."""


def grid_step(steps: int, kinds: int) -> float:
    """Returns the grid step: 1e-4; finer for long runs so that n h² stays small, but never so fine that it takes
    minutes; coarser if there are many different steps, each with its own distribution (for 32 of them it adds 2e-5 of
    ε)."""
    return max(1e-6, min(1e-4, 1e-2 / math.sqrt(steps + 1))) * max(1.0, kinds / 4)


def epsilon_of_counts(questions: Iterable[tuple[NoisyCounts, int]], delta: float) -> float:
    """Returns ε at δ of noisy counts, given as (question, count) pairs. The library gets the noise on the counts that a
    unit changes."""
    from dp_accounting.pld import privacy_loss_distribution as library

    gaussian: dict[float, float] = {}
    laplace: dict[float, int] = {}
    for question, count in questions:
        if question.family == "laplace":
            laplace[question.scale] = laplace.get(question.scale, 0) + question.changed * count
        else:
            scale = question.scale / math.sqrt(question.changed)
            gaussian[scale] = gaussian.get(scale, 0) + count
    steps = sum(laplace.values())
    spread = math.fsum(count / scale**2 for scale, count in (*gaussian.items(), *laplace.items()))
    tail = math.sqrt(2 * math.log(1 / delta) / spread)
    rough = spread * (0.5 + tail)  # ε of about as much Gaussian noise, whose Rényi order is 1 + tail
    fine = math.sqrt(12 * _TOLERANCE / 10 * rough / ((steps + 1) * (1 + tail)))
    step, beyond = max(min(fine, 1e-4 * max(1.0, rough / 100)), 1e-6), min(1e-15, 1e-6 * delta)
    parts = [
        library.from_gaussian_mechanism(scale / math.sqrt(count), value_discretization_interval=step)
        for scale, count in gaussian.items()
    ] + [
        _power(library.from_laplace_mechanism(float(scale), value_discretization_interval=step), count, beyond)
        for scale, count in laplace.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, beyond)
    return float(whole.get_epsilon_for_delta(delta))


def _power(one: Any, count: int, tail: float) -> Any:
    """Returns `one` composed `count` times, in two rounds: in a single round the library's truncation bounds are far
    too loose."""
    root = math.isqrt(count)
    whole = one.self_compose(root, tail).self_compose(count // root, tail)
    return whole.compose(one.self_compose(count % root, tail), tail) if count % root else whole


def epsilon_of_batches(
    questions: Iterable[tuple[Question, int]], mu: float, neighbouring: Neighbouring, delta: float, step: float
) -> tuple[str, float]:
    """Returns the accountant's name and ε at δ of sums some of whose batches have a maximum or fixed size, of choices
    of bounded range, of votes with Laplace noise, of whole runs, and of releases whose distribution the library makes
    itself; `mu` is the μ of the unsampled Gaussians."""
    from dprecipe.privacy.tuning import recheck

    questions = tuple(questions)
    if any(isinstance(question, SelectedRuns) and not recheck.can_ask(question) for question, _ in questions):
        return "dp_accounting", math.inf
    whole, parts, ranges, delta = compose_batches(questions, mu, neighbouring, delta, step)
    value = math.inf if whole is None else float(whole.get_epsilon_for_delta(delta))
    by_curves = epsilon_by_curves(parts, ranges, delta) if ranges else math.inf
    return ("dp_accounting.rdp", by_curves) if by_curves < value else ("dp_accounting.pld", value)


def compose_batches(
    questions: Iterable[tuple[Question, int]], mu: float, neighbouring: Neighbouring, delta: float, step: float
) -> tuple[Any, list[tuple[Any, int]], list[tuple[Any, int]], float]:
    """Returns the distribution of what `epsilon_of_batches` takes (None if there is nothing), its parts, the choices of
    bounded range, and the rest of δ.

    Maximum size: the library's own mixture, with twice the sensitivity if a batch is full, and its own binomial tail.
    Fixed size: the library's distribution of removing a unit at twice the sensitivity, its losses above 0 and their
    mirror image.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy import stats

    replaced = neighbouring is Neighbouring.REPLACE_ONE
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    tail = min(1e-15, 1e-6 * delta)

    def one(sigma: float, q: float = 1.0, of: Any = relation) -> Any:
        return library.from_gaussian_mechanism(
            float(sigma), value_discretization_interval=step, sampling_prob=float(q), neighboring_relation=of
        )

    def of_one_size(sigma: float, q: float) -> Any:
        removed = one(sigma / 2, q, NeighboringRelation.ADD_OR_REMOVE_ONE)._pmf_remove.to_dense_pmf()
        losses, above = removed._lower_loss + np.arange(removed.size), removed._probs
        above = above[losses > 0]
        mirrored = above * np.exp(-step * losses[losses > 0])
        gap = np.zeros(max(0, int(losses[losses > 0][0]) - 1))
        rest = max(0.0, 1 - float(above.sum() + mirrored.sum()) - removed._infinity_mass)
        masses = np.concatenate([mirrored[::-1], gap, [rest], gap, above])
        return library.PrivacyLossDistribution(
            DensePLDPmf(step, -int(losses[-1]), masses, removed._infinity_mass, True)
        )

    whole = one(2 / mu if replaced else 1 / mu) if mu > 0 else None
    parts = [] if whole is None else [(whole, 1)]
    ranges = []
    for question, count in questions:
        match question:
            case CappedSum(sigma, q, size, cap):
                full = float(stats.binom.sf(cap - 1, size, q))
                part = one(sigma, q)
                if full * count > 1e-5 * delta:
                    part = one(sigma / 2, q).compute_mixture(part, full)
                else:
                    delta -= full * count  # a full batch counts as a failure
            case FixedSizeSum(sigma, size, batch):
                part = of_one_size(sigma, batch / size)
            case GaussianSum(sigma, q) if q < 1:
                part = one(sigma, q)
            case BoundedRange(added, by_two):
                ranges.append((by_two if replaced else added, count))
                part = distribution_of_range(ranges[-1][0], step)
            case LibraryLoss(distribution):
                part = distribution(step)
            case WholeRun(_, deltas) if deltas is not None:
                part = distribution_of_run(deltas, step)
            case NoisyCounts("laplace", scale, changed):
                noise = library.from_laplace_mechanism(float(scale), value_discretization_interval=step)
                part = _power(noise, changed, tail) if changed > 1 else noise
            case SelectedRuns():
                from dprecipe.privacy.tuning import recheck

                part = recheck.selected_distribution(question, neighbouring, delta, step)
            case _:
                continue  # among the unsampled ones
        if not isinstance(question, BoundedRange):
            parts.append((part, count))
        part = part.self_compose(int(count), tail)
        whole = part if whole is None else whole.compose(part, tail)
    return whole, parts, ranges, delta
