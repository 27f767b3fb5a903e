"""A last-iterate release beside others: its pair bounds its profile, and composes as closed forms and dp-accounting
say."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import last_iterate
from dprecipe.mechanisms.pnsgd.theory.beside_others import dominating_losses, renyi_curve, tabulate_run
from dprecipe.mechanisms.pnsgd.theory.cases import all_cases
from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.cross_check import ask_library
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.stages.events import NoisyCovariance, NoisyMoments, NoisyQuantile, PartitionSelection

REPLACE, ZERO, ADD = Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE, Neighbouring.ADD_OR_REMOVE_ONE
DELTA = 1e-6
STEPS = ((60, 2.0, 0.97, 30.0),)


def run(
    relation: str = "replace_one",
    family: str = "gaussian",
    order: str = "permuted",
    stop: str = "last",
    stages: tuple[tuple[int, float, float, float], ...] = STEPS,
) -> ProjectedDescent:
    return ProjectedDescent(relation, family, 2000, 100, order, stop, stages)


RUNS = {
    "sequential": run(order="sequential"),
    "permuted": run(),
    "random_stop": run(stop="random"),
    "laplace": run(family="laplace", stages=((60, 2.0, 0.97, 3.0),)),
    "contracting": run(stages=((60, 2.5, 0.5, 1.5),)),
    "staged": run("zero_out_one", stages=((30, 2.0, 0.97, 30.0), (30, 3.0, 0.97, 25.0))),
}
MOMENTS, COVARIANCE = NoisyMoments(5, 1.0, 1.0, 0.0, 20.0), NoisyCovariance(10, 25.0)
QUANTILE, ITEMS = NoisyQuantile(0.5, 30.0), PartitionSelection.with_leak(3, 1e-8, 20.0)


def charges(*events: Event) -> tuple[Charge, ...]:
    return tuple(Charge(event, 1) for event in events)


@pytest.mark.parametrize("name", RUNS)
def test_the_pair_has_the_profile_of_the_run_in_both_directions(name: str) -> None:
    """δ of the grid's distribution, summed up, is no less than the bound, and hardly more."""
    event, step = RUNS[name], 1e-3
    pair = dominating_losses(event, step, 1e-12)
    assert pair.added is None
    losses, masses = pair.removed.losses, pair.removed.masses
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        bound = last_iterate.delta(event, epsilon).value
        above = losses > epsilon
        told = math.fsum(masses[above] * -np.expm1(epsilon - losses[above])) + pair.removed.infinity
        mirrored = math.fsum(masses[losses < -epsilon] * (np.exp(-losses[losses < -epsilon]) - math.exp(epsilon)))
        assert bound * (1 - 1e-9) - 1e-15 <= told <= bound * 1.01 + 1e-11
        assert mirrored + pair.removed.missing == pytest.approx(told, rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("order", ["sequential", "permuted"])
def test_beside_gaussian_steps_squared_mu_add_up_position_by_position(order: str) -> None:
    """Where contraction gives nothing, a run is a Gaussian at each position, made public with its position: beside
    another Gaussian, δ is the mean (or the largest) of closed forms."""
    event = run(order=order, stages=((60, 2.0, 1.0, 1e4),))
    cases, beside = all_cases(event), charges(MOMENTS, COVARIANCE)
    other = sum(float(charge.event.squared_mu(1, REPLACE) or 0.0) for charge in beside)
    epsilon = accountants.epsilon((*beside, Charge(event, 1)), DELTA, REPLACE, "pld")
    exact = np.array([gdp.delta(math.sqrt(mu**2 + other), epsilon) for mu in cases.mu])
    closed = float(exact.max()) if order == "sequential" else float(exact @ cases.weight)
    assert DELTA * 0.985 <= closed <= DELTA  # never above what is claimed


@pytest.mark.parametrize(
    ("name", "beside"),
    [
        ("laplace", (COVARIANCE, QUANTILE)),
        *(
            pytest.param(name, beside, marks=pytest.mark.slow)
            for name, beside in (
                ("permuted", (MOMENTS,)),
                ("laplace", (MOMENTS, ITEMS)),
                ("staged", (MOMENTS, ITEMS)),
                ("random_stop", (COVARIANCE, QUANTILE)),
            )
        ),
    ],
)
def test_dp_accounting_composes_it_to_the_same(name: str, beside: tuple[Event, ...]) -> None:
    event = RUNS[name]
    relation = Neighbouring(event.neighbouring)
    together = (*charges(*beside), Charge(event, 1))
    claimed = accountants.epsilon(together, DELTA, relation, "pld")
    alone = accountants.epsilon((Charge(event, 1),), DELTA, relation, "pld")
    stages = accountants.epsilon(charges(*beside), DELTA, relation, "pld")
    assert max(alone, stages) < claimed < alone + stages
    assert claimed <= accountants.epsilon(together, DELTA, relation, "rdp")
    library = ask_library(together, DELTA, relation)
    assert library.name.startswith("dp_accounting")
    assert library.epsilon == pytest.approx(claimed, rel=5e-3)


def test_another_relation_has_no_bound_and_a_null_record_has_half_the_steps_cost() -> None:
    together = (*charges(MOMENTS), Charge(RUNS["permuted"], 1))
    for relation in (ADD, ZERO):
        for accountant in accountants.ACCOUNTANTS:
            assert accountants.epsilon(together, DELTA, relation, accountant) == math.inf
        assert ask_library(together, DELTA, relation).epsilon == math.inf
    zeroed = (*charges(MOMENTS), Charge(run("zero_out_one"), 1))
    assert accountants.epsilon(zeroed, DELTA, ADD, "pld") == math.inf
    assert 0 < accountants.epsilon(zeroed, DELTA, ZERO, "pld") < accountants.epsilon(together, DELTA, REPLACE, "pld")


def test_the_gaussian_bound_adds_squares() -> None:
    together = (*charges(MOMENTS), Charge(RUNS["sequential"], 1))
    mu = last_iterate.gaussian_mu(RUNS["sequential"])
    assert mu is not None
    total = math.sqrt(mu**2 + float(MOMENTS.squared_mu(1, REPLACE)))
    assert accountants.epsilon(together, DELTA, REPLACE, "gdp") == pytest.approx(gdp.epsilon(total, DELTA), rel=1e-12)
    assert accountants.epsilon(together, DELTA, REPLACE, "pld") <= gdp.epsilon(total, DELTA) * (1 + 1e-3)
    beside_mean = (*charges(MOMENTS), Charge(RUNS["permuted"], 1))
    assert accountants.epsilon(beside_mean, DELTA, REPLACE, "gdp") == math.inf


@pytest.mark.parametrize("name", RUNS)
def test_the_curve_is_that_of_the_pair(name: str) -> None:
    """At each order, the divergence of the tabulated pair is at most the curve, up to the grid and its tail."""
    event, orders = RUNS[name], (1.5, 2.0, 4.0, 8.0)
    pair = dominating_losses(event, 1e-3, 1e-18).removed
    curve = renyi_curve(event, orders)
    for order, bound in zip(orders, curve, strict=True):
        divergence = math.log(math.fsum(pair.masses * np.exp((order - 1) * pair.losses))) / (order - 1)
        assert divergence <= bound * 1.01 + 1e-6


def by_place(event: ProjectedDescent) -> Callable[[float], float]:
    return lambda epsilon: last_iterate.delta(event, epsilon).value


def test_the_table_ends_where_nothing_is_left() -> None:
    table = tabulate_run(RUNS["permuted"])
    assert table.deltas[-1] <= 1e-19
    e = np.linspace(0, 3, 31)
    bound = np.array([by_place(RUNS["permuted"])(float(at)) for at in e])
    assert (table.at(e) >= bound * (1 - 1e-12)).all()
