"""Rényi curves against quadrature with 40 digits, and against golden figures."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from dprecipe.privacy import conversion, curves

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())
RECORDS = GOLDEN["records"]


def of_kind(*kinds):
    return [pytest.param(r, id=f"{r['kind']}-{i}") for i, r in enumerate(RECORDS) if r["kind"] in kinds]


def oracle(q, sigma, alpha, replaced=False, share=4):
    """log ∫ Pᵅ Q^(1-α) / (α-1): a trapezoidal sum with 40 digits."""
    with mp.workdps(40):
        q, s, a = mp.mpf(q), mp.mpf(sigma), mp.mpf(alpha)
        step, low, high = min(s, s * s) / share, -(1 + 14 * s), a + 1 + 14 * s

        def term(x):
            above = 1 - q + q * mp.exp((2 * x - 1) / (2 * s * s))
            below = 1 - q + q * mp.exp((-2 * x - 1) / (2 * s * s)) if replaced else mp.mpf(1)
            return mp.exp(-x * x / (2 * s * s)) * below ** (1 - a) * above**a

        total = mp.fsum(term(low + step * i) for i in range(int((high - low) / step) + 1))
        return float(mp.log(total * step / (s * mp.sqrt(2 * mp.pi))) / (a - 1))


@pytest.mark.parametrize("record", of_kind("abadi_log_moment_alpha(lambda)=log max(E1,E2)"))
def test_log_moments_of_the_moments_accountant(record):
    i = record["inputs"]
    moment = i["lam"] * curves.poisson_gaussian(i["q"], i["sigma"], [i["lam"] + 1])[0]
    assert moment == pytest.approx(record["value"], rel=1e-9)


def test_moments_accountant_gives_abadis_epsilon():
    record = next(r for r in RECORDS if r["kind"] == "abadi_moments_accountant_eps")
    orders = range(2, 34)
    rdp = 10_000 * curves.poisson_gaussian(0.01, 4.0, orders)
    best = conversion.epsilon(orders, rdp, 1e-5, "classic")
    assert best.value == pytest.approx(record["value"], rel=1e-9)
    assert best.value == pytest.approx(1.26, abs=0.005)
    assert best.order == 20


@pytest.mark.parametrize(
    "record",
    of_kind(
        "rdp_improved_eps",
        "rdp_improved_eps_int_orders_2_256",
        "rdp_classic_eps_int_orders_2_256",
        "hetero_rdp_improved_eps",
        "hetero_rdp_classic_eps",
    ),
)
def test_golden_renyi_epsilons(record):
    i, orders = record["inputs"], range(2, 257)
    phases = i.get("phases_q_sigma_T") or [[i["q"], i["sigma"], i["T"]]]
    rdp = sum(T * curves.poisson_gaussian(q, sigma, orders) for q, sigma, T in phases)
    kind = "classic" if "classic" in record["kind"] else "improved"
    assert conversion.epsilon(orders, rdp, i["delta"], kind).value == pytest.approx(record["value"], rel=1e-9)


def curve_of(record):
    curve = curves.poisson_gaussian_replaced if record["replaced"] else curves.poisson_gaussian
    return float(curve(record["q"], record["sigma"], [record["order"]])[0])


def test_stored_quadratures_from_q_1e_6_to_1_and_sigma_0_3_to_100():
    assert len(GOLDEN["quadrature"]) == 110
    for record in GOLDEN["quadrature"]:
        rel = 1e-9 if record["q"] > 1e-5 else 1e-7  # r itself is then 1e-13 and less
        assert curve_of(record) == pytest.approx(record["rdp"], rel=rel, abs=0), record


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("q", "sigma", "order"), [(1e-3, 0.4, 2.3), (0.2, 1.0, 6.6), (0.97, 3.0, 12.0)])
def test_fresh_quadratures(q, sigma, order, replaced):
    got = curve_of({"q": q, "sigma": sigma, "order": order, "replaced": replaced})
    assert got == pytest.approx(oracle(q, sigma, order, replaced), rel=1e-9)


def test_orders_above_the_matrix_agree_with_quadrature():
    q, sigma = 0.01, 5.0
    assert curves.poisson_gaussian(q, sigma, [300.0])[0] == pytest.approx(oracle(q, sigma, 300), rel=1e-9)


def test_full_sampling_is_the_plain_gaussian():
    orders = [1.5, 2, 64]
    assert curves.poisson_gaussian(1.0, 3.0, orders) == pytest.approx([a / 18 for a in orders], rel=1e-15)
    assert curves.poisson_gaussian_replaced(1.0, 3.0, orders) == pytest.approx([4 * a / 18 for a in orders], rel=1e-15)
    assert curves.gaussian(1 / 3, orders) == pytest.approx([a / 18 for a in orders], rel=1e-15)


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 100.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 1 - 1e-9])
def test_curves_are_finite_increasing_and_below_the_unsampled_curve(q, sigma):
    orders = np.array(curves.DEFAULT_ORDERS)
    for curve, mu in [(curves.poisson_gaussian, 1 / sigma), (curves.poisson_gaussian_replaced, 2 / sigma)]:
        rdp = curve(q, sigma, curves.DEFAULT_ORDERS)
        assert np.isfinite(rdp).all()
        assert (rdp > 0).all()
        assert (rdp <= orders * mu**2 / 2 * (1 + 1e-9)).all()
        assert (np.diff(rdp) >= -1e-9 * rdp[1:]).all()  # Rényi divergences grow with the order


def test_the_curve_dominates_the_adding_direction():
    q, sigma, alpha = 0.1, 0.8, 4.5

    def adding(x):
        mixture = (1 - q) + q * mp.exp((2 * x - 1) / (2 * sigma**2))
        return mp.npdf(x, 0, sigma) * mixture ** (1 - mp.mpf(alpha))

    add = float(mp.log(mp.quad(adding, mp.linspace(-12, 12, 40))) / (alpha - 1))
    assert curves.poisson_gaussian(q, sigma, [alpha])[0] > add > 0


def test_default_orders_are_sorted_and_hold_fractions():
    assert list(curves.DEFAULT_ORDERS) == sorted(set(curves.DEFAULT_ORDERS))
    assert curves.DEFAULT_ORDERS[0] > 1
    assert sum(a != math.floor(a) for a in curves.DEFAULT_ORDERS) > 20
    assert curves.HIGH_ORDERS[0] > curves.DEFAULT_ORDERS[-1]
