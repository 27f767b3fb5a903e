"""The account of banded noise: groups of steps, the choice of bands, and the free variable."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused, RecipeError, Severity
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlated_sums import BandedGaussian
from dprecipe.privacy.correlation.series import rms_error
from dprecipe.privacy.correlation.strategies import make_bands
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.recipe.read import read_text

LARGE = """\
recipe: dprecipe/v1
name: bands
data:
  train: {source: npz, path: x.npz, features: x, labels: y, shape: [4], classes: 2}
  size: 60000
model: {kind: logistic_regression}
mechanism:
  kind: correlated
  clip: {norm: 0.5}
  noise: {form: banded, multiplier: auto}
  sampling: {scheme: cyclic_poisson, batch_size: 1024}
budget: {epsilon: 3.0, delta: 1e-5}
training:
  epochs: 10
  optimizer: {kind: sgd, lr: 0.5}
"""
RELATIONS = tuple(Neighbouring)


def large(*overrides: str) -> Plan:
    return plan(read_text(LARGE, "bands.yaml", overrides))


def planned(of: Plan) -> CorrelatedPlan:
    return of.as_plan_of(CorrelatedPlan)


def event_of(of: Plan) -> BandedGaussian:
    (charge,) = of.events
    assert isinstance(charge.event, BandedGaussian)
    return charge.event


def test_a_group_is_charged_as_a_batch_of_a_part(bands: Callable[..., Plan]) -> None:
    """Six groups of three steps: the rate of a part is three times that of all units, ‖c‖ divides the noise."""
    made = bands()
    (charge,) = made.events
    assert charge.count == 6
    assert planned(made).length.steps == 18
    event = event_of(made)
    assert event.part_rate == 3 * 240 / 1438
    assert event.coefficients == make_bands(3, 0.8).bands == pytest.approx((1, 0.8, 0.72))
    same = (Charge(PoissonGaussian(event.part_rate, event.noise_multiplier / math.hypot(1, 0.8, 0.72)), 6),)
    ours, theirs = (
        accountants.epsilon(charges, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld") for charges in (made.events, same)
    )
    assert ours == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_budget_is_filled_and_kept(bands: Callable[..., Plan], relation: Neighbouring) -> None:
    made = bands(f"budget.neighbouring={relation.value}")
    spent = accountants.epsilon(made.events, 1e-5, relation, "pld")
    assert 0.998 * 3 <= spent <= 3
    assert cross_check.ask_library(made.events, 1e-5, relation).epsilon == pytest.approx(spent, rel=2e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_one_band_costs_what_dp_sgd_costs_to_the_last_digit(accountant: str) -> None:
    ours = large("mechanism.noise.bands=1", "mechanism.noise.multiplier=1.0", f"budget.accountant={accountant}")
    theirs = large(
        "mechanism={kind: dpsgd, clip: {norm: 0.5}, noise: {family: gaussian, multiplier: 1.0}, "
        "sampling: {scheme: poisson, batch_size: 1024}}",
        f"budget.accountant={accountant}",
    )
    assert ours.guarantee.epsilon == theirs.guarantee.epsilon
    (warning,) = (each for each in ours.warnings if each.code in ("P177", "P179"))
    assert (warning.code, warning.severity) == ("P179", Severity.WARNING)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "least", "most"), [(0.5, 1, 1), (3.0, 4, 16), (8.0, 16, 32)])
def test_bands_are_chosen_for_budget_and_length(epsilon: float, least: int, most: int) -> None:
    """N = 60,000, batches of 1,024, ten passes: what no other number of bands of the grid betters by 2 %."""
    made = large(f"budget.epsilon={epsilon}")
    chosen = int(made.solved["mechanism.noise.bands"])
    assert least <= chosen <= most
    noise = planned(made).noise_in_iterates
    for bands in (1, 2, 4, 8, 16, 32):
        assert (
            planned(large(f"budget.epsilon={epsilon}", f"mechanism.noise.bands={bands}")).noise_in_iterates
            > 0.979 * noise
        )
    if chosen > 1:
        again = large(
            f"budget.epsilon={epsilon}",
            f"mechanism.noise.bands={chosen}",
            f"mechanism.noise.power={made.solved['mechanism.noise.power']}",
        )
        assert again.events == made.events


def test_bands_of_exact_steps_divide_them() -> None:
    """585 = 3² · 5 · 13 steps: only one band of the grid divides them; of 588, four do."""
    assert large("training.epochs=null", "training.steps=585").solved["mechanism.noise.bands"] == 1
    made = large("training.epochs=null", "training.steps=588")
    assert made.solved["mechanism.noise.bands"] == 4
    assert planned(made).length.steps == 588


def test_epochs_are_rounded_up_to_whole_groups() -> None:
    made = large("mechanism.noise.bands=8", "mechanism.noise.power=0.76")
    assert planned(made).length.steps == 592
    assert made.events[0].count == 74


def test_figures_of_the_study_for_four_bands() -> None:
    """Section 6.1 at ε = 3, ten passes: .807 of the noise of DP-SGD with batches of the same size."""
    ours = planned(large("mechanism.noise.bands=4"))
    plain = planned(large("mechanism.noise.bands=1"))
    assert ours.noise_in_iterates / plain.noise_in_iterates == pytest.approx(0.807, abs=0.01)
    assert event_of(large("mechanism.noise.bands=4")).coefficients[1] == pytest.approx(0.82)
    assert ours.noise_in_iterates == pytest.approx(
        ours.first.noise_multiplier * rms_error(ours.strategy, ours.length.steps), rel=1e-5
    )


@pytest.mark.parametrize("epsilon", ["auto", "3.0"])
def test_length_and_budget_are_solved_as_elsewhere(bands: Callable[..., Plan], epsilon: str) -> None:
    if epsilon == "auto":
        made = bands("mechanism.noise.multiplier=4.0", "budget.epsilon=auto")
        assert made.guarantee.epsilon > 0
        assert made.events[0].count == 6
        return
    made = bands("mechanism.noise.multiplier=9.0", "training.steps=auto")
    (charge,) = made.events
    assert made.solved["training.steps"] == 3 * charge.count == planned(made).length.steps
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    assert accountants.epsilon(made.events, 1e-5, relation, "pld") <= 3
    assert accountants.epsilon((Charge(charge.event, charge.count + 1),), 1e-5, relation, "pld") > 3


REFUSED: dict[str, tuple[tuple[str, ...], str, str]] = {
    "a fixed order": (("mechanism.sampling={scheme: fixed_order, batch_size: 240}",), "P176", "previous_step"),
    "batches of all units": (("mechanism.sampling={scheme: poisson, batch_size: 240}",), "P176", "cyclic_poisson"),
    "the step before": (("mechanism.noise={form: previous_step, multiplier: auto}",), "P176", "banded"),
    "adaptive clipping": (("mechanism.clip={mode: adaptive, norm: 0.3}",), "P176", "flat"),
    "a schedule": (("mechanism.clip.norm={schedule: linear, from: 1.0, to: 0.1}",), "P176", "one number"),
    "a part smaller than a batch": (("mechanism.noise.bands=6",), "P105", "239"),
    "a batch larger than the data": (
        ("mechanism.noise.bands=auto", "mechanism.sampling.batch_size=2000"),
        "P105",
        "1438",
    ),
    "more bands than units": (
        ("mechanism.noise.bands=60", "mechanism.sampling.batch_size=2", "data.size=50", "training.steps=60"),
        "P105",
        "lower mechanism.noise.bands to at most 25",
    ),
    "part of a group": (("training.steps=20",), "P178", "18 or 21"),
    "bands without a budget": (
        ("mechanism.noise.bands=auto", "mechanism.noise.multiplier=4.0", "budget.epsilon=auto"),
        "P178",
        "noise.bands a number",
    ),
    "bands without a length": (
        ("mechanism.noise.bands=auto", "mechanism.noise.multiplier=4.0", "training.steps=auto"),
        "P178",
        "noise.bands a number",
    ),
    "a power without a length": (
        ("mechanism.noise.power=auto", "mechanism.noise.multiplier=4.0", "training.steps=auto"),
        "P178",
        "noise.power a number",
    ),
    "no protection": (("budget.epsilon=2000",), "P107", "lower"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_account_is_refused_with_a_remedy(bands: Callable[..., Plan], what: str) -> None:
    overrides, code, remedy = REFUSED[what]
    with pytest.raises((PlanRefused, RecipeError)) as refusal:
        bands(*overrides)
    findings: list[Any] = list(refusal.value.findings)
    assert [finding.code for finding in findings] == [code]
    assert remedy in findings[0].remedy


@pytest.mark.parametrize(
    "sampling",
    [
        "{scheme: truncated_poisson, batch_size: 240, max_batch_size: 300}",
        "{scheme: poisson, batch_size: 240}",
        "{scheme: fixed_order, batch_size: 240}",
    ],
)
def test_the_remedies_for_other_sampling_make_a_recipe(sampling: str) -> None:
    """With other keys, too: of the scheme that was, and of the noise."""
    text = LARGE.replace("{scheme: cyclic_poisson, batch_size: 1024}", sampling)
    text = text.replace("{form: banded, multiplier: auto}", "{form: banded, multiplier: auto, bands: 3, power: 0.8}")
    with pytest.raises(PlanRefused) as refusal:
        plan(read_text(text, "bands.yaml", ()))
    (finding,) = (each for each in refusal.value.findings if each.code != "P103")
    remedies = re.findall(r"mechanism\.(?:noise|sampling) to \{.*?\}", finding.remedy)
    assert remedies
    for remedy in remedies:
        assert plan(read_text(text, "bands.yaml", (remedy.replace(" to ", "="),))).events


def test_bands_that_leave_more_noise_than_random_batches_are_warned_of() -> None:
    """P177: sixteen bands at ε = 0.5 leave 1.14 times the noise; `auto` is the remedy, and takes one."""
    made = large("budget.epsilon=0.5", "mechanism.noise.bands=16")
    (warning,) = (each for each in made.warnings if each.code in ("P177", "P179"))
    assert (warning.code, warning.severity) == ("P177", Severity.WARNING)
    assert "auto" in warning.remedy


def test_the_remedy_is_no_auto_where_the_length_is_auto() -> None:
    made = large(
        "budget.epsilon=0.5",
        "mechanism.noise={form: banded, multiplier: 9.0, bands: 16, power: 0.8}",
        "training.epochs=auto",
    )
    (warning,) = (each for each in made.warnings if each.code == "P177")
    assert warning.remedy == "lower mechanism.noise.bands"


def test_bands_that_would_not_fit_into_memory_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.mechanisms.correlated.groups.MAX_KEPT", 3 * 8 * 10)
    assert large("budget.epsilon=8.0").solved["mechanism.noise.bands"] == 4
