"""The accountants: golden figures, dispatch, consistency, and the traps of other libraries."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.privacy import accountants, gdp, pld
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from tests.sweeps import sweep

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())


def sampled(q, sigma, steps):
    return [Charge(PoissonGaussian(q, sigma), steps)]


def code(q=0.01, scale=1.0, family="student_t", shape=9.0, shifts=((0.01, 5000), (0.02, 1250)), exchanged=False):
    return EncodedSum(q, scale, family, shape, shifts, exchanged, "sha256:" + "0" * 64)


def pld_goldens():
    for r in GOLDEN["records"]:
        i = r["inputs"]
        if r["kind"] == "pld_eps":
            yield i["q"], i["sigma"], i["T"], i["delta"], ADD, min(r["value"], r["second_value"])
        elif r["kind"] == "poisson_pld_eps":
            yield i["expected_batch"] / i["n"], i["sigma"], i["T"], i["delta"], ADD, r["value"]
        elif r["kind"] == "poisson_replace_one_pld_eps":
            yield i["batch"] / i["n"], i["sigma_over_clip"], i["T"], i["delta"], REPLACE, r["value"]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta", "relation", "want"), list(pld_goldens()))
def test_pld_goldens(q, sigma, steps, delta, relation, want):
    answer = accountants.epsilon_answer(sampled(q, sigma, steps), delta, relation, "pld")
    assert answer.accountant == "pld"
    assert answer.value == pytest.approx(want, rel=2e-4)
    assert answer.value >= want - 1e-6


@pytest.mark.parametrize("row", GOLDEN["table"])
def test_the_three_columns_of_the_table(row):
    q, sigma, steps, delta, classic, improved, tight = row
    charges = sampled(q, sigma, steps)
    assert accountants.epsilon(charges, delta, ADD, "pld") == pytest.approx(tight, rel=2e-4, abs=6e-5)
    # fractional orders may improve the integer orders of the table by about 1 %
    for accountant, want in [("rdp", improved), ("rdp_classic", classic)]:
        assert want * 0.985 <= accountants.epsilon(charges, delta, ADD, accountant) <= want + 6e-5


def test_three_phases():
    record = next(r for r in GOLDEN["records"] if r["kind"] == "hetero_rdp_improved_eps")
    charges = [Charge(PoissonGaussian(q, s), T) for q, s, T in record["inputs"]["phases_q_sigma_T"]]
    assert accountants.epsilon(charges, 1e-5, ADD, "pld") == pytest.approx(2.3995, rel=2e-4)
    assert accountants.epsilon(charges, 1e-5, ADD, "rdp") <= record["value"]
    back = accountants.epsilon(charges[::-1], 1e-5, ADD, "pld")
    assert back == accountants.epsilon(charges, 1e-5, ADD, "pld")


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("event", "count"),
    [(Gaussian(20.0), 100), (PoissonGaussian(1.0, 20.0), 100)],
)
def test_unsampled_events_get_the_exact_formula(event, count, relation):
    mu = (2 if relation is REPLACE else 1) * math.sqrt(count) / 20
    answer = accountants.epsilon_answer([Charge(event, count)], 1e-5, relation, "pld")
    assert answer == accountants.Answer(gdp.epsilon(mu, 1e-5), "gdp")
    assert answer.value == accountants.epsilon([Charge(event, count)], 1e-5, relation, "gdp")
    assert accountants.delta([Charge(event, count)], 1.0, relation, "pld") == gdp.delta(mu, 1.0)


def test_the_gain_of_dealing_is_known_as_a_distribution_alone():
    for r in GOLDEN["records"]:
        if r["kind"] == "shuffle_one_epoch":
            sigma, delta, batches = r["inputs"]["sigma"], r["inputs"]["delta"], r["inputs"]["batches"]
            charges = [Charge(DealtGaussian(sigma, batches), 1)]
            assert accountants.epsilon(charges, delta, ADD, "gdp") == pytest.approx(r["sound_upper_eps"], rel=1e-3)
            plain = [Charge(Gaussian(sigma), 1)]
            for name in ("rdp", "rdp_classic", "gdp"):
                assert accountants.epsilon(charges, delta, ADD, name) == accountants.epsilon(plain, delta, ADD, name)
            assert accountants.epsilon(charges, delta, ADD, "pld") < accountants.epsilon(plain, delta, ADD, "pld")


def test_gdp_does_not_pretend_to_know_sampling():
    assert accountants.epsilon(sampled(0.01, 1.0, 10), 1e-5, ADD, "gdp") == math.inf
    assert accountants.delta(sampled(0.01, 1.0, 10), 1.0, ADD, "gdp") == 1.0


def test_nothing_costs_nothing():
    for name in accountants.ACCOUNTANTS:
        assert accountants.epsilon([], 1e-5, ADD, name) == 0.0
        assert accountants.delta([Charge(Gaussian(1.0), 0)], 0.0, ADD, name) == 0.0


def test_bad_questions_are_refused():
    for delta in (0.0, 1.0, math.nan, -1e-5):
        with pytest.raises(ValueError, match="delta"):
            accountants.epsilon([], delta, ADD, "pld")
    for epsilon in (-1.0, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            accountants.delta([], epsilon, ADD, "pld")
    with pytest.raises(ValueError, match="unknown accountant 'moments'"):
        accountants.epsilon([], 1e-5, ADD, "moments")


EXTREMES = [
    (1e-6, 0.3, 1),
    (1e-4, 0.3, 10_000),
    (0.01, 0.3, 100),
    (0.999, 1.0, 10),
    (0.1, 0.05, 3),
    (0.1, 0.01, 3),
    (0.5, 20.0, 1000),
    (0.001, 100.0, 100_000),
    (1e-6, 100.0, 100_000),
    (0.02, 1.0, 1),
]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("q", "sigma", "steps"), EXTREMES)
def test_extremes_are_bounded_by_renyi_and_by_no_sampling_at_all(q, sigma, steps, relation):
    charges = sampled(q, sigma, steps)
    for delta in (1e-3, 1e-9):
        tight = accountants.epsilon_answer(charges, delta, relation, "pld")
        assert 0 <= tight.value <= accountants.epsilon(charges, delta, relation, "rdp")
        assert accountants.epsilon(charges, delta, relation, "rdp") <= accountants.epsilon(
            charges, delta, relation, "rdp_classic"
        )
        # δ back at that ε; δ falls as exp(-θ ε), so a large ε leaves some room
        back = accountants.delta(charges, tight.value, relation, "pld")
        assert back <= delta * 1.01


def test_losses_beyond_doubles_fall_back_to_renyi_and_say_so():
    answer = accountants.epsilon_answer(sampled(0.1, 0.01, 3), 1e-5, ADD, "pld")
    assert answer.accountant == "rdp"
    assert math.isfinite(answer.value)


def test_a_single_step_against_its_closed_form():
    q, sigma, epsilon = 0.02, 1.0, 0.4
    x = 0.5 + sigma**2 * math.log(math.expm1(epsilon) / q + 1)

    def above(mean):
        return math.erfc((x - mean) / (sigma * math.sqrt(2))) / 2

    truth = (1 - q) * above(0) + q * above(1) - math.exp(epsilon) * above(0)
    got = accountants.delta(sampled(q, sigma, 1), epsilon, ADD, "pld")
    assert truth <= got <= truth * 1.001


def test_a_cost_far_below_its_renyi_bound_is_tight_too():
    """One step of few units at a large δ: the Rényi bound, which sets the grid, is 1,900 times as large."""
    q, sigma, delta = 1e-4, 1.0, 1e-5

    def above(mean, epsilon):
        x = 0.5 + sigma**2 * math.log(math.expm1(epsilon) / q + 1)
        return math.erfc((x - mean) / (sigma * math.sqrt(2))) / 2

    def excess(epsilon):
        return (1 - q) * above(0, epsilon) + q * above(1, epsilon) - math.exp(epsilon) * above(0, epsilon) - delta

    truth = brentq(excess, 1e-9, 1.0)
    assert truth <= accountants.epsilon(sampled(q, sigma, 1), delta, ADD, "pld") <= truth * 1.02


plausible = st.tuples(
    st.floats(-5, -0.2).map(lambda e: 10**e), st.floats(-0.3, 1.5).map(lambda e: 10**e), st.integers(1, 5000)
)


@settings(max_examples=10, deadline=None)
@given(plausible, st.floats(-9, -2), st.sampled_from([ADD, REPLACE]), st.sampled_from(["pld", "rdp"]))
def test_epsilon_moves_the_right_way(config, log_delta, relation, accountant):
    (q, sigma, steps), delta = config, 10**log_delta

    def cost(q, sigma, steps, delta):
        return accountants.epsilon(sampled(q, sigma, steps), delta, relation, accountant)

    slack, tiny = 1 + 2 * pld.TOLERANCE, 1e-5  # an ε below 0.01 is bounded to two digits
    here = cost(q, sigma, steps, delta)
    assert here <= cost(q, sigma, 2 * steps, delta) * slack + tiny
    assert here <= cost(min(1.5 * q, 1.0), sigma, steps, delta) * slack + tiny
    assert here <= cost(q, sigma / 1.3, steps, delta) * slack + tiny
    assert here <= cost(q, sigma, steps, delta / 3) * slack + tiny


@settings(max_examples=10, deadline=None)
@given(plausible, st.floats(-9, -2), st.sampled_from([ADD, REPLACE]), st.floats(0, 1))
def test_splitting_a_run_changes_nothing_and_renyi_is_above(config, log_delta, relation, where):
    (q, sigma, steps), delta = config, 10**log_delta
    first = round(where * steps)
    whole = accountants.epsilon(sampled(q, sigma, steps), delta, relation, "pld")
    split = sampled(q, sigma, first) + sampled(q, sigma, steps - first)
    assert accountants.epsilon(split, delta, relation, "pld") == whole
    assert whole <= accountants.epsilon(split, delta, relation, "rdp")


def test_replacing_costs_more_than_adding():
    charges = [*sampled(0.01, 1.0, 1000), Charge(Gaussian(10.0), 3)]
    for name in ("pld", "rdp"):
        assert accountants.epsilon(charges, 1e-5, REPLACE, name) > accountants.epsilon(charges, 1e-5, ADD, name)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("charges", "accountant", "names"),
    [
        (sampled(0.01, 1.0, 1000), "pld", ("pld", "rdp")),
        (sampled(0.01, 1.0, 1000), "rdp", ("rdp", "pld")),
        ([Charge(Gaussian(4.0), 3)], "pld", ("gdp", "rdp")),
        ([Charge(Gaussian(4.0), 3)], "rdp", ("rdp", "gdp")),
        ([Charge(Gaussian(4.0), 3)], "gdp", ("gdp", "rdp")),
    ],
)
def test_guarantee(charges, accountant, names, relation):
    guarantee = accountants.guarantee(charges, 1e-5, relation, "record", accountant)
    assert (guarantee.accountant, guarantee.alternative_accountant) == names
    assert guarantee.epsilon >= accountants.epsilon(charges, 1e-5, relation, accountant)
    assert guarantee.epsilon == float(f"{guarantee.epsilon:.6g}")
    tight, loose = sorted([guarantee.epsilon, guarantee.alternative_epsilon])
    assert tight < loose < 2 * tight
    assert 12 <= len(guarantee.profile) <= 20
    for (e0, d0), (e1, d1) in zip(guarantee.profile, guarantee.profile[1:], strict=False):
        assert e0 < e1
        assert d0 > d1 > 0
    assert any(e >= guarantee.epsilon and d <= 1e-5 for e, d in guarantee.profile)
    for e, d in guarantee.profile[::4]:
        assert d >= accountants.delta(charges, e, relation, "pld") * (1 - 5e-3)


def test_guarantee_of_nothing():
    guarantee = accountants.guarantee([], 1e-5, ADD, "record", "pld")
    assert (guarantee.epsilon, guarantee.alternative_epsilon, guarantee.profile) == (0.0, 0.0, ((0.0, 1e-5),))


def test_a_contradiction_between_accountants_is_a_fault(monkeypatch):
    monkeypatch.setattr(pld, "epsilon", lambda *args: pld.Bound(99.0, coarse=False))
    with pytest.raises(accountants.AccountantsDisagree, match="internal fault"):
        accountants.epsilon(sampled(0.0103, 1.07, 97), 1e-5, ADD, "pld")


def test_what_was_asked_before_is_not_composed_again(monkeypatch):
    charges = sampled(0.0107, 1.09, 89)
    asked = (charges, 1e-5, ADD, "pld"), (charges, [0.5, 1.0], ADD, "pld")
    first = accountants.epsilon_answer(*asked[0]), accountants.delta_answers(*asked[1])
    for name in ("epsilon", "deltas"):
        monkeypatch.setattr(pld, name, lambda *args: pytest.fail("it is composed again"))
    assert (accountants.epsilon_answer(*asked[0]), accountants.delta_answers(*asked[1])) == first
    with pytest.raises(pytest.fail.Exception):
        accountants.epsilon(sampled(0.0107, 1.09, 88), 1e-5, ADD, "pld")


@pytest.mark.parametrize("bins", [1 << 13, 1 << 16])
def test_of_very_many_events_the_grids_that_would_fail_are_left_out(bins, monkeypatch):
    """The same grids in the end as by doubling, and so the same numbers."""
    charges, steps, usual = sampled(1e-3, 1.6, 200_000), [], pld.compose_directions

    def compose(work, step, tail):
        steps.append(step)
        return usual(work, step, tail)

    def ask():
        accountants._epsilon_answer.cache_clear()
        accountants._delta_answers.cache_clear()
        steps.clear()
        epsilon = accountants.epsilon(charges, 1e-8, ADD, "pld")
        return epsilon, accountants.delta_answers(charges, [epsilon, 2 * epsilon], ADD, "pld"), len(steps)

    monkeypatch.setattr(pld, "MAX_BINS", bins)
    monkeypatch.setattr(pld, "compose_directions", compose)
    epsilon, deltas, tried = ask()
    monkeypatch.setattr(pld, "_MANY", math.inf)
    monkeypatch.setattr(pld, "coarsen", lambda step, error: 2 * step)
    assert ask()[:2] == (epsilon, deltas)
    assert len(steps) > tried


def test_next_to_the_largest_loss_a_grid_is_no_contradiction():
    encoded = EncodedSum(1.0, 0.0625, "laplace", None, ((1.0, 1),), False, "sha256:" + 64 * "0")
    charges, largest = [Charge(encoded, 3)], 3 / 0.0625
    for below in (1e-2, 1e-3, 1e-4):
        # three losses of 16 each, with probability 1/8: all other losses that count are further below
        exact = -math.expm1(-below) / 8
        bound = accountants.delta(charges, largest - below, ADD, "pld")
        assert exact * (1 - 1e-9) <= bound <= -math.expm1(-below - 5e-4 * largest) / 8


def test_renyi_needs_no_scipy():
    import subprocess
    import sys

    code = (
        "import sys; from dprecipe.privacy import accountants as a; from dprecipe.privacy.events import Charge;"
        "from dprecipe.privacy.noisy_sums import PoissonGaussian;"
        "from dprecipe.mechanisms.encoded.events import EncodedSum;"
        "from dprecipe.privacy.adjacency import Neighbouring as N;"
        "code = EncodedSum(.01, 1., 'student_t', 9., ((.1, 50), (.2, 5)), False, 'sha256:' + '0' * 64);"
        "[a.epsilon([Charge(e, 9)], 1e-5, n, 'rdp') for n in N for e in (PoissonGaussian(.01, 1.), code)];"
        "bad = {'scipy', 'torch', 'dp_accounting'} & set(sys.modules); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("event", "names"),
    [
        (code(), ("pld", "rdp")),
        (code(family="cauchy", shape=None, shifts=((1.0, 1),)), ("pld", "rdp")),
        (code(q=1.0, scale=20.0), ("pld", "rdp")),
        (code(family="laplace", shape=None, exchanged=True), ("rdp", "rdp")),
    ],
)
def test_guarantee_of_encoded_sums(event, names, relation):
    charges = [Charge(event, 400 if event.sampling_rate < 1 else 2)]
    guarantee = accountants.guarantee(charges, 1e-5, relation, "record", "pld")
    assert (guarantee.accountant, guarantee.alternative_accountant) == names
    assert guarantee.epsilon == float(f"{guarantee.epsilon:.6g}")
    assert guarantee.epsilon <= guarantee.alternative_epsilon < 1.6 * guarantee.epsilon
    assert 12 <= len(guarantee.profile) <= 20
    for (e0, d0), (e1, d1) in zip(guarantee.profile, guarantee.profile[1:], strict=False):
        assert e0 < e1
        assert d0 > d1 > 0
    assert any(e >= guarantee.epsilon and d <= 1e-5 for e, d in guarantee.profile)
    other = accountants.guarantee(charges, 1e-5, relation, "record", "rdp")
    assert (other.epsilon, other.accountant) == (guarantee.alternative_epsilon, "rdp")


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp_classic"])
def test_replacing_an_encoded_unit_is_removing_it_and_adding_another(accountant):
    """By Rényi curves the least 2 ε with (1 + exp(ε)) δ(ε) <= δ; by loss distributions a better split."""
    charges, delta = [Charge(code(), 300), Charge(PoissonGaussian(0.02, 2.0), 100), Charge(Gaussian(20.0), 1)], 1e-5
    answer = accountants.epsilon_answer(charges, delta, REPLACE, accountant)
    assert answer.accountant == accountant
    half = answer.value / 2
    delta_at_half = (1 + math.exp(half)) * accountants.delta(charges, half, ADD, accountant)
    at = accountants.delta(charges, answer.value, REPLACE, accountant)
    if accountant == "pld":
        assert delta_at_half > at == pytest.approx(delta, rel=0.02)
    else:
        assert 0.995 * delta <= delta_at_half <= delta * (1 + 1e-3)
        assert at == pytest.approx(delta_at_half)
    assert answer.value > (1.5 if accountant == "pld" else 2) * accountants.epsilon(charges, delta, ADD, accountant)
    # for Gaussian noise the pair of a replacement is known and costs less
    gaussian = [Charge(PoissonGaussian(0.01, 1.0), 300), *charges[1:]]
    assert accountants.epsilon(gaussian, delta, REPLACE, accountant) < answer.value


def test_replacing_costs_infinity_where_two_steps_have_no_bound():
    huge = [Charge(code(q=0.5, scale=0.01), 1000)]
    assert accountants.epsilon(huge, 1e-5, REPLACE, "rdp") == math.inf
    assert accountants.delta(huge, 1.0, REPLACE, "rdp") == 1.0
    assert accountants.epsilon([Charge(code(), 1)], 1e-5, REPLACE, "gdp") == math.inf
    assert accountants.delta([Charge(code(), 1)], 1.0, REPLACE, "gdp") == 1.0


def test_a_unit_that_is_hardly_ever_sampled_costs_nothing():
    for relation in (ADD, REPLACE):
        assert accountants.epsilon([Charge(code(q=1e-7), 50)], 1e-5, relation, "pld") == 0.0


def test_exchanged_codes_have_only_a_renyi_bound():
    charges = [Charge(code(exchanged=True), 300)]
    tight, loose = (accountants.epsilon_answer(charges, 1e-5, ADD, name) for name in ("pld", "rdp"))
    assert tight == loose
    assert tight.accountant == "rdp"
    # no less than what the corner of the box costs
    assert loose.value >= accountants.epsilon([Charge(code(), 300)], 1e-5, ADD, "rdp")
    mixed = [*charges, Charge(PoissonGaussian(0.01, 1.0), 100)]
    assert accountants.epsilon_answer(mixed, 1e-5, ADD, "pld").accountant == "rdp"
    assert accountants.delta_answers(mixed, [1.0], ADD, "pld")[0].accountant == "rdp"


def test_gdp_does_not_pretend_to_know_codes():
    for q in (0.1, 1.0):
        charges = [Charge(Gaussian(5.0), 1), Charge(code(q=q, scale=20.0), 1)]
        assert accountants.epsilon(charges, 1e-5, ADD, "gdp") == math.inf
        assert accountants.delta(charges, 1.0, ADD, "gdp") == 1.0
        gaussian = accountants.epsilon(charges[:1], 1e-5, ADD, "pld")
        assert accountants.epsilon_answer(charges, 1e-5, ADD, "pld").accountant == "pld"
        assert accountants.epsilon(charges, 1e-5, ADD, "pld") > gaussian


def test_an_encoded_step_beyond_all_bounds_answers_infinity():
    for charges in ([Charge(code(scale=1e-300), 1)], [Charge(code(shifts=((1.0, 10**15),), scale=1e-3), 10**15)]):
        for name in ("pld", "rdp"):
            assert accountants.epsilon(charges, 1e-5, ADD, name) > 1e3
            assert accountants.delta(charges, 1.0, ADD, name) <= 1.0


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_the_mnist_row_of_the_paper_in_exact_gdp(relation):
    """640 checks at 150 and the answers of two ensembles at 40, δ = 1e-5: to the digits of the table of reference."""
    for answers, classic, improved, exact in ((341, 3.46, 3.02, 2.79), (354, 3.53, 3.08, 2.85)):
        charges = [Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", 40.0), answers)]
        for accountant, want in (("rdp_classic", classic), ("rdp", improved), ("pld", exact)):
            assert accountants.epsilon(charges, 1e-5, relation, accountant) == pytest.approx(want, abs=6e-3)
        assert accountants.epsilon_answer(charges, 1e-5, relation, "pld").accountant == "gdp"


def laplace_delta(scale, queries, epsilon):
    """δ(ε) of two counts a query, each moved by 1 under Laplace noise, to some 1e-8: by inversion of the moment
    generating function M of a count's loss, the integral of M(s)^n exp(-sε) / (2πi s (s+1)) along a line through its
    saddle point.

    The loss is 1/b with probability 1/2, -1/b with exp(-1/b)/2, and has the density exp((l - 1/b)/2)/4 in between.
    """
    import numpy as np
    from scipy import optimize

    tau, n = 1 / scale, 2 * queries

    def log_m(s):
        return s * tau - math.log(2) + np.log1p(np.exp(-(2 * s + 1) * tau) - np.expm1(-(2 * s + 1) * tau) / (2 * s + 1))

    def exponent(s):
        return n * log_m(s) - s * epsilon - np.log(s) - np.log1p(s)

    saddle = np.exp(optimize.minimize_scalar(lambda t: exponent(np.exp(t)), bounds=(-8, 14), method="bounded").x)
    step = np.pi / (2 * n * tau)
    values = np.exp(exponent(saddle + 1j * step * np.arange(1 << 18))).real
    return float((values.sum() - values[0] / 2) * step / np.pi)


def optimal(epsilon, count, delta):
    """ε of `count` mechanisms of pure ε, each the worst there is (Kairouz, Oh & Viswanath 2015, Theorem 3.3)."""
    if delta <= 0:
        return count * epsilon
    yes = -math.log1p(math.exp(-epsilon))

    def missing(total):
        return math.fsum(
            math.exp(
                math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) + count * yes - k * epsilon
            )
            * -math.expm1(total - (count - 2 * k) * epsilon)
            for k in range(count + 1)
            if (count - 2 * k) * epsilon > total
        )

    low, high = 0.0, count * epsilon
    for _ in range(50):
        low, high = (low, (low + high) / 2) if missing((low + high) / 2) <= delta else ((low + high) / 2, high)
    return high


@pytest.mark.parametrize("queries", sweep([1, 10, 100, 1000, 10_000], (0, 2, 4)))
@pytest.mark.parametrize("scale", sweep([1.0, 20.0, 100.0]))
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_laplace_votes_are_bounded_tightly(scale, queries, delta):
    charges, pure_epsilon = [Charge(NoisyMax("laplace", scale), queries)], 2 * queries / scale
    epsilon = accountants.epsilon(charges, delta, REPLACE, "pld")
    assert epsilon <= pure_epsilon * (1 + 1e-11)
    assert epsilon >= pure_epsilon or laplace_delta(scale, queries, epsilon) <= delta
    assert laplace_delta(scale, queries, 0.995 * epsilon) > delta
    if queries <= 1000:
        assert epsilon <= 1.005 * optimal(1 / scale, 2 * queries, delta)  # the worst of all pure ε
    assert epsilon <= accountants.epsilon(charges, delta, ADD, "rdp") <= pure_epsilon * (1 + 1e-11)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp_classic"])
def test_no_delta_is_needed_for_the_largest_loss(accountant):
    charges = [Charge(NoisyMax("laplace", 20.0), 3)]
    assert accountants.epsilon(charges, 1e-300, ADD, accountant) == pytest.approx(0.3, rel=1e-11)
    assert accountants.delta(charges, 0.3 * (1 + 1e-9), ADD, accountant) == 0.0
    assert accountants.delta(charges, 0.3 * (1 - 1e-6), ADD, accountant) > 0.0


SANITISED = [
    (SanitisedCost(0.03, 9.0, 12.0), 0.5, 1e-5),
    (SanitisedCost(0.003, 30.0, 30.0), 0.1, 1e-9),
    (SanitisedCost(0.3, 3.0, 2.0), 0.8, 1e-5),
    (SanitisedCost(1.5, 9.0, 9.0), 0.0, 1e-5),
]


@pytest.mark.parametrize(("event", "mu", "delta"), SANITISED)
def test_a_sanitised_cost_is_converted_at_nearly_the_best_order(event, mu, delta):
    """Held against a search over all orders, which has the whole curve in closed form."""
    from scipy import optimize

    largest = 1 / -math.expm1(-2 * event.beta)

    def epsilon(share):
        a = 1 + (largest - 1) * share
        v = a - (a - 1) * math.exp(2 * event.beta)
        value = a / (2 * event.noise_multiplier**2 * v) - event.beta - math.log(v) / (2 * (a - 1))
        renyi = a * mu**2 / 2 + value + a / (2 * event.scale_multiplier**2)
        return renyi + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)

    best = optimize.minimize_scalar(epsilon, bounds=(1e-3, 1 - 1e-6), method="bounded").fun
    charges = [Charge(event, 1), *([Charge(FilterRest(1 / mu), 1)] if mu else [])]
    answer = accountants.epsilon_answer(charges, delta, REPLACE, "pld")
    assert best * (1 - 1e-9) <= answer.value <= 1.001 * best
    assert answer.accountant == "rdp"
    assert answer == accountants.epsilon_answer(charges, delta, ADD, "rdp")
    assert accountants.epsilon(charges, delta, ADD, "gdp") == math.inf
    assert accountants.delta(charges, answer.value, ADD, "pld") == pytest.approx(delta, rel=1e-2)
    assert accountants.delta_answers(charges, [answer.value], ADD, "pld")[0].accountant == "rdp"


@pytest.mark.parametrize("beta", [1e-300, 1e-9, 3.0, 400.0, 1e9])
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
def test_no_smoothness_is_out_of_bounds(family, beta):
    charges = [Charge(NoisyMax(family, 40.0), 50), Charge(SanitisedCost(beta, 9.0, 12.0), 1)]
    epsilon = accountants.epsilon(charges, 1e-5, ADD, "pld")
    assert epsilon < 3 if beta < 1 else epsilon > 100
    assert 0 < accountants.delta(charges, 1.0, ADD, "rdp") <= 1


def test_publishing_costs_more_than_not_publishing():
    votes = [Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", 40.0), 300)]
    for event, _, _ in SANITISED:
        sanitised, both = ([Charge(event, 1)], [*votes, Charge(event, 1)])
        assert accountants.epsilon(both, 1e-5, ADD, "pld") > max(
            accountants.epsilon(part, 1e-5, ADD, "rdp") for part in (votes, sanitised)
        )
        twice = [*votes, Charge(event, 2)]
        assert accountants.epsilon(twice, 1e-5, ADD, "pld") > accountants.epsilon(both, 1e-5, ADD, "pld")
