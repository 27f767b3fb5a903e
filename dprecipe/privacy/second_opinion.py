"""The independent accountant: Google's dp-accounting, behind one function.

Its imports are slow and its warnings noisy, so both happen inside the call. It is given floats only: 0.6.0
reads integer multipliers of a composition wrongly.

It does not know encoded sums. What one of their coordinates loses is worked out here, from densities written down once
more and added up at nodes; convolving, composing and the way to ε are the library's. Nor does it know sanitised costs:
their Rényi divergence is integrated here, and the way to ε is the library's. Of hidden runs it knows the Gaussian or
Laplace noise that each comes down to (`mechanisms.pnsgd.theory.hidden_opinion`). Votes it is told as the Gaussian and
Laplace noise that was added to counts.
"""

from __future__ import annotations

import contextlib
import heapq
import importlib.metadata
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.curves import DEFAULT_ORDERS
from dprecipe.privacy.events import (
    VOTES,
    Charge,
    Encoded,
    FilterRest,
    FixedSizeGaussian,
    NoisyMax,
    NoisyThreshold,
    PoissonGaussian,
    SanitisedCost,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.workload import Workload, uncapped, workload

Array = NDArray[np.floating[Any]]

_MOST_WORK = 2e5
"""Shifts (and some) times the square root of the coordinates, over all encoded sums: ten seconds of convolutions."""
_SPACING = 0.015
"""Between nodes, over their distance from the nearer peak or 1, whichever is more."""
_FINE = 0.03
"""Step of a grid over the typical loss of a coordinate (and a tenth of that over the loss of all): its square over 6 is
what dots add to the variance."""
_TAIL = 1e-20
_NOISE = 1e-19
"""Masses that a transform may have made of nothing."""
_MOST_CELLS = 400_000
_MOST_POINTS = 1 << 20
_LEAST_DELTA = 1e-12
"""Below it a transform's rounding, and what is cut off, would decide what the library answers."""
_TOLERANCE = 2e-4
"""Share of ε that the grid of the composition may add."""
_TABLE = 200
_ORDER = 256
_LARGEST_LOSS = 600.0
_LEAST_VARIANCE = 0.02
"""Of a sanitised cost's integrand, over the noise's: orders at which it is less, close to the largest, are left out."""
_MORE_ORDERS = 60
_STEEPEST = 4.0
"""No β beyond it is told from it: hardly a Rényi order has a finite cost."""


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the other library says, and which of its accountants said it."""

    name: str
    version: str
    epsilon: float


def epsilon(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring) -> float:
    """`opinion(...).epsilon`.

    Raises:
        ValueError: δ outside (0, 1).
    """
    return opinion(charges, delta, neighbouring).epsilon


def opinion(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, or_renyi: bool = True) -> Opinion:
    """ε at δ of all charges together by dp-accounting: its PLD accountant, or its RDP accountant where that
    fails. `or_renyi`: for want of memory, too; else the question stays open.

    Guarantees: an upper bound as far as dp-accounting's are; no line of it runs this package's arithmetic
    beyond adding up 1/σ² of unsampled Gaussians and doubling their sensitivity under replace-one; of votes alone, not
    even that. With encoded sums it is one up to what nodes leave open, some 1e-5 of ε; by Rényi divergences where codes
    are exchanged, costs are sanitised, or where distributions would take more than some ten seconds.

    Raises:
        MemoryError: there is not enough, and not `or_renyi`.
        ValueError: δ outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    return _opinion(tuple(charges), delta, neighbouring, or_renyi)


@lru_cache(maxsize=4)  # a run that verifies its own release asks again what its certificate asked
def _opinion(charges: tuple[Charge, ...], delta: float, neighbouring: Neighbouring, or_renyi: bool) -> Opinion:
    work = workload(charges, neighbouring)
    version = importlib.metadata.version("dp-accounting")
    blanked = Neighbouring(neighbouring) is Neighbouring.ZERO_OUT_ONE
    if blanked and any(isinstance(charge.event, TruncatedPoissonGaussian) for charge in charges):
        return _of_blanked(charges, delta, or_renyi)
    if work.empty:
        return Opinion("dp_accounting.pld", version, 0.0)
    if not work.bounded:
        return Opinion("dp_accounting", version, math.inf)
    if work.hidden:
        from dprecipe.mechanisms.pnsgd.theory import hidden_opinion

        runs = work.hidden[0]
        with _silence():
            return Opinion(
                "dp_accounting.pld", version, runs.count * hidden_opinion.epsilon(runs.event, delta / runs.count)
            )
    votes = all(isinstance(charge.event, VOTES) for charge in charges)
    if votes and not work.sanitised and delta >= _LEAST_DELTA:
        with _silence():
            found = _of_votes(charges, delta)
        if math.isfinite(found):
            return Opinion("dp_accounting.pld", version, found)
    if any(step.full or step.fixed for step in work.sampled) and not (work.encoded or work.sanitised):
        with _silence():
            return Opinion("dp_accounting.pld", version, _of_lots(charges, work, delta))
    if work.encoded or work.sanitised or votes:
        twice = work.neighbouring is Neighbouring.REPLACE_ONE
        with _silence():
            name, bound = _with_encoded(workload(charges, Neighbouring.ADD_OR_REMOVE_ONE), delta, twice)
        return Opinion(name, version, bound)
    with _silence():
        import dp_accounting
        from dp_accounting import pld, rdp

        relations = dp_accounting.NeighboringRelation
        relation = relations.REPLACE_SPECIAL if blanked else relations.ADD_OR_REMOVE_ONE
        if work.neighbouring is Neighbouring.REPLACE_ONE:
            relation = relations.REPLACE_ONE
        # under replace-one their PLD accountant doubles a Gaussian's sensitivity itself, their RDP one does not
        moved = 2.0 if work.neighbouring is Neighbouring.REPLACE_ONE else 1.0
        accountants: list[tuple[str, Any, float]] = [
            ("dp_accounting.pld", lambda: pld.PLDAccountant(relation, _interval(work)), moved),
            ("dp_accounting.rdp", lambda: rdp.RdpAccountant(neighboring_relation=relation), 1.0),
        ]
        for name, make, doubled in accountants:
            try:
                value = _ask(dp_accounting, make, work, delta, doubled)
            except MemoryError:
                if not or_renyi:
                    raise
                continue
            if value is not None:
                return Opinion(name, version, value)
    return Opinion("dp_accounting", version, math.inf)


def _of_blanked(charges: tuple[Charge, ...], delta: float, or_renyi: bool) -> Opinion:
    """Blanking out a unit where batches have a largest size: as replacing it; or as removing it, had no batch a largest
    size, with the chance that one is full taken from δ. Both hold, and the smaller counts."""
    from scipy import stats

    found = opinion(charges, delta, Neighbouring.REPLACE_ONE, or_renyi)
    full = math.fsum(
        charge.count * float(stats.binom.sf(charge.event.most - 1, charge.event.size, charge.event.sampling_rate))
        for charge in charges
        if isinstance(charge.event, TruncatedPoissonGaussian)
    )
    if full < delta:
        rest = opinion(uncapped(charges), delta - full, Neighbouring.ZERO_OUT_ONE, or_renyi)
        found = min(found, rest, key=lambda answer: answer.epsilon)
    return found


def _ask(library: Any, make: Any, work: Workload, delta: float, doubled: float) -> float | None:
    """ε, or None when this accountant has no answer; `doubled`: what it multiplies a sensitivity by itself.

    Raises:
        MemoryError: there is not enough for an answer, which is no answer of another accountant's.
    """
    try:
        accountant = make()
        if work.mu > 0:
            accountant.compose(library.GaussianDpEvent(float(doubled / work.mu)))
        for phase in work.sampled:
            gaussian = library.GaussianDpEvent(float(phase.sigma))
            accountant.compose(library.PoissonSampledDpEvent(float(phase.q), gaussian), int(phase.count))
        value = float(accountant.get_epsilon(float(delta)))
    except (library.UnsupportedEventError, ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _of_lots(charges: Iterable[Charge], work: Workload, delta: float) -> float:
    """ε of steps some of whose lots are cut, or are of one size.

    A cut lot: the library's own mixture, with twice the sensitivity where a lot is full, and its own binomial tail. A
    lot of one size: the library's distribution of removing a unit at twice the sensitivity, its losses above 0 and
    their mirror image.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy import stats

    replaced = work.neighbouring is Neighbouring.REPLACE_ONE
    relation = NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    step, tail = _interval(work), min(1e-15, 1e-6 * delta)

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

    whole = one(2 / work.mu if replaced else 1 / work.mu) if work.mu > 0 else None
    for charge in charges:
        match charge.event:
            case TruncatedPoissonGaussian(q, sigma, size, most):
                full = float(stats.binom.sf(most - 1, size, q))
                part = one(sigma, q)
                if full * charge.count > 1e-5 * delta:
                    part = one(sigma / 2, q).compute_mixture(part, full)
                else:
                    delta -= full * charge.count  # as if a full lot told everything
            case FixedSizeGaussian(size, lot, sigma):
                part = of_one_size(sigma, lot / size)
            case PoissonGaussian(q, sigma) if q < 1:
                part = one(sigma, q)
            case _:
                continue  # among the unsampled ones
        if charge.count:
            part = part.self_compose(int(charge.count), tail)
            whole = part if whole is None else whole.compose(part, tail)
    return math.inf if whole is None else float(whole.get_epsilon_for_delta(delta))


def _interval(work: Workload) -> float:
    """Grid step: 1e-4, finer for long runs so that n h² stays small, never so fine that it takes minutes; where steps
    are of many kinds, each of which has a distribution of its own, coarser: of 32 by 2e-5 of ε."""
    return max(1e-6, min(1e-4, 1e-2 / math.sqrt(work.steps + 1))) * max(1.0, len(work.sampled) / 4)


def _of_votes(charges: Iterable[Charge], delta: float) -> float:
    """ε of votes, each told to the library by the noise on the counts that one moved vote changes."""
    from dp_accounting.pld import privacy_loss_distribution as library

    gaussian: dict[float, float] = {}
    laplace: dict[float, int] = {}
    for charge in charges:
        match charge.event:
            case NoisyMax(family="laplace", noise_multiplier=scale):
                laplace[scale] = laplace.get(scale, 0) + 2 * charge.count
            case NoisyMax(noise_multiplier=scale):
                gaussian[scale / math.sqrt(2)] = gaussian.get(scale / math.sqrt(2), 0) + charge.count
            case NoisyThreshold(scale) | FilterRest(scale):
                gaussian[scale] = gaussian.get(scale, 0) + charge.count
            case other:
                raise TypeError(f"not an event of votes: {other!r}")
    steps = sum(laplace.values())
    spread = math.fsum(count / scale**2 for scale, count in (*gaussian.items(), *laplace.items()))
    tail = math.sqrt(2 * math.log(1 / delta) / spread)
    rough = spread * (0.5 + tail)  # ε, and 1 + tail the Rényi order, of about as much Gaussian noise
    fine = math.sqrt(12 * _TOLERANCE / 10 * rough / ((steps + 1) * (1 + tail)))
    step, beyond = max(min(fine, 1e-4 * max(1.0, rough / 100)), 1e-6), min(1e-15, 1e-6 * delta)
    parts = [
        library.from_gaussian_mechanism(scale / math.sqrt(count), value_discretization_interval=step)
        for scale, count in gaussian.items()
        if count
    ] + [
        _power(library.from_laplace_mechanism(float(scale), value_discretization_interval=step), count, beyond)
        for scale, count in laplace.items()
        if count
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, beyond)
    return float(whole.get_epsilon_for_delta(delta))


def _power(one: Any, count: int, tail: float) -> Any:
    """`count` times the same, in two rounds: in one, the library's bounds of the result are far too wide."""
    root = math.isqrt(count)
    whole = one.self_compose(root, tail).self_compose(count // root, tail)
    return whole.compose(one.self_compose(count % root, tail), tail) if count % root else whole


def _largest_loss(work: Workload) -> float:
    """Of any outcome: what Laplace noise admits is at most the L1 norm over its scale, or less of it where sampled."""
    if work.mu or work.sampled or work.sanitised or any(phase.event.family != "laplace" for phase in work.encoded):
        return math.inf
    losses = []
    for phase in work.encoded:
        event = phase.event
        whole = sum(bound * count for bound, count in event.shifts) / event.noise_multiplier
        if event.sampling_rate < 1:
            whole = np.logaddexp(math.log1p(-event.sampling_rate), math.log(event.sampling_rate) + whole)
        losses.append(phase.count * float(whole))
    return math.fsum(losses)


def _with_encoded(work: Workload, delta: float, twice: bool) -> tuple[str, float]:
    """Name and ε for work under add-or-remove-one; `twice`: for removing a unit and adding another."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    orders = _orders(work)
    curve = _curve(work, orders)
    if not all(map(math.isfinite, curve)):
        return "dp_accounting.rdp", math.inf
    high, order = (float(value) for value in rdp.compute_epsilon(orders, curve, delta))
    high = min(high, _largest_loss(work))
    # Half of a replacement is asked for at a smaller δ.
    asked = delta / (1 + math.exp(min(high, 300.0))) if twice else delta
    if asked >= _LEAST_DELTA and 0 < high < math.inf and not work.sanitised:
        finest = math.sqrt(_TOLERANCE * 12 * high / ((work.steps + 1) * order))
        whole = _distribution(work, delta, finest)
        if whole is not None:
            found = float(whole.get_epsilon_for_delta(delta))
            found = _of_both(whole.get_delta_for_epsilon, found, delta) if twice else found
            if found < math.inf:
                return "dp_accounting.pld", found
    if twice:
        at_most = _largest_loss(work)
        high = _of_both(lambda half: 0.0 if half >= at_most else rdp.compute_delta(orders, curve, half)[0], high, delta)
    return "dp_accounting.rdp", high


def _of_both(delta_of: Callable[[float], float], start: float, delta: float) -> float:
    """ε of removing a unit and adding another: twice the least h >= `start` with (1 + exp(h)) δ(h) <= δ; infinity above
    600."""
    low, high = 0.0, start
    while high < 300 and not (1 + math.exp(high)) * delta_of(high) <= delta:
        low, high = high, 1.2 * high + 1e-6
    if not high < 300:
        return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if (1 + math.exp(middle)) * delta_of(middle) <= delta else (middle, high)
    return 2 * high


def _distribution(work: Workload, delta: float, finest: float) -> Any:
    """The library's distribution of everything, in both directions; None where there is none, or none soon enough.

    `finest`: the step of the grid, where that many points are allowed.
    """
    from dp_accounting.pld import privacy_loss_distribution as library

    events = [phase.event for phase in work.encoded]
    effort = sum((len(event.shifts) + 200) * math.sqrt(event.dimension) for event in events)
    if effort > _MOST_WORK or any(event.exchanged or not _mild(event) for event in events):
        return None
    products = [_product(event) for event in events]
    pairs = [product for product in products if product is not None]
    if len(pairs) < len(products):
        return None
    reach = max(step * len(masses) for step, masses in pairs)
    step, tail = max(min(1e-4, finest), 1e-6, reach / _MOST_CELLS), min(1e-15, 1e-6 * delta)
    parts = []
    for s in work.sampled:
        one = library.from_gaussian_mechanism(
            float(s.sigma), value_discretization_interval=step, sampling_prob=float(s.q)
        )
        parts.append(one.self_compose(int(s.count), tail))
    if work.mu > 0:
        parts.append(library.from_gaussian_mechanism(float(1 / work.mu), value_discretization_interval=step))
    for (own, masses), phase in zip(pairs, work.encoded, strict=True):
        one = library.PrivacyLossDistribution(*_sampled(own, masses, phase.event.sampling_rate, step))
        parts.append(one.self_compose(int(phase.count), tail))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, tail)
    return whole


def _mild(event: Encoded) -> bool:
    """Whether exp(-loss) stays within the range of doubles, for each coordinate and about as much for all."""
    most = total = 0.0
    for bound, count in event.shifts:
        _, p_N, losses_N = _nodes(event, bound / event.noise_multiplier, 16 * _SPACING)
        most, total = max(most, float(losses_N.max())), total + count * float(p_N @ losses_N)
    return most < _LARGEST_LOSS and total < _LARGEST_LOSS / 2


@lru_cache(maxsize=8)
def _product(event: Encoded) -> tuple[float, Array] | None:
    """Step of a grid, and the masses of the unsampled sum's loss at 0, h, 2h, …; the rest is their mirror image.

    None where a coordinate is so much larger than most that the grid would be out of all proportion.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    shifts = [(bound / event.noise_multiplier, count) for bound, count in event.shifts if bound > 0]
    variance = 0.0
    for tau, count in shifts:
        _, p_N, losses_N = _nodes(event, tau, 4 * _SPACING)
        variance += count * float(p_N @ losses_N**2 - (p_N @ losses_N) ** 2)
    step = min(_FINE / math.sqrt(sum(count for _, count in shifts)), _FINE / 10) * math.sqrt(variance)
    _, _, largest_N = _nodes(event, shifts[-1][0], 4 * _SPACING)
    if float(np.abs(largest_N).max()) > _MOST_POINTS * step:
        return None
    queue: list[tuple[int, int, Any]] = []
    for index, (tau, count) in enumerate(shifts):
        _, p_N, losses_N = _nodes(event, tau, _SPACING)
        power = DensePLDPmf(step, *_dots(losses_N, p_N, step), 0.0, True).self_compose(count, _TAIL)
        heapq.heappush(queue, (power.size, index, power))
    while len(queue) > 1:  # the shortest first
        (_, index, one), (_, _, other) = heapq.heappop(queue), heapq.heappop(queue)
        both = one.compose(other, _TAIL)
        heapq.heappush(queue, (both.size, index, both))
    whole, k_K = queue[0][2], np.arange(2, _ORDER + 1)
    reach = float(np.min((_log_moments(event) - math.log(_NOISE)) / (k_K - 1)))  # Chernoff: nothing is beyond
    upper = whole._probs[-whole._lower_loss :][: math.ceil(reach / step) + 1]
    return step, np.where(upper > _NOISE, upper, 0.0)


def _sampled(own: float, masses: Array, q: float, step: float) -> tuple[Any, Any]:
    """What Poisson sampling makes of (P, Q), (1-q) Q + q P against Q and the other way round, on a new grid."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    kept = np.flatnonzero(masses)
    w, upper = own * kept, masses[kept]
    lower = upper * np.exp(-w)
    p, q_masses, w = np.append(upper, lower[w > 0]), np.append(lower, upper[w > 0]), np.append(w, -w[w > 0])
    losses = np.log1p(q * np.expm1(w)) if q < 1 else w
    removed = _dots(losses, q * p + (1 - q) * q_masses, step)
    added = _dots(-losses, q_masses, step)
    return DensePLDPmf(step, *removed, 0.0, True), DensePLDPmf(step, *added, 0.0, True)


def _orders(work: Workload) -> tuple[float, ...]:
    """Rényi orders; with sanitised costs, such as their integrals have."""
    if not work.sanitised:
        return DEFAULT_ORDERS
    wider = max(math.expm1(2 * min(phase.event.beta, _STEEPEST)) for phase in work.sanitised)
    largest = min(1 + (1 - _LEAST_VARIANCE) / wider, float(_ORDER))
    more = np.linspace(1, largest, _MORE_ORDERS + 1)[1:].tolist()
    return tuple(sorted({*more, *(order for order in DEFAULT_ORDERS if order < largest)}))


def _sanitised(event: SanitisedCost, orders: Array) -> Array:
    """Rényi divergences of a noisy cost and the logarithm of its scale: wide and shifted noise against the other's.

    Half of the change is the shift, at most the smaller smooth sensitivity; the other half is that sensitivity itself,
    by a factor of exp(β), either way.
    """
    u_N = np.linspace(-30, 30, 24_001)
    x_N, log_widths_N = np.sinh(u_N), np.log(np.cosh(u_N) * (u_N[1] - u_N[0]))

    def log_density(mean: float, deviation: float) -> Array:
        z_N = (x_N - mean) / deviation
        return -z_N * z_N / 2 - math.log(deviation) - math.log(2 * math.pi) / 2

    def divergences(log_p_N: Array, log_q_N: Array) -> Array:
        logs = [np.logaddexp.reduce(a * log_p_N + (1 - a) * log_q_N + log_widths_N) / (a - 1) for a in orders]
        return np.maximum(logs, 0.0)

    other_N, factor = log_density(0.0, 1.0), math.exp(event.beta)
    logarithm = divergences(log_density(1 / event.scale_multiplier, 1.0), other_N)
    shift = 1 / event.noise_multiplier  # in units of the smaller deviation
    wide = divergences(log_density(shift, factor), other_N)
    narrow = divergences(log_density(shift / factor, 1 / factor), other_N)
    return np.maximum(wide, narrow) + logarithm


def _curve(work: Workload, at: tuple[float, ...]) -> list[float]:
    """Rényi divergences at these orders: Lemma 4 of Nasr et al. 2020 at whole orders, interpolated between them."""
    k_K, orders = np.arange(2, _ORDER + 1), np.array(at)
    log_factorials = np.cumsum(np.log(np.maximum(np.arange(_ORDER + 1), 1)))
    parts: list[tuple[float, Array, int]] = [(s.q, k_K * (k_K - 1) / (2 * s.sigma**2), s.count) for s in work.sampled]
    parts += [(e.event.sampling_rate, _log_moments(e.event), e.count) for e in work.encoded]
    total = orders * work.mu**2 / 2
    for q, sums_K, count in parts:
        terms_K = sums_K + np.log(-np.expm1(-sums_K)) + k_K * math.log(q) - log_factorials[k_K]
        scaled = [0.0]
        for order in range(2, _ORDER + 1):
            rest = order - k_K[: order - 1]
            logs = terms_K[: order - 1] + log_factorials[order] - log_factorials[rest]
            logs = logs + rest * math.log1p(-q) if q < 1 else logs[-1:]
            scaled.append(float(np.logaddexp(0.0, np.logaddexp.reduce(logs))))
        total = total + count * np.interp(orders, np.arange(1, _ORDER + 1), scaled) / (orders - 1)
    for phase in work.sanitised:
        total = total + phase.count * _sanitised(phase.event, orders)
    return [float(value) for value in total]


@lru_cache(maxsize=8)
def _log_moments(event: Encoded) -> Array:
    """S_k = Σ log M_k(τ), k = 2 … `_ORDER`, from a table over τ.

    Exchanged codes move a coordinate by the sum of two numbers, each from the halves of the shifts in an order of its
    own. A convex function above log M_k has its largest sum where the orders agree.
    """
    bounds, counts = np.array([shift for shift in event.shifts if shift[0] > 0]).T
    taus, k_K = bounds / event.noise_multiplier, np.arange(2, _ORDER + 1)
    table = np.geomspace(0.9 * taus[0], taus[-1], _TABLE)
    logs = np.empty((_TABLE, len(k_K)))
    for row, tau in zip(logs, table.tolist(), strict=True):
        log_q_N, _, losses_N = _nodes(event, tau, 4 * _SPACING)
        exponents_KN = log_q_N + np.multiply.outer(k_K, losses_N)
        top_K = exponents_KN.max(axis=1)
        row[:] = np.log(np.exp(exponents_KN - top_K[:, None]).sum(axis=1)) + top_K
    if event.exchanged:
        gaps = np.diff(table, prepend=0.0)[:, None]
        slopes = np.maximum.accumulate(np.diff(logs, axis=0, prepend=0.0) / gaps, axis=0)
        majorants = np.cumsum(slopes * gaps, axis=0)
        sums = [counts @ np.interp(taus, np.append(0.0, table), np.append(0.0, of)) for of in majorants.T]
    else:
        weights, at, known = counts * taus**2, np.log(taus), np.log(table)
        sums = [weights @ np.interp(at, known, of / table**2) for of in logs.T]
    return np.maximum(sums, 1e-300)


def _nodes(event: Encoded, tau: float, spacing: float) -> tuple[Array, Array, Array]:
    """Logs of Q-masses, P-masses, losses of one coordinate, at nodes around both peaks, -τ/2 of Q and τ/2 of P.

    They are each other's mirror image to the last bit, so that small losses have no error but in their size.
    """
    away = np.sinh(np.arange(0.0, 40.0 if event.family in ("student_t", "cauchy") else 6.0, spacing))
    around = np.append(-away[:0:-1], away)
    between = tau / 2 * np.arange(-15, 16) / 16
    u_N = np.unique(np.concatenate([around - tau / 2, between, around + tau / 2]))
    log_q_N, log_p_N = _log_density(event, u_N + tau / 2), _log_density(event, u_N - tau / 2)
    log_widths_N = np.log(np.gradient(u_N))
    log_p_masses_N = log_widths_N + log_p_N
    total = np.logaddexp.reduce(log_p_masses_N)
    return log_widths_N + log_q_N - total, np.exp(log_p_masses_N - total), log_p_N - log_q_N


def _log_density(event: Encoded, x_N: Array) -> Array:
    """Logarithm of the noise density of scale 1, but for a constant."""
    u_N, shape = np.abs(x_N), event.shape or 1.0
    if event.family in ("student_t", "cauchy"):
        return -(shape + 1) / 2 * np.log1p(u_N * u_N / shape)
    if event.family == "sech":
        return -np.logaddexp(u_N, -u_N)
    n = int(shape) - 1  # of n + 1 Laplace variables: a Bessel function of order n + 1/2
    powers = [math.comb(n + k, n) * math.perm(n, k) / 2.0**k * u_N ** (n - k) for k in range(n + 1)]
    return np.asarray(np.log(np.sum(powers, axis=0)) - u_N)


def _dots(losses: Array, masses: Array, step: float) -> tuple[int, Array]:
    """Masses shared between the two nearest points of a grid so that P-mass and Q-mass are kept; the first point."""
    cells = np.floor(losses / step).astype(np.int64)
    up = masses * np.clip(np.expm1(cells * step - losses) / math.expm1(-step), 0.0, 1.0)
    first, size = int(cells.min()), int(cells.max() - cells.min()) + 2
    grid = np.bincount(cells - first, masses - up, size) + np.bincount(cells - first + 1, up, size)
    return first, grid.astype(np.float64)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
