"""What the optimiser reads."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from dprecipe.language.training import MAX_RATE, Adam, Sgd
from dprecipe.training.optimise import FlatGradient, cut_like, optimizer_of


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
