"""Filter and odometer against reference values and against another computation."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import mpmath
import pytest

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap, Spent, round_up_cost
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import (
    admits,
    affordable_share,
    count_runs,
    mixture_delta,
    mixture_epsilon,
    odometer,
)
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "account.json").read_text())["records"]
EPSILONS = [record for record in GOLDEN if record["group"] == "account_epsilon"]
MNIST = [Charge(PoissonGaussian(1024 / 60000, 2.336104), 1172)]


@dataclass(frozen=True)
class AnyOrders:
    """What the filter asks of a cap, with orders and weights of one's own."""

    delta_rest: float
    orders: tuple
    weights: tuple
    epsilon: float = 1.0
    delta_prime: float = 1e-9


def curve(charge: dict, order: float) -> float:
    """Closed forms, and a quadrature with mpmath for the sampled Gaussian."""
    if charge["kind"] == "gaussian":
        return order * charge["mu"] ** 2 / 2
    if charge["kind"] == "laplace":
        e = 1 / charge["scale"]
        share = order / (2 * order - 1)
        moment = share * mpmath.exp((order - 1) * e) + (1 - share) * mpmath.exp(-order * e)
        return float(mpmath.log(moment) / (order - 1))
    if charge["kind"] == "randomised_response":
        e = charge["eps0"]
        p = mpmath.exp(e) / (1 + mpmath.exp(e))
        return float(mpmath.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1))
    event = PoissonGaussian(charge["q"], charge["sigma"])
    return cost_of([Charge(event, charge["steps"])], Neighbouring.ADD_OR_REMOVE_ONE, [order]).rdp[0]


@pytest.mark.parametrize("record", EPSILONS, ids=lambda record: record["id"])
def test_epsilons_are_those_of_the_reference(record):
    given = record["inputs"]
    cap = AnyOrders(given["delta"], tuple(given["orders"]), tuple(given["weights"]))
    sums = [math.fsum(curve(charge, order) for charge in given["charges"]) for order in cap.orders]
    spent = round_up_cost(sums, 0.0)
    *_, classic, improved = record["value"]
    assert odometer(spent, cap) == pytest.approx(classic, abs=record["tol"])
    assert mixture_epsilon(spent, cap) == pytest.approx(improved, abs=record["tol"])


def exact_delta(epsilon: float, spent: Spent, cap: Cap) -> mpmath.mpf:
    """The maximum over x by 25 digits."""
    mpmath.mp.dps = 25

    def value(x):
        terms = [
            mpmath.mpf(w) * mpmath.exp((mpmath.mpf(a) - 1) * (x + mpmath.mpf(epsilon) - mpmath.mpf(r)))
            for a, w, r in zip(cap.orders, cap.weights, spent.rdp, strict=True)
            if r < math.inf
        ]
        return (1 - mpmath.exp(-x)) / mpmath.fsum(terms)

    low, high = mpmath.mpf("1e-6"), mpmath.mpf(5)
    for _ in range(60):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if value(left) < value(right) else (low, right)
    return value((low + high) / 2)


@pytest.mark.parametrize(
    ("epsilon", "delta", "shape"),
    [(0.3, 1e-7, (0.004, 0.0)), (1, 1e-5, (0.02, 0.3)), (1, 1e-5, (0.0, 0.5)), (8, 1e-6, (0.1, 0.1))],
)
def test_delta_is_never_below_the_exact_maximum(epsilon, delta, shape):
    cap = Cap(epsilon, delta)
    for dead in (0, 2, 8):  # so many far orders say nothing
        rdp = [order * shape[0] + shape[1] for order in cap.orders]
        rdp[9 - dead :] = [math.inf] * dead
        spent = round_up_cost(rdp, 0.0)
        for at in (0.0, epsilon / 2, epsilon):
            exact = exact_delta(at, spent, cap)
            got = mixture_delta(at, spent, cap)
            assert got >= min(exact, 1)
            assert got <= max(exact * (1 + 1e-8), 1e-300)


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN if r["group"] == "account_budget_per_order"], ids=lambda record: record["id"]
)
def test_what_one_order_admits_by_its_share_the_mixture_admits(record):
    given = record["inputs"]
    epsilon, delta = given["eps"], given["delta"]
    cap = AnyOrders(delta, tuple(given["orders"]), tuple(given["weights"]), epsilon)
    for index, limit in enumerate(record["value"]):
        if limit <= 0:  # the order alone never admits anything
            continue
        for factor, admitted in ((1 - 1e-7, True), (1 + 1e-6, False)):
            rdp = [math.inf] * len(cap.orders)
            rdp[index] = limit * factor
            assert admits(round_up_cost(rdp, 0.0), cap) is admitted
        helped = [(order / cap.orders[index]) * limit * (1 + 1e-6) for order in cap.orders]
        assert admits(round_up_cost(helped, 0.0), cap)  # other orders help


def test_epsilon_is_on_the_safe_side_and_the_filter_agrees():
    cap = Cap(3, 1e-5)
    for scale in (1e-4, 0.01, 0.05, 0.2):
        spent = round_up_cost([order * scale for order in cap.orders], 1e-7)
        epsilon = mixture_epsilon(spent, cap)
        assert exact_delta(epsilon, spent, cap) <= cap.delta_rest
        assert exact_delta(epsilon * (1 - 1e-6), spent, cap) > cap.delta_rest * (1 - 1e-4)
        assert admits(spent, cap) == (epsilon <= cap.epsilon)
        assert odometer(spent, cap) > epsilon  # it says more: for all times at once


def test_sums_of_failures_are_a_filter_of_their_own():
    cap = Cap(1, 1e-5)
    little = round_up_cost([1e-6] * 9, 0.999e-6)
    much = round_up_cost([1e-6] * 9, 1.001e-6)
    assert admits(little, cap)
    assert not admits(much, cap)
    assert mixture_epsilon(much, cap) == odometer(much, cap) == math.inf
    assert mixture_delta(1.0, little, cap) >= 0.999e-6


def test_nothing_and_everything():
    cap = Cap(1, 1e-5)
    nothing, dead = Spent((0.0,) * 9), Spent((math.inf,) * 9)
    assert mixture_epsilon(nothing, cap) == odometer(nothing, cap) == 0
    assert mixture_delta(0.0, nothing, cap) == 0
    assert admits(nothing, cap)
    assert mixture_epsilon(dead, cap) == odometer(dead, cap) == math.inf
    assert mixture_delta(50.0, dead, cap) == 1
    assert not admits(dead, cap)
    assert affordable_share(nothing, nothing, cap) == math.inf
    assert affordable_share(nothing, dead, cap) == 0


@pytest.mark.parametrize(
    ("runs", "epsilon", "single"), [(1, 1.1335, 1.0970), (2, 1.6391, 1.5886), (5, 2.6944, 2.6163), (20, 5.8641, 5.7116)]
)
def test_caps_needed_for_runs_of_mnist(runs, epsilon, single):
    """The table of A.5: the cap that holds so many runs, and the least ε of one order known beforehand."""
    below, above = (Cap(epsilon + move, 1e-5 / 0.9) for move in (-2e-4, 2e-4))
    for cap, fits in ((below, runs - 1), (above, runs)):
        cost = cost_of(MNIST, Neighbouring.ADD_OR_REMOVE_ONE, cap.orders)
        assert count_runs(Spent((0.0,) * 9), cost, cap) == fits
    assert epsilon < single * 1.035


def test_room_is_what_fits():
    cap = Cap(8, 1e-6)
    cost = cost_of([Charge(Gaussian(5.0), 1)], Neighbouring.ADD_OR_REMOVE_ONE, cap.orders)
    spent = cost.times(3)
    multiple = affordable_share(spent, cost, cap)
    assert admits(spent + cost.times(multiple), cap)
    assert not admits(spent + cost.times(multiple * (1 + 1e-8)), cap)
    assert count_runs(spent, cost, cap) == int(multiple)
    assert count_runs(spent, cost, cap, at_most=4) == 4
    full = spent + cost.times(multiple)
    assert count_runs(full, cost, cap) == 0
