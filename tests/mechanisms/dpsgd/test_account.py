"""DP-SGD's accounting against the reference figures and its own promises."""

from __future__ import annotations

from typing import Any

import pytest

from dprecipe.contract.mechanism import Facts
from dprecipe.data.schema import Data
from dprecipe.faults import PlanRefused, Severity
from dprecipe.language.blocks import Budget
from dprecipe.language.training import Training
from dprecipe.mechanisms.dpsgd import account
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.models.schema import LogisticRegression
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian, PoissonGaussian


def spec(
    multiplier: float | str = "auto", scheme: str = "poisson", batch_size: int | None = 512, **noise: Any
) -> Dpsgd:
    sampling = {"scheme": scheme} if batch_size is None else {"scheme": scheme, "batch_size": batch_size}
    block = {
        "kind": "dpsgd",
        "clip": {"norm": 0.1},
        "noise": {"family": "gaussian", "multiplier": multiplier, **noise},
        "sampling": sampling,
    }
    return Dpsgd.model_validate(block)


def facts(size: int = 60000, epsilon: float | str = 3.0, delta: float = 1e-5, relation: str = "add_or_remove_one",
          accountant: str = "pld", **length: Any) -> Facts:  # fmt: skip
    budget = Budget.model_validate(
        {"epsilon": epsilon, "delta": delta, "neighbouring": relation, "accountant": accountant}
    )
    training = Training.model_validate({**(length or {"epochs": 40.0}), "optimizer": {"kind": "sgd", "lr": 0.5}})
    data = Data.model_validate({"train": {"source": "digits", "split": "train"}, "size": size})
    return Facts(size, budget, training, "record", data, LogisticRegression(kind="logistic_regression"))


def test_the_contracts_example() -> None:
    """40 epochs of 60,000 records in batches of 512: 4,688 steps at q = 0.00853 (contract.md)."""
    planned = account.plan(spec(), facts())
    plan = planned.plan
    (charge,) = plan.events
    assert charge.count == plan.length.steps == 4688
    assert charge.event == PoissonGaussian(512 / 60000, planned.solved["mechanism.noise.multiplier"])
    spent = accountants.epsilon(plan.events, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert 0.999 * 3 <= spent <= 3
    assert cross_check.ask_library(plan.events, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE).epsilon == pytest.approx(
        3, rel=2e-3
    )


@pytest.mark.parametrize(("epochs", "steps"), [(0.1, 12), (1.0, 118), (0.3, 36), (60.0, 7032), (2.5, 293)])
def test_t8_steps_are_integers_computed_exactly(epochs: float, steps: int) -> None:
    assert account.plan(spec(), facts(epochs=epochs)).plan.length.steps == steps


def test_t1_t25_the_sampling_rate_is_a_constant_of_the_recipe() -> None:
    planned = account.plan(spec(batch_size=64), facts(size=1023))
    plan = planned.plan
    assert plan.sampling_rate == 64 / 1023
    assert plan.expected_batch == 64


def test_full_batch_is_unsampled() -> None:
    planned = account.plan(spec(scheme="full_batch", batch_size=None), facts(size=1438, epochs=50.0))
    plan = planned.plan
    assert [type(c.event) for c in plan.events] == [Gaussian]
    assert (plan.sampling_rate, plan.expected_batch, plan.length.steps) == (None, 1438.0, 50)


def test_t2_units_that_are_dealt_have_an_event_of_their_own() -> None:
    planned = account.plan(spec(scheme="dealt"), facts(epochs=3.0))
    plan = planned.plan
    (charge,) = plan.events
    assert isinstance(charge.event, DealtGaussian)
    assert (charge.count, charge.event.batches, plan.length.steps) == (3, 118, 354)
    poisson = account.plan(spec(), facts(epochs=3.0)).solved["mechanism.noise.multiplier"]
    assert 0.9 * poisson < planned.solved["mechanism.noise.multiplier"] < poisson
    assert account.check(spec(scheme="dealt"), facts(epochs=3.0)) == []


@pytest.mark.parametrize(
    ("scheme", "length", "steps", "counts"),
    [
        ("dealt", {"epochs": 2.5}, 295, [(118, 2), (59, 1)]),
        ("dealt", {"steps": 236}, 236, [(118, 2)]),
        ("dealt", {"steps": 5}, 5, [(5, 1)]),
        ("permuted", {"steps": 120}, 120, [(117, 1), (3, 1)]),
    ],
)
def test_a_length_that_ends_within_an_epoch_takes_a_part_of_the_last(
    scheme: str, length: dict[str, Any], steps: int, counts: list[tuple[int, int]]
) -> None:
    plan = account.plan(spec(2.0, scheme), facts(epsilon="auto", **length)).plan
    assert plan.length.steps == steps
    assert [(charge.event.steps, charge.count) for charge in plan.events] == counts
    assert plan.expected_batch == pytest.approx(60_000 / 118 if scheme == "dealt" else 512)


def test_batches_of_one_size_are_compared_only_once_the_noise_has_its_lengths() -> None:
    noises = tuple({"family": "gaussian", "multiplier": multiplier} for multiplier in (3.0, 4.0))
    sampling = {"scheme": "fixed_size", "batch_size": 512}
    block = {"kind": "dpsgd", "clip": {"norm": 0.1}, "noise": noises, "sampling": sampling}
    findings = account.check(Dpsgd.model_validate(block), facts(epsilon="auto"))
    assert [finding.code for finding in findings] == ["R262"]


def test_an_epoch_of_few_steps_is_warned_of() -> None:
    (warning,) = account.check(spec(scheme="dealt", batch_size=20_000), facts(epochs=3.0))
    assert (warning.code, warning.severity) == ("P104", Severity.WARNING)
    single = account.plan(spec(scheme="dealt", batch_size=60_000), facts(epochs=3.0)).plan
    assert [type(c.event) for c in single.events] == [Gaussian]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["poisson", "full_batch", "dealt"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
@pytest.mark.parametrize("length", [{"epochs": "auto"}, {"steps": "auto"}])
def test_a_free_length_fills_the_budget_and_never_exceeds_it(
    scheme: str, relation: str, length: dict[str, str]
) -> None:
    batch_size = None if scheme == "full_batch" else 512
    # Below 50,000 events the count is exact; beyond, it stays a little below the budget.
    block = spec(1.5 if scheme == "poisson" else 15.0, scheme, batch_size)
    planned = account.plan(block, facts(relation=relation, **length))
    plan = planned.plan
    (charge,) = plan.events
    nb = Neighbouring(relation)
    assert accountants.epsilon([charge], 1e-5, nb, "pld") <= 3
    assert accountants.epsilon([Charge(charge.event, charge.count + 1)], 1e-5, nb, "pld") > 3
    assert list(planned.solved) == [f"training.{next(iter(length))}"]


def test_a_free_budget_is_what_the_rest_spends() -> None:
    assert account.check(spec(1.3), facts(epsilon="auto")) == []
    assert account.plan(spec(1.3), facts(epsilon="auto")).solved == {}


def test_replacing_costs_more_than_adding() -> None:
    one, two = (account.plan(spec(), facts(relation=r)).solved["mechanism.noise.multiplier"]
                for r in ("add_or_remove_one", "replace_one"))  # fmt: skip
    assert two > 1.3 * one


def test_an_overspent_budget_says_by_how_much_and_what_would_mend_it() -> None:
    (finding,) = account.check(spec(0.9), facts())
    assert finding.code == "P102"
    assert "of 3 at" in finding.message
    epochs = int(finding.remedy.split("training.epochs to ")[1].split(" ")[0])
    multiplier = float(finding.remedy.split("multiplier to ")[1])
    assert account.check(spec(0.9), facts(epochs=float(epochs))) == []
    assert account.check(spec(0.9), facts(epochs=float(epochs + 1))) != []
    assert account.check(spec(multiplier), facts()) == []
    with pytest.raises(PlanRefused):
        account.plan(spec(0.9), facts())


def test_a_budget_that_holds_not_one_step_is_refused() -> None:
    (finding,) = account.check(spec(0.5, "full_batch", None), facts(epochs="auto"))
    assert finding.code == "P106"


def test_a_budget_that_hardly_asks_for_noise_is_refused() -> None:
    with pytest.raises(PlanRefused, match="P107"):
        account.plan(spec(batch_size=1), facts(size=1000, epsilon=2000.0, delta=1e-3, steps=1))


def test_an_endless_run_is_refused() -> None:
    with pytest.raises(PlanRefused, match="P107"):
        account.plan(spec(100.0, batch_size=1), facts(epochs="auto"))
    assert [f.code for f in account.check(spec(batch_size=1), facts(epochs=1000.0))] == ["P109"]


@pytest.mark.parametrize(("family", "shape"), [("student_t", {"df": 9.0}), ("cauchy", {}),
                                               ("variance_gamma", {"shape": 2.0}), ("sech", {})])  # fmt: skip
def test_families_without_a_bound_are_refused(family: str, shape: dict[str, float]) -> None:
    findings = account.check(spec(1.0, family=family, **shape), facts())
    assert [f.code for f in findings] == ["P101"]
    assert family in findings[0].message


def test_a_batch_larger_than_the_data_is_refused() -> None:
    assert [f.code for f in account.check(spec(batch_size=61000), facts())] == ["P105"]


def test_t16_the_divisor_is_public() -> None:
    assert account.plan(spec(scheme="dealt", batch_size=7), facts(size=100)).plan.expected_batch == 100 / 15


@pytest.mark.parametrize("batch_size", [1, 7, 600])
def test_t8_no_float_decides_how_many_steps_there_are(batch_size: int) -> None:
    """Hundredths of an epoch against integers: 0.07 epochs of 100 batches are 7 steps, and not the 8 of binary
    floats."""
    for size in (600, 637, 60_000):
        for hundredths in (*range(1, 60), 100, 113, 199, 500):
            planned = account.plan(
                spec(10.0, batch_size=batch_size), facts(size, epsilon="auto", epochs=hundredths / 100)
            )
            plan = planned.plan
            assert plan.length.steps == -(-hundredths * size // (100 * batch_size)), (size, hundredths)


@pytest.mark.parametrize("epsilon", [2.837566169, 1.00000049, 0.123456789])
def test_t22_a_budget_with_more_digits_than_are_reported_is_kept(epsilon: float) -> None:
    block = facts(epsilon=epsilon)
    assert block.cap is not None
    assert block.cap <= epsilon
    planned = account.plan(spec(), block)
    plan = planned.plan
    reported = accountants.guarantee(plan.events, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "record", "pld")
    assert reported.epsilon <= block.cap
    exact = account.plan(spec(1.5), facts(epsilon="auto"))
    spent = accountants.epsilon(exact.plan.events, 1e-5, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    assert account.check(spec(1.5), facts(epsilon=spent)) != []  # it would be reported above the budget


def test_a_budget_that_no_noise_keeps_is_refused() -> None:
    with pytest.raises(PlanRefused, match="P106"):
        account.plan(spec(scheme="full_batch", batch_size=None), facts(epsilon=1e-12, delta=1e-15, steps=1_000_000))
