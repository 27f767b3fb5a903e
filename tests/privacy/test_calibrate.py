"""Calibration never exceeds the budget and uses nearly all of it."""

import math
import random

import pytest

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.privacy import accountants, calibrate, pld, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.calibrate import CalibrationError
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def recipes(number, seed):
    """Random recipes: sizes, batches, lengths, schemes, budgets; both relations and accountants."""
    draw = random.Random(seed)
    for index in range(number):
        size = int(10 ** draw.uniform(3, 6))
        batch = max(1, int(size * 10 ** draw.uniform(-3.5, -0.3)))
        epochs = draw.choice([1, 3, 10, 30, 100])
        steps = max(1, min(round(epochs * size / batch), 20_000))
        scheme = draw.choice(["poisson", "poisson", "full_batch", "dealt"])
        epsilon = round(10 ** draw.uniform(-0.7, 1.2), draw.choice([1, 3, 9]))
        delta = min(10 ** draw.uniform(-8, -3), 0.5 / size)
        yield pytest.param(
            *(scheme, batch / size, steps, epochs, epsilon, delta),
            *(draw.choice([ADD, REPLACE]), draw.choice(["pld", "rdp"])),
            id=f"{index}-{scheme}",
        )


def make_of(scheme, q, steps, epochs):
    def make(sigma):
        if scheme == "poisson":
            return [Charge(PoissonGaussian(q, sigma), steps)]
        if scheme == "full_batch":
            return [Charge(Gaussian(sigma), steps)]
        return [Charge(DealtGaussian(sigma, max(1, round(1 / q))), epochs)]

    return make


def check_noise(scheme, q, steps, epochs, epsilon, delta, relation, accountant):
    make = make_of(scheme, q, steps, epochs)
    sigma = calibrate.noise_multiplier(make, epsilon, delta, relation, accountant)
    spent = accountants.epsilon(make(sigma), delta, relation, accountant)
    assert 0.999 * epsilon <= spent <= rounding.round_up(spent) <= epsilon
    assert sigma == float(f"{sigma:.6g}")


@pytest.mark.parametrize("recipe", [r.values for r in recipes(15, 20)])
def test_noise_spends_between_99_9_and_100_percent(recipe):
    check_noise(*recipe)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [r.values for r in recipes(100, 20)])
def test_noise_spends_between_99_9_and_100_percent_of_100_budgets(recipe):
    check_noise(*recipe)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "q", "steps", "epochs", "epsilon", "delta", "relation", "accountant"), list(recipes(6, 21))
)
def test_the_count_is_the_largest_that_fits(scheme, q, steps, epochs, epsilon, delta, relation, accountant):
    sigma = 3.0 if scheme == "poisson" else 30.0
    event = make_of(scheme, q, 1, 1)(sigma)[0].event
    spent = [Charge(Gaussian(100.0), 2)]

    def cost(n):
        return accountants.epsilon([*spent, Charge(event, n)], delta, relation, accountant)

    n = calibrate.calibrate_count(event, epsilon, delta, relation, accountant, spent)
    if n:
        assert rounding.round_up(cost(n)) <= epsilon
    assert rounding.round_up(cost(n + max(1, math.ceil(2e-5 * n)))) > epsilon


def test_the_same_question_has_the_same_answer():
    def ask():
        return calibrate.noise_multiplier(lambda s: [Charge(PoissonGaussian(0.01, s), 500)], 2.0, 1e-5, ADD, "pld")

    first = ask()
    accountants._epsilon_answer.cache_clear()
    assert ask() == first


def test_what_the_cheap_accountant_hardly_tells_is_found_by_secants(monkeypatch):
    """Of 10⁷ steps with a rate of 2e-6 the two accountants' ratio goes from a third to nine tenths: every cost asked
    for takes seconds there, so that few may be asked for."""
    asked = []

    def cost(charges, delta, neighbouring, accountant):
        sigma = charges[0].event.noise_multiplier
        if accountant == "rdp":
            return 1.7 * sigma**-2.0
        asked.append(sigma)
        return 0.05 * sigma**-5.5

    monkeypatch.setattr(calibrate, "_cost", cost)
    sigma = calibrate.noise_multiplier(lambda s: [Charge(Gaussian(s), 1)], 3.0, 1e-5, ADD, "pld")
    assert 3.0 * (1 - 1e-4) <= 0.05 * sigma**-5.5 <= 3.0
    assert len(asked) <= 5


@pytest.mark.slow
def test_ten_million_steps_over_a_billion_records_are_planned_with_few_costs(monkeypatch):
    asked = []
    usual = pld.epsilon

    def epsilon(*arguments):
        asked.append(usual(*arguments))
        return asked[-1]

    monkeypatch.setattr(pld, "epsilon", epsilon)
    sigma = calibrate.noise_multiplier(lambda s: [Charge(PoissonGaussian(2.048e-6, s), 10**7)], 3.0, 1e-10, ADD, "pld")
    assert sigma == pytest.approx(0.47682, rel=1e-5)
    assert 3.0 * (1 - 1e-4) <= asked[-1].value <= 3.0
    assert len(asked) <= 8


def test_a_schedule_of_noises_is_solved_through_one_variable():
    def make(sigma):
        return [Charge(PoissonGaussian(0.01, sigma * (1 + k / 4)), 300) for k in range(5)]

    sigma = calibrate.noise_multiplier(make, 1.0, 1e-6, ADD, "pld")
    assert 0.999 <= accountants.epsilon(make(sigma), 1e-6, ADD, "pld") <= 1.0


def test_what_no_noise_can_do():
    fixed = Charge(Gaussian(1.0), 1)
    for accountant in ("pld", "rdp"):
        with pytest.raises(CalibrationError) as caught:
            calibrate.noise_multiplier(lambda s: [fixed, Charge(Gaussian(s), 1)], 1.0, 1e-5, ADD, accountant)
        assert caught.value.reason == "too_tight"
        assert caught.value.epsilon > caught.value.budget == 1.0


def test_a_budget_that_nothing_reaches():
    with pytest.raises(CalibrationError) as caught:  # nobody is ever sampled: δ alone covers it
        calibrate.noise_multiplier(lambda s: [Charge(PoissonGaussian(1e-9, s), 1)], 1.0, 1e-5, ADD, "pld")
    assert caught.value.reason == "never_reached"
    with pytest.raises(CalibrationError) as caught:
        calibrate.calibrate_count(Gaussian(1e7), 1.0, 1e-5, ADD, "pld")
    assert caught.value.reason == "never_reached"


def test_no_room_for_a_single_event():
    assert calibrate.calibrate_count(Gaussian(1.0), 0.1, 1e-5, ADD, "pld") == 0
    assert calibrate.calibrate_count(Gaussian(50.0), 1.0, 1e-5, ADD, "pld", spent=[Charge(Gaussian(1.0), 1)]) == 0


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_nonsense_budgets_are_refused(epsilon):
    with pytest.raises(ValueError, match="finite epsilon > 0"):
        calibrate.noise_multiplier(lambda s: [Charge(Gaussian(s), 1)], epsilon, 1e-5, ADD, "pld")
    with pytest.raises(ValueError, match="finite epsilon > 0"):
        calibrate.calibrate_count(Gaussian(1.0), epsilon, 1e-5, ADD, "pld")


DISTRIBUTIONS = [("laplace", None), ("student_t", 9.0), ("student_t", 1.5), ("cauchy", None), ("variance_gamma", 3.0)]


def codes(number, seed):
    """Random encoded runs: dimensions, distributions, rates, lengths, budgets; both relations and accountants."""
    draw = random.Random(seed)
    for index in range(number):
        family, shape = draw.choice(DISTRIBUTIONS)
        dimension = int(10 ** draw.uniform(0, 5))
        shifts = ((dimension**-0.5 * 0.8, dimension), (min(1.0, 3 * dimension**-0.5), 1 + dimension // 40))
        q = draw.choice([1.0, 10 ** draw.uniform(-3, -0.5), 10 ** draw.uniform(-3, -0.5)])
        steps = draw.choice([1, 30, 1000]) if q < 1 else 3
        yield pytest.param(
            *(family, shape, shifts, q, steps, round(10 ** draw.uniform(-0.5, 1), 3), 10 ** draw.uniform(-8, -4)),
            *(draw.choice([ADD, ADD, REPLACE]), draw.choice(["pld", "pld", "rdp"]), draw.random() < 0.2),
            id=f"{index}-{family}-{dimension}",
        )


def check_codes(family, shape, shifts, q, steps, epsilon, delta, relation, accountant, exchanged):
    def make(sigma):
        code = EncodedSum(q, sigma, family, shape, shifts, exchanged, "sha256:" + "0" * 64)
        return [Charge(code, steps), Charge(PoissonGaussian(0.001, 3.0), 20)]

    sigma = calibrate.noise_multiplier(make, epsilon, delta, relation, accountant)
    spent = accountants.epsilon(make(sigma), delta, relation, accountant)
    assert 0.999 * epsilon <= spent <= rounding.round_up(spent) <= epsilon
    assert sigma == float(f"{sigma:.6g}")


@pytest.mark.parametrize("run", [r.values for r in codes(6, 5)])
def test_noise_of_codes_spends_between_99_9_and_100_percent(run):
    check_codes(*run)


@pytest.mark.slow
@pytest.mark.parametrize("run", [r.values for r in codes(60, 6)])
def test_noise_of_codes_spends_between_99_9_and_100_percent_of_60_budgets(run):
    check_codes(*run)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_count_of_codes_is_the_largest_that_fits(accountant):
    code = EncodedSum(0.02, 1.2, "student_t", 9.0, ((0.01, 10_000),), False, "sha256:" + "0" * 64)
    spent = [Charge(PoissonGaussian(0.01, 1.0), 100)]

    def cost(n):
        return accountants.epsilon([*spent, Charge(code, n)], 1e-5, ADD, accountant)

    n = calibrate.calibrate_count(code, 2.0, 1e-5, ADD, accountant, spent)
    assert rounding.round_up(cost(n)) <= 2.0 < rounding.round_up(cost(n + 1))


def test_what_no_encoded_noise_can_do():
    def make(sigma):
        return [Charge(EncodedSum(0.1, sigma, "sech", None, ((0.1, 100),), False, "sha256:" + "0" * 64), 10)]

    with pytest.raises(CalibrationError) as caught:
        calibrate.noise_multiplier(lambda s: [Charge(Gaussian(1.0), 1), *make(s)], 1.0, 1e-5, ADD, "pld")
    assert caught.value.reason == "too_tight"
    with pytest.raises(CalibrationError) as caught:
        calibrate.noise_multiplier(make, 1.0, 1e-5, ADD, "gdp")
    assert caught.value.reason == "too_tight"


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("family", ["gaussian", "laplace"])
@pytest.mark.parametrize("queries", [1, 640])
def test_votes_are_solved_for(family, queries, accountant, relation):
    def make(scale):
        return [Charge(NoisyMax(family, scale), queries)]

    for epsilon in (0.5, 3.0):
        scale = calibrate.noise_multiplier(make, epsilon, 1e-5, relation, accountant)
        assert (
            0.999 * epsilon
            <= rounding.round_up(accountants.epsilon(make(scale), 1e-5, relation, accountant))
            <= epsilon
        )
        assert calibrate.calibrate_count(NoisyMax(family, scale), epsilon, 1e-5, relation, accountant) == queries


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_votes_are_solved_for_beside_what_is_published(accountant):
    published = Charge(SanitisedCost(0.03, 9.0, 12.0), 1)

    def make(scale):
        return [Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", scale), 300), published]

    scale = calibrate.noise_multiplier(make, 3.0, 1e-5, ADD, accountant)
    assert 0.999 * 3 <= rounding.round_up(accountants.epsilon(make(scale), 1e-5, ADD, accountant)) <= 3.0
    more = calibrate.calibrate_count(NoisyThreshold(150.0), 3.0, 1e-5, ADD, accountant, make(1.1 * scale))
    assert accountants.epsilon([*make(1.1 * scale), Charge(NoisyThreshold(150.0), more)], 1e-5, ADD, accountant) <= 3.0
    assert more > 10
    with pytest.raises(CalibrationError, match="still above"):
        calibrate.noise_multiplier(make, 0.5, 1e-5, ADD, accountant)
