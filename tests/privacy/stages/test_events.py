"""Events of stages: what they cost alone and beside training, and what calibration makes of them."""

import itertools
import json
import math
from pathlib import Path

import pytest

from dprecipe.privacy import accountants, calibrate, gdp
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.privacy.screen import surely_within
from dprecipe.privacy.stages.events import (
    MAX_ITEMS,
    NoisyCount,
    NoisyCovariance,
    NoisyMoments,
    NoisyQuantile,
    PartitionSelection,
)

ADD, REPLACE, ZERO = Neighbouring
GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "stages.json").read_text())["records"]
STAGES = [
    NoisyMoments(14, 1.0, 1.0, 0.9, 20.0),
    NoisyMoments(3, 2.0, 0.5, 0.0, 20.0),
    NoisyCovariance(60, 15.0),
    NoisyCount(30.0),
    NoisyQuantile(0.1, 10.0),
    PartitionSelection(4, 208.97, 20.0),
]
KINDS = [f"{event.kind}-{place}" for place, event in enumerate(STAGES)]


def records(group):
    result = [record for record in GOLDEN if record["group"] == group]
    assert result
    return result


def selection(inputs, threshold):
    items = inputs["k"]
    return Charge(PartitionSelection(items, threshold, inputs["sigma"] / math.sqrt(items)), 1)


def relation_of(inputs):
    return ADD if inputs["relation"] == "add" else REPLACE


def test_stored_deltas_of_items():
    for record in records("stage_stability_gauss_delta"):
        i = record["inputs"]
        result = accountants.delta([selection(i, i["tau"])], i["eps"], relation_of(i), "pld")
        assert record["value"] * (1 - 1e-12) <= result
        assert result == pytest.approx(record["value"], rel=1e-4)


def test_stored_thresholds_of_items():
    for record in records("stage_stability_gauss_tau"):
        i = record["inputs"]
        charges = [selection(i, record["value"])]
        assert accountants.delta(charges, i["eps"], relation_of(i), "pld") == pytest.approx(i["delta"], rel=1e-4)


def test_a_threshold_leaks_what_it_is_chosen_for():
    event = PartitionSelection.with_leak(16, 5e-6, 5.0)
    assert event.noise_scale == 20.0
    assert event.threshold == pytest.approx(100.7, abs=0.05)
    for items, leak in ((1, 1e-5), (16, 5e-6), (64, 1e-12), (3, 0.3), (MAX_ITEMS, 1e-9)):
        event = PartitionSelection.with_leak(items, leak, 7.0)
        assert leak * (1 - 1e-8) <= event.leak <= leak
        assert event.with_noise(70.0).leak == pytest.approx(leak, rel=1e-8)
    for leak in (0.0, 1.0, math.nan, -1e-6):
        with pytest.raises(ValueError, match="leak"):
            PartitionSelection.with_leak(4, leak, 7.0)
    assert PartitionSelection(1, 1.0, 5.0).with_noise(1e6).threshold == 1.0
    for threshold in (0.999, -3.0, math.nan):
        with pytest.raises(ValueError, match="threshold"):
            PartitionSelection(1, threshold, 5.0)
    with pytest.raises(ValueError, match="max_items"):
        PartitionSelection(MAX_ITEMS + 1, 10.0, 1.0)


@pytest.mark.parametrize(
    ("event", "added", "replaced"),
    [
        (NoisyMoments(9, 1.0, 1.0, 0.0, 4.0), 1 / 4, 2 / 4),
        (NoisyMoments(9, 1.0, 1.0, 3.0, 4.0), 1 / 4, 6 / math.sqrt(18) / 4),
        (NoisyMoments(1, 1.0, 1.0, 9.0, 4.0), 1 / 4, 1 / 4),
        (NoisyMoments(2, 1.665, 1.0, 0.0, 4.0), 1 / 4, 2 / 1.665 / 4),
        (NoisyCovariance(9, 4.0), 1 / 4, math.sqrt(2) / 4),
        (NoisyCount(4.0), 1 / 4, 1 / 4),
    ],
    ids=str,
)
def test_gaussian_stages_cost_what_their_sensitivity_says(event, added, replaced):
    for relation, mu in ((ADD, added), (ZERO, added), (REPLACE, replaced)):
        result = accountants.epsilon_answer([Charge(event, 3)], 1e-5, relation, "pld")
        assert result.accountant == "gdp"
        assert result.value == pytest.approx(gdp.epsilon(math.sqrt(3) * mu, 1e-5), rel=1e-9)


@pytest.mark.parametrize("field", [{"centre": 1.1}, {"centre": -0.1}, {"count_weight": -1.0}, {"columns": 0}], ids=str)
def test_impossible_moments_are_no_event(field):
    sound = {"columns": 2, "square_weight": 1.0, "centre": 1.0, "count_weight": 0.0, "noise_multiplier": 1.0}
    NoisyMoments(**sound)
    with pytest.raises(ValueError, match="expected"):
        NoisyMoments(**{**sound, **field})


def test_quantiles_compose_by_the_better_of_two_bounds():
    """Alone the distribution is exact; of many, the curve is less than what bounds any sequence of them."""
    quantile = NoisyQuantile(0.5, 2.0)
    assert accountants.delta([Charge(quantile, 1)], 0.25, ADD, "pld") == pytest.approx(0.03509035, rel=1e-4)
    assert accountants.epsilon([Charge(quantile, 1)], 1e-12, ADD, "pld") <= 0.5 * (1 + 1e-4)
    many = accountants.epsilon_answer([Charge(quantile, 50)], 1e-5, ADD, "pld")
    assert many.accountant == "rdp"
    gaussian = gdp.epsilon(math.sqrt(50) * 0.25, 1e-5)
    assert gaussian < many.value < 1.1 * gaussian
    for level, ratio in ((0.5, 2.0), (0.9, 1 / 0.9)):
        event = NoisyQuantile(level, 3.0)
        assert event.loss_range(REPLACE) == pytest.approx(ratio * event.loss_range(ADD))
        assert event.rank_weight == pytest.approx(1 / (2 * max(level, 1 - level) * 3.0))
    with pytest.raises(ValueError, match="level"):
        NoisyQuantile(1.0, 1.0)


def pipeline():
    (record,) = records("stage_pipeline_pld")
    i = record["inputs"]
    training = Charge(PoissonGaussian(i["training"]["q"], i["training"]["sigma"]), i["training"]["steps"])
    items = i["vocabulary"]
    parts = [
        training,
        Charge(NoisyMoments(14, 1.0, 1.0, 0.0, 1 / i["standardise_mu"]), 1),
        Charge(NoisyCovariance(784, 1 / i["pca_mu"]), 1),
        Charge(NoisyQuantile(0.5, 1 / i["quantile_bounded_range"]), 1),
        Charge(PartitionSelection(items["k"], items["tau"], items["sigma"] / math.sqrt(items["k"])), 1),
    ]
    return parts, record["value"]


def test_stages_beside_training_cost_little_more():
    """A stored run: 1.0912 by one composition, 1.81 by the sum of its parts, 1.0000 without stages."""
    parts, want = pipeline()
    result = accountants.epsilon_answer(parts, 1e-5, ADD, "pld")
    assert result.accountant == "pld"
    assert want - 1e-6 <= result.value <= want * (1 + 1e-4)
    assert sum(accountants.epsilon([part], 2e-6, ADD, "pld") for part in parts) == pytest.approx(1.81, abs=0.01)
    assert accountants.epsilon(parts[:1], 1e-5, ADD, "pld") == pytest.approx(1.0, abs=2e-4)
    assert accountants.delta(parts, result.value, ADD, "pld") == pytest.approx(1e-5, rel=2e-3)
    assert accountants.epsilon(parts, 1e-5, ZERO, "pld") == result.value
    assert result.value < accountants.epsilon(parts, 1e-5, ADD, "rdp") < 1.2


def test_a_guarantee_has_a_profile_that_falls():
    parts, _ = pipeline()
    result = accountants.guarantee(parts, 1e-5, ADD, "record", "pld")
    assert [result.accountant, result.alternative_accountant] == ["pld", "rdp"]
    deltas = [delta for _, delta in result.profile]
    assert len(deltas) >= 10
    assert deltas == sorted(deltas, reverse=True)
    assert min(deltas) >= parts[-1].event.leak


@pytest.mark.parametrize("relation", list(Neighbouring))
@pytest.mark.parametrize("event", STAGES, ids=KINDS)
def test_more_noise_costs_less(event, relation):
    training = Charge(PoissonGaussian(0.02, 1.2), 100)
    for charges in ([], [training]):
        noises = [event.noise_multiplier * factor for factor in (0.5, 1.0, 4.0)]
        result = [event.with_noise(noise) for noise in noises]
        assert [one.noise_multiplier for one in result] == noises
        costs = [accountants.epsilon([*charges, Charge(one, 1)], 1e-5, relation, "pld") for one in result]
        assert all(less < more for more, less in itertools.pairwise(costs))
        assert math.isfinite(costs[0])


@pytest.mark.parametrize("event", STAGES, ids=KINDS)
def test_a_share_of_the_budget_makes_a_multiplier(event):
    for relation in (ADD, REPLACE):
        noise = calibrate.noise_multiplier(
            lambda sigma: [Charge(event.with_noise(sigma), 1)], 0.2, 1e-5, relation, "pld"
        )
        cost = accountants.epsilon([Charge(event.with_noise(noise), 1)], 1e-5, relation, "pld")
        assert 0.999 * 0.2 <= cost <= 0.2


def test_training_gets_what_stages_leave():
    stages = [Charge(event, 1) for event in STAGES]

    def steps(sigma):
        return [Charge(PoissonGaussian(0.02, sigma), 300)]

    def solve(charges):
        return calibrate.noise_multiplier(lambda sigma: [*charges, *steps(sigma)], 1.0, 1e-5, ADD, "pld")

    alone, beside = solve([]), solve(stages)
    assert alone < beside
    cost = accountants.epsilon([*stages, *steps(beside)], 1e-5, ADD, "pld")
    assert 0.999 <= cost <= 1.0
    with pytest.raises(calibrate.CalibrationError) as error:
        solve([Charge(NoisyCovariance(5, 2.0), 1)])
    assert error.value.reason == "too_tight"


@pytest.mark.parametrize("event", STAGES, ids=KINDS)
def test_a_stage_gets_what_training_leaves(event):
    training = Charge(PoissonGaussian(0.02, 2.0), 300)
    budget = 1.1 * accountants.epsilon([training], 1e-5, ADD, "pld")
    noise = calibrate.noise_multiplier(
        lambda sigma: [Charge(event.with_noise(sigma), 1), training], budget, 1e-5, ADD, "pld"
    )
    cost = accountants.epsilon([Charge(event.with_noise(noise), 1), training], 1e-5, ADD, "pld")
    assert 0.999 * budget <= cost <= budget


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_the_first_look_agrees_with_the_accountants(relation):
    bounded, items = [Charge(event, 2) for event in STAGES[:-1]], Charge(STAGES[-1], 1)
    cost = accountants.epsilon(bounded, 1e-5, relation, "rdp")
    assert not surely_within(bounded, 0.995 * cost, 1e-5, relation)
    assert surely_within(bounded, 1.05 * cost, 1e-5, relation)
    assert not surely_within([*bounded, items], 1e3, 1e-5, relation)  # there is no bound for what may be told
