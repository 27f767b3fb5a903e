"""The program of encoding: codes inside their box go through the gate, and steps follow from the noisy sum alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import Interrupted, RunFailed
from dprecipe.mechanisms.encoded.files import codebook_of
from dprecipe.mechanisms.encoded.train import run as train
from dprecipe.mechanisms.encoded.train.run import kolmogorov_smirnov
from dprecipe.models.build import build
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan
from dprecipe.privacy import ledger as ledgers
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read, read_text
from dprecipe.release.verify import verify
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.program.records import Store
from dprecipe.training.program.trainer_library import lightning
from dprecipe.training.run.gate import Gate, distribution_of
from dprecipe.training.steps.contract import StepContext
from dprecipe.training.steps.fit import fit_steps
from dprecipe.training.steps.noisy_steps import NoisySteps

RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: npz, path: absent.npz, shape: [3], classes: 2}
  size: 40
model: {kind: mlp, hidden: [4]}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 5, norm: 2.0}
  noise: {family: laplace, multiplier: 3.0}
  denoise: none
  sampling: {scheme: poisson, batch_size: 10}
budget: {epsilon: auto, delta: 1e-4}
training:
  steps: 6
  optimizer: {kind: sgd, lr: 1.0}
"""
LAYERS = [16, 10]
Make = Callable[..., tuple[Plan, NoisySteps]]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Make]:
    """The small recipe's program over 40 synthetic records, with known secrets."""
    opened = []

    def make(*overrides: str) -> tuple[Plan, NoisySteps]:
        result = plan(read_text(RECIPE, "small.yaml", overrides))
        generator = np.random.default_rng(0)
        records = Records(generator.random((40, 3), dtype=np.float32), generator.integers(2, size=40))
        opened.append(LedgerWriter(tmp_path / f"ledger-{len(opened)}.jsonl", result.digest))
        secrets = Secrets(5)
        gate = Gate(result.events, result.budget, opened[-1], secrets)
        model = build(result.model, (3,), 2, 0)
        return result, train.build(StepContext(result, model, Store(records, torch.device("cpu")), gate, secrets))

    yield make
    for ledger in opened:
        ledger.abandon()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).double()


class Seen(lightning.Callback):
    """The noisy sum and the move of the weights of every step, and the sums before noise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, noise: Callable[[Tensor], Tensor] | None = None) -> None:
        self.clean: list[Any] = []
        self.noisy: list[Tensor] = []
        self.moves: list[Tensor] = []
        real = Gate.release

        def seeing(gate: Gate, ticket: Any, clipped: Any) -> Tensor:
            self.clean.append(ClippedSum(clipped.value.clone(), clipped.bound))
            self.noisy.append(real(gate, ticket, clipped))
            if noise is not None:
                self.noisy[-1] = noise(clipped.value)
            return self.noisy[-1].clone()

        monkeypatch.setattr(Gate, "release", seeing)

    def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.before = flat(module.steps.model)

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        if len(self.moves) < len(self.noisy):
            self.moves.append(flat(module.steps.model) - self.before)


def ran(module: NoisySteps, seen: Seen) -> Seen:
    fit_steps(module, seen, module.steps_left)
    assert len(seen.moves) == 6
    return seen


def test_without_denoising_a_step_is_the_noisy_sum_over_the_public_batch(
    program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, module = program()
    seen = ran(module, Seen(monkeypatch))
    for noisy, move in zip(seen.noisy, seen.moves, strict=True):
        torch.testing.assert_close(move, -noisy / 10, rtol=1e-4, atol=1e-5)


def test_denoising_scales_the_step_by_the_distance_of_the_noisy_sum_from_its_distribution(
    program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, module = program("mechanism.denoise=kolmogorov_smirnov")
    seen = ran(module, Seen(monkeypatch))
    for noisy, move in zip(seen.noisy, seen.moves, strict=True):
        kappa = float(kolmogorov_smirnov(noisy, distribution_of(result.events[0].event), 3.0 * 2.0)[0])
        assert 0 < kappa < 1
        torch.testing.assert_close(move, -kappa * noisy / 10, rtol=1e-4, atol=1e-5)


def test_one_factor_for_each_group(program: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    result, module = program(
        "mechanism.denoise={method: kolmogorov_smirnov, per: group, shrink: true}", "mechanism.groups=layer"
    )
    seen = ran(module, Seen(monkeypatch))
    distribution = distribution_of(result.events[0].event)
    for noisy, move in zip(seen.noisy, seen.moves, strict=True):
        parts = [kolmogorov_smirnov(part, distribution, 6.0, shrink=True)[0] for part in torch.split(noisy, LAYERS)]
        factors = torch.repeat_interleave(torch.tensor([float(part) for part in parts]), torch.tensor(LAYERS))
        torch.testing.assert_close(move, -factors.double() * noisy / 10, rtol=1e-4, atol=1e-5)


def test_an_adaptive_optimizer_has_its_update_scaled(program: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam's first step is lr in every coordinate, whatever the gradient's scale; denoised, it is κ lr."""
    result, module = program("mechanism.denoise=kolmogorov_smirnov", "training.optimizer={kind: adam, lr: 0.5}")
    seen = ran(module, Seen(monkeypatch))
    kappa = float(kolmogorov_smirnov(seen.noisy[0], distribution_of(result.events[0].event), 6.0)[0])
    torch.testing.assert_close(seen.moves[0].abs(), torch.full((26,), 0.5 * kappa).double(), rtol=1e-3, atol=1e-6)


def test_a_sum_carries_its_sensitivity_in_units_of_the_noise(program: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    _, module = program("mechanism.group_noise=[1.0, 8.0]", "mechanism.groups=layer")
    seen = ran(module, Seen(monkeypatch, noise=lambda value: value))
    assert seen.clean[0].bound == pytest.approx(module._plan.mechanism_plan.sensitivity)


def test_scales_of_layers_are_taken_off_before_the_noise_and_put_back_after(
    program: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise they change nothing; pure noise of scale one comes out with them."""
    terms = ("mechanism.groups=layer", "training.optimizer.lr=1e-9")
    _, plain = program(*terms)
    expected = ran(plain, Seen(monkeypatch)).clean
    monkeypatch.undo()
    _, module = program(*terms, "mechanism.group_noise=[1.0, 8.0]")
    seen = ran(module, Seen(monkeypatch, noise=torch.ones_like))
    relative = torch.repeat_interleave(torch.tensor([1.0, 8.0]), torch.tensor(LAYERS)).double()
    for clean, before in zip(seen.clean, expected, strict=True):
        torch.testing.assert_close(clean.value * relative, before.value)
    for move in seen.moves:
        torch.testing.assert_close(move * 1e9, -relative / 10, rtol=1e-2, atol=10)


def test_a_unit_keeps_its_slot_and_joins_no_other(program: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    result, module = program("mechanism.microbatch=5")
    assert result.mechanism_plan.slots == 2
    batches: list[tuple[Any, Any]] = []
    real = Store.batch

    def seeing(store: Store, units: Any, seed: int, groups: Any = None) -> Any:
        batches.append((units, groups))
        return real(store, units, seed, groups)

    monkeypatch.setattr(Store, "batch", seeing)
    seen = ran(module, Seen(monkeypatch))
    slot_of: dict[int, int] = {}
    sums = module.sums
    assert isinstance(sums, train.Encoding)
    for (units, groups), clean in zip(batches, seen.clean, strict=True):
        assert clean.bound == 2 * 2.0
        assert (np.diff(groups) >= 0).all()
        for unit, group in zip(units.tolist(), groups.tolist(), strict=True):
            same = [u for u, g in zip(units.tolist(), groups.tolist(), strict=True) if g == group]
            assert {int(sums._slot_of[u]) for u in same} == {slot_of.setdefault(unit, int(sums._slot_of[unit]))}  # type: ignore[index]
    assert set(slot_of.values()) == {0, 1}


def test_one_more_unit_moves_no_other_to_another_slot() -> None:
    stream = Secrets(3).stream("sampling", train.SLOTS)
    again = Secrets(3).stream("sampling", train.SLOTS)
    assert (stream.integers(7, 100) == again.integers(7, 101)[:100]).all()


def test_a_model_of_another_size_is_refused(program: Make) -> None:
    result, _ = program()
    with pytest.raises(RunFailed, match="26 parameters; this one has 8"):
        train.encoder_of(result.mechanism_plan, nn.Linear(3, 2), codebook_of(result.mechanism_plan, Path()))


def test_layers_of_other_sizes_are_refused(program: Make) -> None:
    result, _ = program("mechanism.groups=layer")
    swapped = nn.Sequential(nn.Linear(4, 2), nn.Linear(3, 4))  # 10 + 16 parameters
    with pytest.raises(RunFailed, match="layers of 16, 10 parameters; this one has layers of 10, 16"):
        train.encoder_of(result.mechanism_plan, swapped, codebook_of(result.mechanism_plan, Path()))


DIGITS = """\
recipe: dprecipe/v1
name: digits
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  preprocess: [{clip_features: {norm: 4.0}}]
model: {kind: mlp, hidden: [10]}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 20}
  noise: {family: student_t, df: 9, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 200}
budget: {epsilon: 8.0, delta: 1e-5}
training:
  epochs: 10
  optimizer: {kind: sgd, lr: 30.0, momentum: 0.5}
release: {report: false}
"""
VARIANTS = {
    "student_t": (),
    "phases": (
        "release.report=true",
        "mechanism.noise=[{family: laplace, multiplier: 1.5, epochs: 2}, {family: gaussian, multiplier: auto}]",
    ),
    "layers": ("mechanism.groups=layer", "mechanism.group_noise=[1.0, 2.0]", "mechanism.denoise=none",
               "training.optimizer.lr=2.0"),
    "micro-batches": ("mechanism.microbatch=2", "mechanism.noise={family: gaussian, multiplier: auto}"),
    "cauchy": ("mechanism.noise={family: cauchy, multiplier: auto, force: true}",),
}  # fmt: skip


SLOW = ("phases", "layers", "micro-batches", "cauchy")


@pytest.mark.parametrize(
    "variant", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in VARIANTS]
)
def test_a_run_is_released_with_a_certificate_that_verifies(tmp_path: Path, variant: str) -> None:
    recipe = tmp_path / "digits.yaml"
    recipe.write_text(DIGITS, encoding="utf-8")
    result = plan(read(recipe, VARIANTS[variant]))
    done = run(result, tmp_path / "run")
    assert done.stop_reason == "completed"
    assert done.epsilon <= 8.0
    verified = verify(done.release)
    stated = verified.statement.predicate
    assert stated.mechanism.encoding is not None
    assert stated.mechanism.encoding.codebook == result.mechanism_plan.digest
    assert {"encoded_sum", "noise_scale"} <= {check.id for check in stated.checks}
    if variant != "cauchy":
        assert done.score is not None
        assert done.score.accuracy > 0.5  # ten classes: it has learned


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "digits.yaml"
    recipe.write_text(DIGITS, encoding="utf-8")
    result = plan(read(recipe, ("training.epochs=4",)))
    real, calls = NoisySteps.take_step, 0

    def interrupting(module: NoisySteps) -> bool:
        nonlocal calls
        calls += 1
        if calls == 20:
            module.request_stop()
        return real(module)

    monkeypatch.setattr(NoisySteps, "take_step", interrupting)
    with pytest.raises(Interrupted):
        run(result, tmp_path / "run")
    done = run(result, tmp_path / "run", resume=True)
    assert done.stop_reason == "completed"
    assert ledgers.read(tmp_path / "run" / "private" / "ledger.jsonl").charges == result.events
    verify(done.release)
