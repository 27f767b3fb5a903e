"""DP-SGD's program: it runs the events on record, with the batches they draw, and divides by public constants only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.noisy_sum.batches import draw_batch
from dprecipe.noisy_sum.clipped_plan import PlannedClip
from dprecipe.planning.make import plan
from dprecipe.privacy.events import Charge
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.recipe.read import read_text
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.program.records import Store
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps import clipped_sums as train
from dprecipe.training.steps import noisy_steps
from dprecipe.training.steps.clipped_sums import MAX_NORM, MIN_NORM, ClippedSums, clipping_of, next_clip_norm
from dprecipe.training.steps.contract import NoisyStep, StepContext
from dprecipe.training.steps.fit import fit_steps
from dprecipe.training.steps.noisy_steps import NoisySteps

RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: npz, path: absent.npz, shape: [3], classes: 2}
  size: 40
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 10}
budget: {epsilon: 3.0, delta: 1e-4}
training:
  steps: 25
  optimizer: {kind: sgd, lr: 1.0}
"""
SEED = 5


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., tuple[Plan, NoisySteps]]]:
    """The small recipe's program over 40 synthetic records, with known secrets."""
    ledgers = []

    def make(*overrides: str) -> tuple[Plan, NoisySteps]:
        result = plan(read_text(RECIPE, "small.yaml", overrides))
        generator = np.random.default_rng(0)
        records = Records(generator.random((40, 3), dtype=np.float32), generator.integers(2, size=40))
        ledgers.append(LedgerWriter(tmp_path / f"ledger-{len(ledgers)}.jsonl", result.digest))
        secrets = Secrets(SEED)
        gate = Gate(result.events, result.budget, ledgers[-1], secrets)
        model = nn.Linear(3, 2)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return result, train.build(StepContext(result, model, Store(records, torch.device("cpu")), gate, secrets))

    yield make
    for ledger in ledgers:
        ledger.abandon()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()


def test_t2_the_batches_of_a_run_are_drawn_by_the_events_on_record(
    program: Callable[[], tuple[Plan, NoisySteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, module = program()
    batches: list[NDArray[np.int64]] = []
    real = Store.batch

    seeds: list[int] = []

    def seeing(self: Store, units: NDArray[np.int64], seed: int) -> Any:
        batches.append(units)
        seeds.append(seed)
        return real(self, units, seed)

    monkeypatch.setattr(Store, "batch", seeing)
    module._store.augments = True
    fit_steps(module, lightning.Callback(), 25)
    # Augmentation and dropout draw anew in every batch, or one record would decide what is drawn for the next.
    assert len(set(seeds)) == 25
    (charge,) = result.events
    assert charge == Charge(PoissonGaussian(0.25, result.mechanism_plan.phases[0].noise_multiplier), 25)
    secrets = Secrets(SEED)
    expected = [next(draw_batch(charge.event, 40, secrets.stream("sampling", index))) for index in range(1, 26)]
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in expected]
    assert len({len(batch) for batch in batches}) > 3  # Poisson batches vary in size


def test_a_step_seeds_layers_only_where_one_may_draw(
    program: Callable[[], tuple[Plan, NoisySteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    real = noisy_steps.drawing_from
    monkeypatch.setattr(noisy_steps, "drawing_from", lambda seed, device: seeds.append(seed) or real(seed, device))
    _, module = program()
    fit_steps(module, lightning.Callback(), 3)
    assert seeds == []
    _, module = program()
    model = nn.Sequential(nn.Dropout(0.5), module.model)
    module = train.build(replace(module.context, model=model))
    fit_steps(module, lightning.Callback(), 3)
    assert len(set(seeds)) == len(seeds) == module.steps_done > 2


def test_t1_t16_every_noisy_sum_is_divided_by_the_public_batch_size(
    program: Callable[[], tuple[Plan, NoisySteps]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With lr 1 and no momentum, a step moves the weights by exactly the noisy sum over 10, for batches of 0 to 40."""
    result, module = program()
    sizes = [0, 1, 7, 40] * 6 + [0]
    batches = iter([np.arange(size) for size in sizes])
    monkeypatch.setattr(noisy_steps, "draw_batch", lambda event, units, stream, parts: iter([next(batches)]))
    sums: list[Tensor] = []
    moves: list[Tensor] = []
    real = Gate.release

    def seeing(self: Gate, ticket: Any, clipped: Any) -> Tensor:
        sums.append(real(self, ticket, clipped))
        moves.append(-flat(module.model))
        return sums[-1].clone()

    monkeypatch.setattr(Gate, "release", seeing)

    class Ends(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            if len(moves) > len(done):
                done.append(-(moves[-1] + flat(module.steps.model)))

    done: list[Tensor] = []
    fit_steps(module, Ends(), 25)
    assert result.mechanism_plan.expected_batch == 10.0
    assert len(done) == len(sums) == 25
    for size, noisy, moved in zip(sizes, sums, done, strict=True):
        torch.testing.assert_close(moved, noisy / 10.0, rtol=1e-4, atol=1e-6, msg=f"a batch of {size}")


def test_t9_a_step_that_was_cut_short_leaves_nothing_in_the_next(
    program: Callable[[], tuple[Plan, NoisySteps]],
) -> None:
    """The second half of a batch fails; the next sum is that of its own batch alone."""

    class Torn:
        gradients = 8

        def parts(self, size: int) -> Iterator[BatchPart]:
            yield BatchPart(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
            raise OSError("a disk went away")

    _, module = program()
    whole = BatchPart(torch.eye(3), torch.tensor([0, 1, 0]))
    clean = clipped_sum(module.model, cross_entropy, whole, Clipping.flat(1.0), 2).value
    with pytest.raises(OSError, match="went away"):
        clipped_sum(module.model, cross_entropy, Torn(), Clipping.flat(1.0), 2)
    assert torch.equal(clipped_sum(module.model, cross_entropy, whole, Clipping.flat(1.0), 2).value, clean)


ADAPTIVE = "mechanism.clip={mode: adaptive, norm: 0.5, quantile: 0.3, learning_rate: 0.4, count_noise: 2.0}"


def sums(*overrides: str, model: nn.Module | None = None) -> tuple[Plan, ClippedSums]:
    result = plan(read_text(RECIPE, "small.yaml", overrides))
    return result, ClippedSums(result, nn.Linear(3, 2) if model is None else model)


def test_the_noisy_count_moves_the_clip_norm_of_the_next_step_by_public_constants_alone() -> None:
    result, adaptive = sums(ADAPTIVE)
    step = NoisyStep(3, result.events[0].event)
    before = adaptive.clipping(step)
    assert before.thresholds == (0.5,)
    multiplier = result.mechanism_plan.phases[0].noise_multiplier
    assert before.counted == 2.0 / multiplier
    noisy = torch.tensor([5.0] * 8 + [3.0], dtype=torch.float64)
    gradient, factor = adaptive.gradient(noisy, step)
    assert (gradient.tolist(), factor) == ([0.5] * 8, 1.0)
    # 3 of an expected batch of 10 above one half: 0.8 of them within the norm.
    assert adaptive.clipping(step).thresholds == pytest.approx((0.5 * math.exp(-0.4 * (0.8 - 0.3)),))
    assert adaptive.figures() == {"clip_norm": adaptive.clipping(step).thresholds[0]}


@pytest.mark.parametrize("share", [1e9, -1e9, math.inf, -math.inf, math.nan])
def test_an_adaptive_clip_norm_stays_within_bounds_whatever_the_noise(share: float) -> None:
    norm = 0.5
    for _ in range(3):
        norm = next_clip_norm(norm, share, 0.5, 10.0)
        assert MIN_NORM * (1 - 1e-12) <= norm <= MAX_NORM * (1 + 1e-12)


def test_what_noisy_counts_decided_goes_into_checkpoints_and_comes_back_exactly() -> None:
    result, adaptive = sums(ADAPTIVE)
    step = NoisyStep(0, result.events[0].event)
    adaptive.gradient(torch.arange(9, dtype=torch.float64), step)
    _, resumed = sums(ADAPTIVE)
    resumed.restore(adaptive.state())
    assert resumed.clipping(step) == adaptive.clipping(step) != sums(ADAPTIVE)[1].clipping(step)
    for clip_norm in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="clip norm"):
            resumed.restore({"clip_norm": clip_norm})
    with pytest.raises(KeyError):
        resumed.restore({})


def test_a_run_resumes_with_the_clip_norm_of_its_checkpoint(program: Callable[..., tuple[Plan, NoisySteps]]) -> None:
    _, first = program(ADAPTIVE)
    fit_steps(first, lightning.Callback(), 25)
    state = first.state()
    assert state["sums"] == first.figures() != {"clip_norm": 0.5}
    _, second = program(ADAPTIVE)
    second.restore(state)
    assert second.figures() == first.figures()


def test_each_step_takes_the_constants_of_its_phase() -> None:
    result, phased = sums("mechanism.clip.norm={schedule: linear, from: 1.0, to: 0.5}")
    step = 0
    for phase in result.mechanism_plan.phases:
        for number in (step, step + phase.steps - 1):
            assert phased.clipping(NoisyStep(number, result.events[0].event)).thresholds == (phase.clip_norm,)
        step += phase.steps
    assert step == result.length.steps


def test_the_noise_of_a_count_is_that_of_the_event_that_pays_for_the_step() -> None:
    _, adaptive = sums(ADAPTIVE)
    assert adaptive.clipping(NoisyStep(0, PoissonGaussian(0.25, 0.1))).counted == 2.0 / 0.1


def test_per_layer_norms_are_those_of_the_models_own_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    clip = PlannedClip("per_layer", "l2")
    shared = clipping_of(clip, model, 2.0, 1.0)
    assert shared.groups == (0, 0, 1, 1)
    assert shared.thresholds == pytest.approx((math.sqrt(2),) * 2)
    assert clipping_of(replace(clip, norm_kind="l1"), model, 2.0, 1.0).thresholds == (1.0, 1.0)
    assert clipping_of(replace(clip, norms=(0.2, 0.7)), model, 1.0, 1.0).thresholds == (0.2, 0.7)
    with pytest.raises(RunFailed, match="3 layers, but this model has 2"):
        clipping_of(replace(clip, norms=(1.0, 1.0, 1.0)), model, 1.0, 1.0)


def test_groups_of_layers_have_the_noise_of_the_event_that_pays_for_the_step() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    event = GroupedGaussian.of(0.1, [1.5, 4.0])
    clip = PlannedClip("per_layer", "l2", norms=(0.2, 0.7), groups=(2, 1))
    clipping = clipping_of(clip, model, 3.0, event.noise_multiplier, event.shares)
    assert clipping.groups == (0, 0, 0, 1, 1)
    assert clipping.thresholds == pytest.approx((0.6, 2.1))
    deviations = event.noise_multiplier * clipping.bounds(list(model.parameters()))
    assert deviations[:32].tolist() == pytest.approx([1.5 * 0.6] * 32)
    assert deviations[32:].tolist() == pytest.approx([4.0 * 2.1] * 10)
    with pytest.raises(RunFailed, match="4 layers in groups, but this model has 3 layers"):
        clipping_of(replace(clip, groups=(2, 2)), model, 3.0, event.noise_multiplier, event.shares)


@pytest.mark.parametrize("shares", [(0.6, 0.9), (1.0,), (0.5, 0.5, 0.5, 0.5)])
def test_shares_that_are_not_those_of_the_groups_are_a_fault(shares: tuple[float, ...]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    clipping = clipping_of(PlannedClip("per_layer", "l2", norms=(0.2, 0.7)), model, 1.0, 1.0, shares)
    with pytest.raises(ValueError, match="squares add up"):
        clipping.bounds(list(model.parameters()))


@pytest.mark.parametrize("unit", ["record", "{column: who, max_records: 2}"])
def test_what_the_engine_is_told(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among how many processes rounding is shared, and that units of several shapes have no compiled program."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(train, "world_size", lambda: 3)
    monkeypatch.setattr(train, "clipped_sum", lambda *given: calls.append(given) or clipped_sum(*given))
    result = plan(read_text(RECIPE.replace("  size: 40\n", f"  size: 40\n  unit: {unit}\n")))
    model = nn.Linear(3, 2)
    sums = ClippedSums(result, model)
    batch = Store(Records(np.zeros((40, 3), np.float32), np.zeros(40, np.int64)), torch.device("cpu")).batch(
        np.arange(9), 0
    )
    sums.summed(model, batch, NoisyStep(0, result.events[0].event))
    (given,) = calls
    assert given[-1] == 3
    assert (given[-2]._hindrance, given[-2]._processes) == ("" if unit == "record" else HINDRANCE, 3)


HINDRANCE = "units have different numbers of records"
