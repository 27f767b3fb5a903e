"""Which modules draw no random numbers; everything else counts as drawing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.build import build
from dprecipe.models.modules.draws import record_draws
from dprecipe.models.modules.inspection import DRAW_FREE, is_draw_free
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp, Model, Transformer, WideResNet


class OwnLinear(nn.Linear):
    """May do anything."""


def hooked(register: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    getattr(module[0], register)(lambda *_: None)
    return module


def replaced() -> nn.Module:
    module = nn.Linear(3, 2)
    module.forward = lambda x: torch.rand(len(x), 2)  # type: ignore[method-assign]
    return module


def inner_method_replaced() -> nn.Module:
    module = nn.Conv2d(1, 1, 1)
    module._conv_forward = lambda *_: torch.rand(1)  # type: ignore[method-assign]
    return module


def parameter_hooked(register: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    getattr(module[0].weight, register)(torch.rand_like)
    return module


@pytest.mark.parametrize(
    ("model", "shape", "values"),
    [
        (LogisticRegression(kind="logistic_regression"), (3,), None),
        (Mlp(kind="mlp", hidden=(4,), activation="relu"), (3,), None),
        (Cnn(kind="cnn", preset="lenet-norm"), (1, 28, 28), None),
        (WideResNet(kind="wide_resnet", depth=10, width=1), (3, 16, 16), None),
        (Transformer(kind="transformer", width=8, heads=2, layers=1), (5,), 7),
    ],
)
def test_models_of_the_zoo_draw_nothing(model: Model, shape: tuple[int, ...], values: int | None) -> None:
    module = build(model, shape, 2, 0, vocabulary=values).train()
    assert is_draw_free(module)
    assert not record_draws(module, torch.ones(2, *shape))


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(3, 2), nn.RReLU()),
        nn.TransformerEncoderLayer(8, 2),
        nn.LSTM(3, 2, num_layers=2, dropout=0.5),
        OwnLinear(3, 2),
        replaced(),
        inner_method_replaced(),
        parameter_hooked("register_hook"),
        parameter_hooked("register_post_accumulate_grad_hook"),
        hooked("register_forward_hook"),
        hooked("register_forward_pre_hook"),
        hooked("register_full_backward_hook"),
        hooked("register_full_backward_pre_hook"),
    ],
)
def test_everything_else_counts_as_drawing(module: nn.Module) -> None:
    assert not is_draw_free(module)


def test_a_hook_for_all_modules_counts_as_drawing() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert not is_draw_free(nn.Linear(3, 2))
    finally:
        hook.remove()
    assert is_draw_free(nn.Linear(3, 2))


@pytest.mark.parametrize(
    "sample",
    [
        lambda: (nn.Bilinear(3, 3, 2), (torch.ones(2, 3), torch.ones(2, 3))),
        lambda: (nn.Softmax(1), (torch.ones(2, 3),)),
        lambda: (nn.AdaptiveMaxPool2d(2), (torch.ones(2, 1, 4, 4),)),
        lambda: (nn.InstanceNorm2d(1), (torch.ones(2, 1, 4, 4),)),
    ],
)
def test_layers_of_the_table_leave_the_generator_alone(
    sample: Callable[[], tuple[nn.Module, tuple[Tensor, ...]]],
) -> None:
    module, inputs = sample()
    before = torch.get_rng_state()
    module.train()(*inputs)
    assert type(module) in DRAW_FREE
    assert torch.equal(before, torch.get_rng_state())
