"""What a run takes: clip modes, schedules, phases and batches, as the plan holds them and the account charges for
them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprecipe.contract.mechanism import Facts, Planned
from dprecipe.data.schema import Data
from dprecipe.faults import PlanRefused
from dprecipe.language.blocks import Budget
from dprecipe.language.training import Training
from dprecipe.mechanisms.dpsgd import account
from dprecipe.mechanisms.dpsgd.plan import DpsgdPlan
from dprecipe.mechanisms.dpsgd.schema import Dpsgd
from dprecipe.models.schema import Mlp
from dprecipe.noisy_sum.clipped_plan import Phase, PlannedAdaptation, PlannedClip, gradient_multiplier
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.capped_sums import CappedDealtGaussian
from dprecipe.privacy.dealt_sums import DealtGaussian
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import (
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    PoissonLaplace,
    TruncatedPoissonGaussian,
)

RECORDS = json.loads((Path(__file__).parents[2] / "golden" / "accounting.json").read_text())["records"]
ADD = Neighbouring.ADD_OR_REMOVE_ONE
POISSON = {"scheme": "poisson", "batch_size": 64}


def moving(first: float, last: float, kind: str = "linear", epochs: float | None = None) -> dict[str, Any]:
    return {"schedule": kind, "from": first, "to": last, "epochs": epochs}


def spec(clip: Any = None, noise: Any = "auto", sampling: Any = None, **more: Any) -> Dpsgd:
    return Dpsgd.model_validate(
        {
            "kind": "dpsgd",
            "clip": {"norm": 0.5} if clip is None else clip,
            "noise": noise if isinstance(noise, dict | tuple) else {"family": "gaussian", "multiplier": noise},
            "sampling": POISSON if sampling is None else sampling,
            **more,
        }
    )


def facts(epsilon: float | str = 3.0, relation: str = "add_or_remove_one", **length: Any) -> Facts:
    budget = Budget.model_validate({"epsilon": epsilon, "delta": 1e-5, "neighbouring": relation})
    training = Training.model_validate({**(length or {"epochs": 5.0}), "optimizer": {"kind": "sgd", "lr": 0.5}})
    data = Data.model_validate({"train": {"source": "digits", "split": "train"}, "size": 1438})
    return Facts(1438, budget, training, "record", data, Mlp(kind="mlp", hidden=(32,)))


def plan_block(block: Dpsgd, terms: Facts) -> Planned[DpsgdPlan]:
    assert [finding.code for finding in account.check(block, terms) if finding.is_error] == []
    planned = account.plan(block, terms)
    plan = planned.plan
    assert sum(phase.steps for phase in plan.phases) == plan.length.steps
    assert len(plan.phases) <= 64
    assert count_events(plan.events) == sum(phase.charge.count for phase in plan.phases)
    return planned


def planned(block: Dpsgd, terms: Facts) -> DpsgdPlan:
    return plan_block(block, terms).plan


def test_one_phase_says_what_there_always_was() -> None:
    plan = planned(spec(noise=1.5), facts("auto"))
    (phase,) = plan.phases
    assert phase == Phase(Charge(PoissonGaussian(64 / 1438, 1.5), 113), 0.5, 64.0)
    assert (phase.steps, phase.noise_multiplier, plan.noise_deviation(phase)) == (113, 1.5, 0.75)
    assert (plan.scheme, plan.sampling_rate, plan.expected_batch) == ("poisson", 64 / 1438, 64.0)
    assert (plan.clip, plan.augmentations, plan.noise_family) == (PlannedClip("flat", "l2"), 1, "gaussian")


def test_a_clip_norm_that_moves_costs_nothing() -> None:
    plan = planned(spec({"norm": moving(1.0, 0.1, "cosine")}), facts())
    plain = planned(spec(), facts())
    assert plan.events == plain.events
    norms = [phase.clip_norm for phase in plan.phases]
    assert norms[0] == 1.0
    assert norms[-1] == 0.1
    assert norms == sorted(norms, reverse=True)


def test_noise_that_moves_is_charged_stair_by_stair() -> None:
    plan = planned(spec(noise={"family": "gaussian", "multiplier": moving(3.0, 1.5)}), facts("auto"))
    assert [(c.event.noise_multiplier, c.count) for c in plan.events] == [
        (phase.noise_multiplier, phase.steps) for phase in plan.phases
    ]
    assert plan.phases[0].noise_multiplier == 3.0
    assert plan.phases[-1] == Phase(Charge(PoissonGaussian(64 / 1438, 1.5), 1), 0.5, 64.0)
    spent = accountants.epsilon(plan.events, 1e-5, ADD, "rdp")
    min_epsilon = accountants.epsilon([Charge(PoissonGaussian(64 / 1438, 3.0), 113)], 1e-5, ADD, "rdp")
    max_epsilon = accountants.epsilon([Charge(PoissonGaussian(64 / 1438, 1.5), 113)], 1e-5, ADD, "rdp")
    assert min_epsilon < spent < max_epsilon


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_batches_that_move_make_as_many_passes(kind: str) -> None:
    plan = planned(spec(noise=4.0, sampling={"scheme": "poisson", "batch_size": moving(32, 128, kind)}), facts("auto"))
    units = sum(phase.steps * phase.divisor for phase in plan.phases)
    assert 5 * 1438 <= units < 5 * 1438 + 128
    assert [c.event.sampling_rate for c in plan.events] == [phase.divisor / 1438 for phase in plan.phases]


def test_a_schedule_of_its_own_length_leaves_the_run_free() -> None:
    noise = {"family": "gaussian", "multiplier": moving(4.0, 2.0, epochs=0.2)}
    plan = planned(spec(noise=noise), facts(steps="auto"))
    assert [c.count for c in plan.events[:-1]] == [1, 1, 1, 1]
    assert accountants.epsilon(plan.events, 1e-5, ADD, "pld") <= 3
    one_more = [*plan.events[:-1], Charge(plan.events[-1].event, plan.events[-1].count + 1)]
    assert accountants.epsilon(one_more, 1e-5, ADD, "pld") > 3


def test_the_last_phase_is_solved() -> None:
    noise = (
        {"family": "gaussian", "multiplier": 4.0, "epochs": 2.0},
        {"family": "gaussian", "multiplier": "auto"},
    )
    solved, plan = plan_block(spec(noise=noise), facts()).solved, planned(spec(noise=noise), facts())
    assert list(solved) == ["mechanism.noise.1.multiplier"]
    assert [c.count for c in plan.events] == [45, 68]
    assert 0.999 * 3 <= accountants.epsilon(plan.events, 1e-5, ADD, "pld") <= 3


def test_layers_are_one_gaussian() -> None:
    """C_l on layer l with noise √L σ C_l is a Gaussian of multiplier σ; of other multipliers σ_l, 1/√Σ 1/σ_l²."""
    plan = planned(spec({"mode": "per_layer", "norm": 0.6}, 2.0), facts("auto"))
    assert plan.clip.norms == pytest.approx([1 / math.sqrt(2)] * 2)
    assert plan.events == planned(spec(noise=2.0), facts("auto")).events
    assert plan.noise_deviation(plan.phases[0]) == pytest.approx(1.2)
    given = planned(spec({"mode": "per_layer", "norms": (2.0, 0.5)}, 2.0), facts("auto"))
    assert (given.phases[0].clip_norm, given.clip.norms) == (1.0, (2.0, 0.5))
    assert given.noise_deviation(given.phases[0]) == pytest.approx(2.0 * math.sqrt(2) * 2.0)
    for multipliers, joint in (
        ([2.0, 3.0, 6.0], 1.603567),
        ([1.0, 1.0], math.sqrt(0.5)),
        ([math.sqrt(2) * 2.0] * 2, 2.0),
    ):
        together = [Charge(Gaussian(sigma), 1) for sigma in multipliers]
        one = accountants.epsilon([Charge(Gaussian(joint), 1)], 1e-5, ADD, "pld")
        assert accountants.epsilon(together, 1e-5, ADD, "pld") == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("record", [r for r in RECORDS if r["kind"] == "andrew_split"])
def test_goldens_of_a_count_s_part(record: dict[str, Any]) -> None:
    i = record["inputs"]
    assert gradient_multiplier(i["z_total"], i["sigma_b"]) == pytest.approx(record["value"], rel=1e-12)


def test_adaptive_clipping_is_charged_as_one_release() -> None:
    adaptive = {"mode": "adaptive", "norm": 0.5, "quantile": 0.3}
    plan = planned(spec(adaptive, 1.5), facts("auto"))
    assert plan.events == planned(spec(noise=1.5), facts("auto")).events
    assert plan.clip.adaptation == PlannedAdaptation(0.3, 0.2, 64 / 20)
    alone = gradient_multiplier(1.5, 3.2)
    assert 1 / alone**2 + 1 / 6.4**2 == pytest.approx(1 / 1.5**2)
    assert plan.noise_deviation(plan.phases[0]) == pytest.approx(alone * 0.5)
    with pytest.raises(PlanRefused, match="P115"):
        account.plan(spec({**adaptive, "count_noise": 0.4}), facts())
    assert [f.code for f in account.check(spec({**adaptive, "count_noise": 0.75}, 1.5), facts("auto"))] == ["P115"]
    assert account.check(spec({**adaptive, "count_noise": 0.7501}, 1.5), facts("auto")) == []


def test_laplace_noise_is_on_an_l1_norm() -> None:
    plan = planned(spec(noise={"family": "laplace", "multiplier": "auto"}), facts())
    (charge,) = plan.events
    assert charge.event == PoissonLaplace(64 / 1438, plan.phases[0].noise_multiplier)
    assert plan.clip.norm_kind == "l1"
    assert plan.noise_deviation(plan.phases[0]) == pytest.approx(math.sqrt(2) * plan.phases[0].noise_multiplier * 0.5)
    assert 0.999 * 3 <= accountants.epsilon(plan.events, 1e-5, ADD, "pld") <= 3
    per_layer = planned(
        spec({"mode": "per_layer", "norm": 0.5}, {"family": "laplace", "multiplier": 2.0}), facts("auto")
    )
    assert per_layer.clip.norms == (0.5, 0.5)
    assert per_layer.noise_deviation(per_layer.phases[0]) == pytest.approx(math.sqrt(2) * 2.0 * 0.5)


def test_capped_batches_and_batches_of_one_size() -> None:
    cut = {"scheme": "truncated_poisson", "batch_size": 64, "max_batch_size": 128}
    (charge,) = planned(spec(noise=2.0, sampling=cut), facts("auto")).events
    assert charge == Charge(TruncatedPoissonGaussian(64 / 1438, 2.0, 1438, 128), 113)
    (charge,) = planned(spec(noise=2.0, sampling={**cut, "max_batch_size": 1438}), facts("auto")).events
    assert charge.event == PoissonGaussian(64 / 1438, 2.0)  # no batch is ever cut
    fixed = {"scheme": "fixed_size", "batch_size": 64}
    plan = planned(spec(noise=2.0, sampling=fixed), facts("auto", "replace_one"))
    assert plan.events == (Charge(FixedSizeGaussian(1438, 64, 2.0), 113),)
    poisson = planned(spec(noise=2.0), facts("auto", "replace_one"))
    costs = [accountants.epsilon(p.events, 1e-5, Neighbouring.REPLACE_ONE, "pld") for p in (plan, poisson)]
    assert costs[0] > 1.5 * costs[1]  # not a harmless replacement of Poisson batches
    assert [f.code for f in account.check(spec(noise=2.0, sampling=fixed), facts("auto"))] == ["P118"]
    (permuted,) = account.check(spec(noise=2.0, sampling={"scheme": "permuted", "batch_size": 64}), facts("auto"))
    assert permuted.code == "P118"
    assert ", with scheme poisson" in permuted.message
    everybody = {"scheme": "fixed_size", "batch_size": 1438}
    assert planned(spec(noise=9.0, sampling=everybody), facts("auto", "replace_one")).events[0].event == Gaussian(9.0)


@pytest.mark.parametrize("scheme", ["fixed_size", "permuted", "truncated_poisson", "poisson", "dealt", "full_batch"])
def test_a_secret_number_of_units_has_no_batches_of_one_size(scheme: str) -> None:
    sizes = {"max_batch_size": 128} if scheme == "truncated_poisson" else {}
    sizes |= {} if scheme == "full_batch" else {"batch_size": 64}
    known = facts()
    secret = Data.model_validate({**known.data.model_dump(by_alias=True), "size": {"max": 1438}})
    found = {
        finding.code
        for finding in account.check(spec(sampling={"scheme": scheme, **sizes}), replace(known, data=secret))
    }
    assert ("P127" in found) == (scheme in {"fixed_size", "permuted", "truncated_poisson"})


def test_dealt_batches_with_a_limit() -> None:
    capped = {"scheme": "dealt", "batch_size": 128, "batch_limit": 192}
    plan = planned(spec(noise=3.0, sampling=capped), facts("auto"))
    assert plan.events == (Charge(CappedDealtGaussian(3.0, 12, 1438, 192), 5),)
    assert (plan.max_batch_size, plan.expected_batch) == (192, 1438 / 12)
    shown = dict(plan.describe())
    assert shown["expected batch"] == "119.833, 192 at most"
    assert shown["sampling rate"] == "each unit in at most one of the 12 steps of an epoch"
    assert account.check(spec(noise=3.0, sampling=capped), facts("auto")) == []
    everybody = spec(noise=3.0, sampling={**capped, "batch_limit": 1438})
    assert planned(everybody, facts("auto")).events[0].event == DealtGaussian(3.0, 12)
    assert spec(noise=3.0, sampling=capped).uniform_steps() is None
    part = planned(spec(noise=3.0, sampling=capped), facts("auto", steps=29))
    assert [(charge.event.steps, charge.count) for charge in part.events] == [(12, 2), (5, 1)]
    texts = {a.id: a.text for a in account.plan(spec(noise=3.0, sampling=capped), facts("auto")).assumptions}
    assert "highest random priorities" in texts["sampling"]


def test_shuffled_batches_change_between_epochs() -> None:
    block = spec({"norm": moving(1.0, 0.5)}, 9.0, {"scheme": "dealt", "batch_size": 144})
    plan = account.plan(block, facts("auto")).plan
    assert [(p.steps, p.clip_norm) for p in plan.phases] == [
        (10, 1.0),
        (10, 0.875),
        (10, 0.75),
        (10, 0.625),
        (10, 0.5),
    ]


def test_every_scheme_and_mode_says_what_it_rests_on() -> None:
    def texts(block: Dpsgd, terms: Facts) -> dict[str, str]:
        return {a.id: a.text for a in account.plan(block, terms).assumptions}

    cut = {"scheme": "truncated_poisson", "batch_size": 64, "max_batch_size": 128}
    assert "random subset" in texts(spec(noise=2.0, sampling=cut), facts("auto"))["sampling"]
    fixed = texts(spec(noise=2.0, sampling={"scheme": "fixed_size", "batch_size": 64}), facts("auto", "replace_one"))
    assert "random subset" in fixed["sampling"]
    laplace = texts(spec(noise={"family": "laplace", "multiplier": 5.0}), facts("auto"))
    assert "0.5 in L1 norm" in laplace["clipping"]
    assert laplace["noise"].startswith("Laplace")
    assert "layer" in texts(spec({"mode": "per_layer", "norm": 1.0}, 2.0), facts("auto"))["clipping"]
    assert "count" in texts(spec({"mode": "adaptive", "norm": 1.0}, 2.0), facts("auto"))["clipping"]
    moving_norm = texts(spec({"norm": moving(1.0, 0.5)}, 2.0), facts("auto"))["clipping"]
    assert "the clip norm of the phase in L2 norm" in moving_norm


def test_a_plan_whose_divisor_is_not_the_expected_batch_can_not_be_made() -> None:
    for noise, sampling, relation in (
        (2.0, {"scheme": "poisson", "batch_size": 64}, "add_or_remove_one"),
        (9.0, {"scheme": "full_batch"}, "add_or_remove_one"),
        (9.0, {"scheme": "dealt", "batch_size": 144}, "add_or_remove_one"),
        (9.0, {"scheme": "dealt", "batch_size": 144, "batch_limit": 250}, "add_or_remove_one"),
        (9.0, {"scheme": "fixed_size", "batch_size": 64}, "replace_one"),
        (9.0, {"scheme": "truncated_poisson", "batch_size": 64, "max_batch_size": 128}, "add_or_remove_one"),
        (9.0, {"scheme": "poisson", "batch_size": moving(31.7, 100.1)}, "add_or_remove_one"),
    ):
        plan = planned(spec(noise=noise, sampling=sampling), facts("auto", relation))
        for phase in plan.phases:
            other = replace(phase, divisor=phase.divisor * (1 + 1e-9))
            with pytest.raises(ValueError, match="units on average"):
                replace(plan, phases=(other,))


BY_LAYER = {"mode": "per_layer", "norms": (2.0, 0.5), "noise": (1.0, 3.0)}


def test_noise_by_layer_has_a_common_scale_that_is_solved() -> None:
    flat = plan_block(spec({"norm": 1.0}), facts())
    by_layer = plan_block(spec(BY_LAYER), facts())
    (z,), (scale,) = flat.solved.values(), by_layer.solved.values()
    (phase,) = by_layer.plan.phases
    assert phase.charge.event == GroupedGaussian.of(64 / 1438, [scale, 3 * scale])
    assert phase.noise_multiplier == pytest.approx(z, rel=2e-4), "the same noise together costs the same"
    assert scale == pytest.approx(z * math.sqrt(1 + 1 / 9), rel=2e-4)
    assert by_layer.plan.noise_deviation(phase) == pytest.approx(max(2.0 * scale, 0.5 * 3 * scale))
    assert by_layer.plan.group_multipliers(phase) == (scale, 3 * scale)


def test_noise_by_layer_follows_schedules_and_phases() -> None:
    plan = planned(spec(BY_LAYER, {"family": "gaussian", "multiplier": moving(2.0, 1.0)}), facts("auto"))
    for phase in plan.phases:
        first, second = plan.group_multipliers(phase) or ()
        assert second == pytest.approx(3 * first)
    assert (plan.group_multipliers(plan.phases[0]) or ())[0] == 2.0
    assert len({phase.charge.event for phase in plan.phases}) > 3


def test_noise_by_layer_of_every_unit_is_one_gaussian() -> None:
    plan = planned(spec(BY_LAYER, 5.0, {"scheme": "full_batch"}), facts("auto"))
    (phase,) = plan.phases
    assert phase.charge.event == GroupedGaussian.of(1.0, [5.0, 15.0])
    assert plan.sampling_rate is None
    text = dict(plan.describe())
    assert text["noise by layer"] == "5 × 2, 15 × 0.5"
    assert text["noise multiplier"] == "4.74342, of all layers together"


def test_hardly_any_noise_is_measured_together() -> None:
    many = {"mode": "per_layer", "norm": 1.0, "noise": (1.0, 1e-3)}
    with pytest.raises(PlanRefused) as refused:
        account.plan(spec(many), facts(2000.0))
    assert [finding.code for finding in refused.value.findings] == ["P107"]


def test_groups_share_a_norm_evenly_and_are_layers_together() -> None:
    plan = planned(spec({"mode": "per_layer", "norm": 0.6, "groups": (2,)}, 2.0), facts("auto"))
    assert plan.clip.norms == (1.0,)
    assert plan.clip.groups == (2,)
    assert plan.phases[0].charge.event == PoissonGaussian(64 / 1438, 2.0)
