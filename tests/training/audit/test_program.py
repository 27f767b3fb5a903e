"""Whole audits of compiled programs: sound ones are not accused, and planted faults are.

Faults are planted by replacing a function while a test lasts; the product has no switch for them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import RunFailed
from dprecipe.models.form import Form
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.audit.results import Scores
from dprecipe.privacy.audit.specification import judge_specification
from dprecipe.privacy.correlated_sums import CycleGaussian
from dprecipe.recipe.read import read_text
from dprecipe.training.audit.kept import join_audits, keep_audit, read_audit
from dprecipe.training.audit.program import Bench, remark_on
from dprecipe.training.audit.request import AuditEvidence
from dprecipe.training.audit.rig import Seen
from dprecipe.training.audit.run import Audited, audit, judge, make_request, require_sound
from dprecipe.training.audit.steps import _Attacker
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.probe.program import Check
from dprecipe.training.program import program
from dprecipe.training.run import gate
from dprecipe.training.run.folder import RunFolder
from dprecipe.training.steps import noisy_steps
from dprecipe.training.steps.optimise import FlatGradient

RECIPE = """
recipe: dprecipe/v1
name: attacked
data: {{train: {{source: digits, split: train}}, size: 1438, {data}}}
model: {{kind: logistic_regression}}
mechanism: {{{mechanism}}}
budget: {{epsilon: 8, delta: 1.0e-5}}
training: {{steps: 6, optimizer: {{kind: sgd, lr: 0.5, momentum: 0.9}}, average: {{kind: ema, decay: 0.9}}}}
"""
DPSGD = """kind: dpsgd, clip: {norm: 0.5}, noise: {family: gaussian, multiplier: 1.0},
  sampling: {scheme: poisson, batch_size: 64}"""
ADAPTIVE = DPSGD.replace("{norm: 0.5}", "{mode: adaptive, norm: 0.5}").replace("batch_size: 64", "batch_size: 256")
AUGMENTED = "preprocess: [{crop: {padding: 1}}]"
PREVIOUS = """kind: correlated, clip: {norm: 0.5}, noise: {form: previous_step, multiplier: 0.5, previous: 0.8},
  sampling: {scheme: fixed_order, batch_size: 240}"""
BANDED = """kind: correlated, clip: {norm: 0.5}, noise: {form: banded, multiplier: 0.8, bands: 3, power: 1.0},
  sampling: {scheme: cyclic_poisson, batch_size: 16}"""
ENCODED = """kind: encoded, codebook: {source: gaussian}, noise: {family: gaussian, multiplier: 1.0},
  sampling: {scheme: poisson, batch_size: 256}"""


def plan_of(mechanism: str = DPSGD, data: str = "unit: record") -> Plan:
    return make_plan(read_text(RECIPE.format(mechanism=mechanism, data=data)))


def attack(plan: Plan, depth: str = "program", steps: int = 200) -> Audited:
    request = make_request(plan, (depth,), steps)  # type: ignore[arg-type]
    return audit(plan, request)


def accusers(audited: Audited) -> set[str]:
    return {part.id for part in audited.audit.failed}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "data"),
    [(DPSGD, "unit: record"), (ADAPTIVE, AUGMENTED), (ENCODED, "unit: record")],
    ids=["dpsgd", "adaptive-augmented", "encoded"],
)
def test_a_sound_program_is_not_accused(mechanism: str, data: str) -> None:
    """One of a million runs of this test fails by chance."""
    plan = plan_of(mechanism, data)
    audited = attack(plan)
    assert accusers(audited) == set()
    always = mechanism_of(plan.mechanism).certificate.audit_tests | {"secrets"}
    assert always <= {test.id for test in audited.audit.tests}
    assert len(audited.audit.tests) >= 25
    assert require_sound(audited) is audited.audit


def halve_noise(patch: pytest.MonkeyPatch) -> None:
    real = gate.multiplier_of
    patch.setattr(gate, "multiplier_of", lambda event: real(event) / 2)


def forget_clipping(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Clipping, "weights", lambda self, norms_GN: torch.ones_like(norms_GN))


def divide_by_batch(patch: pytest.MonkeyPatch) -> None:
    real = noisy_steps.NoisySteps.sum_units

    def sum_units(self: Any, ticket: Any, number: int, units: Any) -> Any:
        self.context = replace(self.context, size_share=max(1, len(units)) / 64)
        return real(self, ticket, number, units)

    patch.setattr(noisy_steps.NoisySteps, "sum_units", sum_units)


def take_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noisy_steps, "draw_batch", lambda event, units, stream, parts: iter([np.arange(64)]))


def keep_clean_gradient(patch: pytest.MonkeyPatch) -> None:
    """A part of the weights' update comes from a sum without noise."""
    real_sum, real_set = noisy_steps.NoisySteps.sum_units, FlatGradient.set
    clean: list[Tensor] = []

    def sum_units(self: Any, ticket: Any, number: int, units: Any) -> Any:
        summed = real_sum(self, ticket, number, units)
        clean.append(summed.value.clone())
        return summed

    patch.setattr(noisy_steps.NoisySteps, "sum_units", sum_units)

    def set_more(self: Any, gradient: Tensor) -> None:
        real_set(self, gradient + 0.01 * clean[-1][: len(gradient)])

    patch.setattr(FlatGradient, "set", set_more)


def settle_less(patch: pytest.MonkeyPatch) -> None:
    from dprecipe.privacy.ledger import LedgerWriter

    real = LedgerWriter.settle
    patch.setattr(LedgerWriter, "settle", lambda self, event, count: real(self, event, max(0, count - 1)))


def pass_probe(patch: pytest.MonkeyPatch) -> None:
    """The probe, which every run does, sees some of the faults first."""
    patch.setattr(program, "require_passed", lambda checks, module: tuple(checks))
    patch.setattr(program, "noise_scale", lambda plan, device, *_: Check("noise_scale", "", True, ""))
    patch.setattr(program, "noise_correlation", lambda plan, device: ())


PLANTED = {
    halve_noise: {"noise_scale", "given_scale"},
    forget_clipping: {"sum_alone", "sum_amid_others"},
    divide_by_batch: {"divisor", "post_processing"},
    take_all: {"sampling_steps"},
    keep_clean_gradient: {"post_processing", "divisor"},
    settle_less: {"ledger_counts"},
}


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_seen(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    plant(monkeypatch)
    pass_probe(monkeypatch)
    audited = attack(plan)
    assert PLANTED[plant] <= accusers(audited)
    with pytest.raises(RunFailed, match="refutes the claim"):
        require_sound(audited)


WITH_CANARIES = RECIPE.format(mechanism=DPSGD, data="unit: record") + "audit: {canaries: 60, canary: record}\n"


@pytest.mark.slow
def test_a_recipe_with_canaries_of_its_own_is_audited_without_them() -> None:
    assert not accusers(attack(make_plan(read_text(WITH_CANARIES))))


def test_synthetic_records_have_no_canaries_of_the_run(tmp_path: Path) -> None:
    """Batches are then drawn from as many units as the tests of batches count."""
    program: Any = SimpleNamespace(device=torch.device("cpu"))
    plan, build = make_plan(read_text(WITH_CANARIES)), cast(Any, None)
    bench = Bench(plan, build, program, Form((64,), None), tmp_path, lambda: None)
    records = bench.records()
    assert bench.store(records).units == records.unit_count == 1438


@pytest.mark.slow
def test_a_canary_in_steps_comes_near_the_claim_and_sees_less_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the claimed μ of 2, by 800 trials a side: a sound bound has a mean of 89 % of it, a deviation of 4 %, and is
    below 65 % in less than one of a million runs; that of half the noise is not above it in one of a million."""
    plan = plan_of(DPSGD.replace("multiplier: 1.0", "multiplier: 0.5").replace("64", "16"))
    (bound,) = attack(plan, "steps", 1600).audit.bounds
    assert bound.claimed == pytest.approx(2.0)
    assert bound.lower > 0.65 * bound.claimed
    assert bound.implied_epsilon is not None
    pass_probe(monkeypatch)
    halve_noise(monkeypatch)
    (bound,) = attack(plan, "steps", 600).audit.bounds
    assert bound.refuted


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [PREVIOUS, BANDED], ids=["previous_step", "banded"])
def test_a_canary_in_steps_is_seen_in_all_that_correlated_noise_shows_of_it(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By 200 trials a side: a sound bound is below 55 % of the claim, or that of half the noise within it, in less than
    one of a million runs."""
    plan = make_plan(
        read_text(RECIPE.format(mechanism=mechanism, data="unit: record").replace("epsilon: 8", "epsilon: 60"))
    )
    (bound,) = attack(plan, "steps", 400).audit.bounds
    event = plan.mechanism_plan.events[0].event
    assert bound.claimed > 1.1 / event.multipliers[0]  # more than one step shows
    assert bound.lower > 0.55 * bound.claimed
    assert not bound.refuted
    pass_probe(monkeypatch)
    halve_noise(monkeypatch)
    (bound,) = attack(plan, "steps", 400).audit.bounds
    assert bound.refuted


@pytest.mark.slow
def test_records_that_are_augmented_blind_no_attack_on_steps() -> None:
    """The sums of each step are of draws of its own. By 150 trials a side: less than one of a million sound runs has
    less than 55 % of the claim, and no draw is taken for the canary."""
    mechanism = PREVIOUS.replace("multiplier: 0.5", "multiplier: 0.4")
    text = RECIPE.format(mechanism=mechanism, data=AUGMENTED).replace("epsilon: 8", "epsilon: 90")
    (bound,) = (audited := attack(make_plan(read_text(text)), "steps", 300)).audit.bounds
    assert 0.55 * bound.claimed < bound.lower <= bound.claimed
    assert not audited.remarks


def test_an_attacker_begins_again_after_noise_that_is_not_finite() -> None:
    """Also where whitening would carry it on for ever."""
    sums = SimpleNamespace(state=lambda: None, restore=lambda state: None)
    noise = iter([float("inf"), 3.0, 3.0, -9.0])  # their sums: 3, 6, -3
    event = CycleGaussian(1.0, 1.0, 1, 0)

    def step(units: Any) -> Seen:
        noisy = torch.tensor([next(noise)], dtype=torch.float64)
        return Seen(event, torch.zeros(1, dtype=torch.float64), 1.0, noisy, noisy)

    def summed(units: Any) -> ClippedSum:
        return ClippedSum(torch.full((1,), float(len(units)), dtype=torch.float64), 1.0)

    rig = SimpleNamespace(event=event, module=SimpleNamespace(sums=sums), trained=[], sum=summed, step=step)
    attacker = _Attacker(cast(Any, rig), 0, cast(Any, SimpleNamespace(scale=1.0)), 0, draws=False)
    assert [attacker.guess(False) for _ in range(4)] == [False, True, True, False]


def test_an_audit_is_kept_until_the_release_and_joined_with_what_the_run_showed(tmp_path: Path) -> None:
    plan = plan_of()
    folder = RunFolder(tmp_path)
    folder.private.mkdir()
    assert read_audit(folder) is None
    audited = judge(plan, AuditEvidence(), 0.95).audit
    keep_audit(folder, audited)
    assert read_audit(folder) == audited
    (folder.private / "audit.json").write_text("{")
    assert read_audit(folder) is None
    assert join_audits(audited, None) is audited
    assert join_audits(None, audited) is audited
    test = judge_specification(Scores(inside=5, outside=5, difference=0.1), 0.5, 0.95)
    joined = join_audits(audited, audited.model_copy(update={"specification": test}))
    assert joined is not None
    assert joined.specification == test


def test_an_audit_on_a_gpu_says_that_it_is_of_this_device() -> None:
    assert remark_on(torch.device("cpu")) == ()
    assert "sums on cuda:0 are not the same" in remark_on(torch.device("cuda", 0))[0]


@pytest.mark.slow
def test_a_data_set_of_one_unit_is_audited_and_remarks_tell_where_a_run_is_another_program() -> None:
    full = DPSGD.replace("poisson, batch_size: 64", "full_batch").replace("multiplier: 1.0", "multiplier: auto")
    text = RECIPE.format(mechanism=full, data="unit: record").replace("size: 1438", "size: 1")
    planned = make_plan(read_text(f"{text}runtime: {{insecure: {{seed: 1}}}}\n"))
    audited = audit(planned, make_request(planned, ("program", "steps"), 200))
    assert accusers(audited) == set()
    assert audited.audit.bounds[0].evidence.kind == "trials"
    assert any(remark.startswith("runtime.insecure: the audit drew anew") for remark in audited.remarks)
