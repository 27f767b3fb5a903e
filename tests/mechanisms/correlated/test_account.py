"""The account of correlated noise: passes, the share that is taken back, and the free variable."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from dprecipe.contract.mechanism import Facts
from dprecipe.data.schema import Data
from dprecipe.faults import PlanRefused, Severity
from dprecipe.language.blocks import Budget
from dprecipe.language.training import Training
from dprecipe.mechanisms.correlated import account
from dprecipe.mechanisms.correlated.passes import MAX_PASSES, choose_share
from dprecipe.mechanisms.correlated.plan import CorrelatedPlan, noise_left
from dprecipe.mechanisms.correlated.schema import Correlated
from dprecipe.models.schema import Mlp
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.correlated_sums import CycleGaussian
from dprecipe.privacy.correlation.series import rms_error
from dprecipe.privacy.correlation.strategies import PreviousStep
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.privacy.sampling import FixedOrder

SIZE, BATCH, STEPS = 60_000, 1024, 59


def spec(multiplier: float | str = "auto", previous: float | str = "auto", **more: Any) -> Correlated:
    block = {
        "kind": "correlated",
        "clip": {"norm": 0.5},
        "noise": {"form": "previous_step", "multiplier": multiplier, "previous": previous},
        "sampling": {"scheme": "fixed_order", "batch_size": BATCH},
    }
    return Correlated.model_validate({**block, **more})


def facts(
    size: int = SIZE,
    epsilon: float | str = 3.0,
    relation: str = "add_or_remove_one",
    accountant: str = "pld",
    **length: Any,
) -> Facts:
    budget = Budget.model_validate(
        {"epsilon": epsilon, "delta": 1e-5, "neighbouring": relation, "accountant": accountant}
    )
    training = Training.model_validate({**(length or {"epochs": 10}), "optimizer": {"kind": "sgd", "lr": 0.5}})
    data = Data.model_validate({"train": {"source": "digits", "split": "train"}, "size": size})
    return Facts(size, budget, training, "record", data, Mlp(kind="mlp", hidden=(8,)))


def test_a_pass_is_an_event_and_is_numbered() -> None:
    planned = account.plan(spec(), facts())
    plan = planned.plan
    assert plan.length.steps == 10 * STEPS
    assert plan.length.steps_per_epoch == STEPS
    assert [charge.count for charge in plan.events] == [1] * 10
    assert [event.number for event in plan.cycles] == list(range(10))
    assert {(e.batches, e.previous, e.noise_multiplier) for e in plan.cycles} == {
        (STEPS, planned.solved["mechanism.noise.previous"], planned.solved["mechanism.noise.multiplier"])
    }
    assert plan.expected_batch == SIZE / STEPS
    assert plan.sampling_rate is None


@pytest.mark.parametrize("relation", list(Neighbouring))
def test_the_budget_is_filled_and_kept(relation: Neighbouring) -> None:
    plan = account.plan(spec(), facts(relation=relation.value)).plan
    spent = accountants.epsilon(plan.events, 1e-5, relation, "pld")
    assert 0.999 * 3 <= spent <= 3
    assert cross_check.ask_library(plan.events, 1e-5, relation).epsilon == pytest.approx(spent, rel=1e-3)


def test_replacing_a_unit_takes_twice_the_noise() -> None:
    removed, replaced = (
        account.plan(spec(), facts(relation=relation)).solved["mechanism.noise.multiplier"]
        for relation in ("add_or_remove_one", "replace_one")
    )
    assert replaced == pytest.approx(2 * removed, rel=1e-4)


def test_nothing_taken_back_costs_what_full_batches_cost() -> None:
    """λ = 0: ten passes are ten releases of one Gaussian each, and the multipliers are equal to the last digit."""
    plan = account.plan(spec(previous=0.0), facts()).plan
    multiplier = plan.cycles[0].noise_multiplier
    for accountant in ("pld", "rdp", "gdp"):
        ours, theirs = (
            accountants.epsilon(charges, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, accountant)
            for charges in (plan.events, (Charge(Gaussian(multiplier), 10),))
        )
        assert ours == theirs


@pytest.mark.parametrize(("passes", "share"), [(1, None), (10, 0.93), (40, None)])
def test_the_share_is_that_of_the_grid(passes: int, share: float | None) -> None:
    """Section 3 of the study: .93 for 580 steps in ten passes."""
    planned = account.plan(spec(), facts(epochs=passes))
    chosen = planned.solved["mechanism.noise.previous"]
    assert chosen == choose_share(STEPS, passes) == planned.plan.strategy.previous
    assert share is None or abs(chosen - share) <= 0.011
    around = [round(chosen + step, 2) for step in (-0.01, 0.0, 0.01)]
    noise = [account.plan(spec(previous=value), facts(epochs=passes)).plan.noise_in_iterates for value in around]
    assert min(noise) == noise[1]


def test_noise_in_the_iterates_and_without_correlation() -> None:
    """Figures of the study for 580 steps in ten passes: independent noise leaves 3.98 times as much."""
    plan = account.plan(spec(previous=0.93), facts()).plan
    assert noise_left(0.93, 580) == pytest.approx(rms_error(PreviousStep(0.93), 580), rel=1e-12)
    assert plan.independent_noise / plan.noise_in_iterates == pytest.approx(3.98, rel=0.01)
    independent = account.plan(spec(previous=0.0), facts()).plan
    assert independent.noise_in_iterates == pytest.approx(plan.independent_noise, rel=1e-4)
    assert plan.sensitivity == pytest.approx(PreviousStep(0.93).sensitivity(STEPS, 10), rel=1e-5)


@pytest.mark.parametrize("multiplier", [40.0, 90.0])
@pytest.mark.parametrize("previous", [0.9, "auto"])
def test_a_free_length_fills_the_budget_and_never_exceeds_it(multiplier: float, previous: float | str) -> None:
    planned = account.plan(spec(multiplier, previous), facts(epochs="auto"))
    passes = int(planned.solved["training.epochs"])
    assert len(planned.plan.cycles) == passes >= 1
    relation = Neighbouring.ADD_OR_REMOVE_ONE
    assert accountants.epsilon(planned.plan.events, 1e-5, relation, "pld") <= 3
    if previous != "auto":
        more = (*planned.plan.events, Charge(CycleGaussian(multiplier, 0.9, STEPS, passes), 1))
        assert accountants.epsilon(more, 1e-5, relation, "pld") > 3


def test_a_free_length_in_steps_is_whole_passes() -> None:
    planned = account.plan(spec(60.0), facts(steps="auto"))
    assert planned.solved["training.steps"] == planned.plan.length.steps
    assert planned.plan.length.steps % STEPS == 0


def test_a_free_budget_states_what_the_passes_cost() -> None:
    plan = account.plan(spec(42.7, 0.97), facts(epsilon="auto")).plan
    assert [c.event for c in plan.events] == [CycleGaussian(42.7, 0.97, STEPS, e) for e in range(10)]


@pytest.mark.parametrize(
    ("block", "length", "code"),
    [
        (spec(1.0), {"epochs": "auto"}, "P102"),
        (spec(1e6), {"epochs": "auto"}, "P178"),
    ],
)
def test_a_length_that_can_t_be_solved_is_refused(block: Correlated, length: dict[str, Any], code: str) -> None:
    with pytest.raises(PlanRefused) as refusal:
        account.plan(block, facts(**length))
    assert [finding.code for finding in refusal.value.findings] == [code]


def test_a_budget_that_protects_nothing_is_refused() -> None:
    with pytest.raises(PlanRefused) as refusal:
        account.plan(spec(previous=0.9), facts(epsilon=2000.0, accountant="rdp"))
    assert [finding.code for finding in refusal.value.findings] == ["P107"]


def test_passes_are_whole_and_not_too_many() -> None:
    assert not account.check(spec(), facts(steps=2 * STEPS))
    for length in ({"steps": STEPS + 1}, {"epochs": 1.5}, {"epochs": MAX_PASSES + 1}):
        assert [finding.code for finding in account.check(spec(), facts(**length))] == ["P178"]


@pytest.mark.parametrize(
    ("length", "remedy"),
    [
        ({"epochs": "auto"}, "set training.epochs to at most 1000;"),
        ({"steps": "auto"}, "set training.steps to a multiple of 59, at most 59000;"),
        ({"steps": 1001 * STEPS}, "set training.steps to a multiple of 59, at most 59000;"),
    ],
)
def test_the_remedy_for_too_many_passes_is_a_length_that_is_allowed(length: dict[str, Any], remedy: str) -> None:
    """More noise would make them more, where the budget decides."""
    findings = account.check(spec(1e6), facts(**length))
    if not findings:
        with pytest.raises(PlanRefused) as refusal:
            account.plan(spec(1e6), facts(**length))
        findings = list(refusal.value.findings)
    (finding,) = findings
    assert finding.code == "P178"
    assert finding.remedy.startswith(remedy)
    assert finding.path == f"training.{next(iter(length))}"


def test_a_pass_that_is_too_long_is_refused_where_the_length_is_solved() -> None:
    with pytest.raises(PlanRefused) as refusal:
        account.plan(spec(1e6), facts(size=11_000_000 * BATCH, epochs="auto"))
    assert [finding.code for finding in refusal.value.findings] == ["P109"]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_small_budgets_are_told_what_poisson_batches_would_leave(epsilon: float) -> None:
    """P177, below ε = 2: figures of the study for n = 586, ten passes: 1.82, 1.68 and 1.19 times the noise."""
    planned = account.plan(spec(), facts(epsilon=epsilon))
    if epsilon == 3.0:
        assert not planned.warnings
        return
    (warning,) = planned.warnings
    assert (warning.code, warning.severity) == ("P177", Severity.WARNING)
    poisson, ours = (float(part) for part in re.findall(r"[\d.]+", warning.message.partition("iterates: ")[2]))
    assert ours / poisson == pytest.approx({0.5: 1.82, 1.0: 1.68}[epsilon], rel=0.01)


def test_constants_alone_decide_the_plan() -> None:
    """The divisor, λ and the number of steps follow from the recipe; a plan with another divisor can't be made."""
    plan = account.plan(spec(), facts()).plan
    again = account.plan(spec(), facts()).plan
    assert plan == again
    with pytest.raises(ValueError, match="units on average"):
        CorrelatedPlan(
            plan.size,
            plan.scheme,
            tuple(type(phase)(phase.charge, phase.clip_norm, phase.divisor + 1) for phase in plan.phases),
            plan.steps_per_epoch,
            plan.clip,
            plan.augmentations,
        )


def test_layers_are_clipped_as_in_other_mechanisms() -> None:
    plan = account.plan(spec(clip={"mode": "per_layer", "norm": 1.0}), facts()).plan
    assert plan.clip.norms == (1 / math.sqrt(2),) * 2
    automatic = account.plan(spec(clip={"mode": "automatic", "norm": 1.0}), facts()).plan
    assert automatic.clip.stability == 0.01


def test_blocks_cost_the_same_where_every_neighbour_has_the_same_ones() -> None:
    def blocks(relation: str, size: int = 256) -> tuple[Correlated, Facts]:
        content = spec().model_dump(mode="json", by_alias=True)
        content["sampling"]["block_size"] = size
        return Correlated.model_validate(content), facts(relation=relation)

    for relation in ("zero_out_one", "replace_one"):
        in_blocks, alone = account.plan(*blocks(relation)), account.plan(spec(), facts(relation=relation))
        assert in_blocks.solved == alone.solved
        assert all(charge.event.sampling() == FixedOrder(STEPS, 256) for charge in in_blocks.plan.events)
        (participation,) = (each.text for each in in_blocks.assumptions if each.id == "sampling")
        assert "blocks of consecutive units" in participation
    codes = [
        [finding.code for finding in account.check(*blocks(*given))]
        for given in (("add_or_remove_one",), ("zero_out_one", 5000))
    ]
    assert codes == [["P176"], ["P105"]]
