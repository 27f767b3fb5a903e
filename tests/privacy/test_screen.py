"""The screen accepts nothing that the accountants refuse, and most of what they accept."""

from __future__ import annotations

import pytest

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.screen import keeps, surely_within

RELATION = Neighbouring.ADD_OR_REMOVE_ONE
CASES = [
    [Charge(PoissonGaussian(q, sigma), steps)]
    for q in (1e-5, 0.004, 0.1, 0.9, 1.0)
    for sigma in (0.4, 1.1, 8.0, 100.0)
    for steps in (1, 300, 14_000)
] + [[Charge(Gaussian(20.0), 100)], [Charge(DealtGaussian(3.0, 7), 5), Charge(PoissonGaussian(0.01, 1.0), 500)]]


@pytest.mark.parametrize("charges", CASES, ids=str)
def test_it_agrees_with_the_renyi_accountant_but_for_the_choice_of_orders(charges: list[Charge]) -> None:
    epsilon = accountants.epsilon(charges, 1e-5, RELATION, "rdp")
    assert not surely_within(charges, epsilon * (1 - 1e-6) - 1e-8, 1e-5, RELATION)
    if 0.1 < epsilon < 2.5:  # larger ones want orders below 2, which the screen does not have
        assert surely_within(charges, epsilon * 1.1, 1e-5, RELATION)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp_classic"])
@pytest.mark.parametrize("charges", CASES[::7], ids=str)
def test_a_faster_bound_never_decides_against_the_accountant(charges: list[Charge], accountant: str) -> None:
    epsilon = accountants.epsilon(charges, 1e-5, RELATION, accountant)
    assert keeps(charges, epsilon, 1e-5, RELATION, accountant)
    assert not keeps(charges, epsilon * (1 - 1e-6) - 1e-8, 1e-5, RELATION, accountant)


def test_it_never_decides_what_it_has_no_bound_for() -> None:
    assert not surely_within([Charge(Gaussian(1e6), 1)], 3.0, 1e-5, Neighbouring.REPLACE_ONE)


def code(family: str, shape: float | None, q: float, exchanged: bool = False) -> EncodedSum:
    return EncodedSum(q, 2.0, family, shape, ((0.005, 30_000), (0.02, 400), (0.3, 1)), exchanged, "sha256:" + "0" * 64)


@pytest.mark.parametrize("exchanged", [False, True])
@pytest.mark.parametrize("q", [0.01, 1.0])
@pytest.mark.parametrize("family", ["laplace", "cauchy"])
def test_it_bounds_codes_by_their_information_where_that_is_proved(family: str, q: float, exchanged: bool) -> None:
    charges = [Charge(code(family, None, q, exchanged), 300 if q < 1 else 1), Charge(PoissonGaussian(0.01, 2.0), 100)]
    epsilon = accountants.epsilon(charges, 1e-5, RELATION, "rdp")
    assert not surely_within(charges, epsilon * (1 - 1e-6) - 1e-8, 1e-5, RELATION)
    assert surely_within(charges, epsilon * 1.1, 1e-5, RELATION)
    assert not surely_within(charges, epsilon * 2, 1e-5, Neighbouring.REPLACE_ONE)


@pytest.mark.parametrize(("family", "shape"), [("student_t", 9.0), ("sech", None), ("variance_gamma", 2.0)])
def test_it_leaves_other_codes_to_the_accountants(family: str, shape: float | None) -> None:
    assert not surely_within([Charge(code(family, shape, 0.01), 1)], 100.0, 1e-5, RELATION)


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize(
    "charges",
    [
        [Charge(NoisyMax("gaussian", 40.0), 341), Charge(NoisyThreshold(150.0), 640)],
        [Charge(NoisyMax("laplace", 40.0), 640)],
        [Charge(NoisyThreshold(30.0), 640), Charge(FilterRest(3.0), 1)],
    ],
    ids=str,
)
def test_it_bounds_votes_under_either_relation(charges: list[Charge], relation: Neighbouring) -> None:
    epsilon = accountants.epsilon(charges, 1e-5, relation, "rdp")
    assert not surely_within(charges, epsilon * (1 - 1e-6) - 1e-8, 1e-5, relation)
    assert surely_within(charges, epsilon * 1.1, 1e-5, relation)


def test_it_leaves_sanitised_costs_to_the_accountants() -> None:
    assert not surely_within([Charge(SanitisedCost(0.01, 100.0, 100.0), 1)], 100.0, 1e-5, RELATION)


def test_it_loads_neither_numpy_nor_scipy() -> None:
    import subprocess
    import sys

    code = "import dprecipe.privacy.screen, sys; assert not {'numpy', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
