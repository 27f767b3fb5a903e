"""Filters of noisy gradients: what they estimate, where their sums are taken, and what they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.language.training import Kalman, LowPass
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read_text
from dprecipe.training.program.records import Store
from dprecipe.training.run.gate import Gate
from dprecipe.training.steps import clipped_sums as dpsgd
from dprecipe.training.steps.contract import StepContext
from dprecipe.training.steps.filters import GradientFilter, filter_of
from dprecipe.training.steps.fit import fit_steps
from dprecipe.training.steps.noisy_steps import NoisySteps

LOW_PASS, KALMAN = LowPass(kind="low_pass", decay=0.8), Kalman(kind="kalman", gain=0.25)
CPU = torch.device("cpu")
RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: npz, path: absent.npz, shape: [3], classes: 2}
  size: 400
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 0.5}
  noise: {family: gaussian, multiplier: 1.5}
  sampling: {scheme: poisson, batch_size: 40}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 30, optimizer: {kind: sgd, lr: 0.5, momentum: 0.5}}
"""


def made(spec: LowPass | Kalman) -> GradientFilter:
    result = filter_of(spec)
    assert result is not None
    return result


def gradients(count: int, size: int = 4) -> Tensor:
    return torch.randn((count, size), dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def test_the_low_pass_filter_is_its_recursion() -> None:
    low, expected, constant, before = made(LOW_PASS), torch.zeros(4, dtype=torch.float64), 0.0, None
    for gradient in gradients(12):
        earlier, was = (torch.zeros(4), 0.0) if before is None else (before, 1.0)
        expected = 0.8 * expected + 0.1 * (gradient + earlier)
        constant = 0.8 * constant + 0.1 * (1.0 + was)
        before = gradient
        torch.testing.assert_close(low.estimate(gradient).double(), expected / constant, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", [LOW_PASS, KALMAN])
def test_a_constant_gradient_passes(spec: LowPass | Kalman) -> None:
    one = made(spec)
    for _ in range(9):
        assert one.estimate(torch.ones(2, dtype=torch.float64)).numpy() == pytest.approx(1.0)


@pytest.mark.parametrize(("spec", "left"), [(LOW_PASS, 0.1), (KALMAN, 0.25 / 1.75)])
def test_of_noise_a_known_share_is_left(spec: LowPass | Kalman, left: float) -> None:
    """Its variance: (1 - a) / 2, and κ / (2 - κ). 40,000 numbers: three deviations of that estimate are 2 %."""
    one = made(spec)
    for noise in gradients(60, 40_000):
        result = one.estimate(noise)
    assert float(result.var()) == pytest.approx(left, rel=0.03)


def test_on_a_quadratic_the_kalman_filter_does_not_lag() -> None:
    """Without noise its estimate is the gradient at the weights, however fast they move; a low-pass filter's lags."""
    curvature = torch.tensor([0.5, 1.0, 2.0])
    lags = []
    for spec in (KALMAN, LOW_PASS):
        one, weights = made(spec), nn.Parameter(torch.tensor([3.0, -2.0, 1.0]))
        worst = 0.0
        for _ in range(20):
            there, true = nn.Parameter(weights.detach().clone()), curvature * weights.detach()
            if one.is_ahead:
                one.lead([there])
            estimate = one.estimate((curvature * there.detach()).double())
            worst = max(worst, float((estimate - true).abs().max()))
            one.note([weights])
            with torch.no_grad():
                weights.sub_(0.3 * estimate)
        lags.append(worst)
    assert lags[0] < 1e-5 < 0.1 < lags[1]


def test_a_filter_goes_on_from_what_it_kept_and_refuses_what_another_did() -> None:
    for spec, other in ((LOW_PASS, KALMAN), (KALMAN, LOW_PASS)):
        first, weights = made(spec), [nn.Parameter(torch.ones(2, 2))]
        for gradient in gradients(5):
            first.estimate(gradient)
            first.note(weights)
        second = made(spec)
        second.restore(first.count, {name: vector.clone() for name, vector in first.vectors.items()})
        assert torch.equal(first.estimate(gradients(6)[5]), second.estimate(gradients(6)[5]))
        for vectors in (first.vectors, {}):
            with pytest.raises(ValueError, match="another filter"):
                made(other).restore(first.count, vectors)
        made(other).restore(0, {})


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., NoisySteps]]:
    """The program of the recipe over 40 synthetic records, with known secrets."""
    ledgers: list[LedgerWriter] = []

    def make(*overrides: str) -> NoisySteps:
        result: Plan = plan(read_text(RECIPE, "small.yaml", overrides))
        generator = np.random.default_rng(0)
        records = Records(generator.random((40, 3), dtype=np.float32), generator.integers(2, size=40))
        ledgers.append(LedgerWriter(tmp_path / f"ledger-{len(ledgers)}.jsonl", result.digest))
        secrets, model = Secrets(11), nn.Linear(3, 2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        gate = Gate(result.events, result.budget, ledgers[-1], secrets)
        return dpsgd.build(StepContext(result, model, Store(records, CPU), gate, secrets))

    yield make
    for ledger in ledgers:
        ledger.abandon()


def flat(module: NoisySteps) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.model.parameters()])


FILTERS = [f"training.filter={spec}" for spec in ("{kind: low_pass, decay: 0.8}", "{kind: kalman, gain: 0.25}")]


@pytest.mark.parametrize("override", FILTERS)
@pytest.mark.parametrize("optimizer", ["{kind: sgd, lr: 0.5, momentum: 0.5}", "{kind: adam, lr: 0.05}"])
def test_a_run_goes_on_with_its_filter(
    program: Callable[..., NoisySteps], monkeypatch: pytest.MonkeyPatch, override: str, optimizer: str
) -> None:
    """Whole, or in two parts that only a state joins."""
    overrides = (override, f"training.optimizer={optimizer}", "training.average={kind: ema, decay: 0.9}")
    whole, first, second = program(*overrides), program(*overrides), program(*overrides)
    given = gradients(20, 8)
    for each in (whole, first, second):  # as a later attempt draws other noise, which this is not about
        monkeypatch.setattr(each.sums, "gradient", lambda noisy, step: (given[step.number].clone(), 1.0))
    for _ in range(20):
        whole.take_step()
    for _ in range(8):
        first.take_step()
    second.restore(first.state())
    for _ in range(12):
        second.take_step()
    assert (second.steps_done, second.filter and second.filter.count) == (20, 20)
    assert torch.equal(flat(whole), flat(second))
    for name, vector in whole.state()["vectors"].items():
        assert torch.equal(vector, second.state()["vectors"][name]), name


def test_without_a_filter_nothing_is_filtered(program: Callable[..., NoisySteps]) -> None:
    plain, low = program(), program(FILTERS[0])
    for each in (plain, low):
        each.take_step()
    assert torch.equal(flat(plain), flat(low)), "the first estimate is the first gradient"
    for each in (plain, low):
        each.take_step()
    assert not torch.equal(flat(plain), flat(low))
    assert plain.state()["vectors"] == {}


def test_sums_are_taken_ahead_and_the_weights_stay(
    program: Callable[..., NoisySteps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last move leads, times 1/κ - 1; also where a sum fails, the weights are then as before."""
    module = program(FILTERS[1])
    seen: list[Tensor] = []
    summed = module.sums.summed

    def watch(*given: Any) -> Any:
        seen.append(flat(module).clone())
        if len(seen) == 9:
            raise RuntimeError("out of memory")
        return summed(*given)

    monkeypatch.setattr(module.sums, "summed", watch)
    iterates = [flat(module).clone()]
    for _ in range(8):
        module.take_step()
        iterates.append(flat(module).clone())
    for step in range(1, 8):
        factor = min(step, 3)  # the gain falls from 1 by way of 1/2 and 1/3 to 1/4
        ahead = iterates[step] + factor * (iterates[step] - iterates[step - 1])
        torch.testing.assert_close(seen[step], ahead)
        assert not torch.equal(seen[step], iterates[step])
    with pytest.raises(RuntimeError, match="memory"):
        module.take_step()
    assert torch.equal(flat(module), iterates[8])


def test_a_whole_run_under_its_trainer(program: Callable[..., NoisySteps]) -> None:
    module = program(FILTERS[1])
    fit_steps(module, lightning.Callback(), 30)
    assert module.steps_done == 30
    assert torch.isfinite(flat(module)).all()


@pytest.mark.parametrize("override", FILTERS)
def test_recipes_without_a_filter_have_the_digest_they_had(override: str) -> None:
    plain = plan(read_text(RECIPE, "small.yaml"))
    assert "filter" not in plain.resolved["training"]
    assert "keep" not in plain.resolved["training"]
    filtered = plan(read_text(RECIPE, "small.yaml", (override,)))
    assert filtered.digest != plain.digest
    assert filtered.events == plain.events, "a filter costs nothing"
