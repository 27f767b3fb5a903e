"""Distributions against quadrature, against 50 digits, and against golden figures."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from scipy import integrate

from dprecipe.noise.distributions import Distribution
from tests.sweeps import sweep

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "encoding.json").read_text(encoding="utf-8"))
DISTRIBUTIONS = [
    Distribution("gaussian"),
    Distribution("laplace"),
    *(Distribution("student_t", df) for df in (0.5, 2.5, 9.0, 1000.0)),
    Distribution("cauchy"),
    *(Distribution("variance_gamma", float(n)) for n in (1, 2, 3, 8)),
    Distribution("sech"),
]
each_distribution = pytest.mark.parametrize(
    "distribution", DISTRIBUTIONS, ids=lambda distribution: f"{distribution.family}-{distribution.shape}"
)


def of_golden(record: dict) -> Distribution:
    return (
        Distribution("variance_gamma", 2.0)
        if record["family"] == "vg2"
        else Distribution(record["family"], record["nu"])
    )


def density(distribution: Distribution, x: mp.mpf) -> mp.mpf:
    """From the textbooks: gamma functions, and a Bessel function for variance-gamma."""
    u = abs(mp.mpf(x))
    if distribution.family == "gaussian":
        return mp.exp(-u * u / 2) / mp.sqrt(2 * mp.pi)
    if distribution.family == "laplace":
        return mp.exp(-u) / 2
    if distribution.family == "sech":
        return 1 / (mp.pi * mp.cosh(u))
    if distribution.family == "variance_gamma":
        order = mp.mpf(distribution.shape) - mp.mpf(1) / 2
        u = max(u, mp.mpf(10) ** -40)
        return u**order * mp.besselk(order, u) / (mp.sqrt(mp.pi) * mp.gamma(distribution.shape) * mp.mpf(2) ** order)
    df = mp.mpf(distribution.shape or 1)
    return mp.gamma((df + 1) / 2) / mp.gamma(df / 2) / mp.sqrt(df * mp.pi) * (1 + u * u / df) ** (-(df + 1) / 2)


def mass(distribution: Distribution, low: float, high: float) -> float:
    """Of an interval, by quadrature; it stops at an absolute error, and so is given numbers around 1."""
    with mp.workdps(40):
        breaks = sorted({*np.linspace(low, high, 5).tolist(), *([0.0] if low < 0 < high else [])})
        unit = density(distribution, min(abs(low), abs(high)))
        return float(unit * mp.quad(lambda x: density(distribution, x) / unit, breaks))


def moment(distribution: Distribution, power: int) -> float:
    def term(x: float) -> float:
        return 2 * x**power * math.exp(float(distribution.log_density(x)))

    pieces = [integrate.quad(term, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0] for a, b in [(0, 5), (5, 100)]]
    return sum(pieces) + integrate.quad(term, 100, math.inf, epsabs=1e-13, epsrel=1e-12, limit=500)[0]


@pytest.mark.parametrize("record", GOLDEN["A_cdf"], ids=lambda r: f"{r['family']}-{r['x_over_scale']}")
def test_golden_distribution_functions(record: dict) -> None:
    assert float(of_golden(record).cdf(record["x_over_scale"])) == pytest.approx(record["cdf"], rel=1e-14)


@each_distribution
def test_densities_are_those_of_the_textbooks_symmetric_and_falling(distribution: Distribution) -> None:
    points = [0.0, 1e-6, 0.3, 1.0, 2.7, 9.0, 30.0]
    logs = distribution.log_density(points)
    with mp.workdps(50):
        assert logs == pytest.approx([float(mp.log(density(distribution, x))) for x in points], rel=1e-12, abs=1e-12)
    assert np.array_equal(distribution.log_density([-x for x in points]), logs)
    assert (np.diff(logs) < 0).all()
    assert distribution.log_density([-np.inf, np.inf]).tolist() == [-math.inf, -math.inf]


@each_distribution
def test_distribution_functions_integrate_the_density(distribution: Distribution) -> None:
    for low, high in [(-8.0, -3.0), (-3.0, 0.0), (0.0, 1e-3), (0.5, 4.0), (-0.2, 0.7), (20.0, 21.0)]:
        assert float(distribution.interval(low, high)) == pytest.approx(mass(distribution, low, high), rel=1e-12, abs=0)
    assert distribution.cdf([-np.inf, 0.0, np.inf]).tolist() == [0.0, 0.5, 1.0]
    assert float(distribution.cdf(1.3) - distribution.cdf(-0.4)) == pytest.approx(
        float(distribution.interval(-0.4, 1.3)), rel=1e-14
    )


@each_distribution
def test_intervals_partition_the_line_and_mirror(distribution: Distribution) -> None:
    edges = np.concatenate(([-np.inf], np.linspace(-40, 40, 9001), [np.inf]))
    cells = distribution.interval(edges[:-1], edges[1:])
    assert cells.sum() == pytest.approx(1, abs=1e-13)
    assert (cells >= 0).all()
    assert np.allclose(cells, distribution.interval(-edges[1:], -edges[:-1]), rtol=1e-13, atol=0)
    for infinity in (-np.inf, np.inf):
        assert float(distribution.interval(infinity, infinity)) == 0.0
    assert float(distribution.interval(2.0, 2.0)) == 0.0


@each_distribution
@pytest.mark.parametrize("at", sweep([1e-9, 3.0, 25.0]))
@pytest.mark.parametrize("width", [1e-7, 0.0299, 0.0301])
def test_intervals_do_not_cancel(distribution: Distribution, at: float, width: float) -> None:
    low, high = at, at + width
    exact = mass(distribution, low, high)
    assert float(distribution.interval(low, high)) == pytest.approx(exact, rel=1e-11, abs=0)
    assert float(distribution.interval(-high, -low)) == pytest.approx(exact, rel=1e-11, abs=0)


@each_distribution
@pytest.mark.parametrize("tau", [1e-9, 1e-3, 0.4, 3.0, 40.0])
def test_log_ratios_have_full_precision(distribution: Distribution, tau: float) -> None:
    points = np.concatenate((np.linspace(-9, 9, 37), [tau, tau / 2, 60.0, -60.0]))
    with mp.workdps(50):
        exact = np.array(
            [float(mp.log(density(distribution, mp.mpf(x) - mp.mpf(tau)) / density(distribution, x))) for x in points]
        )
    assert np.allclose(distribution.log_ratio(points, tau), exact, rtol=0, atol=1e-15 * np.abs(exact).max())


@each_distribution
def test_log_ratios_at_the_ends_of_the_line_and_without_a_shift(distribution: Distribution) -> None:
    ends = distribution.log_ratio([-np.inf, np.inf], 0.5)
    limit = {"gaussian": math.inf, "student_t": 0.0, "cauchy": 0.0}.get(distribution.family, 0.5)
    assert ends == pytest.approx([-limit, limit], abs=1e-25)
    assert not distribution.log_ratio(np.linspace(-5, 5, 11), 0.0).any()


@each_distribution
@pytest.mark.parametrize("tau", [1e-4, 0.7, 12.0])
def test_the_ratio_is_monotone_between_its_turning_points(distribution: Distribution, tau: float) -> None:
    turning = distribution.turning_points(tau)
    assert list(turning) == sorted(turning)
    ends = [-60.0, *turning, tau + 60.0]
    for low, high in itertools.pairwise(ends):
        steps = np.diff(distribution.log_ratio(np.linspace(low, high, 2001), tau))
        slack = 1e-14 * tau
        assert (steps >= -slack).all() or (steps <= slack).all()


@each_distribution
def test_the_largest_loss_is_the_supremum_of_the_ratio(distribution: Distribution) -> None:
    for tau in (0.0, 1e-3, 0.7, 12.0):
        largest = distribution.largest_loss(tau)
        if distribution.family == "gaussian":
            assert largest == (math.inf if tau else 0.0)
            continue
        points = np.concatenate((np.linspace(-50, 50 + tau, 4001), distribution.turning_points(tau), [-1e20, 1e20]))
        largest_seen = np.abs(distribution.log_ratio(points, tau)).max()
        assert largest_seen == pytest.approx(largest, rel=1e-12)
    assert distribution.turning_points(0.0) == ()


@each_distribution
def test_information_and_moments(distribution: Distribution) -> None:
    h = 1e-5

    def squared_score(x: float) -> float:
        return (
            math.exp(float(distribution.log_density(x))) * (float(distribution.log_ratio(x + h, 2 * h)) / (2 * h)) ** 2
        )

    information = 2 * sum(
        integrate.quad(squared_score, a, b, limit=300)[0] for a, b in [(2 * h, 3), (3, 30), (30, math.inf)]
    )
    assert distribution.fisher == pytest.approx(information, rel=1e-4)
    if math.isfinite(distribution.standard_deviation):
        assert distribution.standard_deviation**2 == pytest.approx(moment(distribution, 2), rel=1e-6)
    if math.isfinite(distribution.mean_absolute):
        assert distribution.mean_absolute == pytest.approx(moment(distribution, 1), rel=1e-6)


def test_known_constants() -> None:
    two = Distribution("variance_gamma", 2.0)
    assert two.fisher == pytest.approx(float(mp.e * mp.e1(1) / 2), rel=1e-14)
    assert (two.standard_deviation, two.mean_absolute) == (2.0, 1.5)
    nine = Distribution("student_t", 9.0)
    assert (nine.fisher, nine.standard_deviation**2) == pytest.approx((10 / 12, 9 / 7))
    assert nine.mean_absolute == pytest.approx(0.873079, abs=1e-6)
    assert Distribution("sech").mean_absolute == pytest.approx(float(4 * mp.catalan / mp.pi), rel=1e-15)
    assert Distribution("sech").standard_deviation == math.pi / 2
    assert [Distribution(f).fisher for f in ("gaussian", "laplace", "cauchy", "sech")] == [1, 1, 0.5, 0.5]
    assert [Distribution("cauchy").standard_deviation, Distribution("cauchy").mean_absolute] == [math.inf, math.inf]
    assert Distribution("student_t", 2.0).standard_deviation == math.inf > Distribution("student_t", 2.0).mean_absolute
    assert Distribution("student_t", 1.0).mean_absolute == math.inf


def test_laplace_is_the_first_variance_gamma_and_cauchy_the_first_student() -> None:
    x = np.linspace(-7, 7, 57)
    for one, other in [("laplace", Distribution("variance_gamma", 1.0)), ("cauchy", Distribution("student_t", 1.0))]:
        assert np.array_equal(Distribution(one).log_density(x), other.log_density(x))
        assert np.array_equal(Distribution(one).log_ratio(x, 0.3), other.log_ratio(x, 0.3))


def test_shapes_of_arrays_are_kept() -> None:
    distribution = Distribution("student_t", 3.0)
    x = np.zeros((2, 3))
    assert (
        distribution.log_density(x).shape == distribution.cdf(x).shape == distribution.interval(x, 1.0).shape == (2, 3)
    )
    assert distribution.log_ratio(x[:, :1], np.ones(4)).shape == (2, 4)
    assert distribution.cdf(0.3).shape == ()


def test_what_is_no_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="family"):
        Distribution("triangular")
    with pytest.raises(ValueError, match="shape"):
        Distribution("student_t")
