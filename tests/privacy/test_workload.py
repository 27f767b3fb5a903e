"""What composition needs of a list of charges."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian
from dprecipe.privacy.workload import summarise_charges

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
RECORDS = json.loads((Path(__file__).parents[1] / "golden" / "accounting.json").read_text())["records"]


def test_equal_steps_are_counted_together_in_any_order():
    a, b = PoissonGaussian(0.01, 1.0), PoissonGaussian(0.02, 2.0)
    first = summarise_charges([Charge(a, 3), Charge(b, 1), Charge(a, 4)], ADD)
    assert first.parts == (Charge(a, 7), Charge(b, 1))
    assert first == summarise_charges([Charge(b, 1), Charge(a, 7)], ADD)
    assert first.steps == 8


def test_unsampled_steps_are_one_gaussian():
    charges = [Charge(Gaussian(2.0), 3), Charge(Gaussian(4.0), 2), Charge(PoissonGaussian(1.0, 5.0), 1)]
    mu = math.sqrt(3 / 4 + 2 / 16 + 1 / 25)
    assert summarise_charges(charges, ADD).mu == pytest.approx(mu, rel=1e-15)
    assert summarise_charges(charges, REPLACE).mu == pytest.approx(2 * mu, rel=1e-15)
    assert summarise_charges(charges, ADD).parts == ()


def test_layers_of_one_release_compose_to_the_golden_multiplier():
    record = next(r for r in RECORDS if r["kind"] == "per_layer_effective_noise_multiplier")
    workload = summarise_charges([Charge(Gaussian(s), 1) for s in record["inputs"]["sigmas"]], ADD)
    assert 1 / workload.mu == pytest.approx(record["value"], rel=1e-12)


def test_nothing_is_empty():
    assert summarise_charges([], ADD).empty
    assert summarise_charges([Charge(Gaussian(1.0), 0)], ADD).empty
    assert not summarise_charges([Charge(Gaussian(1.0), 1)], ADD).empty


def test_the_chance_of_ever_being_sampled():
    workload = summarise_charges([Charge(PoissonGaussian(0.1, 1.0), 2), Charge(PoissonGaussian(0.2, 1.0), 1)], ADD)
    assert workload.ever_sampled == pytest.approx(1 - 0.9**2 * 0.8, rel=1e-11)
    assert workload.ever_sampled >= 1 - 0.9**2 * 0.8


def test_an_event_that_nobody_knows_is_refused():
    with pytest.raises(TypeError, match="no accountant knows"):
        summarise_charges([Charge("a coin", 1)], ADD)  # type: ignore[arg-type]


def code(q, family="student_t", shape=9.0, scale=1.0, bound=0.1):
    return EncodedSum(q, scale, family, shape, ((bound, 100),), False, "sha256:" + "0" * 64)


def test_encoded_steps_are_kept_and_counted_in_any_order():
    a, b, c = code(0.1), code(0.1, "laplace", None), code(1.0, "student_t", 3.0)
    charges = [Charge(a, 3), Charge(b, 1), Charge(Gaussian(2.0), 1), Charge(c, 2), Charge(a, 4)]
    workload = summarise_charges(charges, ADD)
    assert set(workload.parts) == {Charge(a, 7), Charge(b, 1), Charge(c, 2)}
    assert workload == summarise_charges(charges[::-1], ADD)
    boxes = [Charge(code(0.1, bound=bound), 1) for bound in (0.3, 0.1, 0.2)]
    assert summarise_charges(boxes, ADD) == summarise_charges(boxes[::-1], ADD)
    assert (workload.steps, workload.ever_sampled, workload.mu) == (10, 1.0, 0.5)
    assert not workload.gaussian
    assert not workload.empty


def test_the_chance_of_ever_being_encoded():
    workload = summarise_charges([Charge(code(0.1), 2), Charge(PoissonGaussian(0.2, 1.0), 1)], ADD)
    assert workload.ever_sampled == pytest.approx(1 - 0.9**2 * 0.8, rel=1e-11)
    assert workload.steps == 3
    assert summarise_charges([Charge(Gaussian(1.0), 2)], ADD).gaussian
    assert not summarise_charges([Charge(code(1.0), 1)], ADD).gaussian


VOTES = [Charge(NoisyThreshold(150.0), 640), Charge(NoisyMax("gaussian", 40.0), 341), Charge(FilterRest(5.0), 1)]


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_moved_vote_is_one_vote_under_either_relation(relation):
    workload = summarise_charges(VOTES, relation)
    assert workload.mu**2 == pytest.approx(640 / 150**2 + 2 * 341 / 40**2 + 1 / 25, rel=1e-14)
    assert workload.gaussian
    assert workload == replace(summarise_charges(VOTES[::-1], ADD), requested=relation)


def test_the_moved_vote_by_brute_force():
    """Over all histograms of 5 votes in 3 classes: what one moved vote changes."""
    histograms = [(a, b, 5 - a - b) for a in range(6) for b in range(6 - a)]
    moved = [
        (one, other)
        for one in histograms
        for other in histograms
        if sum(abs(x - y) for x, y in zip(one, other, strict=True)) == 2
    ]
    squares = max(sum((x - y) ** 2 for x, y in zip(one, other, strict=True)) for one, other in moved)
    largest = max(abs(max(one) - max(other)) for one, other in moved)
    assert summarise_charges([Charge(NoisyMax("gaussian", 1.0), 1)], ADD).mu ** 2 == pytest.approx(squares, rel=1e-15)
    assert summarise_charges([Charge(NoisyThreshold(1.0), 1)], ADD).mu == largest


def test_votes_beside_other_sums_leave_those_as_they_are():
    workload = summarise_charges([*VOTES, Charge(Gaussian(2.0), 1)], REPLACE)
    assert workload.neighbouring is REPLACE
    assert workload.mu**2 == pytest.approx(summarise_charges(VOTES, ADD).mu ** 2 + 4 / 4, rel=1e-14)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_laplace_votes_are_two_coordinates(relation):
    workload = summarise_charges([Charge(NoisyMax("laplace", 20.0), 3), Charge(NoisyMax("laplace", 20.0), 4)], relation)
    ((event, count),) = ((part.event.box, part.count) for part in workload.parts)
    assert (event.family, event.noise_multiplier, event.shifts, count) == ("laplace", 20.0, ((1.0, 2),), 7)
    assert workload.neighbouring is ADD
    assert workload.mu == 0
    assert workload.max_loss == pytest.approx(7 * 2 / 20, rel=1e-11)
    assert workload.max_loss >= 0.7


def test_sanitised_costs_are_kept():
    event = SanitisedCost(0.03, 9.0, 12.0)
    workload = summarise_charges([*VOTES, Charge(event, 2), Charge(event, 0)], REPLACE)
    assert workload.parts == (Charge(event, 2),)
    assert workload.neighbouring is ADD
    assert not workload.gaussian
    assert not workload.empty
    assert workload.ever_sampled == 1.0


def test_the_max_loss_is_finite_for_laplace_noise_alone():
    laplace = Charge(code(1.0, "laplace", None, scale=2.0), 3)
    assert summarise_charges([laplace], ADD).max_loss == pytest.approx(3 * 100 * 0.1 / 2, rel=1e-11)
    sampled = summarise_charges([Charge(code(0.01, "laplace", None, scale=2.0), 3)], ADD)
    assert sampled.max_loss == pytest.approx(3 * math.log1p(0.01 * math.expm1(5.0)), rel=1e-11)
    for other in (Charge(Gaussian(9.0), 1), Charge(code(1.0), 1), Charge(SanitisedCost(0.1, 1.0, 1.0), 1)):
        assert summarise_charges([laplace, other], ADD).max_loss == math.inf
    huge = summarise_charges([Charge(code(0.5, "laplace", None, scale=1e-3), 1)], ADD)
    assert 0 < huge.max_loss < math.inf
