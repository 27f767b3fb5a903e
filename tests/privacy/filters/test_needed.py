"""What N equal runs need, one by one or fixed beforehand: the reference values, and that the cap found admits them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dprecipe.privacy import gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap
from dprecipe.privacy.filters.cost import cost_of
from dprecipe.privacy.filters.filter import admits
from dprecipe.privacy.filters.needed import find_filter_cap, find_slots_epsilon
from dprecipe.privacy.filters.split import add_decimals, subtract_decimals, subtract_part
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

ADD = Neighbouring.ADD_OR_REMOVE_ONE
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "account.json").read_text())["records"]
MNIST = (Charge(PoissonGaussian(1024 / 60000, 2.336104), 1172),)


@pytest.mark.parametrize(("runs", "one_by_one"), [(1, 1.1335), (2, 1.6391), (10, 3.9571), (20, 5.8641)])
def test_the_filter_needs_what_the_reference_says(runs: int, one_by_one: float) -> None:
    """A tenth of an account's δ is kept for costs that fail; the reference keeps nothing."""
    assert find_filter_cap(MNIST, runs, 1e-5 / (0.9 - 2.0**-50), ADD) == pytest.approx(one_by_one, rel=3e-4)


def test_ten_runs_take_less_as_slots() -> None:
    (slots,) = (r["value"] for r in GOLDEN if r["group"] == "account_slots_pld" and r["inputs"]["runs"] == 10)
    assert slots <= find_slots_epsilon(MNIST, 10, 1e-5, ADD) <= slots * 1.001
    needed = find_filter_cap(MNIST, 10, 1e-5, ADD)
    assert needed == pytest.approx(3.978, abs=2e-3)
    assert admits(cost_of(MNIST, ADD, Cap(needed, 1e-5).orders).times(10), Cap(needed, 1e-5))
    less = Cap(needed * 0.998, 1e-5)
    assert not admits(cost_of(MNIST, ADD, less.orders).times(10), less)


@pytest.mark.parametrize("mu", [0.2, 1.0, 2.0])
def test_gaussian_runs_as_slots_take_what_gdp_says(mu: float) -> None:
    exact = gdp.epsilon(mu, 1e-5)
    assert exact <= find_slots_epsilon((Charge(Gaussian(2 / mu), 1),), 4, 1e-5, ADD) <= exact * 1.002
    assert find_filter_cap((Charge(Gaussian(2 / mu), 1),), 4, 1e-5, ADD) > 1.09 * exact


def test_caps_beyond_what_accounts_hold() -> None:
    assert find_filter_cap((Charge(Gaussian(1 / 40), 1),), 1, 1e-5, ADD) == math.inf
    assert find_filter_cap((Charge(Gaussian(1e5), 1),), 1, 1e-5, ADD) == 1e-3


def test_parts_are_decimal_numbers() -> None:
    assert add_decimals(3e-6, 6e-6) == 9e-6
    assert subtract_decimals(1e-5, 9e-6) == 1e-6
    assert subtract_part(4.0, 1e-5, 3.6, 9e-6) == Cap(0.4, 1e-6)
    with pytest.raises(ValueError, match="expected 0 < epsilon"):
        subtract_part(4.0, 1e-5, 4.0, 9e-6)


def test_losses_of_both_parts_add_up_as_the_proof_says() -> None:
    for x in (-3.0, -0.1, 0.0, 0.2, 2.0):
        for y in (-2.0, -0.3, 0.0, 0.1, 3.0):
            parts = max(0.0, -math.expm1(x)) + max(0.0, -math.expm1(y))
            assert max(0.0, -math.expm1(x + y)) <= parts + 1e-15
