"""Pairs of encoded sums: golden figures, integrals of few coordinates, Monte Carlo of many, and what must be equal."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.noise.distributions import Distribution
from dprecipe.privacy import accountants, gdp, pld
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box.pairs import box_pair
from dprecipe.privacy.box.power import Power
from dprecipe.privacy.composition import Composition
from dprecipe.privacy.events import Charge
from dprecipe.privacy.loss import NoPairError, from_cells, sample_loss, swap_loss
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.workload import summarise_charges
from tests.sweeps import sweep

ADD = Neighbouring.ADD_OR_REMOVE_ONE
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "encoding.json").read_text(encoding="utf-8"))
DIGEST = "sha256:" + "0" * 64
DISTRIBUTIONS = [("laplace", None), ("student_t", 9.0), ("cauchy", None), ("variance_gamma", 2.0), ("sech", None)]
FEW_LAWS = [
    DISTRIBUTIONS[0],
    *(pytest.param(*distribution, marks=pytest.mark.slow) for distribution in DISTRIBUTIONS[1:]),
]
"""Where a distribution takes seconds: the others are slow tests."""
ODD_LAWS = [*DISTRIBUTIONS, ("student_t", 0.5), ("student_t", 1000.0), ("variance_gamma", 8.0)]


def codeword(name):
    fixed = {"single": np.ones(1), "const10": np.full(10, 10**-0.5), "const100": np.full(100, 0.1)}
    if name in fixed:
        return fixed[name]
    seed, dimension = map(int, name.removeprefix("seed").split("_"))
    vector = np.random.default_rng(seed).standard_normal(dimension)
    vector[np.abs(vector) < 1e-5] = 0
    return np.abs(vector) / np.linalg.norm(vector)


def counted(vector):
    bounds, counts = np.unique(vector, return_counts=True)
    return tuple(zip(bounds.tolist(), counts.tolist(), strict=True))


def rms_bins(vector, bins=1000):
    """The estimate the golden figures were made with: no bound, but nearly exact."""
    index = np.ceil(vector / vector.max() * bins).astype(int)
    counts = np.bincount(index)
    squares = np.bincount(index, vector**2)
    return tuple((math.sqrt(s / n), int(n)) for s, n in zip(squares, counts, strict=True) if n)


def rounded_up(vector, bins=1024):
    """A bound: each magnitude rounded up to one of `bins` equal parts of the largest."""
    edges = np.arange(bins + 1) * (vector.max() / bins)
    edges[-1] = vector.max()
    counts = np.bincount(np.searchsorted(edges, vector), minlength=bins + 1)
    return tuple((edge, count) for edge, count in zip(edges.tolist(), counts.tolist(), strict=True) if count)


def encoded(event, tail):
    return box_pair(event.box, tail)


def event(family, shape, shifts, *, q=1.0, scale=1.0, exchanged=False):
    return EncodedSum(q, scale, family, shape, shifts, exchanged, DIGEST)


def of_golden(record, shifts, scale=None):
    family, shape = ("variance_gamma", 2.0) if record["family"] == "vg2" else (record["family"], record.get("nu"))
    shape = 9.0 if family == "student_t" else shape
    return event(family, shape, shifts, q=record["q"], scale=scale or record["scale"])


def golden(key):
    records = [r for r in GOLDEN[key] if r["family"] != "gaussian"]
    # The longest run takes ten seconds, and ten thousand magnitudes one.
    return [
        pytest.param(
            r,
            id=f"{r['family']}-{r['codeword']}-{r['T']}",
            marks=pytest.mark.slow if "10000" in r["codeword"] and r["family"] != "laplace" else (),
        )
        for r in records
    ]


def delta_of(loss, epsilon):
    with np.errstate(over="ignore"):
        excess = np.maximum(0.0, -np.expm1(np.minimum(epsilon - loss.losses, 0.0)))
    return loss.infinity + float(loss.masses @ excess)


@pytest.mark.parametrize("record", golden("A_pld"))
def test_golden_epsilons_of_both_directions(record):
    """Within 2e-4, and no further below than the golden figure is uncertain. Ten thousand different magnitudes are
    represented by a thousand, as they were there; rounded up they stay a bound.
    """
    vector = codeword(record["codeword"])
    exact = len(vector) <= 100
    steps, delta = record["T"], record["delta"]
    charges = [Charge(of_golden(record, counted(vector) if exact else rms_bins(vector)), steps)]
    answer = accountants.epsilon_answer(charges, delta, ADD, "pld")
    assert answer.accountant == "pld"
    assert answer.value == pytest.approx(record["pld_remove"], rel=2e-4)
    assert answer.value >= record["pld_remove"] * (1 - 2e-4)
    work = summarise_charges(charges, ADD)
    removed, added = pld.compose_directions(work, math.sqrt(1e-4 / steps) / 4, 1e-13)
    assert removed.epsilon(delta, 5.0) == pytest.approx(record["pld_remove"], rel=2e-4)
    assert added.epsilon(delta, 5.0) == pytest.approx(record["pld_add"], rel=2e-4)
    if not exact:
        above = accountants.epsilon([Charge(of_golden(record, rounded_up(vector)), steps)], delta, ADD, "pld")
        assert record["pld_remove"] <= above <= 1.006 * record["pld_remove"]


@pytest.mark.parametrize("record", golden("A_equal_eps"))
def test_golden_scales_of_equal_cost(record):
    vector = codeword(record["codeword"])
    shifts = counted(vector) if len(vector) <= 100 else rms_bins(vector)
    charges = [Charge(of_golden(record, shifts, record["scale_equal_eps"]), record["T"])]
    answer = accountants.epsilon(charges, 1e-5, ADD, "pld")
    assert answer == pytest.approx(record["eps_pld"] + record["resid"], rel=2e-4)


def panels(tau, width=0.01):
    """Middles and widths of a fine partition of the line, with the peaks of both densities at edges."""
    away = np.sinh(np.arange(0.0, 38.0, width))
    edges = np.unique(np.concatenate([-away, np.linspace(0.0, tau, 200), tau + away]))
    return (edges[:-1] + edges[1:]) / 2, np.diff(edges)


def one_coordinate(distribution, tau, width=0.01):
    """P-masses and Q-masses at nodes: three Gauss-Legendre nodes a panel, densities only."""
    middles, widths = panels(tau, width)
    nodes, weights = np.polynomial.legendre.leggauss(3)
    x = (middles[:, None] + widths[:, None] / 2 * nodes).ravel()
    w = (widths[:, None] / 2 * weights).ravel()
    return w * np.exp(distribution.log_density(x - tau)), w * np.exp(distribution.log_density(x))


def hockey_stick(distribution, tau, epsilon):
    """∫ max(0, P - exp(ε) Q) from the distribution function, between the points where the loss crosses ε."""

    def loss(x):
        return float(distribution.log_ratio(x, tau)) - epsilon

    grid = np.unique(np.concatenate([panels(tau, 0.02)[0], distribution.turning_points(tau)]))
    values = np.array([loss(x) for x in grid])
    signs = np.flatnonzero((values[:-1] > 0) != (values[1:] > 0))
    edges = [-math.inf, *(optimize.brentq(loss, grid[i], grid[i + 1], xtol=1e-14) for i in signs), math.inf]
    total = 0.0
    for low, high in itertools.pairwise(edges):
        middle = grid[(grid > low) & (grid < high)]
        if len(middle) and loss(middle[len(middle) // 2]) > 0:
            total += float(distribution.interval(low - tau, high - tau)) - math.exp(epsilon) * float(
                distribution.interval(low, high)
            )
    return total


@pytest.mark.parametrize(
    "tau", [pytest.param(tau, marks=() if tau == 0.4 else pytest.mark.slow) for tau in (0.01, 0.4, 3.0, 20.0)]
)
@pytest.mark.parametrize(("family", "shape"), sweep(ODD_LAWS, (0, 1, 5), several=True))
def test_one_coordinate_against_its_closed_form(family, shape, tau):
    loss = encoded(event(family, shape, ((tau, 1),)), 1e-30)
    for share in (-0.8, -0.3, 0.0, 0.2, 0.5, 0.8, 0.95):
        epsilon = share * float(loss.losses[-1])
        truth, got = hockey_stick(Distribution(family, shape), tau, epsilon), delta_of(loss, epsilon)
        room = 2e-3 if share < 0.9 else 0.05  # next to the largest loss the curve plunges
        assert truth * (1 - 1e-11) - 1e-15 <= got <= truth * (1 + room) + 1e-13


@pytest.mark.slow
@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_two_coordinates_against_their_integral(family, shape):
    distribution, taus = Distribution(family, shape), (1.2, 0.5)
    (p1, q1), (p2, q2) = (one_coordinate(distribution, tau, 0.04) for tau in taus)
    loss = encoded(event(family, shape, ((0.5, 1), (1.2, 1))), 1e-30)
    for epsilon in (-0.5, 0.0, 0.3, 0.8, 1.3):
        truth = float(np.maximum(np.outer(p1, p2) - math.exp(epsilon) * np.outer(q1, q2), 0.0).sum())
        assert truth * (1 - 1e-4) <= delta_of(loss, epsilon) <= truth * (1 + 1e-3) + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_two_sampled_steps_against_their_integral(family, shape, direction):
    rate, tau = 0.3, 0.9
    p, q = one_coordinate(Distribution(family, shape), tau, 0.04)
    above, below = ((1 - rate) * q + rate * p, q) if direction == "remove" else (q, (1 - rate) * q + rate * p)
    one = sample_loss(encoded(event(family, shape, ((tau, 1),)), 1e-30), rate, 1e-4)
    composed = Composition([one if direction == "remove" else swap_loss(one)], [2], 1 << 20)
    for epsilon in (0.0, 0.1, 0.3, 0.5):
        truth = float(np.maximum(np.outer(above, above) - math.exp(epsilon) * np.outer(below, below), 0.0).sum())
        assert truth * (1 - 1e-4) - 1e-12 <= composed.delta(epsilon, 3.0) <= truth * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_many_coordinates_by_monte_carlo(family, shape):
    """With 100,000 draws of a variable in [0, 1], 5.5 standard errors are exceeded with probability below 4e-8."""
    distribution, shifts, draws = Distribution(family, shape), ((0.03, 40), (0.2, 10), (0.5, 2)), 100_000
    rng = np.random.default_rng(11)
    grid = np.sinh(np.linspace(-14.0, 14.0, 200_001))
    quantiles = distribution.cdf(grid)
    total = np.zeros(draws)
    for tau, count in shifts:
        for _ in range(count):
            total += distribution.log_ratio(np.interp(rng.random(draws), quantiles, grid) + tau, tau)
    loss = encoded(event(family, shape, shifts), 1e-20)
    for epsilon in (-0.5, 0.0, 0.5, 1.0):
        values = np.maximum(0.0, -np.expm1(np.minimum(epsilon - total, 0.0)))
        error = 5.5 * float(values.std()) / math.sqrt(draws)
        assert delta_of(loss, epsilon) == pytest.approx(float(values.mean()), abs=error)


def gaussian_halves(tau, step):
    """s of one Gaussian coordinate from its distribution function."""
    edges = step * np.arange(0, math.ceil(14 * tau / step) + 1)
    x = edges / tau + tau / 2
    p, q = -np.diff(special.ndtr(-(x - tau))), -np.diff(special.ndtr(-x))
    loss = from_cells(step, 0, p, q, 0.0, 0.0)
    half = loss.masses * np.exp(-loss.losses / 2)
    half[0] *= 2
    return half


@pytest.mark.parametrize("number", [20, 1000, 10**6])
def test_products_of_gaussian_coordinates_are_gaussian(number):
    """The product knows nothing of the distribution: with Gaussian coordinates there is a closed form, far into the
    tails."""
    mu = 1.2
    tau = mu / math.sqrt(number)
    ratio = max(1, round(0.3 * math.sqrt(number)))
    step = 0.004 / ratio
    power = Power(step, gaussian_halves(tau, step)[None, :], np.array([float(number)]))
    both, charge = power.on_coarse(ratio, 1e-60)
    assert charge <= 1e-60
    losses = 0.004 * (np.arange(len(both)) - len(both) // 2)
    masses = both * np.exp(losses / 2)
    assert masses.sum() == pytest.approx(1.0, abs=1e-9)
    assert both[::-1] == pytest.approx(both, rel=1e-12)
    inflated = math.sqrt(mu**2 + number * step**2 / 4 + 0.004**2 / 4)
    for epsilon in (0.0, 0.7, 3.0, 8.0, 15.0):
        got = float(masses @ np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 0.0))))
        assert gdp.delta(mu, epsilon) <= got <= gdp.delta(inflated, epsilon) * (1 + 1e-6)


TABLES = [
    ((0.3, 30), (0.7, 10)),
    ((0.001, 20_000), (0.004, 5_000), (0.2, 3)),
    ((1e-6, 10**6), (0.01, 300), (1.0, 1)),
    pytest.param(((1e-5, 10**8), (1e-3, 10)), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("shifts", TABLES)
@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_one_release_costs_what_its_parts_released_one_by_one_cost(family, shape, shifts):
    """A product of pairs is a composition; the parts are small enough to be done by other means."""
    whole = [Charge(event(family, shape, shifts), 1)]
    parts = [Charge(event(family, shape, (pair,)), 1) for pair in shifts]
    for delta in (1e-3, 1e-8):
        merged = accountants.epsilon_answer(whole, delta, ADD, "pld")
        separate = accountants.epsilon_answer(parts, delta, ADD, "pld")
        assert (merged.accountant, separate.accountant) == ("pld", "pld")
        assert merged.value == pytest.approx(separate.value, rel=2e-4, abs=1e-9)


@pytest.mark.parametrize(("family", "shape"), sweep(ODD_LAWS, (0, 1, 5), several=True))
@pytest.mark.parametrize(
    "number", [1, pytest.param(2, marks=pytest.mark.slow), 16, 17, pytest.param(60, marks=pytest.mark.slow), 5000]
)
def test_masses_add_up_and_mirror_each_other(family, shape, number):
    for scale in (0.3, 30.0):
        loss = encoded(event(family, shape, ((number**-0.5, number),), scale=scale), 1e-15)
        assert loss.masses.min() >= 0
        assert loss.infinity == loss.missing <= 1e-15
        assert loss.masses.sum() + loss.infinity == pytest.approx(1.0, abs=1e-8)
        mirror = swap_loss(loss)
        assert (mirror.first, mirror.last) == (loss.first, loss.last)
        assert mirror.masses == pytest.approx(loss.masses, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("number", [3, 3000])
def test_what_is_cut_off_is_charged(number):
    one = event("student_t", 9.0, ((number**-0.5, number),))
    whole, cut = encoded(one, 1e-30), encoded(one, 1e-3)
    assert len(cut.masses) < len(whole.masses)
    assert 1e-4 < cut.infinity == cut.missing <= 1e-3
    assert cut.masses.sum() + cut.infinity >= 1 - 1e-12
    assert (cut.masses * np.exp(-cut.losses)).sum() + cut.missing >= 1 - 1e-12
    for epsilon in np.linspace(-1.5, 1.5, 7) * float(cut.losses[-1]):
        for pair, other in [(cut, whole), (swap_loss(cut), swap_loss(whole))]:
            assert delta_of(other, epsilon) <= delta_of(pair, epsilon) * (1 + 1e-12)
            assert delta_of(pair, epsilon) <= delta_of(other, epsilon) + 2e-3


def test_a_bounded_loss_stays_bounded():
    """One Laplace coordinate is purely private."""
    charges = [Charge(event("laplace", None, ((1.0, 1),), scale=2.0), 1)]
    assert 0.5 * (1 - 1e-3) <= accountants.epsilon(charges, 1e-12, ADD, "pld") <= 0.5 * (1 + 5e-3)
    loss = encoded(charges[0].event, 1e-200)
    assert (loss.infinity, loss.missing) == (0.0, 0.0)


def test_zeros_cost_nothing_and_tiny_shifts_next_to_nothing():
    coded = [Charge(event("sech", None, ((0.5, 4),), q=0.1), 50)]
    with_zeros = [Charge(event("sech", None, ((0.0, 10**6), (0.5, 4)), q=0.1), 50)]
    with_tiny = [Charge(event("sech", None, ((1e-300, 5), (1e-30, 5), (0.5, 4)), q=0.1), 50)]
    cost = accountants.epsilon(coded, 1e-5, ADD, "pld")
    assert accountants.epsilon(with_zeros, 1e-5, ADD, "pld") == cost
    assert accountants.epsilon(with_tiny, 1e-5, ADD, "pld") == pytest.approx(cost, rel=1e-4)


def test_tails_far_below_any_delta():
    """At small noise the Rényi bound is nearly exact there."""
    charges = [Charge(event("student_t", 9.0, ((0.01, 10_000),), q=0.5, scale=3.0), 10)]
    epsilons = [2.0, 8.0, 14.0]
    tight = accountants.delta_answers(charges, epsilons, ADD, "pld")
    loose = accountants.delta_answers(charges, epsilons, ADD, "rdp")
    for below, above in zip(tight, loose, strict=True):
        assert below.accountant == "pld"
        assert 1e-3 * above.value <= below.value <= above.value
    assert tight[-1].value < 1e-40


@pytest.mark.parametrize(
    ("shifts", "scale", "exchanged"),
    [
        (((1.0, 1),), 1.0, True),
        (((1.0, 1),), 1e-3, False),
        (((1e-3, 10**15),), 1e3, False),
        (((1.0, 10**4),), 1.0, False),
        (((1e6, 1),), 1e-300, False),
        (((1e-300, 1),), 1.0, False),
    ],
)
def test_what_has_no_pair(shifts, scale, exchanged):
    """The accountant answers with Rényi's bound instead and says so."""
    one = event("laplace", None, shifts, q=0.01, scale=scale, exchanged=exchanged)
    with pytest.raises(NoPairError):
        encoded(one, 1e-20)
    answer = accountants.epsilon_answer([Charge(one, 2)], 1e-5, ADD, "pld")
    rdp = accountants.epsilon_answer([Charge(one, 2)], 1e-5, ADD, "rdp")
    assert (answer.value, answer.accountant) in ((rdp.value, "rdp"), (0.0, "rdp"))


some = st.tuples(
    st.sampled_from(ODD_LAWS[:-1]),
    st.lists(
        st.tuples(st.integers(-20, 0), st.integers(1, 40)), min_size=1, max_size=3, unique_by=lambda pair: pair[0]
    ),
    st.floats(-3, -0.3).map(lambda e: 10**e),
    st.floats(-0.5, 1).map(lambda e: 10**e),
    st.integers(1, 3000),
)


def charged(config, *, rate=1.0, scale=1.0, steps=1, shift=1.0):
    (family, shape), table, q, own, count = config
    shifts = tuple((10 ** (tenths / 10) * shift, number) for tenths, number in sorted(table))
    return [Charge(event(family, shape, shifts, q=min(1.0, q * rate), scale=own * scale), count * steps)]


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(some, st.floats(-9, -2).map(lambda e: 10**e))
def test_renyi_is_above_and_cost_moves_the_right_way(config, delta):
    def cost(**changes):
        answer = accountants.epsilon_answer(charged(config, **changes), delta, ADD, "pld")
        assert answer.value <= accountants.epsilon(charged(config, **changes), delta, ADD, "rdp")
        return answer.value

    here, slack = cost(), 1 + 3 * pld.TOLERANCE
    for change in ({"rate": 1.5}, {"scale": 0.7}, {"steps": 2}, {"shift": 1.3}):
        assert here <= cost(**change) * slack + 1e-9


def test_different_phases_compose():
    """A Gaussian phase, two encoded ones with distributions of their own, unsampled releases: order plays no part."""
    shifts = ((0.01, 5000), (0.03, 500))
    charges = [
        Charge(PoissonGaussian(0.01, 1.0), 500),
        Charge(event("student_t", 9.0, shifts, q=0.01), 300),
        Charge(event("laplace", None, shifts, q=0.02, scale=1.5), 200),
        Charge(event("laplace", None, shifts, scale=20.0), 2),
        Charge(Gaussian(10.0), 1),
    ]
    cost = accountants.epsilon_answer(charges, 1e-5, ADD, "pld")
    assert cost.accountant == "pld"
    assert cost.value == accountants.epsilon(charges[::-1], 1e-5, ADD, "pld")
    assert cost.value < accountants.epsilon(charges, 1e-5, ADD, "rdp") < 1.3 * cost.value
    for index in range(len(charges)):
        assert accountants.epsilon(charges[:index] + charges[index + 1 :], 1e-5, ADD, "pld") < cost.value


@pytest.mark.slow
def test_many_dimensions_cost_what_a_gaussian_of_equal_information_costs():
    """Local asymptotic normality: with 4,000,000 coordinates one number of the distribution remains."""
    for family, shape in DISTRIBUTIONS:
        distribution = Distribution(family, shape)
        charges = [Charge(event(family, shape, ((5e-4, 4_000_000),), q=0.01), 1000)]
        gaussian = [Charge(PoissonGaussian(0.01, 1 / math.sqrt(distribution.fisher)), 1000)]
        expected = accountants.epsilon(gaussian, 1e-5, ADD, "pld")
        assert accountants.epsilon(charges, 1e-5, ADD, "pld") == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(("q", "scale"), [(0.9, 300.0), (0.99, 1000.0), (0.999, 3000.0)])
def test_nearly_everybody_sampled_costs_no_more_than_everybody(q, scale):
    """What adding a unit puts at the loss -log(1-q), next to nothing, must not decide."""
    event = EncodedSum(
        q, q * scale * math.sqrt(2 / 3), "student_t", 3.0, ((0.01, 10_000),), False, "sha256:" + "0" * 64
    )
    charges, delta = [Charge(event, 1000)], 1e-5
    answer = accountants.epsilon(charges, delta, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    again = accountants.delta(charges, answer, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert again == pytest.approx(delta, rel=2e-3)


@pytest.mark.parametrize("gap", [1e-12, 1e-9, 1e-3])
def test_the_accountants_agree_where_hardly_anybody_is_left_out(gap):
    event = EncodedSum(1 - gap, 1.0, "laplace", None, ((1.0, 1),), False, "sha256:" + "0" * 64)
    answer = accountants.epsilon([Charge(event, 1)], 1e-15, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert 0.99 < answer < 1.01  # one Laplace coordinate moved by its scale: ε = 1 at δ = 0
