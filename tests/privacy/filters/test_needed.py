"""The cap that N equal runs need: the reference values, and that the cap found admits them."""

from __future__ import annotations

import math

import pytest

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import admits
from dprecipe.privacy.filters.needed import find_filter_cap
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

ADD = Neighbouring.ADD_OR_REMOVE_ONE
MNIST = (Charge(PoissonGaussian(1024 / 60000, 2.336104), 1172),)


@pytest.mark.parametrize(("runs", "one_by_one"), [(1, 1.1335), (2, 1.6391), (10, 3.9571), (20, 5.8641)])
def test_the_filter_needs_what_the_reference_says(runs: int, one_by_one: float) -> None:
    """A tenth of an account's δ is kept for costs that fail; the reference keeps nothing."""
    assert find_filter_cap(MNIST, runs, 1e-5 / (0.9 - 2.0**-50), ADD) == pytest.approx(one_by_one, rel=3e-4)


def test_the_cap_found_admits_the_runs_and_a_smaller_one_does_not() -> None:
    needed = find_filter_cap(MNIST, 10, 1e-5, ADD)
    assert needed == pytest.approx(3.978, abs=2e-3)
    assert admits(cost_of(MNIST, ADD, Cap(needed, 1e-5).orders).times(10), Cap(needed, 1e-5))
    less = Cap(needed * 0.998, 1e-5)
    assert not admits(cost_of(MNIST, ADD, less.orders).times(10), less)


def test_caps_beyond_what_accounts_hold() -> None:
    assert find_filter_cap((Charge(Gaussian(1 / 40), 1),), 1, 1e-5, ADD) == math.inf
    assert find_filter_cap((Charge(Gaussian(1e5), 1),), 1, 1e-5, ADD) == 1e-3
