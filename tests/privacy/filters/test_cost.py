"""What charges cost an account: against closed forms, quadrature and the reference values."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy import integrate

from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy import gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cap import Cap
from dprecipe.privacy.filters.cost import NotInAccount, check_relation, cost_of, cost_of_profile
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.stages.events import NoisyCount, NoisyQuantile, PartitionSelection
from dprecipe.privacy.tuning.events import SelectedBest

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "account.json").read_text())["records"]
ADD, REPLACE, ZERO = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
ORDERS = Cap(3, 1e-5).orders


def cost(event, relation=ADD, count=1, orders=ORDERS):
    return cost_of([Charge(event, count)], relation, orders)


def check_close(spent, want, rel=1e-7):
    """Never below what is wanted, and hardly above."""
    for got, exact in zip(spent.rdp, want, strict=True):
        assert exact <= got <= exact * (1 + rel) + 1e-11


def sampled_gaussian(q: float, sigma: float, order: float) -> float:
    """D_α of (1-q) N(0, σ²) + q N(1, σ²) against N(0, σ²), with 20 digits."""
    mpmath.mp.dps = 25

    def integrand(x):
        ratio = 1 - q + q * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(sigma) ** 2))
        return mpmath.npdf(x, 0, sigma) * ratio**order

    ends = [-12 * sigma, 0, order / 2, order, order + 12 * sigma]
    return float(mpmath.log(mpmath.quad(integrand, ends)) / (order - 1))


def test_gaussians_without_sampling_by_closed_form():
    check_close(cost(Gaussian(4.0), count=7), [a * 7 / 32 for a in ORDERS])
    check_close(cost(Gaussian(4.0), REPLACE), [a * 4 / 32 for a in ORDERS])
    check_close(cost(Gaussian(4.0), ZERO), [a / 32 for a in ORDERS])
    check_close(cost(NoisyCount(3.0)), [a / 18 for a in ORDERS])
    assert cost(Gaussian(4.0)).delta == 0


def test_a_filter_of_votes_costs_its_limit_however_it_was_spent():
    limit = [Charge(FilterRest(1 / math.sqrt(0.5)), 1)]
    parts = [Charge(NoisyThreshold(10.0), 20), Charge(NoisyMax("gaussian", 5.0), 3)]
    used = 20 / 100 + 3 * 2 / 25
    whole = cost_of([*parts, Charge(FilterRest(1 / math.sqrt(0.5 - used)), 1)], ADD, ORDERS)
    assert whole.rdp == pytest.approx(cost_of(limit, ADD, ORDERS).rdp, rel=1e-9)
    assert cost_of(parts, REPLACE, ORDERS) == cost_of(parts, ADD, ORDERS)  # one vote moves, however a unit changes


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.8), (0.2, 3.0)])
def test_sampled_gaussians_by_quadrature(q, sigma):
    orders = (1.7, 4.0, 7.507703, 23.4967)
    check_close(cost(PoissonGaussian(q, sigma), orders=orders), [sampled_gaussian(q, sigma, a) for a in orders], 1e-6)
    assert cost(PoissonGaussian(1.0, sigma)) == cost(Gaussian(sigma))


def test_a_truncated_batch_costs_its_mixture_at_every_order():
    event = TruncatedPoissonGaussian(0.1, 2.0, 100, 20)
    full = event.full_chance
    assert full > 1e-4
    orders = (2.0, 8.0, 16.0)
    want = [
        math.log(
            (1 - full) * math.exp((a - 1) * sampled_gaussian(0.1, 2.0, a))
            + full * math.exp((a - 1) * sampled_gaussian(0.1, 1.0, a))
        )
        / (a - 1)
        for a in orders
    ]
    got = cost(event, orders=orders)
    check_close(got, want, 1e-6)
    assert got.delta == 0


def test_full_batches_that_hardly_happen_are_a_failure():
    event = TruncatedPoissonGaussian(0.02, 1.2, 5000, 200)
    assert 1e-30 < event.full_chance < 1e-15
    got, plain = cost(event, count=500), cost(PoissonGaussian(0.02, 1.2), count=500)
    assert got.rdp == plain.rdp
    assert 500 * event.full_chance <= got.delta <= 500 * event.full_chance * 1.01 + 1e-18
    # a unit that is blanked out: as if removed, unless the batch is full
    assert cost(event, ZERO).rdp == cost(PoissonGaussian(0.02, 1.2), ADD).rdp


def test_bounded_losses_have_a_cost_at_far_orders():
    event = PoissonLaplace(1.0, 20.0)
    assert event.rdp((5000.0,), ADD)[0] == math.inf
    got = cost(event, count=10, orders=(8.0, 5000.0))
    e = 1 / 20
    want = math.log(8 / 15 * math.exp(7 * e) + 7 / 15 * math.exp(-8 * e)) / 7
    check_close(got, [10 * want, 10 * e], 1e-6)


def test_replacing_by_two_steps_is_the_weak_triangle_and_never_below_the_truth():
    """Laplace noise, replaced: at a distance of 2 the pair is that of half the scale."""

    def laplace(e, a):
        return math.log(a / (2 * a - 1) * math.exp((a - 1) * e) + (a - 1) / (2 * a - 1) * math.exp(-a * e)) / (a - 1)

    orders = (1.5, 3.0, 8.0, 40.0)
    got = cost(PoissonLaplace(1.0, 10.0), REPLACE, orders=orders)
    for a, value in zip(orders, got.rdp, strict=True):
        half = (a - 0.5) / (a - 1) * laplace(0.1, 2 * a) + laplace(0.1, 2 * a - 1)
        assert laplace(0.2, a) <= value <= min(half, 0.2) * (1 + 1e-6)


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN if r["group"] == "account_rdp_of_two"], ids=lambda record: record["id"]
)
def test_weak_triangle_of_the_reference(record, monkeypatch):
    from dprecipe.privacy.filters import cost as module

    @dataclass(frozen=True)
    class Curve:
        mu: float

        def rdp(self, orders, relation):
            return np.asarray(orders) * self.mu**2 / 2

    given = record["inputs"]
    assert given["curve"] == "gaussian"
    monkeypatch.setattr(module, "_EXPONENTS", (2.0,))
    got = module._replace_in_two_steps(Curve(given["mu"]), np.array([given["order"]]))
    assert got[0] == pytest.approx(record["value"], rel=record["tol"])


@dataclass(frozen=True)
class KnownProfile:
    """Laplace noise, or a Gaussian mechanism whose δ is multiplied by those of others at the same ε, and raised."""

    mus: tuple[float, ...] = ()
    loss: float = 0.0
    floor: float = 0.0

    def delta(self, epsilon):
        if self.mus:
            return Answer(min(1.0, math.prod(gdp.delta(mu, epsilon) for mu in self.mus) + self.floor), "test")
        return Answer(max(0.0, -math.expm1((epsilon - self.loss) / 2)), "test")

    def epsilon(self, delta):
        low, high = 0.0, 800.0
        if self.delta(high).value > delta:
            return Answer(math.inf, "test")
        while high - low > 1e-12 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle).value > delta else (low, middle)
        return Answer(high, "test")


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN if r["group"] == "account_profile_to_rdp"], ids=lambda record: record["id"]
)
def test_costs_of_profiles_of_the_reference(record):
    given, order = record["inputs"], record["inputs"]["order"]
    if given["profile"] == "gdp":
        profile = KnownProfile((given["mu"],))
    elif given["profile"] == "laplace":
        profile = KnownProfile(loss=1 / given["scale"])
    else:
        assert given["profile"] == "last iterate: theta(mu) theta(step)^n"
        profile = KnownProfile((given["mu"], *(given["step"],) * given["n"]))
    least = record["value"]
    if given["profile"] == "gdp":  # losses beyond the table are in δ': the moment of a normal loss up to its end
        mu = given["mu"]
        inside = (gdp.epsilon(mu, 1e-18) - mu * mu * (order - 0.5)) / mu
        least += float(mpmath.log(mpmath.ncdf(inside - 0.1))) / (order - 1)
    curve, failure = cost_of_profile(profile, np.array([order]))
    assert least * (1 - 1e-6) <= curve[0] <= record["value"] * (1 + 5e-4)  # a bound: chords between knots
    assert failure <= 1e-15


def test_a_profile_with_a_floor_is_charged_the_floor_as_a_chance():
    curve, failure = cost_of_profile(KnownProfile((0.5,), floor=1e-10), np.array([4.0, 16.0]))
    assert 1e-10 <= failure <= 2e-9
    assert np.all(curve <= np.array([0.5, 2.0]) * 1.01)
    curve, _ = cost_of_profile(KnownProfile((0.5,), floor=1e-3), np.array([4.0]))
    assert curve[0] == math.inf


def descent(relation="replace_one", **more):
    fields = {
        "neighbouring": relation,
        "family": "gaussian",
        "size": 200,
        "batch": 10,
        "order": "sequential",
        "stop": "last",
        "stages": ((100, 4.0, 0.95, 3.0),),
    }
    return ProjectedDescent(**(fields | more))


def test_a_last_iterate_costs_no_more_than_its_curve_and_holds_for_its_relation_alone():
    event = descent()
    got = cost(event, REPLACE)
    assert all(a <= b * (1 + 1e-8) for a, b in zip(got.rdp[:5], event.rdp(ORDERS, REPLACE)[:5], strict=True))
    # a bound of the divergence gives a bound of δ, which can't be below that of the best profile by much
    order, value = ORDERS[3], got.rdp[3]
    converted = value + math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
    assert converted >= event.profile().epsilon(1e-5).value * (1 - 1e-3)
    for relation in (ADD, ZERO):
        with pytest.raises(NotInAccount, match="replace_one alone"):
            cost(event, relation)


def test_a_tuned_run_costs_less_by_its_profile_than_by_curves():
    """A Gaussian base of ε = 1, ten runs on average: 1.085 at order 8 and 1.210 at 16, against 1.690 and 1.807."""
    event = SelectedBest("negative_binomial", 10.0, 1.0, (Charge(Gaussian(1 / gdp.mu_for(1.0, 1e-5)), 1),))
    got = cost(event, orders=(4.0, 8.0, 16.0))
    curve = event.rdp((8.0, 16.0), ADD)
    assert curve == pytest.approx([1.690, 1.807], abs=2e-3)
    assert got.rdp[1] <= 1.086
    assert got.rdp[2] <= 1.211
    assert got.delta <= 1e-15


@pytest.mark.slow
def test_the_best_of_last_iterates_has_a_cost_of_its_profile():
    event = SelectedBest("negative_binomial", 3.0, 1.0, (Charge(descent(), 1),))
    got = cost(event, REPLACE)
    one = cost(descent(), REPLACE)
    assert not event.composes
    assert one.rdp[3] < got.rdp[3] < math.inf
    with pytest.raises(NotInAccount, match="replace_one alone"):
        cost(event, ADD)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("threshold", "multiplier"), [(15.0, 2.0), (124.6, 20.0)])  # the other: telling costs more
def test_items_cost_the_worst_case_at_every_order(relation, threshold, multiplier):
    """All numbers of unique items, of both data sets, by hand."""
    event = PartitionSelection(4, threshold, multiplier)
    items = event.items()
    assert (1.5 * items.squared_mu / 2 < items.leak) == (multiplier == 20.0)
    got = cost(event, relation, orders=(1.5, 4.0, 900.0))
    for index, order in enumerate((1.5, 4.0, 900.0)):
        moments = []
        for first in range(5):
            for second in range(5):
                before, after = ((first, 4 - first), (second, 4 - second))
                if relation is ADD:  # one data set alone has the unit
                    before, after = (before, (0, 0)) if second == 0 else ((0, 0), after)
                moved = (before[1] + after[1]) * items.squared_mu
                kept = -before[0] * items.leak
                moments.append(((order - 1) * (kept + after[0] * items.leak + order * moved / 2) + kept) / (order - 1))
        assert max(moments) <= got.rdp[index] <= max(moments) * (1 + 1e-7) + 1e-11
    assert got.delta == pytest.approx(-math.expm1(-4 * items.leak), rel=1e-6)
    assert got.delta >= -math.expm1(-4 * items.leak)


def test_published_costs_of_votes_have_a_curve_up_to_an_order():
    event = SanitisedCost(0.05, 30.0, 30.0)
    orders = (4.0, 8.0, 2 * event.max_order)
    got = cost(event, orders=orders)
    assert got.rdp[2] == math.inf
    assert got.rdp[:2] == pytest.approx(event.rdp(orders[:2], ADD), rel=1e-7)


def test_replacing_in_a_dealt_epoch_costs_no_more_than_in_a_known_batch():
    dealt, known = cost(DealtGaussian(2.0, 12), REPLACE).rdp, cost(Gaussian(2.0), REPLACE).rdp
    assert all(one <= other * (1 + 1e-9) for one, other in zip(dealt, known, strict=True))


def test_batches_of_one_size():
    """Adding a unit costs what it costs in Poisson batches at half the noise, or less where a part of it is in δ'."""
    ours, poisson = cost(FixedSizeGaussian(1000, 10, 1.0)).rdp, cost(PoissonGaussian(0.01, 0.5)).rdp
    assert ours[0] == pytest.approx(poisson[0], rel=1e-3)
    assert all(one <= other * (1 + 1e-6) for one, other in zip(ours, poisson, strict=True))
    event, orders = FixedSizeGaussian(1000, 10, 2.0), (3.0, 3.5, 4.0, 6.0)
    got, curve = cost(event, REPLACE, orders=orders), event.rdp(orders, REPLACE)
    whole = [(a - 1) * r for a, r in zip(orders, curve, strict=True)]
    assert whole[1] == pytest.approx((whole[0] + whole[2]) / 2, rel=1e-7)  # convex, interpolated between whole orders
    for order, value, loose in zip(orders, got.rdp, curve, strict=True):

        def integrand(e, order=order):
            """Of the profile: sampling turns ε into log(1 + (exp(ε) - 1)/q); a replaced unit moves the sum by two."""
            delta = 0.01 * gdp.delta(1.0, math.log1p(math.expm1(e) / 0.01))
            return (math.exp((order - 1) * e) + math.exp(-order * e)) * delta

        want = math.log1p(order * (order - 1) * integrate.quad(integrand, 0, 6, limit=400)[0]) / (order - 1)
        assert want * (1 - 1e-6) <= value <= want * 1.002 < loose
    assert got.delta <= 1e-15


def test_relations_of_runs():
    for relation in Neighbouring:
        check_relation(relation, relation)
    check_relation(ADD, REPLACE)
    for run, account in ((REPLACE, ADD), (ZERO, ADD), (ADD, ZERO), (REPLACE, ZERO), (ZERO, REPLACE)):
        with pytest.raises(NotInAccount, match=f"for {run.value}") as refusal:
            check_relation(run, account)
        assert f"neighbouring: {account.value}" in refusal.value.remedy


def test_costs_add_and_do_not_depend_on_the_order_of_charges():
    charges = [Charge(PoissonGaussian(0.01, 1.0), 30), Charge(NoisyQuantile(0.5, 5.0), 2), Charge(Gaussian(9.0), 1)]
    whole = cost_of(charges, ADD, ORDERS)
    assert whole == cost_of([*charges[::-1], Charge(Gaussian(1.0), 0)], ADD, ORDERS)
    parts = [cost_of([charge], ADD, ORDERS) for charge in charges]
    assert (parts[0] + parts[1] + parts[2]).rdp == pytest.approx(whole.rdp, rel=1e-8)
    assert cost_of([], ADD, ORDERS).is_nothing
    with pytest.raises(ValueError, match="orders above 1"):
        cost_of(charges, ADD, (1.0, 2.0))
