"""The event of a tuned run, and its profile: reference values, composition with others, tampering, the cross-check."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest
from pydantic import TypeAdapter, ValidationError

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.charge_shapes import charge_model, charge_schemas
from dprecipe.privacy.events import Charge, charge_from_json
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.privacy.tuning.events import SelectedBest
from dprecipe.privacy.tuning.profile import SelectedProfile
from dprecipe.privacy.tuning.runs import FixedRuns, NegativeBinomialRuns, PoissonRuns, RunDistribution
from tests.sweeps import sweep

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE
MNIST = (Charge(PoissonGaussian(1024 / 60_000, 2.336104), 1172),)
"""ε = 1 at δ = 1e-5."""
GEOMETRIC = SelectedBest("negative_binomial", 10.0, 1.0, MNIST)


@pytest.mark.parametrize(
    ("runs", "rdp", "simple", "sheet"),
    [
        (NegativeBinomialRuns.with_mean(0.0, 5.0), 1.777, 1.377, 1.338),
        (NegativeBinomialRuns.with_mean(0.0, 30.0), 2.117, 1.704, 1.644),
        (NegativeBinomialRuns.with_mean(0.5, 10.0), 2.126, 1.572, 1.512),
        (NegativeBinomialRuns.with_mean(1.0, 10.0), 2.309, 1.621, 1.552),
        (PoissonRuns(10.0), 2.023, None, 1.997),
        (FixedRuns(10), None, None, 3.410),
    ],
    ids=str,
)
def test_the_best_of_runs_of_epsilon_1(runs: RunDistribution, rdp, simple, sheet) -> None:
    """The full bound as published on 1000 cells, which ours, being finer, lies a little below."""
    profile = SelectedProfile(MNIST, runs, ADD)
    result = profile.epsilon_by_bound(1e-5)
    assert list(result) == list(profile.bounds)
    assert 0.93 * sheet < result["full"] < sheet
    if rdp is not None:
        assert result["rdp"] == pytest.approx(rdp, abs=1.5e-3)
    if simple is not None:
        assert result["simple"] == pytest.approx(simple, abs=1.5e-3)
    if isinstance(runs, FixedRuns):
        assert result["composition"] == pytest.approx(3.552, abs=1.5e-3)
    answer = profile.epsilon(1e-5)
    assert (answer.value, answer.accountant) == (result["full"], "selected_full")
    assert profile.delta(answer.value).value <= 1e-5 * (1 + 1e-9)
    assert profile.delta(0.999 * answer.value).value > 1e-5


def test_a_fixed_list_costs_the_cheaper_of_composition_and_the_best() -> None:
    for count in (1, 2, 3, 30):
        result = SelectedProfile(MNIST, FixedRuns(count), ADD).epsilon_by_bound(1e-5)
        assert (result["composition"] < result["full"]) == (count <= 3)


def test_the_accountants_see_the_same_and_compose_it_with_others() -> None:
    alone = accountants.epsilon_answer([Charge(GEOMETRIC, 1)], 1e-5, ADD, "pld")
    profile = SelectedProfile(MNIST, GEOMETRIC.runs, ADD)
    least = profile.epsilon(1e-5).value
    assert alone.accountant == "pld"
    assert least <= alone.value * (1 + 1e-9) <= least * (1 + 2e-4)
    assert accountants.epsilon([Charge(GEOMETRIC, 1)], 1e-5, ADD, "rdp") == pytest.approx(2.3087, abs=1e-3)
    stage = Charge(Gaussian(4.0), 1)
    together = accountants.epsilon([Charge(GEOMETRIC, 1), stage], 1e-5, ADD, "pld")
    assert alone.value < together < alone.value + accountants.epsilon([stage], 1e-5, ADD, "pld")
    delta = accountants.delta([Charge(GEOMETRIC, 1), stage], together, ADD, "pld")
    assert delta == pytest.approx(1e-5, rel=5e-3)
    assert accountants.epsilon([Charge(GEOMETRIC, 2)], 1e-5, ADD, "pld") < 2 * alone.value


def test_replacing_a_unit_costs_more() -> None:
    by_relation = [accountants.epsilon([Charge(GEOMETRIC, 1)], 1e-5, r, "pld") for r in (ADD, REPLACE)]
    assert by_relation[0] < by_relation[1] < 3 * by_relation[0]
    laplace = SelectedBest("negative_binomial", 3.0, 1.0, (Charge(PoissonLaplace(0.1, 3.0), 10),))
    assert laplace.needs_group_privacy(REPLACE)
    epsilon = accountants.epsilon([Charge(laplace, 1)], 1e-5, REPLACE, "pld")
    assert accountants.epsilon([Charge(laplace, 1)], 1e-5, ADD, "pld") < epsilon < math.inf


def test_what_does_not_compose_is_selected_all_the_same() -> None:
    run = ProjectedDescent("replace_one", "gaussian", 90, 8, "permuted", "last", ((13, 2.0, 0.9, 3.0),))
    best = Charge(SelectedBest("negative_binomial", 3.0, 1.0, (Charge(run, 1),)), 1)
    one = accountants.epsilon([Charge(run, 1)], 1e-5, REPLACE, "pld")
    answer = accountants.epsilon_answer([best], 1e-5, REPLACE, "pld")
    assert one < answer.value < 3 * one
    assert answer.accountant in ("selected_full", "selected_simple")
    assert accountants.epsilon([best], 1e-5, ADD, "pld") == math.inf
    assert cross_check.ask_library([best], 1e-5, REPLACE).epsilon == pytest.approx(answer.value, rel=0.1)
    with pytest.raises(ValueError, match="does not compose"):
        SelectedBest("negative_binomial", 3.0, 1.0, (Charge(run, 1), Charge(Gaussian(1.0), 1)))
    with pytest.raises(ValueError, match="does not compose"):
        SelectedBest("poisson", 3.0, None, (Charge(run, 1),))


def test_a_pure_guarantee_stays_finite() -> None:
    """Losses of Laplace noise are bounded: (2 + η) ε of one run at any δ. Liu & Talwar 2019, Theorem 3.5 for η = 1."""
    base = (Charge(PoissonLaplace(1.0, 10.0), 2),)
    best = Charge(SelectedBest("negative_binomial", 10.0, 1.0, base), 1)
    assert accountants.epsilon([best], 1e-12, ADD, "pld") <= 3 * 0.2 * (1 + 1e-3)


@pytest.mark.parametrize(
    "event",
    sweep(
        [
            SelectedBest("negative_binomial", 10.0, 1.0, (Charge(PoissonGaussian(0.02, 1.2), 200),)),
            SelectedBest("poisson", 10.0, None, (Charge(Gaussian(4.0), 1),)),
            SelectedBest("poisson", 1000.0, None, (Charge(Gaussian(30.0), 1),)),  # Rényi divergences give less
            SelectedBest("fixed", 3.0, None, (Charge(PoissonGaussian(0.05, 2.0), 30), Charge(Gaussian(8.0), 1))),
        ],
        (1, 3),
    ),
    ids=lambda event: f"{event.distribution}-{event.mean:g}",
)
@pytest.mark.parametrize("relation", [ADD, pytest.param(REPLACE, marks=pytest.mark.slow)])
def test_the_cross_check_agrees(event: SelectedBest, relation: Neighbouring) -> None:
    """Between the bounds there is the difference of their cells alone."""
    mine = accountants.epsilon([Charge(event, 1)], 1e-5, relation, "pld")
    theirs = cross_check.ask_library([Charge(event, 1)], 1e-5, relation)
    assert theirs.name == "dp_accounting.pld"
    relative, absolute = event.cross_check_tolerance
    assert mine * (1 - 1e-3) <= theirs.epsilon <= mine * (1 + relative) + absolute


def test_the_cross_check_leaves_no_part_of_a_run_out() -> None:
    """Of noise in a box the library is asked otherwise: the question stays open, and is not answered for the rest."""
    part = Charge(Gaussian(4.0), 1)
    for base in ((Charge(PoissonLaplace(0.1, 3.0), 10),), (part, Charge(PoissonLaplace(0.1, 3.0), 10))):
        best = Charge(SelectedBest("negative_binomial", 3.0, 1.0, base), 1)
        assert cross_check.ask_library([best], 1e-5, ADD).epsilon == math.inf


def test_json_and_schema() -> None:
    charge = Charge(SelectedBest("poisson", 4.0, None, (MNIST[0], Charge(Gaussian(2.0), 3))), 1)
    data = json.loads(json.dumps(charge.to_json()))
    assert data == {
        "count": 1,
        "kind": "selected_best",
        "distribution": "poisson",
        "mean": 4.0,
        "shape": None,
        "base": [
            {"count": 1172, "kind": "poisson_gaussian", "sampling_rate": 1024 / 60_000, "noise_multiplier": 2.336104},
            {"count": 3, "kind": "gaussian", "noise_multiplier": 2.0},
        ],
    }
    assert charge_from_json(data) == charge
    shape = TypeAdapter(charge_model("selected_best"))
    shape.validate_json(json.dumps(data))
    schema = next(s for s in charge_schemas() if s["properties"]["kind"].get("const") == "selected_best")
    assert "$ref" not in json.dumps(schema)
    jsonschema.validate(data, schema)
    nested = {**data, "base": [data]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(nested, schema)
    with pytest.raises(ValidationError):
        shape.validate_json(json.dumps(nested))


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("mean", -10.0, "mean"),
        ("mean", 0.0, "mean"),
        ("mean", 1e15, "mean"),
        ("mean", "10", "right type"),
        ("shape", -1.0, "shape"),
        ("shape", None, "shape"),
        ("distribution", "poisson", "shape"),
        ("distribution", "logarithmic", "shape"),
        ("distribution", 3, "right type"),
        ("base", [], "list"),
        ("base", {}, "list"),
        ("base", [3], "list of charges"),
        ("base", [{"count": 1, "kind": "unheard"}], "unknown event kind"),
        ("base", [{"count": 1, "kind": ["gaussian"]}], "unknown event kind"),
        ("base", [{"count": 0, "kind": "gaussian", "noise_multiplier": 1.0}], "charges"),
        ("base", [{"count": 1, "kind": "gaussian", "noise_multiplier": 0.0}], "noise_multiplier"),
        ("base", [{"count": 1, "kind": "selected_best"}], "plain events"),
    ],
)
def test_tampered_fields_are_refused(name, value, match) -> None:
    data = json.loads(json.dumps(Charge(GEOMETRIC, 1).to_json()))
    with pytest.raises(ValueError, match=match):
        charge_from_json({**data, name: value})


def test_the_best_of_the_best_is_refused() -> None:
    with pytest.raises(ValueError, match="best of several"):
        SelectedBest("fixed", 2.0, None, (Charge(GEOMETRIC, 1),))
