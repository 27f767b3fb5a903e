"""Training code of a module from Python, which no noisy step calls, is refused and never dropped in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

from torch import nn  # noqa: E402

from dprecipe.models.modules.inspection import HELPERS, detach_trainers, inspect_training, list_trainer_methods  # noqa: E402
from dprecipe.training.program.trainer_library import lightning  # noqa: E402


class Silent(lightning.LightningModule):
    """A LightningModule that leaves training to others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 2)
        self.save_hyperparameters()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.log("mean", x.mean())
        return self.net(x)


METHODS = list_trainer_methods(lightning.LightningModule)


def test_the_methods_are_those_that_a_trainer_calls() -> None:
    for name in ("training_step", "configure_optimizers", "optimizer_step", "on_after_backward", "validation_step"):
        assert name in METHODS
    assert sum(name.startswith("on_") for name in METHODS) > 30
    assert {name for name in HELPERS if not hasattr(lightning.LightningModule, name)} <= {"to_tensorrt"}


@pytest.mark.parametrize("name", METHODS)
def test_each_that_is_overridden_is_refused_by_name(name: str) -> None:
    kind = type("Own", (Silent,), {name: lambda self, *given: None})
    [finding] = inspect_training(kind())
    assert finding.code == "R345"
    assert finding.is_error
    assert finding.message.endswith(f": {name!r}")
    module = Silent()
    module.__dict__[name] = lambda *given: None  # as a script sets it on the object
    assert [finding.code for finding in inspect_training(module)] == ["R345"]


def test_a_lightning_module_without_any_is_fine_and_so_is_its_network() -> None:
    assert inspect_training(Silent()) == []

    class Whole(Silent):
        def training_step(self, batch: object) -> None: ...

    assert inspect_training(Whole()) != []
    assert inspect_training(Whole().net) == []  # the remedy


@pytest.mark.parametrize(
    "hook", [lambda p: p.register_hook(torch.abs), lambda p: p.register_post_accumulate_grad_hook(lambda q: None)]
)
def test_hooks_of_weights_are_refused_and_their_handle_mends_it(hook: Callable[[nn.Parameter], object]) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    handle = hook(module[1].weight)
    [finding] = inspect_training(module)
    assert finding.code == "R345"
    assert "'1.weight'" in finding.message
    handle.remove()
    assert inspect_training(module) == []


def test_a_trainer_from_before_is_taken_away_at_any_depth() -> None:
    module = nn.Sequential(Silent())
    trainer = lightning.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False, barebones=True)
    module[0].trainer = trainer
    detach_trainers(module)
    with pytest.raises(RuntimeError, match="not attached"):
        _ = module[0].trainer
