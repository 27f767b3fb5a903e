"""dp-accounting behind its function agrees with our own distributions, quietly."""

import logging
import math
import warnings

import pytest

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian, TruncatedPoissonGaussian
from dprecipe.release import recompute

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE

CONFIGS = [
    [Charge(PoissonGaussian(0.01, 1.0), 1000)],
    [Charge(PoissonGaussian(0.2, 4.0), 300)],
    [Charge(PoissonGaussian(0.001, 0.5), 5000)],
    [Charge(PoissonGaussian(0.02, 1.5), 200), Charge(PoissonGaussian(0.005, 0.8), 500), Charge(Gaussian(5.0), 3)],
    [Charge(PoissonGaussian(1.0, 10.0), 40)],
    [Charge(Gaussian(2.0), 1), Charge(Gaussian(3.0), 2)],
    [Charge(DealtGaussian(8.0, 117), 20)],
]


def agree(charges, relation):
    ours = accountants.epsilon(charges, 1e-6, relation, "pld")
    theirs = cross_check.ask_library(charges, 1e-6, relation)
    assert theirs.name == "dp_accounting.pld"
    assert theirs.epsilon == pytest.approx(ours, rel=2e-4)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("charges", [CONFIGS[0], CONFIGS[6]])
def test_two_independent_distributions_agree(charges, relation):
    agree(charges, relation)


@pytest.mark.slow
@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("charges", CONFIGS)
def test_two_independent_distributions_agree_on_a_grid_of_configurations(charges, relation):
    agree(charges, relation)


def test_integer_multipliers_are_not_misread():
    """Handed integers, dp-accounting 0.6.0 answers for the first multiplier of a composition alone."""
    integers = [Charge(Gaussian(2), 1), Charge(Gaussian(3), 1)]
    floats = [Charge(Gaussian(2.0), 1), Charge(Gaussian(3.0), 1)]
    assert cross_check.ask_library(integers, 1e-5, ADD).epsilon == cross_check.ask_library(floats, 1e-5, ADD).epsilon
    assert cross_check.ask_library(floats, 1e-5, ADD).epsilon > cross_check.ask_library(floats[:1], 1e-5, ADD).epsilon


@pytest.mark.slow
def test_it_says_when_only_its_renyi_accountant_could_answer(monkeypatch):
    from dp_accounting import pld

    def fail(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(pld.PLDAccountant, "get_epsilon", fail)
    charges = [Charge(PoissonGaussian(0.01, 1.0), 1000)]
    answer = cross_check.ask_library(charges, 1e-5, ADD)
    assert answer.name == "dp_accounting.rdp"
    assert answer.epsilon == pytest.approx(accountants.epsilon(charges, 1e-5, ADD, "rdp"), rel=1e-2)
    gaussian = cross_check.ask_library([Charge(Gaussian(5.0), 3)], 1e-5, REPLACE)
    assert gaussian.epsilon >= accountants.epsilon([Charge(Gaussian(5.0), 3)], 1e-5, REPLACE, "gdp")
    # no Rényi accountant of theirs knows this pair: no answer is better than a wrong one
    assert cross_check.ask_library(charges, 1e-5, REPLACE).epsilon == float("inf")


def test_a_question_is_answered_once_whether_or_not_memory_may_run_out(monkeypatch):
    from dp_accounting import pld

    asked, ask = [], pld.PLDAccountant.get_epsilon
    monkeypatch.setattr(pld.PLDAccountant, "get_epsilon", lambda *args, **kw: asked.append(1) or ask(*args, **kw))
    charges = [Charge(PoissonGaussian(0.015625, 1.7), 7)]
    answers = [cross_check.ask_library(charges, 1e-5, ADD, or_renyi) for or_renyi in (True, False)]
    assert len(asked) == 1
    assert answers[0] == answers[1]


def test_it_is_quiet_and_leaves_logging_as_it_was(capfd):
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = cross_check.ask_library(CONFIGS[0], 1e-5, ADD)
    assert answer.version[0].isdigit()
    assert logging.root.manager.disable == before
    assert capfd.readouterr() == ("", "")


def test_nothing_costs_nothing_and_nonsense_is_refused():
    assert cross_check.ask_library([], 1e-5, ADD).epsilon == 0.0
    with pytest.raises(ValueError, match="delta"):
        cross_check.ask_library([], 0.0, ADD)


def code(family, shape, shifts, q=0.02, scale=1.0, exchanged=False):
    return EncodedSum(q, scale, family, shape, shifts, exchanged, "sha256:" + "0" * 64)


DISTRIBUTIONS = [
    ("laplace", None),
    ("student_t", 9.0),
    ("student_t", 0.7),
    ("cauchy", None),
    ("variance_gamma", 3.0),
    ("sech", None),
]
FEW_LAWS = [
    DISTRIBUTIONS[0],
    DISTRIBUTIONS[-1],
    *(pytest.param(*distribution, marks=pytest.mark.slow) for distribution in DISTRIBUTIONS[1:-1]),
]
"""Where a distribution takes seconds: the others are slow tests."""
FEW, MANY = ((0.2, 7), (0.5, 2)), ((0.002, 20_000), (0.01, 3000), (0.04, 30))


def codes_agree(charges, relation, name, rel):
    ours = accountants.epsilon(charges, 1e-6, relation, "pld" if name == "dp_accounting.pld" else "rdp")
    theirs = cross_check.ask_library(charges, 1e-6, relation)
    assert theirs.name == name
    assert theirs.epsilon == pytest.approx(ours, rel=rel)


@pytest.mark.parametrize("shifts", [FEW, MANY])
@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_two_independent_distributions_of_codes_agree(family, shape, shifts):
    for event, count in [(code(family, shape, shifts), 1000), (code(family, shape, shifts, q=1.0, scale=10.0), 2)]:
        codes_agree([Charge(event, count)], ADD, "dp_accounting.pld", 5e-4)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_codes_among_other_events_and_other_distributions(relation):
    charges = [Charge(code("laplace", None, FEW), 300), Charge(code("sech", None, MANY, scale=2.0), 500)]
    charges += [Charge(PoissonGaussian(0.01, 1.0), 500), Charge(Gaussian(5.0), 2)]
    codes_agree(charges, relation, "dp_accounting.pld", 5e-4)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(("family", "shape"), FEW_LAWS)
def test_exchanged_codes_and_too_many_are_left_to_renyi(family, shape, relation):
    codes_agree([Charge(code(family, shape, FEW, exchanged=True), 300)], relation, "dp_accounting.rdp", 5e-3)
    huge = ((1e-4, 3 * 10**7), *((1e-3 + k * 1e-6, 100) for k in range(300)))
    charges = [Charge(code(family, shape, huge), 500), Charge(PoissonGaussian(0.01, 1.0), 50), Charge(Gaussian(8.0), 1)]
    codes_agree(charges, relation, "dp_accounting.rdp", 5e-3)


def test_steep_codes_are_left_to_renyi():
    assert cross_check.ask_library([Charge(code("laplace", None, FEW, scale=1e-4), 1)], 1e-6, ADD).epsilon > 1e3
    assert (
        cross_check.ask_library([Charge(code("laplace", None, FEW, scale=1e-4), 1)], 1e-6, REPLACE).epsilon == math.inf
    )


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize("shifts", [((0.125, 64),), ((0.0, 3), (0.125, 64))])
def test_exchanged_codes_of_one_bound_are_cross_checked(shifts):
    charges = [Charge(EncodedSum(0.01, 0.5, "sech", None, shifts, True, DIGEST), 1000)]
    for relation in Neighbouring:
        ours = accountants.epsilon(charges, 1e-5, relation, "rdp")
        assert cross_check.ask_library(charges, 1e-5, relation).epsilon == pytest.approx(ours, rel=2e-2)


def test_a_replacement_at_a_tiny_delta_is_not_left_to_transforms():
    """An independent inversion of characteristic functions finds δ at ε = 28.80 to be 3.3 times what is allowed."""
    event = EncodedSum(1.0, 36.87, "variance_gamma", 1.0, ((0.107435, 12), (0.267938, 12)), False, DIGEST)
    answer = cross_check.ask_library([Charge(event, 4090)], 4.75e-9, Neighbouring.REPLACE_ONE)
    assert answer.epsilon > 29.4


@pytest.mark.parametrize("small", [10**9 - 1, 10**8])
def test_a_grid_of_too_many_points_is_not_built(small):
    event = EncodedSum(0.01, 0.02, "laplace", None, ((1e-7, small), (1.0, 1)), False, DIGEST)
    answer = cross_check.ask_library([Charge(event, 10)], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE)
    assert answer.name == "dp_accounting.rdp"
    assert math.isfinite(answer.epsilon)


@pytest.mark.parametrize(
    ("event", "steps", "delta", "relation"),
    [
        (
            EncodedSum(0.001, 2.826, "student_t", 0.5, ((0.00216508, 825), (0.0347481, 825)), False, DIGEST),
            212,
            1.6e-8,
            1,
        ),
        (EncodedSum(0.001, 2.97, "cauchy", None, ((0.0076889, 16915),), False, DIGEST), 6857, 2.75e-6, 0),
        (EncodedSum(0.001, 0.1376, "variance_gamma", 8.0, ((0.00465757, 46098),), False, DIGEST), 8044, 6.41e-8, 1),
        pytest.param(
            EncodedSum(0.3, 2.618, "student_t", 3.0, ((0.00354292, 79667),), False, DIGEST),
            315,
            1.27e-7,
            1,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_codes_on_coarse_grids_stay_within_what_verify_allows(event, steps, delta, relation):
    relation = list(Neighbouring)[relation]
    ours = accountants.epsilon([Charge(event, steps)], delta, relation, "pld")
    answer = cross_check.ask_library([Charge(event, steps)], delta, relation)
    part, much = event.cross_check_tolerance
    if answer.name == "dp_accounting.pld":
        assert answer.epsilon <= ours * (1 + part) + much
    else:
        renyi = accountants.epsilon([Charge(event, steps)], delta, relation, "rdp")
        assert answer.epsilon == pytest.approx(renyi, rel=recompute.RENYI_ORDERS)


def test_phases_of_gaussian_and_other_noise_are_counted_together():
    event = EncodedSum(0.01, 1.0, "laplace", None, ((0.1, 100),), False, DIGEST)
    parts = [Charge(PoissonGaussian(0.01, 1.0), 300), Charge(event, 300)]
    both = cross_check.ask_library(parts, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE).epsilon
    assert both > max(cross_check.ask_library([part], 1e-5, Neighbouring.ADD_OR_REMOVE_ONE).epsilon for part in parts)
    assert both == pytest.approx(accountants.epsilon(parts, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld"), rel=5e-3)


CHECKS = [Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", 40.0), 341), Charge(FilterRest(3.0), 1)]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    "charges",
    [
        CHECKS,
        pytest.param([*CHECKS, *CHECKS[::-1]], marks=pytest.mark.slow),
        [Charge(NoisyMax("gaussian", 3.0), 1)],
        [Charge(NoisyMax("gaussian", 4000.0), 100_000)],
        [Charge(NoisyMax("laplace", 20.0), 1)],
        pytest.param([Charge(NoisyMax("laplace", 20.0), 640)], marks=pytest.mark.slow),
        [Charge(NoisyMax("laplace", 2.0), 640)],
        [Charge(NoisyMax("laplace", 3000.0), 100_000)],
        [Charge(NoisyMax("laplace", 50.0), 100), *CHECKS],
    ],
    ids=str,
)
def test_votes_are_given_to_the_library_as_they_are(charges, relation):
    ours = accountants.epsilon(charges, 1e-5, relation, "pld")
    theirs = cross_check.ask_library(charges, 1e-5, relation)
    assert theirs.name == "dp_accounting.pld"
    assert theirs.epsilon == pytest.approx(ours, rel=6e-4)
    part, much = charges[0].event.cross_check_tolerance
    assert theirs.epsilon <= ours * (1 + part) + much


@pytest.mark.parametrize(
    "charges", [CHECKS, [Charge(NoisyMax("laplace", 20.0), 640)], [Charge(NoisyMax("laplace", 20.0), 3)]]
)
def test_votes_at_a_tiny_delta_are_left_to_renyi(charges):
    theirs = cross_check.ask_library(charges, 1e-15, REPLACE)
    assert theirs.name == "dp_accounting.rdp"
    assert theirs.epsilon == pytest.approx(accountants.epsilon(charges, 1e-15, REPLACE, "rdp"), rel=2e-3)


@pytest.mark.parametrize("delta", [1e-5, pytest.param(1e-10, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "event",
    [
        SanitisedCost(0.03, 9.0, 12.0),
        SanitisedCost(0.001, 30.0, 40.0),
        SanitisedCost(0.3, 2.0, 2.0),
        SanitisedCost(2.0, 9.0, 9.0),
    ],
    ids=str,
)
def test_sanitised_costs_by_quadrature(event, delta):
    for votes in (CHECKS, [], [Charge(NoisyMax("laplace", 20.0), 50)]):
        charges = [*votes, Charge(event, 1)]
        ours = accountants.epsilon(charges, delta, ADD, "pld")
        theirs = cross_check.ask_library(charges, delta, REPLACE)
        assert theirs.name == "dp_accounting.rdp"
        assert theirs.epsilon == pytest.approx(ours, rel=5e-3)


@pytest.mark.parametrize(("sigma", "rate", "steps", "delta"), [(27.5, 2e-4, 90_000, 2e-11), (3.5e4, 0.8, 80, 2e-5)])
def test_a_small_epsilon_is_asked_for_on_a_finer_grid(sigma: float, rate: float, steps: int, delta: float) -> None:
    """On the usual grid the library's ε is up to twice as large, so that an honest release would not verify."""
    charges = [Charge(PoissonGaussian(rate, sigma), steps)]
    for relation in (Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.ZERO_OUT_ONE):
        claim = accountants.epsilon(charges, delta, relation, "pld")
        assert 0 < claim < 0.05
        assert cross_check.ask_library(charges, delta, relation).epsilon <= claim * 1.001 + 2e-5


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("event", "count", "delta"),
    [
        (FixedSizeGaussian(1_000_000, 3, 5.0), 100, 4e-11),
        (FixedSizeGaussian(60_000, 60, 30.0), 100, 1e-7),
        (TruncatedPoissonGaussian(1e-3, 30.0, 60_000, 70), 100, 1e-7),
        (PoissonGaussian(3e-6, 2.0), 1000, 4e-11),
    ],
)
def test_a_tiny_epsilon_is_asked_for_on_a_finer_grid(event, count, delta, relation):
    """On the usual grid the library's ε is up to ten times the claim."""
    charges = (Charge(event, count),)
    ours = accountants.epsilon(charges, delta, relation, "pld")
    answer = cross_check.ask_library(charges, delta, relation)
    assert answer.name == "dp_accounting.pld"
    assert 0 < answer.epsilon <= ours * 1.001


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "count", "delta", "relation"),
    [
        (PermutedGaussian(1438, 128, 11, 3.0), 10, 1e-12, Neighbouring.ZERO_OUT_ONE),
        (PermutedGaussian(1438, 128, 11, 3.0), 10, 1e-11, REPLACE),
        (DealtGaussian(0.5, 12), 5, 1e-6, REPLACE),
        (DealtGaussian(3.0, 12), 10, 1e-18, ADD),
        (PoissonGaussian(0.09, 3.0), 113, 1e-14, ADD),
    ],
)
def test_where_rounding_would_decide_curves_are_compared(event, count, delta, relation):
    charges = (Charge(event, count),)
    answer = cross_check.ask_library(charges, delta, relation)
    curves = accountants.epsilon(charges, delta, relation, "rdp")
    assert answer.name == "dp_accounting.rdp"
    assert answer.epsilon == pytest.approx(curves, rel=recompute.RENYI_ORDERS)
    assert accountants.epsilon(charges, delta, relation, "pld") <= curves
