"""Curves of encoded sums against golden figures, quadrature of one coordinate, and what they must dominate."""

import json
import math
import subprocess
import sys
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.noise.distributions import Distribution
from dprecipe.privacy import conversion, curves
from dprecipe.privacy.box import curves as box_curves
from dprecipe.privacy.box.curves import MAX_ORDER, box_curve, log_moments
from dprecipe.privacy.events import MAX_ROWS
from tests.sweeps import sweep

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "encoding.json").read_text(encoding="utf-8"))
DISTRIBUTIONS = [("laplace", None), ("student_t", 9.0), ("cauchy", None), ("variance_gamma", 2.0), ("sech", None)]
HEAVY = [("student_t", 0.5), ("student_t", 9.0), ("cauchy", None)]
WHOLE = range(2, 65)


def codeword(name):
    """By the definitions that the golden file gives."""
    fixed = {
        "single": np.ones(1),
        "const10": np.full(10, 10**-0.5),
        "const100": np.full(100, 0.1),
        "const10000": np.full(10_000, 0.01),
        "sparse10of1000": np.append(np.full(10, 10**-0.5), np.zeros(990)),
    }
    if name in fixed:
        return fixed[name]
    if name == "nscores64":
        vector = ndtri((np.arange(1, 65) - 0.5) / 64)
    else:
        seed, dimension = map(int, name.removeprefix("seed").split("_"))
        vector = np.random.default_rng(seed).standard_normal(dimension)
        vector[np.abs(vector) < 1e-5] = 0
    return vector / np.linalg.norm(vector)


def counted(vector):
    bounds, counts = np.unique(np.abs(vector), return_counts=True)
    return tuple(zip(bounds.tolist(), counts.tolist(), strict=True))


def table(vector, bins):
    """Each magnitude rounded up to one of `bins` equal parts of the largest: a box that contains the vector."""
    values, largest = np.abs(vector), float(np.abs(vector).max())
    edges = np.arange(bins + 1) * (largest / bins)
    edges[-1] = largest
    counts = np.bincount(np.searchsorted(edges, values), minlength=bins + 1)
    return tuple((edge, count) for edge, count in zip(edges.tolist(), counts.tolist(), strict=True) if count)


def encoded(event, orders):
    return box_curve(event.box, orders)


def log_moments_of_sum(event):
    return box_curves.log_moments_of_sum(event.box)


def fisher(event, orders):
    """The curve of Gaussian noise with the same Fisher information: log M_k(τ) <= k(k-1)/2 I τ².

    Proved for gaussian, for laplace (ε-DP is ε²/2-zCDP) and for cauchy (whose M_k is a Legendre polynomial); for the
    others it is an observation (τ from 1e-3 to 8, k up to 256), so that no claim may rest on it. At whole orders it is
    what `encoded` stays below, and what it comes to as the shifts vanish.
    """
    sigma = event.box.gaussian_multiplier(Distribution(event.family, event.shape).fisher)
    return curves.poisson_gaussian(event.sampling_rate, sigma, orders)


def event(family, shape, shifts, *, q=0.01, scale=1.0, exchanged=False):
    return EncodedSum(q, scale, family, shape, shifts, exchanged, "sha256:" + "0" * 64)


def of_golden(record, shifts, q):
    family, shape = ("variance_gamma", 2.0) if record["family"] == "vg2" else (record["family"], record["nu"])
    return event(family, None if shape is None else float(shape), shifts, q=q, scale=record["scale"])


def of_sum(family, shape, shifts, **rest):
    return log_moments_of_sum(event(family, shape, shifts, **rest))


def golden(*keys):
    return [pytest.param(r, id=f"{r['family']}-{r['nu']}-{r['codeword']}") for key in keys for r in GOLDEN[key]]


@pytest.mark.parametrize("name", [name for name in GOLDEN["codewords"] if not name.startswith("_")])
def test_golden_codewords(name):
    vector, expected = codeword(name), GOLDEN["codewords"][name]
    assert len(vector) == expected["d"]
    assert vector[:8] == pytest.approx(expected["first8"], rel=1e-12)
    sums = [np.abs(vector).sum(), np.linalg.norm(vector), np.abs(vector).max(), (vector**4).sum()]
    assert sums == pytest.approx([expected[key] for key in ("l1", "l2", "linf", "sum4")], rel=1e-12)


@pytest.mark.parametrize("record", golden("A_rdp"))
def test_golden_curves(record):
    """Four sampling rates, seven orders, and both conversions; a Gaussian distribution costs what its norm costs."""
    shifts = counted(codeword(record["codeword"]))

    def curve(q, orders):
        if record["family"] == "gaussian":
            return curves.poisson_gaussian(q, record["scale"] / record["l2"], orders)
        return encoded(of_golden(record, shifts, q), orders)

    for q, by_order in record["rdp"].items():
        assert curve(float(q), [float(k) for k in by_order]) == pytest.approx(list(by_order.values()), rel=1e-9, abs=0)
    for case in record["eps"]:
        rdp = case["T"] * curve(case["q"], WHOLE)
        for kind in ("classic", "improved"):
            best = conversion.epsilon(WHOLE, rdp, case["delta"], kind)
            assert best.value == pytest.approx(case[kind], abs=1e-7)
            assert best.order == case[f"{kind}_order"]


@pytest.mark.parametrize("record", [p for p in golden("A_rdp") if p.values[0]["family"] != "gaussian"])
def test_golden_sums_of_log_moments_and_their_fisher_bound(record):
    shifts = counted(codeword(record["codeword"]))
    sums = log_moments_of_sum(of_golden(record, shifts, 0.1))
    expected = list(record["S"].values())
    got = [sums[int(k) - 2] for k in record["S"]]
    assert got == pytest.approx(expected, rel=1e-11, abs=0)
    assert all(g >= e for g, e in zip(got, expected, strict=True))  # a bound, rounding included
    for q in (0.01, 1.0):
        one = of_golden(record, shifts, q)
        assert (fisher(one, WHOLE) >= encoded(one, WHOLE) * (1 - 1e-9)).all()


@pytest.mark.parametrize("record", [p for p in golden("A_pld") if p.values[0]["family"] != "gaussian"])
def test_golden_epsilons_of_large_codewords(record):
    """Ten thousand different magnitudes are rounded up to at most 4095."""
    exact = record["codeword"] != "seed0_10000"
    shifts = counted(codeword(record["codeword"])) if exact else table(codeword(record["codeword"]), 4095)
    orders = range(2, 129)
    rdp = record["T"] * encoded(of_golden(record, shifts, record["q"]), orders)
    for kind in ("classic", "improved"):
        got, expected = conversion.epsilon(orders, rdp, record["delta"], kind).value, record[kind][0]
        assert got == pytest.approx(expected, rel=1e-8 if exact else 2e-3)
        assert got >= expected * (1 - 1e-9)


@pytest.mark.parametrize(("family", "shape"), [*DISTRIBUTIONS, ("student_t", 2.5)])
@pytest.mark.parametrize(("q", "tau", "order"), [(0.2, 1.5, 4), pytest.param(0.01, 0.3, 3, marks=pytest.mark.slow)])
def test_one_coordinate_by_quadrature_in_both_directions(family, shape, q, tau, order):
    """Removing the unit is the formula; adding it is cheaper."""
    distribution = Distribution(family, shape)

    def moment(power):
        def term(x):
            mixture = 1 - q + q * mp.exp(float(distribution.log_ratio(float(x), tau)))
            return mp.exp(float(distribution.log_density(float(x)))) * (mixture**power - 1 - power * (mixture - 1))

        breaks = [-1e9, -1e5, -1000, -100, *np.linspace(-40, 40, 33).tolist(), tau, 100, 1000, 1e5, 1e9]
        return float(mp.log1p(mp.quad(term, sorted({mp.mpf(x) for x in breaks}), maxdegree=6)) / (order - 1))

    got = float(encoded(event(family, shape, ((1.0, 1),), q=q, scale=1 / tau), [order])[0])
    assert got == pytest.approx(moment(order), rel=1e-8)
    assert 0 < moment(1 - order) < got


@pytest.mark.parametrize(("family", "shape"), DISTRIBUTIONS)
def test_full_sampling_adds_coordinates(family, shape):
    shifts = ((0.1, 3), (0.4, 2))
    taus = np.array([0.1, 0.4]) / 0.7
    parts = log_moments(Distribution(family, shape), taus)
    ks = np.arange(2, MAX_ORDER + 1)
    expected = (3 * parts[0] + 2 * parts[1]) / (ks - 1)
    got = encoded(event(family, shape, shifts, q=1.0, scale=0.7), ks.tolist())
    assert got == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize(("family", "shape"), DISTRIBUTIONS)
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.5, 1 - 1e-9, 1.0])
def test_curves_of_the_default_orders(family, shape, q):
    """Finite, increasing, below the unsampled curve, and (α-1) r(α) convex with chords between whole orders."""
    one = event(family, shape, ((0.05, 200), (0.1, 50)), q=q, scale=0.8)
    orders = np.array(curves.DEFAULT_ORDERS)
    rdp = encoded(one, curves.DEFAULT_ORDERS)
    assert np.isfinite(rdp).all()
    assert (rdp > 0).all()
    assert (np.diff(rdp) >= -1e-9 * rdp[1:]).all()
    assert (rdp <= encoded(event(family, shape, one.shifts, scale=0.8, q=1.0), orders) * (1 + 1e-9)).all()
    two, three, between = encoded(one, [2.0, 3.0, 2.25])
    assert between * 1.25 == pytest.approx(0.75 * two + 0.25 * 2 * three, rel=1e-12)
    assert encoded(one, [1.5]) == pytest.approx([two])


def test_orders_beyond_the_moments_are_no_error():
    got = encoded(event("sech", None, ((0.1, 9),)), [256.0, 256.5, *curves.HIGH_ORDERS])
    assert math.isfinite(got[0])
    assert (got[1:] == math.inf).all()


def test_a_curve_that_is_changed_does_not_change_the_next():
    one = event("cauchy", None, ((0.3, 4),))
    first = encoded(one, [2.0, 7.0])
    original = first.copy()
    first *= 1000
    assert np.array_equal(encoded(one, [2.0, 7.0]), original)
    with pytest.raises(ValueError, match="read-only"):
        log_moments_of_sum(one)[0] = 0


positive = st.floats(0.01, 3.0)


@settings(derandomize=True, deadline=None, max_examples=30)
@given(
    distribution=st.sampled_from([*DISTRIBUTIONS, ("student_t", 0.5), ("variance_gamma", 8.0)]),
    bounds=st.lists(positive, min_size=1, max_size=5, unique=True),
    grown=st.integers(0, 4),
    by=st.floats(1.0, 4.0),
    q=st.floats(1e-4, 1.0),
    scale=positive,
    exchanged=st.booleans(),
)
def test_the_cost_grows_with_the_rate_and_each_shift_and_falls_with_the_scale(
    distribution, bounds, grown, by, q, scale, exchanged
):
    def curve(values, **changed):
        settings_ = {"q": q, "scale": scale, "exchanged": exchanged} | changed
        return encoded(event(*distribution, counted(np.array(values)), **settings_), [1.5, 2, 5.5, 40, 256])

    minimum = curve(bounds) * (1 - 1e-3 if exchanged else 1 - 1e-9)  # where the grid of the majorant moves
    larger = list(bounds)
    larger[grown % len(bounds)] *= by
    assert (curve(larger) >= minimum).all()
    assert (curve([*bounds, 0.1]) >= minimum).all()
    assert (curve(bounds, scale=scale / by) >= minimum).all()
    assert (curve(bounds, q=min(1.0, q * by)) >= minimum).all()
    assert (curve(bounds, exchanged=True) >= minimum).all()


@pytest.mark.parametrize(("family", "shape"), sweep([*DISTRIBUTIONS, ("student_t", 0.5)], several=True))
@pytest.mark.parametrize(
    "scale", [0.05, pytest.param(0.4, marks=pytest.mark.slow), 3.0, pytest.param(40.0, marks=pytest.mark.slow)]
)
def test_an_exchange_dominates_every_arrangement(family, shape, scale):
    """Halves of the box in two arrangements, some of them shrunk and of the other sign."""
    random = np.random.default_rng(5)
    box = np.sort(np.abs(random.standard_normal(24)))
    bound = of_sum(family, shape, counted(box), scale=scale, exchanged=True)
    distribution = Distribution(family, shape)
    for _ in range(12):
        u, w = random.permutation(box) / 2, random.permutation(box) / 2
        for shift in (u + w, u + w * random.uniform(-1, 1, 24)):
            sums = log_moments(distribution, np.abs(shift) / scale).sum(axis=0)
            assert (sums <= bound * (1 + 1e-12)).all()


@pytest.mark.parametrize(("family", "shape"), DISTRIBUTIONS)
def test_an_exchange_costs_little_more_than_its_box(family, shape):
    shifts = table(codeword("seed0_1000"), 255)
    for scale in (0.3, 1.0, 10.0):
        plain = of_sum(family, shape, shifts, scale=scale)
        exchanged = of_sum(family, shape, shifts, scale=scale, exchanged=True)
        assert (exchanged >= plain).all()
        assert (exchanged <= plain * 1.005).all()


@pytest.mark.parametrize(("family", "shape"), HEAVY)
@pytest.mark.parametrize("taus", [(0.0, 1e-3, 0.7), (0.02, 0.03), (3.0,), (1e-9, 5.0), (0.1, 30.0)])
def test_the_majorant_is_convex_growing_and_above(family, shape, taus):
    distribution = Distribution(family, shape)
    points = np.unique(np.concatenate(([0.0], np.geomspace(1e-7, 1, 400) * max(taus), taus)))
    majorant, logs = box_curves._convex_majorant(distribution, points), log_moments(distribution, points)
    bounds = np.outer([distribution.largest_loss(tau) for tau in points], np.arange(1, MAX_ORDER))
    assert (majorant >= np.where(logs < bounds * (1 - 1e-9), logs, 0) * (1 - 1e-12)).all()  # where `logs` is exact
    assert not majorant[0].any()
    slopes = np.diff(majorant, axis=0) / np.diff(points)[:, None]
    assert (slopes > 0).all()
    assert (slopes[1:] >= slopes[:-1] * (1 - 1e-9)).all()


@pytest.mark.parametrize("df", [0.5, 1.0, 9.0])
def test_what_the_proof_of_the_majorant_says_of_the_curvature(df):
    """(-log z)'' >= -(df+1)/(8 df), reached at x² = 3 df; and so g_k'' >= -(k-1) times it."""
    distribution, h = Distribution("student_t", df), 1e-3
    x = np.append(np.linspace(0, 30, 3001), math.sqrt(3 * df))
    second = (
        -(distribution.log_density(x + h) - 2 * distribution.log_density(x) + distribution.log_density(x - h)) / h**2
    )
    assert second.min() == pytest.approx(-(df + 1) / (8 * df), rel=1e-4)
    taus = np.linspace(0.1, 3.5, 400)
    bent = np.diff(log_moments(distribution, taus), n=2, axis=0) / (taus[1] - taus[0]) ** 2
    assert (bent >= -np.arange(1, MAX_ORDER) * (df + 1) / (8 * df) * (1 + 1e-6) - 1e-6).all()


@pytest.mark.parametrize(
    ("family", "shape"), [("laplace", None), ("sech", None), ("variance_gamma", 2.0), ("variance_gamma", 8.0)]
)
def test_log_concave_distributions_have_convex_moments(family, shape):
    logs = log_moments(Distribution(family, shape), np.linspace(0, 8, 300))
    assert (np.diff(logs, n=2, axis=0) >= -1e-10 * logs[2:]).all()


def test_the_worst_of_several_codewords_costs_less_than_their_envelope():
    """0.1, 0.1, 0.1, 0.9 and 0.4, 0.4, 0.4, 0.4, each the worse at some orders."""
    one, two, envelope = (
        encoded(event("laplace", None, shifts), curves.DEFAULT_ORDERS)
        for shifts in [((0.1, 3), (0.9, 1)), ((0.4, 4),), ((0.4, 3), (0.9, 1))]
    )
    both = np.maximum(one, two)  # Nasr et al. 2020, Lemma 5
    assert (both > one).any()
    assert (both > two).any()
    assert (both < envelope).all()


@pytest.mark.parametrize("exchanged", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    ("family", "shape"),
    sweep([*DISTRIBUTIONS, ("student_t", 1000.0), ("student_t", 0.5)], (0, 2, -1), several=True),
)
def test_untrusted_events_have_a_curve(family, shape, exchanged):
    """Nothing raises, warns or takes long, and nothing is NaN or below 0."""
    boxes = [((1e6, 10**15),), ((0.0, 10**15), (1e-300, 1)), ((1e-320, 10**15), (1e6, 1)), ((1.0, 1), (1e6, 10**9))]
    for shifts in boxes:
        for scale in (1e-310, 1e-3, 1e15):
            for q in (1e-300, 0.5, 1 - 1e-16, 1.0):
                rdp = encoded(
                    event(family, shape, shifts, q=q, scale=scale, exchanged=exchanged), curves.DEFAULT_ORDERS
                )
                assert (rdp >= 0).all()
                if scale < 1 and shifts[-1][0] > 1 and q > 0.1:
                    assert (rdp > 10).all()


def test_the_largest_table_has_a_curve():
    shifts = tuple((bound, 1) for bound in np.linspace(0.01, 2, MAX_ROWS).tolist())
    assert np.isfinite(encoded(event("student_t", 9.0, shifts), curves.DEFAULT_ORDERS)).all()


def test_planning_needs_no_scipy():
    code = (
        "import sys\nfrom dprecipe.privacy.box.box import BoxSum\nfrom dprecipe.privacy.box.curves import box_curve\n"
        "box_curve(BoxSum(.1, 1., 'student_t', 9., ((1., 3),), True), [2., 3.])\n"
        "assert not {'scipy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
