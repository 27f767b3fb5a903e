"""What the optimiser reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dprecipe.language.training import MAX_RATE, Adam, EmaAverage, Sgd, TailAverage
from dprecipe.training.steps.optimise import Average, FlatGradient, apply_weight_decay, cut_like, optimizer_of


def parameters() -> list[nn.Parameter]:
    """Of two types, in three runs."""
    kinds = (torch.float32, torch.float32, torch.bfloat16, torch.float32)
    shapes = ((2, 3), (), (4,), (1, 2))
    return [nn.Parameter(torch.zeros(shape, dtype=kind)) for shape, kind in zip(shapes, kinds, strict=True)]


def gradient(seed: int) -> Tensor:
    return torch.randn(13, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_each_parameter_gets_its_part_in_its_own_type() -> None:
    trained = parameters()
    flat = FlatGradient(trained)
    for seed in (0, 1):  # the second time into the same memory
        flat.set(gradient(seed))
        for parameter, part in zip(trained, cut_like(gradient(seed), trained), strict=True):
            assert parameter.grad is not None
            assert parameter.grad.dtype == parameter.dtype
            assert torch.equal(parameter.grad, part.to(parameter.dtype))


def test_a_gradient_that_was_put_away_is_set_again() -> None:
    trained = parameters()
    flat = FlatGradient(trained)
    flat.set(gradient(0))
    trained[0].grad, trained[3].grad = None, torch.zeros(1, 2)
    flat.set(gradient(1))
    for parameter, part in zip(trained, cut_like(gradient(1), trained), strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, part.to(parameter.dtype))


def test_without_trained_parameters_nothing_is_set() -> None:
    FlatGradient([]).set(torch.zeros(0, dtype=torch.float64))


@pytest.mark.parametrize("count", [4, 6])
def test_a_gradient_of_another_length_is_refused(count: int) -> None:
    flat = FlatGradient([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match=f"{count} numbers for 5"):
        flat.set(torch.zeros(count, dtype=torch.float64))


@pytest.mark.parametrize("spec", [Sgd(kind="sgd", lr=MAX_RATE), Adam(kind="adam", lr=MAX_RATE, beta1=1 - 2**-53)])
def test_the_largest_rate_is_one_of_single_precision(spec: Sgd | Adam) -> None:
    """Torch refuses a larger one in the middle of a run, with the budget spent; a recipe refuses it before."""
    trained = nn.ParameterList(parameters()[:2])
    optimizer = optimizer_of(spec, trained)
    for parameter in trained:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for lr in (2 * MAX_RATE, {"schedule": "linear", "from": 2 * MAX_RATE, "to": 0.1}):
        with pytest.raises(ValidationError, match="less than or equal"):
            type(spec).model_validate({"kind": spec.kind, "lr": lr})


class Operations(TorchDispatchMode):
    """Counts operations that a device would start a kernel for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def filled(seed: int) -> list[nn.Parameter]:
    trained = parameters()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trained:
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return trained


@pytest.mark.parametrize("spec", [EmaAverage(kind="ema", decay=0.9), TailAverage(kind="tail", fraction=0.9)])
def test_an_average_is_that_of_vectors_to_the_bit(spec: EmaAverage | TailAverage) -> None:
    """Of parameters of two types too, in as many operations as there are roundings."""
    average, expected, count = Average(spec, 40), torch.empty(0), 0
    for step in range(40):
        trained = filled(step)
        with Operations() as seen:
            average.take(step, trained)
        if step < average._first:
            assert average.value is None
            continue
        iterate, count = torch.nn.utils.parameters_to_vector(trained).detach(), count + 1
        weight = 1 / count if isinstance(spec, TailAverage) else max(1 / count, 1 - spec.decay)
        expected = iterate if count == 1 else expected + weight * (iterate - expected)
        assert average.value is not None
        assert not average.value.requires_grad
        assert torch.equal(average.value, expected)
        assert seen.count == (1 if count == 1 else 3)
        assert average.count == count
    assert count == (40 if isinstance(spec, EmaAverage) else 36)


def test_an_average_is_no_part_of_the_weights() -> None:
    average, trained = Average(EmaAverage(kind="ema", decay=0.9), 3), [nn.Parameter(torch.ones(3))]
    average.take(0, trained)
    with torch.no_grad():
        trained[0].fill_(7.0)
    assert average.value is not None
    assert average.value.tolist() == [1.0, 1.0, 1.0]


def test_weight_decay_is_one_operation_on_a_device() -> None:
    """Of shapes alone. On a CPU it rounds as a product of each parameter does."""
    spec = Sgd(kind="sgd", lr=0.1, weight_decay=0.3)
    trained, expected = filled(1), filled(1)
    apply_weight_decay(spec, optimizer_of(spec, nn.ParameterList(trained)), 0.7)
    for parameter, before in zip(trained, expected, strict=True):
        assert torch.equal(parameter, before.detach().mul_(1 - 0.7 * 0.3))
    elsewhere = [nn.Parameter(parameter.detach().to("meta")) for parameter in trained]
    optimizer = optimizer_of(spec, nn.ParameterList(elsewhere))
    with Operations() as seen:
        apply_weight_decay(spec, optimizer, 0.7)
    assert seen.count == 1
