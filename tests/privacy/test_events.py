"""Events on their way to JSON and back, and everything untrusted that is refused."""

import copy
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprecipe.mechanisms.encoded.events import EncodedSum
from dprecipe.mechanisms.pate.events import FilterRest, NoisyMax, NoisyThreshold, SanitisedCost
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.correlated_sums import BandedGaussian, CycleGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian, PermutedGaussian
from dprecipe.privacy.event_kinds import event_kinds
from dprecipe.privacy.events import (
    MAX_ROWS,
    MAX_VALUE,
    Charge,
    charge_from_json,
    count_events,
    drop_first,
    run_lengths,
    take_first,
)
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)
from dprecipe.privacy.stages.events import (
    NoisyCount,
    NoisyCovariance,
    NoisyMoments,
    NoisyQuantile,
    PartitionSelection,
)
from dprecipe.privacy.tuning.events import SelectedBest

DIGEST = "sha256:" + "0123456789abcdef" * 4
CODE = EncodedSum(0.01, 1.2, "student_t", 9.0, ((0.0, 3), (0.01, 5000), (0.02, 1250)), False, DIGEST)
EVENTS = [
    Gaussian(1.5),
    PoissonGaussian(0.01, 1.1),
    GroupedGaussian(0.01, ((2.0, 3), (0.5, 1), (2.0, 4))),
    DealtGaussian(2.0, 117),
    CappedDealtGaussian(2.0, 117, 1000, 20, 5),
    PermutedGaussian(1000, 30, 33, 2.0),
    CycleGaussian(42.7, 0.97, 58, 3),
    BandedGaussian(3.0, 0.0683, (1.0, 0.82, 0.7462, 0.701428)),
    PoissonLaplace(0.5, 2.0),
    TruncatedPoissonGaussian(0.01, 1.1, 60_000, 640),
    FixedSizeGaussian(60_000, 256, 4.0),
    CODE,
    EncodedSum(1.0, 1e-3, "laplace", None, ((1.0, 1),), True, DIGEST),
    EncodedSum(1e-9, 1e6, "variance_gamma", 2.0, ((1e-12, 10**12),), False, DIGEST),
    ProjectedDescent("replace_one", "gaussian", 90, 8, "permuted", "last", ((13, 2.0, 1.0, 3.0), (5, 1.0, 0.9, 6.0))),
    ProjectedDescent("zero_out_one", "laplace", 3, 3, "sequential", "random", ((1, 1e-3, 0.0, 1e-6),)),
    SelectedBest("negative_binomial", 10.0, 1.0, (Charge(PoissonGaussian(0.01, 1.1), 100), Charge(CODE, 2))),
    SelectedBest("fixed", 5.0, None, (Charge(Gaussian(3.0), 1),)),
    NoisyMax("gaussian", 40.0),
    NoisyMax("laplace", 20.0),
    NoisyThreshold(150.0),
    FilterRest(1.7320508075688772),
    SanitisedCost(0.03, 9.0, 12.0),
]
EVENTS += [
    NoisyMoments(14, 1.0, 1.0, 0.9, 20.0),
    NoisyCovariance(784, 16.0),
    NoisyCount(50.0),
    NoisyQuantile(0.02, 40.0),
    PartitionSelection(4, 208.97, 20.0),
]
VOTES = EVENTS[-9:-5]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_there_and_back(event):
    charge = Charge(event, 7)
    written = json.dumps(charge.to_json())
    read = charge_from_json(json.loads(written))
    assert read == charge
    assert hash(read) == hash(charge)
    assert json.dumps(read.to_json()) == written


def test_every_kind_is_tried():
    assert {event.kind for event in EVENTS} == set(event_kinds())


@pytest.mark.parametrize(
    "changed",
    [
        {"neighbouring": "add_or_remove_one"},
        {"family": "cauchy"},
        {"order": "shuffled"},
        {"stop": "first"},
        {"batch": 0},
        {"batch": 101},
        {"stages": ()},
        {"stages": ((0, 2.0, 0.9, 30.0),)},
        {"stages": ((10, 0.0, 0.9, 30.0),)},
        {"stages": ((10, 2.0, 1.0000001, 30.0),)},
        {"stages": ((10, 2.0, float("nan"), 30.0),)},
        {"stages": ((10, 2.0, 0.9, float("inf")),)},
    ],
    ids=str,
)
def test_an_impossible_last_iterate_release_is_refused(changed):
    sound = {"neighbouring": "replace_one", "family": "gaussian", "size": 100, "batch": 8, "order": "permuted"}
    sound |= {"stop": "last", "stages": ((10, 2.0, 0.9, 30.0),)}
    ProjectedDescent(**sound)
    with pytest.raises(ValueError, match="expected"):
        ProjectedDescent(**{**sound, **changed})


def test_an_encoded_event_is_written_in_full():
    """The compatibility contract: these names and meanings stay."""
    assert json.loads(json.dumps(Charge(CODE, 3).to_json())) == {
        "count": 3,
        "kind": "encoded",
        "sampling_rate": 0.01,
        "noise_multiplier": 1.2,
        "family": "student_t",
        "shape": 9.0,
        "shifts": [[0.0, 3], [0.01, 5000], [0.02, 1250]],
        "exchanged": False,
        "codebook": DIGEST,
    }
    assert CODE.dimension == 6253


shifts = st.lists(
    st.tuples(st.floats(0, 1e6, allow_subnormal=False), st.integers(1, 10**12)),
    min_size=1,
    max_size=30,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: tuple(sorted(pairs)))
distributions = st.one_of(
    st.sampled_from([("laplace", None), ("cauchy", None), ("sech", None)]),
    st.tuples(st.just("student_t"), st.floats(0.5, 1000)),
    st.tuples(st.just("variance_gamma"), st.integers(1, 8).map(float)),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.floats(1e-12, 1), st.floats(1e-6, 1e6), distributions, shifts, st.booleans(), st.integers(0, MAX_VALUE))
def test_any_encoded_event_survives(q, scale, distribution, table, exchanged, count):
    if table[-1][0] == 0:
        table = ((1.0, 1),)
    charge = Charge(EncodedSum(q, scale, *distribution, table, exchanged, DIGEST), count)
    assert charge_from_json(json.loads(json.dumps(charge.to_json()))) == charge


WRONG = [
    ("kind", "coded", "unknown event kind"),
    ("kind", None, "unknown event kind"),
    ("kind", ["encoded"], "unknown event kind"),
    ("count", -1, "count"),
    ("count", True, "count"),
    ("count", 1.0, "count"),
    ("count", 10**16, "is not a number between"),
    ("sampling_rate", 0, "sampling_rate"),
    ("sampling_rate", 1.0000001, "sampling_rate"),
    ("sampling_rate", math.nan, "is not a number between"),
    ("sampling_rate", "0.1", "right type"),
    ("sampling_rate", True, "right type"),
    ("noise_multiplier", 0.0, "noise_multiplier"),
    ("noise_multiplier", math.inf, "is not a number between"),
    ("noise_multiplier", None, "right type"),
    ("family", "gaussian", "has no shape"),
    ("family", "uniform", "unknown noise family"),
    ("family", 3, "right type"),
    ("family", ["laplace"], "right type"),
    ("shape", None, "expected a shape"),
    ("shape", 0.1, "df"),
    ("shape", math.nan, "is not a number between"),
    ("shape", "9", "right type"),
    ("shifts", [], "between 1 and"),
    ("shifts", {}, "not a list"),
    ("shifts", "abc", "not a list"),
    ("shifts", [[0.1, 2]] * (MAX_ROWS + 1), "at most"),
    ("shifts", [0.1, 2], "rows"),
    ("shifts", ["ab", "cd"], "rows"),
    ("shifts", [[0.1, 2, 3]], "rows"),
    ("shifts", [[0.1, 2.5]], "right type"),
    ("shifts", [[0.1, True]], "right type"),
    ("shifts", [["0.1", 2]], "right type"),
    ("shifts", [[0.1, 0]], "counts > 0"),
    ("shifts", [[0.1, -5]], "counts > 0"),
    ("shifts", [[0.1, 10**16]], "is not a number between"),
    ("shifts", [[-0.1, 5]], "shifts >= 0"),
    ("shifts", [[0.0, 5]], "not all of them 0"),
    ("shifts", [[0.2, 5], [0.1, 5]], "increasing"),
    ("shifts", [[0.1, 5], [0.1, 5]], "increasing"),
    ("shifts", [[math.nan, 5]], "is not a number between"),
    ("shifts", [[math.inf, 5]], "is not a number between"),
    ("shifts", [[1e7, 5]], "increasing"),
    ("exchanged", 0, "right type"),
    ("exchanged", "false", "right type"),
    ("exchanged", None, "right type"),
    ("codebook", "", "digest"),
    ("codebook", "sha256:" + "0" * 63, "digest"),
    ("codebook", "sha256:" + "0" * 64 + "\n", "digest"),
    ("codebook", "SHA256:" + "0" * 64, "digest"),
    ("codebook", None, "right type"),
]


@pytest.mark.parametrize(("name", "value", "match"), WRONG)
def test_untrusted_fields_are_refused(name, value, match):
    data = json.loads(json.dumps(Charge(CODE, 1).to_json()))
    with pytest.raises(ValueError, match=match):
        charge_from_json({**data, name: value})


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_missing_and_unknown_fields_are_refused(event):
    data = json.loads(json.dumps(Charge(event, 1).to_json()))
    for name in data:
        rest = copy.deepcopy(data)
        del rest[name]
        with pytest.raises(ValueError, match="event"):
            charge_from_json(rest)
    with pytest.raises(ValueError, match="expected the fields"):
        charge_from_json({**data, "epsilon": 0.1})


@pytest.mark.parametrize(("family", "shape"), [("laplace", 1.0), ("sech", 2.0), ("student_t", None), ("cauchy", 1.0)])
def test_shapes_belong_to_their_families(family, shape):
    with pytest.raises(ValueError, match="shape"):
        EncodedSum(0.1, 1.0, family, shape, ((0.1, 1),), False, DIGEST)


def test_gaussian_noise_has_an_event_of_its_own():
    with pytest.raises(ValueError, match="poisson_gaussian event"):
        EncodedSum(0.1, 1.0, "gaussian", None, ((0.1, 1),), False, DIGEST)


def test_run_lengths_of_encoded_events():
    other = EncodedSum(0.01, 1.2, "student_t", 9.0, CODE.shifts, True, DIGEST)
    charges = [Charge(CODE, 3), Charge(CODE, 0), Charge(CODE, 4), Charge(other, 2), Charge(CODE, 1)]
    runs = run_lengths(charges)
    assert runs == (Charge(CODE, 7), Charge(other, 2), Charge(CODE, 1))
    assert count_events(runs) == 10
    assert take_first(runs, 8) == (Charge(CODE, 7), Charge(other, 1))
    assert drop_first(runs, 8) == (Charge(other, 1), Charge(CODE, 1))


def test_events_of_votes_are_written_in_full():
    """The compatibility contract: these names and meanings stay."""
    written = [json.loads(json.dumps(Charge(event, 3).to_json())) for event in VOTES]
    assert written == [
        {"count": 3, "kind": "noisy_max", "family": "laplace", "noise_multiplier": 20.0},
        {"count": 3, "kind": "noisy_threshold", "noise_multiplier": 150.0},
        {"count": 3, "kind": "filter_rest", "noise_multiplier": 1.7320508075688772},
        {"count": 3, "kind": "sanitised_cost", "beta": 0.03, "noise_multiplier": 9.0, "scale_multiplier": 12.0},
    ]


@pytest.mark.parametrize("event", [NoisyMax("gaussian", 40.0), *VOTES], ids=lambda event: event.kind)
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, None, "1", True])
def test_scales_of_votes_that_are_none_are_refused(event, value):
    for name, written in Charge(event, 1).to_json().items():
        if isinstance(written, float):
            with pytest.raises(ValueError, match=r"finite|right type|not a number between"):
                charge_from_json({**Charge(event, 1).to_json(), name: value})


@pytest.mark.parametrize("family", ["cauchy", "sech", "", None, 3])
def test_votes_have_gaussian_or_laplace_noise(family):
    with pytest.raises(ValueError, match=r"family"):
        charge_from_json({"count": 1, "kind": "noisy_max", "family": family, "noise_multiplier": 1.0})
