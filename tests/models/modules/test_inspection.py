"""Inspection of modules: training code that no noisy step calls, layers that can't be private, and random draws.

Training code is refused and never dropped in silence; what isn't known to draw nothing counts as drawing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprecipe.language.training import PythonLoss, PythonOptimizer, Training
from dprecipe.models.build import build
from dprecipe.models.modules.draws import record_draws
from dprecipe.models.modules.inspection import (
    DRAW_FREE,
    HELPERS,
    detach_trainers,
    inspect_module,
    inspect_training,
    is_draw_free,
    list_trainer_methods,
)
from dprecipe.models.schema import Cnn, LogisticRegression, Mlp, Model, Transformer, WideResNet
from dprecipe.training.program.trainer_library import lightning


class Silent(lightning.LightningModule):
    """A LightningModule that leaves training to others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.save_hyperparameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log("mean", x.mean())
        return self.net(x)


NAMED = Training()
METHODS = list_trainer_methods(lightning.LightningModule)


def test_the_methods_are_those_that_a_trainer_calls() -> None:
    for name in ("training_step", "configure_optimizers", "optimizer_step", "on_after_backward", "validation_step"):
        assert name in METHODS
    assert sum(name.startswith("on_") for name in METHODS) > 30
    of_some_versions = {"to_tensorrt", "remove_ignored_hparams"}
    assert {name for name in HELPERS if not hasattr(lightning.LightningModule, name)} <= of_some_versions


@pytest.mark.parametrize("name", METHODS)
def test_each_that_is_overridden_is_refused_by_name(name: str) -> None:
    kind = type("Own", (Silent,), {name: lambda self, *given: None})
    [finding] = inspect_training(kind(), NAMED)
    assert finding.code == "R345"
    assert finding.is_error
    assert finding.message.endswith(f": {name!r}")
    module = Silent()
    module.__dict__[name] = lambda *given: None  # as a script sets it on the object
    assert [finding.code for finding in inspect_training(module, NAMED)] == ["R345"]


def test_a_lightning_module_without_any_is_fine_and_so_is_its_network() -> None:
    assert inspect_training(Silent(), NAMED) == []

    class Whole(Silent):
        def training_step(self, batch: object) -> None: ...

    assert inspect_training(Whole(), NAMED) != []
    assert inspect_training(Whole().net, NAMED) == []  # the remedy


class Trained(Silent):
    def training_step(self, batch: object, number: int) -> None: ...

    def configure_optimizers(self) -> None: ...


class Lossy(Silent):
    def loss(self, outputs: Tensor, batch: object) -> Tensor:
        return outputs.sum(1)


class Criterion(Silent):
    loss = nn.CrossEntropyLoss()  # of no method


class Manual(Trained):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


LEFT_LOSS, LEFT_OPTIMIZER = PythonLoss(kind="python"), PythonOptimizer(kind="python")
BOTH = Training(loss=LEFT_LOSS, optimizer=LEFT_OPTIMIZER)


@pytest.mark.parametrize(
    ("kind", "training", "what"),
    [
        (Trained, BOTH, []),
        (Lossy, Training(loss=LEFT_LOSS), []),
        (Criterion, NAMED, []),
        (Trained, Training(loss=LEFT_LOSS), ["does not leave to it: 'configure_optimizers'"]),
        (Trained, Training(optimizer=LEFT_OPTIMIZER), ["does not leave to it: 'training_step'"]),
        (Lossy, NAMED, ["does not leave to it: 'loss'"]),
        (Lossy, BOTH, ["training.optimizer: python, and it has no configure_optimizers"]),
        (Silent, BOTH, ["neither training_step nor loss"]),
        (Manual, BOTH, ["optimises by itself"]),
    ],
)
def test_what_is_brought_is_what_the_recipe_leaves(kind: type[nn.Module], training: Training, what: list[str]) -> None:
    findings = inspect_training(kind(), training)
    assert [finding.code for finding in findings] == ["R345"] * len(what)
    for finding, text in zip(findings, what, strict=True):
        assert text in finding.message


def test_the_line_to_add_is_the_remedy() -> None:
    [finding] = inspect_training(Trained(), NAMED)
    assert "training.optimizer: {kind: python} and training.loss: {kind: python}" in finding.remedy


@pytest.mark.parametrize(
    "hook", [lambda p: p.register_hook(torch.abs), lambda p: p.register_post_accumulate_grad_hook(lambda q: None)]
)
def test_hooks_of_weights_are_refused_and_their_handle_mends_it(hook: Callable[[nn.Parameter], object]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    handle = hook(module[1].weight)
    [finding] = inspect_training(module, NAMED)
    assert finding.code == "R345"
    assert "'1.weight'" in finding.message
    handle.remove()
    assert inspect_training(module, NAMED) == []


def test_a_trainer_from_before_is_taken_away_at_any_depth() -> None:
    module = nn.Sequential(Silent())
    trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False, barebones=True)
    module[0].trainer = trainer
    detach_trainers(module)
    with pytest.raises(RuntimeError, match="not attached"):
        _ = module[0].trainer


class OwnBatchNorm(nn.BatchNorm2d):
    """A subclass, as libraries have them."""


class OwnStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))


def frozen() -> nn.Module:
    layer = nn.BatchNorm2d(24).eval()
    return layer.requires_grad_(False)


REFUSED = {
    "batch norm": (nn.BatchNorm1d(4), "P120"),
    "without parameters": (nn.BatchNorm1d(4, affine=False), "P120"),
    "without statistics": (nn.BatchNorm2d(4, track_running_stats=False), "P120"),
    "frozen": (frozen(), "P120"),
    "a subclass": (OwnBatchNorm(4), "P120"),
    "lazy": (nn.LazyBatchNorm2d(), "P120"),
    "synchronised": (nn.SyncBatchNorm(4), "P120"),
    "instance norm with statistics": (nn.InstanceNorm2d(4, track_running_stats=True), "P121"),
    "statistics of one's own": (OwnStatistics(), "P122"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_t3_layers_that_mix_records_are_refused_at_any_depth(name: str) -> None:
    layer, code = REFUSED[name]
    for module in (layer, nn.Sequential(nn.Identity(), nn.ModuleDict({"deep": nn.Sequential(layer)}))):
        result = inspect_module(module)
        assert [finding.code for finding in result] == [code]
        assert result[0].is_error
        assert type(layer).__name__ in result[0].message
    assert "'1.deep.0'" in result[0].message


def test_the_replacement_is_named_and_valid() -> None:
    result = inspect_module(nn.Sequential(nn.BatchNorm2d(24)))
    assert "torch.nn.GroupNorm(12, 24)" in result[0].remedy
    nn.GroupNorm(12, 24)(torch.zeros(1, 24, 2, 2))


def test_layers_that_look_at_one_record_are_fine() -> None:
    module = nn.Sequential(
        nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4), nn.Dropout(0.5), nn.Embedding(3, 4), nn.LSTM(4, 4)
    )
    assert inspect_module(module) == []
    assert inspect_module(build(Cnn(kind="cnn", preset="tempered-cifar"), (3, 32, 32), 10, 0)) == []


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
