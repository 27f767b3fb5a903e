"""Moments of one shifted coordinate against golden figures, closed forms in 50 digits and quadrature."""

import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from dprecipe.noise.distributions import Distribution
from dprecipe.privacy.box.curves import MARGIN, MAX_ORDER, log_moments
from tests.sweeps import sweep

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "encoding.json").read_text(encoding="utf-8"))
DISTRIBUTIONS = [
    Distribution("gaussian"),
    Distribution("laplace"),
    *(Distribution("student_t", df) for df in (0.5, 5.0, 9.0, 1000.0)),
    Distribution("cauchy"),
    *(Distribution("variance_gamma", float(n)) for n in (1, 2, 8)),
    Distribution("sech"),
]
ORDERS = (2, 3, 17, 64, 256)
each_distribution = pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)


def of_golden(record):
    return (
        Distribution("variance_gamma", 2.0)
        if record["family"] == "vg2"
        else Distribution(record["family"], record["nu"])
    )


def moments(distribution, *taus):
    return log_moments(distribution, np.array(taus))


def laplace(tau, k):
    return mp.log((k * mp.exp((k - 1) * tau) + (k - 1) * mp.exp(-k * tau)) / (2 * k - 1))


def legendre(tau, k):
    """Cauchy: M_k = P_{k-1}(1 + τ²/2), by the polynomials' recurrence."""
    x, before, value = 1 + tau * tau / 2, mp.mpf(1), 1 + tau * tau / 2
    for n in range(1, k - 1):
        before, value = value, ((2 * n + 1) * x * value - n * before) / (n + 1)
    return mp.log(value)


def polynomial(df, tau, k):
    """Student's t with odd df: c ∫ (1 + y²/df)^(-ak) (1 + (y+τ)²/df)^(a(k-1)) dy, a = (df+1)/2, term by term."""
    a, total = (df + 1) // 2, mp.mpf(0)
    n = a * (k - 1)
    for i in range(0, n + 1, 2):
        for j in range(n - i + 1):
            m = i // 2 + j
            beta = mp.mpf(df) ** (m + mp.mpf(1) / 2) * mp.beta(m + mp.mpf(1) / 2, a * k - m - mp.mpf(1) / 2)
            ways = mp.binomial(n, i) * mp.binomial(n - i, j)
            total += ways * (2 * tau) ** i * (df + tau * tau) ** (n - i - j) * beta
    norm = mp.gamma(mp.mpf(df + 1) / 2) / mp.gamma(mp.mpf(df) / 2) / mp.sqrt(df * mp.pi)
    return mp.log(norm * total / mp.mpf(df) ** n)


def quadrature(distribution, tau, k):
    """By mpmath in x; the polynomial of variance-gamma with λ = 2, cosh, or the power of Student's t."""

    def density(x):
        u = abs(x)
        if distribution.family == "sech":
            return 1 / (mp.pi * mp.cosh(u))
        if distribution.family == "variance_gamma":
            return (1 + u) * mp.exp(-u) / 4
        df = mp.mpf(distribution.shape)
        norm = mp.gamma((df + 1) / 2) / mp.gamma(df / 2) / mp.sqrt(df * mp.pi)
        return norm * (1 + u * u / df) ** (-(df + 1) / 2)

    def excess(x):
        y = density(x - tau) / density(x)
        return density(x) * (y**k - 1 - k * (y - 1))

    near = {s * mp.mpf(2) ** j + c for s in (-1, 1) for j in range(-4, 8) for c in (0, tau)} | {mp.mpf(0), tau}
    far = (
        {s * mp.mpf(10) ** j for s in (-1, 1) for j in (2, 3, 4, 6, 9)} if distribution.family == "student_t" else set()
    )
    return mp.log1p(mp.quad(excess, sorted(near | far)))


@pytest.mark.parametrize("record", GOLDEN["A_logM"], ids=lambda r: f"{r['family']}-{r['tau_over_scale']}-{r['k']}")
def test_golden_moments(record):
    value = moments(of_golden(record), record["tau_over_scale"])[0, record["k"] - 2]
    assert value == pytest.approx(record["log_M"], rel=1e-12)
    assert value <= record["fisher_upper_bound"] * (1 + 1e-12)


@pytest.mark.parametrize("tau", [1e-8, 1e-3, 1 / 256, 0.0625, 0.8, 7.0, 300.0])
def test_laplace_is_exact(tau):
    with mp.workdps(50):
        exact = [float(laplace(mp.mpf(tau), k)) for k in ORDERS]
    for distribution in (Distribution("laplace"), Distribution("variance_gamma", 1.0)):
        assert moments(distribution, tau)[0, np.array(ORDERS) - 2] == pytest.approx(exact, rel=1e-14, abs=0)


@pytest.mark.parametrize("tau", [1e-8, 1e-3, 0.05, 0.8, 4.0])
def test_cauchy_is_legendres_polynomial(tau):
    with mp.workdps(60):
        exact = [float(legendre(mp.mpf(tau), k)) for k in ORDERS]
    for distribution in (Distribution("cauchy"), Distribution("student_t", 1.0)):
        assert moments(distribution, tau)[0, np.array(ORDERS) - 2] == pytest.approx(exact, rel=MARGIN / 2, abs=0)


@pytest.mark.parametrize(("df", "tau"), [(3, 0.02), (3, 2.5), (5, 0.4), (9, 1e-3), (9, 1.0)])
def test_student_t_is_a_polynomial(df, tau):
    with mp.workdps(60):
        exact = [float(polynomial(df, mp.mpf(tau), k)) for k in (2, 3, 10)]
    assert moments(Distribution("student_t", float(df)), tau)[0, [0, 1, 8]] == pytest.approx(
        exact, rel=MARGIN / 2, abs=0
    )


@pytest.mark.parametrize(
    "distribution",
    [Distribution("sech"), Distribution("variance_gamma", 2.0), Distribution("student_t", 2.5)],
    ids=lambda distribution: distribution.family,
)
@pytest.mark.parametrize(("tau", "k"), sweep([(0.006, 3), (0.006, 256), (1.3, 40)], (1,), several=True))
def test_quadrature_of_a_second_kind(distribution, tau, k):
    with mp.workdps(30):
        exact = float(quadrature(distribution, mp.mpf(tau), k))
    assert moments(distribution, tau)[0, k - 2] == pytest.approx(exact, rel=MARGIN / 2, abs=0)


@each_distribution
def test_moments_grow_with_the_shift_and_with_the_order(distribution):
    """And by more each time: log M_k is convex in k, as every logarithm of moments is."""
    logs = moments(distribution, *np.geomspace(1e-6, 50, 120).tolist())
    assert (np.diff(logs, axis=0) > 0).all()
    assert (np.diff(logs, axis=1) > 0).all()
    second = np.diff(np.concatenate((np.zeros((120, 2)), logs), axis=1), n=2, axis=1)
    assert (second >= -1e-12 * logs[:, :1] * MAX_ORDER**2).all()
    assert (logs[:, 0] > 0).all()


@each_distribution
def test_no_moment_exceeds_the_largest_loss_or_the_information_in_the_limit(distribution):
    taus = np.array([1e-5, 0.3, 2.0, 60.0])
    logs = log_moments(distribution, taus)
    ks = np.arange(2, MAX_ORDER + 1)
    largest = np.array([distribution.largest_loss(tau) for tau in taus])
    assert (logs <= (ks - 1) * largest[:, None] * (1 + 1e-12)).all()
    small = ks * (ks - 1) / 2 * distribution.fisher * 1e-10
    assert logs[0] == pytest.approx(small, rel=2e-3)


def test_shifts_beyond_the_quadrature_are_bounded():
    with mp.workdps(60):
        exact = np.array([float(legendre(mp.mpf(100), k)) for k in ORDERS])
    got = moments(Distribution("cauchy"), 100.0)[0, np.array(ORDERS) - 2]
    assert (got >= exact).all()
    assert got == pytest.approx(exact, rel=0.1)


@each_distribution
def test_shifts_are_evaluated_one_by_one(distribution):
    taus = [0.011, 0.3, 2.2]
    batched = moments(distribution, *taus)
    assert batched.shape == (3, MAX_ORDER - 1)
    for tau, row in zip(taus, batched, strict=True):
        assert moments(distribution, tau)[0] == pytest.approx(row, rel=1e-13, abs=0)


@each_distribution
def test_extreme_shifts_are_bounds_and_not_errors(distribution):
    logs = moments(distribution, 0.0, 1e-320, 1e-200, 1e-30, 1e150, 1e308, math.inf)
    assert not logs[0].any()
    assert not np.isnan(logs).any()
    assert (logs[1:] >= logs[:-1]).all()
    assert (logs[4:] > 300).all()
