"""The laws of likelihood ratios: larger than the true one in convex order, by both methods, with the mean kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dprecipe.privacy.dealing import geometric, linear
from dprecipe.privacy.dealing.epoch import EpochRatio
from dprecipe.privacy.dealing.geometric import sum_geometric
from dprecipe.privacy.dealing.law import epoch_losses
from dprecipe.privacy.dealing.linear import sum_linear
from dprecipe.privacy.dealing.ratio import RatioLaw
from dprecipe.privacy.loss import GridError

RECORDS = json.loads((Path(__file__).parents[2] / "golden" / "batches.json").read_text())["records"]


def by_both(ratio: EpochRatio, tail: float = 1e-11) -> list[RatioLaw]:
    return [sum_geometric(ratio, 0.06 * min(1.0, math.sqrt(ratio.variance)), tail), sum_linear(ratio, tail)]


def excess(law: RatioLaw, strike: float) -> float:
    """E(A - strike)_+."""
    return float(np.maximum(law.ratios - strike, 0.0) @ law.q_masses) + law.infinity


@pytest.mark.parametrize("mu", [0.1, 0.5, 0.9])
def test_one_term_is_larger_in_convex_order(mu: float) -> None:
    """E(X - k)_+ = Φ(μ/2 - log k/μ) - k Φ(-μ/2 - log k/μ): nowhere less, and hardly more."""
    for law in by_both(EpochRatio(mu, 1.0, 1)):
        for strike in (0.2, 0.7, 1.0, 1.3, 2.5):
            place = math.log(strike) / mu
            exact = stats.norm.cdf(mu / 2 - place) - strike * stats.norm.cdf(-mu / 2 - place)
            assert exact - 1e-10 <= excess(law, strike) <= exact + 3e-5


@pytest.mark.parametrize(
    "ratio",
    [
        EpochRatio(0.4, 1 / 9, 9),
        EpochRatio(0.9, 1 / 40, 13),
        EpochRatio(0.7, 0.01, 77),
        EpochRatio(0.4, 1 / 9, 9, 2),
        EpochRatio(0.3, 1 / 40, 13, 12),
        EpochRatio(0.3, 0.01, 77, 77),
    ],
)
def test_both_methods_give_the_same_law(ratio: EpochRatio) -> None:
    one, other = by_both(ratio)
    for law in (one, other):
        assert law.p_masses.sum() + law.infinity == pytest.approx(1.0, abs=1e-9)
        assert law.q_masses.sum() == pytest.approx(1.0, abs=1e-9)
        assert law.ratios @ law.q_masses + law.infinity == pytest.approx(1.0, abs=1e-9)
        variance = float((law.ratios - 1) ** 2 @ law.q_masses)
        assert ratio.variance * (1 - 1e-6) <= variance <= ratio.variance * 1.002
    for strike in (0.9, 1.0, 1.1, 1.5):
        assert excess(one, strike) == pytest.approx(excess(other, strike), rel=5e-3, abs=1e-12)


def test_doubled_terms_are_terms_of_twice_the_mean() -> None:
    for one, other in zip(by_both(EpochRatio(0.3, 0.1, 8, 8)), by_both(EpochRatio(0.6, 0.1, 8)), strict=True):
        for strike in (0.8, 1.0, 1.4):
            assert excess(one, strike) == pytest.approx(excess(other, strike), rel=1e-3)


def test_terms_of_two_kinds_are_those_of_a_convolution() -> None:
    """E(A - k)_+ of 1/3 (X₁ + X₂ + Y), by quadrature over the sum of one kind."""
    mu, weight = 0.5, 1 / 3
    z_N = np.linspace(-8, 8, 401)
    mass_N = stats.norm.pdf(z_N) * (z_N[1] - z_N[0])
    x_N = np.exp(mu * z_N - mu**2 / 2)
    pairs_NN = x_N[:, None] + x_N[None, :]
    for law in by_both(EpochRatio(mu, weight, 3, 1)):
        for strike in (0.7, 1.0, 1.6, 3.0):
            rest_NN = np.maximum(strike / weight - pairs_NN, 1e-12)
            place_NN = np.log(rest_NN) / (2 * mu)
            call_NN = stats.norm.cdf(mu - place_NN) - rest_NN * stats.norm.cdf(-mu - place_NN)
            call_NN += np.maximum(pairs_NN - strike / weight, 0.0)
            exact = weight * float(mass_N @ call_NN @ mass_N)
            assert exact * (1 - 1e-5) <= excess(law, strike) <= exact * 1.001 + 1e-6


@pytest.mark.parametrize("record", [r for r in RECORDS if r["group"] == "alloc_rdp_remove"])
def test_moments_are_those_of_the_closed_form(record: dict) -> None:
    """Rényi divergences of whole orders, of P from Q. The law's cut tail carries moments of high orders."""
    i = record["inputs"]
    if i["order"] > 3 * i["sigma"] + 1:
        pytest.skip("the cut tail carries this moment")
    ratio = EpochRatio(1 / i["sigma"], 1 / i["t"], i["s"])
    law = sum_geometric(ratio, 0.08 * min(1.0, math.sqrt(ratio.variance)), 1e-30)
    moment = float(law.p_masses @ law.ratios ** (i["order"] - 1))
    found = math.log(moment) / (i["order"] - 1)
    assert record["value"] * (1 - 1e-6) <= found <= record["value"] * 1.005


def test_extended_precision_where_double_would_lose_too_much() -> None:
    ratio = EpochRatio(1.0, 1 / 500, 500)
    assert sum_linear(ratio, 1e-16).lost < sum_linear(ratio, 1e-6).lost - 2e-6 + 1e-9


def test_too_many_points_are_refused() -> None:
    with pytest.raises(GridError):
        sum_linear(EpochRatio(5.0, 0.01, 100), 1e-15)
    with pytest.raises(GridError):
        sum_geometric(EpochRatio(1.0, 0.01, 100), 1e-6, 1e-15)
    assert geometric.MAX_POINTS < linear.MAX_POINTS


@pytest.mark.parametrize("mu", [0.02, 0.3, 1.2, 4.0])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000])
def test_a_law_is_found_for_every_epoch(mu: float, count: int) -> None:
    """Both directions sum to one, what went to infinity included."""
    pair = epoch_losses(EpochRatio(mu, 1 / count, count), 0.01, 1e-14)
    assert pair.added is not None
    for loss in (pair.removed, pair.added):
        assert 0 <= loss.infinity < 1e-6
        assert loss.masses.sum() + loss.infinity == pytest.approx(1.0, abs=1e-6)
        assert float(loss.masses @ np.exp(-loss.losses)) <= 1 + 1e-6
