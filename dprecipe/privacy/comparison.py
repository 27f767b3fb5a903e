"""A comparison of other accountants on the same charges: it accompanies the claim and never replaces it.

Papers state ε by the accountant of their time. A table of all accountants shows how much of a difference from a paper
is due to accounting. Nothing here enters a guarantee, a ledger or a certificate.

Notation: k events, ε_i of event i alone at δ_0 = δ/2k by the tightest accountant, δ' what is left of δ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dprecipe.privacy import accountants, conversion, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, count_events
from dprecipe.privacy.questions import GaussianSum
from dprecipe.privacy.workload import Workload, summarise_charges

MOMENTS = tuple(float(order) for order in range(2, 34))
"""The orders λ + 1 of the moments that Abadi et al. compute: λ from 1 to 32."""
_ROUND_UP = 1 + 1e-9
_MAX_EPSILON = 700.0
"""The ε above which exp(ε) leaves the range of doubles."""


@dataclass(frozen=True, slots=True)
class AccountantRow:
    """The answer of one accountant for some charges.

    `epsilon` is an upper bound at the claim's δ if `holds`; otherwise it is a number that a paper printed, and no
    guarantee. It is None if the accountant gives no answer, and `note` says why.
    """

    accountant: str
    epsilon: float | None
    holds: bool
    source: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "accountant": self.accountant,
            "epsilon": self.epsilon,
            "holds": self.holds,
            "source": self.source,
            "note": self.note,
        }


def compare_accountants(
    charges: Iterable[Charge], delta: float, neighbouring: Neighbouring
) -> tuple[AccountantRow, ...]:
    """Returns ε at δ by each accountant, from the oldest composition theorem to the tightest; six digits, rounded up.

    Guarantees: the composition of the charges is (ε, δ)-DP under `neighbouring` by every row that `holds` and has an ε.

    | case | rows |
    |---|---|
    | one event | basic composition is the event's own ε; other theorems of composition say nothing |
    | events that differ | no optimal composition: computing it is #P-hard (Murtagh & Vadhan 2016) |
    | results decide which events follow | no theorem that fixes the events in advance; accountants have a filter |
    | a release that does not compose | the accountants of recipes alone |

    Raises:
        ValueError: δ outside (0, 1).
    """
    charges = tuple(charge for charge in charges if charge.count)
    relation = Neighbouring(neighbouring)
    work = summarise_charges(charges, relation)
    return (
        *_theorems(charges, delta, work),
        _moments(work, delta),
        *(_ask(charges, delta, relation, name, source) for name, source in _ACCOUNTANTS.items()),
    )


_THEOREMS = {
    "basic_composition": "Dwork & Roth 2014, Theorem 3.16",
    "strong_composition_as_printed": "Abadi et al. 2016, section 3.2",
    "strong_composition": "Dwork & Roth 2014, Theorem 3.20",
    "optimal_composition": "Kairouz, Oh & Viswanath 2017, Theorem 3.3",
}
_ACCOUNTANTS = {
    "rdp_classic": "Mironov 2017, Proposition 3",
    "rdp": "Canonne, Kamath & Steinke 2020, Proposition 12",
    "gdp": "Dong, Roth & Su 2022, Corollary 2.13",
    "pld": "Koskela et al. 2020; Doroshenko et al. 2022",
}
_NO_CURVE = "no Rényi divergence is known at these orders"


def _theorems(charges: tuple[Charge, ...], delta: float, work: Workload) -> list[AccountantRow]:
    """Returns the rows of the theorems that compose (ε, δ), from what each event costs alone."""
    steps = count_events(charges)
    differ = len({charge.event for charge in charges}) > 1
    values: dict[str, tuple[float | None, str]]
    if any(charge.event.decides_sequel for charge in charges):
        values = dict.fromkeys(_THEOREMS, (None, "it needs events fixed in advance; here results decide them"))
    else:
        basic = add_epsilons(_cost_alone(charges, delta / max(1, steps), work))
        values = dict.fromkeys(_THEOREMS, (None, "there is one event: nothing is composed"))
        values["basic_composition"] = basic, ""
    if steps > 1 and not any(charge.event.decides_sequel for charge in charges):
        parts = _cost_alone(charges, delta / (2 * steps), work)
        halves = "half of δ for the events"
        values["strong_composition_as_printed"] = _print_strongly(charges, delta, work)
        values["strong_composition"] = compose_strongly(parts, delta / 2), halves
        values["optimal_composition"] = (
            (None, "the events differ: it is known for equal ones")
            if differ
            else (compose_optimally(parts[0][0], steps, delta / 2 / (1 - delta / 2)), f"of (ε, δ) alone; {halves}")
        )
    return [
        _row(name, source, values[name][0], values[name][1], name != "strong_composition_as_printed")
        for name, source in _THEOREMS.items()
    ]


def _row(accountant: str, source: str, epsilon: float | None, note: str, holds: bool = True) -> AccountantRow:
    if epsilon is None or not epsilon < math.inf:
        return AccountantRow(accountant, None, holds, source, note or "no bound is known")
    return AccountantRow(accountant, rounding.round_up(epsilon), holds, source, note)


def _ask(
    charges: tuple[Charge, ...], delta: float, relation: Neighbouring, accountant: str, source: str
) -> AccountantRow:
    answer = accountants.epsilon_answer(charges, delta, relation, accountant)
    if answer.value < math.inf:
        note = "" if answer.accountant == accountant else f"by {answer.accountant}"
    else:
        note = "for unsampled Gaussians alone" if accountant == "gdp" else _NO_CURVE
    return _row(accountant, source, answer.value, note)


def _moments(work: Workload, delta: float) -> AccountantRow:
    """Returns the row of δ = min exp(α(λ) - λε) over λ = 1 … 32: the classic conversion at the orders λ + 1."""
    if work.empty:
        return _row("moments_accountant", "Abadi et al. 2016, Theorem 2", 0.0, "")
    curve = accountants.rdp_curve(work, MOMENTS)
    best = conversion.epsilon(MOMENTS, curve if work.bounded else curve + math.inf, delta, "classic")
    note = f"at λ = {best.order - 1:g} of 1 to 32" if best.value < math.inf else _NO_CURVE
    return _row("moments_accountant", "Abadi et al. 2016, Theorem 2", best.value, note)


def _print_strongly(charges: tuple[Charge, ...], delta: float, work: Workload) -> tuple[float | None, str]:
    questions = {charge.event.cross_check() for charge in charges}
    match [*questions]:
        case [GaussianSum(sigma, rate)] if work.neighbouring is Neighbouring.ADD_OR_REMOVE_ONE:
            printed = print_strong_composition(rate, float(sigma), count_events(charges), delta)
            return printed, "no guarantee: its amplification holds for small ε only"
    return None, "printed for equal Gaussian steps, a unit added or removed"


def _cost_alone(charges: tuple[Charge, ...], delta: float, work: Workload) -> list[tuple[float, int]]:
    """Returns (ε, count) of each event by itself at δ, all under the relation of the whole."""
    counts: dict[Event, int] = {}
    for charge in charges:
        counts[charge.event] = counts.get(charge.event, 0) + charge.count
    return [
        (accountants.epsilon((Charge(event, 1),), delta, work.neighbouring, "pld"), count)
        for event, count in counts.items()
    ]


def add_epsilons(parts: Sequence[tuple[float, int]]) -> float:
    """Returns Σ count ε over (ε, count). Source: Dwork & Roth 2014, Theorem 3.16."""
    return math.fsum(epsilon * count for epsilon, count in parts)


def compose_strongly(parts: Sequence[tuple[float, int]], delta: float) -> float:
    """Returns sqrt(2 log(1/δ) Σ ε²) + Σ ε (e^ε - 1) over (ε, count), or the plain sum where that is smaller.

    Guarantees: the composition of mechanisms that are ε-DP each is (result, δ)-DP; δ of the mechanisms adds to it.
    Source: Dwork, Rothblum & Vadhan 2010; for mechanisms that differ, Kairouz, Oh & Viswanath 2017, section 3.3.
    """
    if any(epsilon > _MAX_EPSILON for epsilon, _ in parts):
        return add_epsilons(parts)
    squares = math.fsum(count * epsilon**2 for epsilon, count in parts)
    drift = math.fsum(count * epsilon * math.expm1(epsilon) for epsilon, count in parts)
    return min(math.sqrt(2 * math.log(1 / delta) * squares) + drift, add_epsilons(parts))


def compose_optimally(epsilon: float, count: int, delta: float) -> float:
    """Returns the least ε' at which `count` mechanisms that are ε-DP each are (ε', δ)-DP, 0 < δ < 1.

    The worst of them answers truly with probability p = e^ε/(1 + e^ε), so l wrong answers have the loss (k - 2l) ε:
    δ(ε') = Pr[Bin(k, 1-p) <= m] - e^ε' Pr[Bin(k, p) <= m], where m is the last l with a loss above ε'.

    Guarantees: an upper bound, next to the optimum: δ is rounded up by a share of 1e-9.
    Source: Kairouz, Oh & Viswanath 2017, Theorem 3.3.
    """
    most = epsilon * count
    low, high = 0.0, min(most, _MAX_EPSILON)
    if not 0 < epsilon < math.inf or _randomised_delta(epsilon, count, high) > delta:
        return most
    if _randomised_delta(epsilon, count, 0.0) <= delta:
        return 0.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        if _randomised_delta(epsilon, count, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def _randomised_delta(epsilon: float, count: int, at: float) -> float:
    """Returns δ at ε' = `at` of `count` randomised responses, rounded up."""
    from scipy import special

    last = math.ceil((count - at / epsilon) / 2) - 1  # losses of exactly ε' add nothing
    if last < 0:
        return 0.0
    wrong = 1 / (1 + math.exp(min(epsilon, _MAX_EPSILON)))
    ours, theirs = (float(special.bdtr(float(last), count, p)) for p in (wrong, 1 - wrong))
    return max(0.0, ours - math.exp(at) * theirs) + ours * (_ROUND_UP - 1)


def print_strong_composition(rate: float, sigma: float, steps: int, delta: float) -> float:
    """Returns the strong composition that Abadi et al. compare with: q ε_0 sqrt(2k log(2/δ)) + k (q ε_0)² with
    ε_0 = sqrt(2 log(1.25/δ_0))/σ at δ_0 = δ/2kq.

    No guarantee: amplification to (q ε, q δ) is an approximation for small ε, and that ε_0 is proved only below 1.
    """
    single = math.sqrt(2 * math.log(1.25 * 2 * steps * rate / delta)) / sigma
    return rate * single * math.sqrt(2 * steps * math.log(2 / delta)) + steps * (rate * single) ** 2
