"""The audit of projected noisy SGD: a sound program is not accused, and planted faults are caught.

Statistical tests are judged at 1e-8 each: a sound program is accused about once in ten million audits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.pnsgd.train import audit_releases, descent, observed_run, sets, worst_records
from dprecipe.mechanisms.pnsgd.train import run as train
from dprecipe.mechanisms.pnsgd.train.audit import audit
from dprecipe.mechanisms.pnsgd.train.descent import Descent, Noise, State
from dprecipe.mechanisms.pnsgd.train.encrypted_state import EncryptedState
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.audit.counts import lower_mu
from dprecipe.privacy.audit.verdicts import judge_bound, judge_test
from dprecipe.training.audit.request import Attack, AuditRequest
from dprecipe.training.run import attempt
from tests.accused import find_accusers

Planned = Callable[..., Plan]


def accused(plan: Plan) -> set[str]:
    """The tests of depth `program` that fail."""
    return find_accusers(audit, plan, 20)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer draws of noise, and records in coarser angles: planted faults are coarse, too."""
    monkeypatch.setattr(observed_run, "NOISES", 1_500)
    monkeypatch.setattr(worst_records, "ANGLES", 48)
    monkeypatch.setattr(worst_records, "PLANES", 1)
    monkeypatch.setattr(worst_records, "POINTS", 60)


@pytest.fixture
def planned(hidden: Planned) -> Planned:
    defaults = {"mechanism.batch_size": "40", "mechanism.noise.multiplier": "0.5"}

    def make(*overrides: str) -> Plan:
        given = {override.partition("=")[0] for override in overrides}
        if "mechanism.noise" in given:
            given.add("mechanism.noise.multiplier")
        return hidden(*(f"{key}={value}" for key, value in defaults.items() if key not in given), *overrides)

    return make


def test_a_sound_program_is_not_accused(planned: Planned) -> None:
    assert accused(planned()) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("mechanism.order=sequential", "budget.neighbouring=zero_out_one"),
        ("mechanism.stop=random", "mechanism.checkpoint=none", "mechanism.batch_size=1", "training.epochs=3"),
        ("model={kind: softmax_regression, l2: 0.01}", "mechanism.constraint={kind: box, bound: 0.5}"),
        ("model={kind: huber_svm}", "mechanism.constraint={kind: intervals, low: -0.1, high: 0.3}"),
        (
            "training.epochs=3",
            "mechanism.noise=[{family: gaussian, multiplier: 4.0, epochs: 1}, {family: gaussian, multiplier: 6.0}]",
        ),
    ],
    ids=str,
)
def test_sound_variants_are_not_accused(planned: Planned, overrides: tuple[str, ...]) -> None:
    assert accused(planned(*overrides)) == set()


def with_constants(plan: Plan, **shares: float) -> Plan:
    """The plan with constants times these."""
    own = plan.mechanism_plan
    proven = replace(own.descent.proven, **{k: getattr(own.descent.proven, k) * s for k, s in shares.items()})
    return replace(plan, mechanism_plan=replace(own, descent=replace(own.descent, proven=proven)))


def write_iterates(patch: pytest.MonkeyPatch) -> None:
    honest = EncryptedState.save

    def save(self: Any, state: State, head: str) -> None:
        honest(self, state, head)
        np.save(self._path.with_name("iterate.npy"), state.iterate.astype(np.float32))

    patch.setattr(EncryptedState, "save", save)


def write_losses(patch: pytest.MonkeyPatch) -> None:
    honest = EncryptedState.save

    def save(self: Any, state: State, head: str) -> None:
        honest(self, state, head)
        objective = train.build_objective(PLANS[-1])
        loss = objective.mean_loss(state.iterate, observed_run.make_records(objective, (5,), observed_run.SIZE))
        Path(self._path).with_name("losses.txt").write_text(repr(loss))

    patch.setattr(EncryptedState, "save", save)


def leave_projection_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sets.Ball, "project", lambda self, w: None)


def halve_noise(patch: pytest.MonkeyPatch) -> None:
    honest = Noise.scaled
    patch.setattr(Noise, "scaled", lambda self, *given: honest(self, *given) / 2)


def repeat_noise(patch: pytest.MonkeyPatch) -> None:
    honest = Noise.of
    patch.setattr(Noise, "of", lambda self, step, count: np.repeat(honest(self, 0, 1), count, axis=0))


def repeat_secrets(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(attempt, "Secrets", lambda seed, number: Secrets(7))


def divide_by_actual(patch: pytest.MonkeyPatch) -> None:
    honest = Descent._gradient

    def gradient(self: Any, first: int, end: int) -> Any:
        return honest(self, first, end) * (self._batch / (end - first))

    patch.setattr(Descent, "_gradient", gradient)


def reserve_late(patch: pytest.MonkeyPatch) -> None:
    def spend(ledger: Any, event: Any, draw: Callable[[], None]) -> None:
        draw()
        ledger.reserve(event, 1)
        ledger.settle(event, 1)

    patch.setattr(train, "spend_once", spend)


def shuffle_each_pass(patch: pytest.MonkeyPatch) -> None:
    honest = Descent._rows

    def rows(self: Any, first: int, end: int) -> Any:
        if self._state.order is not None:
            np.random.default_rng().shuffle(self._state.order)
        return honest(self, first, end)

    patch.setattr(Descent, "_rows", rows)


def sort_orders(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(descent.np, "argsort", lambda words: np.arange(len(words)))


def stop_late(patch: pytest.MonkeyPatch) -> None:
    honest = State.fresh

    def fresh(*given: Any, **more: Any) -> State:
        state = honest(*given, **more)
        state.stop = max(state.stop, given[2] // 2 + 1)
        return state

    patch.setattr(State, "fresh", staticmethod(fresh))


PLANS: list[Plan] = []
FAULTS: list[tuple[Any, tuple[str, ...], set[str]]] = [
    (write_iterates, (), {"files"}),
    (write_losses, (), {"files"}),
    (leave_projection_out, (), {"projection", "iterates_norm", "steps_replayed"}),
    (halve_noise, (), {"noise_scale"}),
    (repeat_noise, (), {"noise_steps"}),
    (repeat_secrets, (), {"noise_resumed"}),
    (divide_by_actual, (), {"steps_replayed", "projection"}),
    (reserve_late, (), {"ledger"}),
    (shuffle_each_pass, (), {"records_read"}),
    (sort_orders, (), {"order_first"}),
    (stop_late, ("mechanism.stop=random", "mechanism.batch_size=20"), {"stop_half"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "overrides", "caught"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_caught(
    planned: Planned, plant: Any, overrides: tuple[str, ...], caught: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(*overrides)
    PLANS.append(plan)
    plant(monkeypatch)
    assert accused(plan) >= caught


@pytest.mark.slow
def test_constants_that_promise_too_much_are_caught(planned: Planned) -> None:
    short = {"lipschitz": 0.9, "gradient_sensitivity": 0.9, "smoothness": 0.9}
    assert accused(with_constants(planned(), **short)) >= {
        "gradient_norm",
        "gradient_distance",
        "smoothness",
        "step_move",
    }


@pytest.mark.slow
def test_other_constants_that_promise_too_much_are_caught(planned: Planned) -> None:
    wrong = accused(with_constants(planned(), diameter=0.9, largest_norm=0.9, strong_convexity=1.1))
    assert wrong >= {"set_norm", "set_diameter", "strong_convexity"}


def test_an_event_that_is_not_of_the_run_is_caught(planned: Planned) -> None:
    plan = planned()
    own = plan.mechanism_plan
    quiet = replace(own.event, stages=tuple((n, 2 * m, c, d) for n, m, c, d in own.event.stages))
    lying = replace(own)
    object.__setattr__(lying, "event", quiet)
    wrong = {found[0] for found in _claims(replace(plan, mechanism_plan=lying))}
    assert wrong == {"event_stages", "claimed_epsilon"}


def _claims(plan: Plan) -> list[tuple[str, Any]]:
    from dprecipe.mechanisms.pnsgd.train.audit import _compare_claim

    return [(name, found) for name, _, found in _compare_claim(plan)
            if not judge_test("program", name, "claim", found).passed or name == "claimed_epsilon"]  # fmt: skip


# Whole runs


def attacks(plan: Plan, runs: int) -> list[Attack]:
    return list(audit(plan, AuditRequest(("releases",), 0, runs, 0.95)).attacks)


def refuted(attack: Attack) -> bool:
    return judge_bound(
        attack.depth, attack.id, attack.text, attack.trials, confidence=0.95, claimed=attack.claimed, curve=attack.curve
    ).refuted


@pytest.mark.slow
def test_the_attack_finds_what_a_linear_loss_has(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one step the last iterate is exactly Gaussian; of two passes of saturated slopes nearly so: two uses of the
    record in the noise of all six steps. A bound of 95 % is below four fifths of the first once in 10^4. Of the second
    it found 0.88 with a spread of 0.05 in twelve attacks."""
    monkeypatch.setattr(audit_releases, "MULTIPLIER", 0.5)
    plan = planned("mechanism.order=sequential", "model={kind: huber_svm, width: 0.2}", "mechanism.learning_rate=0.1")
    one, two = attacks(plan, 3_200)
    assert (one.claimed, one.trials.form) == (pytest.approx(2.0), "mu")
    assert 0.8 * 2.0 < lower_mu(one.trials, 0.95) <= 2.0
    assert two.claimed is not None
    exact = 2 * 2 / math.sqrt(6)
    assert 0.6 * exact < lower_mu(two.trials, 0.95) <= two.claimed
    assert not refuted(one)
    assert not refuted(two)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), ("budget.neighbouring=zero_out_one", "model.bias=false")], ids=str)
def test_halved_noise_is_refuted_by_whole_runs(
    planned: Planned, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(*overrides)
    sound = attacks(plan, 800)
    assert len(sound) == 2
    assert not any(map(refuted, sound))
    halve_noise(monkeypatch)
    assert any(map(refuted, attacks(plan, 1_200)))
