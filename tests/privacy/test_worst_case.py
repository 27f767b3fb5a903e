"""The largest cost of all cases: against every case one by one, and against releases that are enumerated."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dprecipe.privacy import accountants, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.stages.events import PartitionSelection
from dprecipe.privacy.worst_case import Items, worst_deltas, worst_epsilon

ADD, REPLACE, ZERO = Neighbouring


def exact_delta(items, relation, epsilon, mu_squared):
    """Every case, by the closed form of Gaussians."""
    sides = [range(part.count + 1) for part in items]
    best = 0.0
    for before in itertools.product(*sides):
        for after in itertools.product(*sides) if relation is REPLACE else [[0] * len(items), before]:
            first = [0] * len(items) if relation is ADD and after is before else before
            second = after if relation is REPLACE or after is before else [0] * len(items)
            told, kept = (sum(n * part.leak for n, part in zip(side, items, strict=True)) for side in (first, second))
            total = 2 if relation is REPLACE else 1
            mu = math.sqrt(
                mu_squared
                + sum(
                    (total * part.count - i - j) * part.squared_mu
                    for i, j, part in zip(first, second, items, strict=True)
                )
            )
            best = max(best, -math.expm1(-told) + math.exp(-told) * gdp.delta(mu, epsilon + told - kept))
    return best


CASES = [
    [Items(1, 0.02, 1e-6)],
    [Items(5, 0.02, 1e-6)],
    [Items(5, 1e-4, 3e-6)],
    [Items(12, 0.001, 1e-3)],
    [Items(3, 0.05, 0.2)],
    [Items(3, 0.01, 1e-6), Items(4, 0.0004, 4e-6)],
    [Items(2, 0.3, 1e-2), Items(2, 1e-6, 1e-4), Items(1, 0.01, 1e-9)],
]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("items", CASES, ids=str)
def test_it_is_the_largest_of_all_cases(items, relation):
    calls = []

    def deltas_of(squared_mu, epsilons):
        calls.append(squared_mu)
        return [Answer(gdp.delta(math.sqrt(0.04 + squared_mu), e), "gdp") for e in epsilons]

    epsilons = [0.0, 1e-5, 0.4, 1.5]
    result = worst_deltas(items, relation, epsilons, deltas_of)
    for epsilon, answer in zip(epsilons, result, strict=True):
        want = exact_delta(items, relation, epsilon, 0.04)
        assert want * (1 - 1e-10) <= answer.value <= want * (1 + 1.01e-4)
    assert len(calls) <= 250

    def epsilon_of(squared_mu, delta):
        return Answer(gdp.epsilon(math.sqrt(0.04 + squared_mu), delta), "gdp")

    leaks = -math.expm1(-sum(part.count * part.leak for part in items))
    for delta in (1.001 * leaks + 1e-9, 1.2 * leaks + 1e-5):
        result = worst_epsilon(items, relation, delta, epsilon_of).value
        assert exact_delta(items, relation, result, 0.04) <= delta * (1 + 1e-9)
        least = sum(part.count * part.leak for part in items)  # where the rest costs nothing
        assert result <= least or exact_delta(items, relation, result * (1 - 3e-5) - 1e-12, 0.04) > delta


def test_many_items_take_few_questions():
    calls = []

    def epsilon_of(squared_mu, delta):
        calls.append(squared_mu)
        return Answer(gdp.epsilon(math.sqrt(squared_mu), delta), "gdp")

    items = [Items(1000, 1e-5, 1e-9), Items(64, 1e-4, 1e-8)]
    value = worst_epsilon(items, ADD, 1e-5, epsilon_of).value
    assert len(calls) <= 200
    shared = gdp.epsilon(math.sqrt(1000 * 1e-5 + 64 * 1e-4), 1e-5)
    assert shared <= value <= shared * 1.02


def test_a_leak_above_delta_has_no_epsilon():
    def epsilon_of(squared_mu, delta):
        return Answer(gdp.epsilon(math.sqrt(squared_mu), delta), "gdp")

    assert worst_epsilon([Items(2, 0.01, 1e-5)], ADD, 1e-5, epsilon_of).value == math.inf
    assert worst_deltas([Items(2, 0.01, 1e-5)], ADD, [], lambda _m, _e: []) == []


def outcome_masses(count, sigma, threshold, cells):
    """Masses of what one item's noisy count says: nothing, or in which cell above the threshold it is."""
    if count == 0:
        return np.concatenate([[1.0], np.zeros(len(cells) - 1)])
    return np.concatenate([[stats.norm.cdf(threshold, count, sigma)], np.diff(stats.norm.cdf(cells, count, sigma))])


def hockey_stick(some, others, epsilon):
    p = np.multiply.outer(*some) if len(some) == 2 else some[0]
    q = np.multiply.outer(*others) if len(others) == 2 else others[0]
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_enumerated_releases_attain_it_and_never_exceed_it(epsilon):
    """Of one or two items of a unit, others have 0 to 60: δ of what is released, in cells, of either data set."""
    sigma, threshold = 2.0, 5.0
    cells = np.concatenate([[threshold], np.linspace(threshold, 80, 300)[1:-1], [np.inf]])
    counts = [0, 1, 3, 7, 60]
    masses = {n: outcome_masses(n, sigma, threshold, cells) for n in {*counts, *(n + 1 for n in counts)}}
    most = 0.0
    for pair in itertools.combinations_with_replacement(counts, 2):
        have, lack = [masses[n + 1] for n in pair], [masses[n] for n in pair]
        most = max(most, hockey_stick(have, lack, epsilon), hockey_stick(lack, have, epsilon))
    two = PartitionSelection(2, threshold, sigma / math.sqrt(2))
    claim = accountants.delta([Charge(two, 1)], epsilon, ADD, "pld")
    assert 0.98 * claim <= most <= claim * (1 + 1e-9)
    one = PartitionSelection(1, threshold, sigma)
    most = 0.0
    for first, second in itertools.product(counts, repeat=2):  # one item gives way to another
        before, after = [masses[first + 1], masses[second]], [masses[first], masses[second + 1]]
        most = max(most, hockey_stick(before, after, epsilon))
    claim = accountants.delta([Charge(one, 1)], epsilon, REPLACE, "pld")
    assert 0.98 * claim <= most <= claim * (1 + 1e-9)


ITEMS = Charge(PartitionSelection(4, 208.97, 20.0), 1)
OTHERS = [Charge(PoissonGaussian(0.01, 1.0), 200), Charge(Gaussian(15.0), 1)]


@pytest.mark.parametrize("relation", [ADD, REPLACE, ZERO])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp_classic"])
def test_every_accountant_takes_the_maximum_at_the_end(relation, accountant):
    """By hand: the rest with each number of shared items, asked by the same accountant."""
    event, delta = ITEMS.event, 1e-5
    replaced = relation is REPLACE
    best = 0.0
    for i, j in itertools.product(range(5), range(5)):
        if not replaced and i and j:
            continue
        moved = (8 if replaced else 4) - i - j
        scale = event.noise_scale / math.sqrt(moved) * (2 if replaced else 1) if moved else None
        rest = [*OTHERS, *([Charge(Gaussian(scale), 1)] if scale else [])]
        log_p = float(stats.norm.logcdf((event.threshold - 1) / event.noise_scale))
        inner = (delta - 1 + math.exp(i * log_p)) / math.exp(i * log_p)
        best = max(best, accountants.epsilon(rest, inner, relation, accountant) + (i - j) * log_p)
    result = accountants.epsilon_answer([*OTHERS, ITEMS], delta, relation, accountant)
    assert result.accountant == accountant
    assert result.value == pytest.approx(best, rel=3e-5)
    at = accountants.delta([*OTHERS, ITEMS], result.value, relation, accountant)
    assert at == pytest.approx(delta, rel=2e-3)


def test_the_gaussian_accountant_has_no_bound_and_no_profile_is_composed():
    assert accountants.epsilon([ITEMS], 1e-5, ADD, "gdp") == math.inf
    assert accountants.delta([ITEMS], 1.0, ADD, "gdp") == 1.0


def test_two_steps_take_the_maximum_in_each():
    charges = [Charge(PoissonLaplace(0.01, 2.0), 50), ITEMS]
    value = accountants.epsilon(charges, 1e-5, REPLACE, "pld")
    half = value / 2
    step = accountants.delta(charges, half, ADD, "pld")
    assert (1 + math.exp(half)) * step == pytest.approx(1e-5, rel=2e-3)
    assert accountants.delta(charges, value, REPLACE, "pld") == pytest.approx(1e-5, rel=2e-3)


def test_two_vocabularies_cost_less_than_both_at_their_worst():
    small, large = PartitionSelection.with_leak(1, 2e-6, 12.0), PartitionSelection.with_leak(16, 5e-6, 25.0)
    charges = [*OTHERS, Charge(small, 2), Charge(large, 1)]
    value = accountants.epsilon(charges, 1e-5, ADD, "pld")
    shared = [*OTHERS, Charge(Gaussian(12.0), 2), Charge(Gaussian(25.0), 1)]
    leaks = 1 - (1 - small.leak) ** 2 * (1 - large.leak)
    assert accountants.epsilon(shared, 1e-5, ADD, "pld") <= value
    assert value < accountants.epsilon(shared, 1e-5 - leaks, ADD, "pld")
