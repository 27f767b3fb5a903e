"""A module's own optimiser moves the weights as by itself, is looked at first, and goes on where it stopped."""

from __future__ import annotations

import copy
from collections.abc import Callable
from io import BytesIO
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, AdamW, RMSprop, SparseAdam
from torch.optim import lr_scheduler as schedulers
from torch.optim.lbfgs import LBFGS

from dprecipe.contract.plan import Length
from dprecipe.faults import RunFailed
from dprecipe.training.steps.updates import OwnUpdates

LENGTH = Length(20, 6)
Configure = Callable[[Any], Any]


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def module_with(configure: Configure) -> Module:
    module: Module = type("Own", (Module,), {"configure_optimizers": configure})()
    return module


def adam(self: Any) -> AdamW:
    return AdamW(self.parameters(), lr=0.1)


def one_cycle(self: Any) -> Any:
    optimizer, steps = adam(self), self.trainer.estimated_stepping_batches
    schedule = schedulers.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def with_groups(self: Any) -> Any:
    groups = [{"params": self.body.parameters(), "lr": 0.5}, {"params": self.head.parameters(), "weight_decay": 0.1}]
    return [SGD(groups, lr=0.1, momentum=0.9)]


def in_turn(self: Any) -> Any:
    optimizer = RMSprop(self.parameters(), lr=0.1)
    parts = [schedulers.LinearLR(optimizer, total_iters=3), schedulers.CosineAnnealingLR(optimizer, 17)]
    return [optimizer], [
        {"scheduler": schedulers.SequentialLR(optimizer, parts, milestones=[3]), "interval": "step", "frequency": 1}
    ]


def by_epoch(self: Any) -> Any:
    optimizer = Adagrad(self.parameters(), lr=0.1)
    return [optimizer], [schedulers.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))]


FINE: dict[str, Configure] = {
    "adam": adam,
    "one cycle": one_cycle,
    "groups": with_groups,
    "in turn": in_turn,
    "by epoch": by_epoch,
}


def move(module: nn.Module, updates: OwnUpdates, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for parameter in module.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        updates.take(step)


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", FINE)
def test_it_goes_on_where_it_stopped(name: str) -> None:
    whole = module_with(FINE[name])
    move(whole, OwnUpdates(whole, LENGTH), range(20))
    module = module_with(FINE[name])
    updates = OwnUpdates(module, LENGTH)
    move(module, updates, range(9))
    file = BytesIO()
    torch.save((module.state_dict(), updates.optimizer.state_dict(), updates.state()), file)
    file.seek(0)
    weights, optimizer, state = torch.load(file, weights_only=True)
    again = module_with(FINE[name])
    again.load_state_dict(weights)
    updates = OwnUpdates(again, LENGTH)
    updates.optimizer.load_state_dict(optimizer)
    updates.restore(state)
    move(again, updates, range(9, 20))
    assert same(whole, again)
    assert not same(whole, module)


@pytest.mark.parametrize("name", FINE)
def test_a_rehearsal_walks_through_the_run_and_moves_nothing(name: str) -> None:
    module = module_with(FINE[name])
    before = copy.deepcopy(module)
    OwnUpdates(module, LENGTH).rehearse()
    assert same(before, module)


def test_rates_are_those_of_the_schedule() -> None:
    module = module_with(one_cycle)
    updates, rates = OwnUpdates(module, LENGTH), []
    for step in range(20):
        move(module, updates, range(step, step + 1))
        rates.append(updates.rate(step))
    assert rates[0] == pytest.approx(0.1 / 25)
    assert max(rates) == pytest.approx(0.1)
    assert rates[-1] < 1e-5
    epochs = OwnUpdates(module := module_with(by_epoch), LENGTH)
    move(module, epochs, range(5))
    assert epochs.optimizer.param_groups[0]["lr"] == 0.1
    move(module, epochs, range(5, 13))
    assert epochs.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 3)


def test_steps_beyond_the_plan_keep_the_last_rate() -> None:
    module = module_with(one_cycle)
    updates = OwnUpdates(module, LENGTH)
    move(module, updates, range(23))
    assert updates.rate(22) < 1e-5


def test_a_copy_to_try_leaves_the_module() -> None:
    module = module_with(adam)
    before, updates = copy.deepcopy(module), OwnUpdates(module, LENGTH)
    optimizer, copies = updates.copy_to_try(list(module.parameters()))
    for parameter in copies:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert same(before, module)
    assert not torch.equal(copies[0], module.body.weight)
    assert not updates.optimizer.state


def test_what_is_frozen_may_be_left_out() -> None:
    module = module_with(lambda self: AdamW(self.head.parameters()))
    module.body.requires_grad_(False)
    OwnUpdates(module, LENGTH)


class Foreign(AdamW):
    """One of somebody's own."""


def hooked(self: Any) -> AdamW:
    optimizer = adam(self)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def plateau(self: Any) -> Any:
    optimizer = adam(self)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": schedulers.ReduceLROnPlateau(optimizer), "monitor": "train_loss"},
    }


def elsewhere(self: Any) -> Any:
    return [adam(self)], [schedulers.StepLR(SGD(self.parameters(), lr=0.1), 3)]


def of_an_interval(self: Any) -> Any:
    optimizer = adam(self)
    return [optimizer], [{"scheduler": schedulers.StepLR(optimizer, 3), "interval": "week"}]


FAULTS: dict[str, tuple[Configure, str]] = {
    "one that asks again": (lambda self: LBFGS(self.parameters()), "asks for the loss again"),
    "one for zeros": (lambda self: SparseAdam(list(self.parameters())), "have no zeros"),
    "one of somebody's own": (lambda self: Foreign(self.parameters()), "no optimiser of torch.optim"),
    "one with hooks": (hooked, "has hooks"),
    "part of the weights": (lambda self: AdamW(self.head.parameters()), r"leaves out .*'body.weight', 'body.bias'"),
    "other weights": (
        lambda self: AdamW([*self.parameters(), nn.Parameter(torch.ones(2))]),
        "no parameters of the module",
    ),
    "two": (lambda self: [adam(self), adam(self)], "does not return one optimiser"),
    "none": (lambda self: None, "does not return one optimiser"),
    "a score": (plateau, "follows a score"),
    "another's schedule": (elsewhere, "of another optimiser"),
    "another interval": (of_an_interval, "interval or frequency is unknown"),
    "the trainer's data": (lambda self: AdamW(self.parameters(), lr=len(self.trainer.train_dataloader)), "asks its"),
    "an error": (lambda self: AdamW(self.nothing), "configure_optimizers of the module raises: AttributeError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_others_are_refused(name: str) -> None:
    configure, what = FAULTS[name]
    with pytest.raises(RunFailed, match=what) as caught:
        OwnUpdates(module_with(configure), LENGTH)
    assert caught.value.remedy


class Kept:
    """A function that no checkpoint can hold."""

    def __init__(self) -> None:
        self.lock = open  # a function

    def __call__(self, epoch: int) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=7), "raises at step 8 of 20"),
        (lambda o: schedulers.LambdaLR(o, lambda step: float("nan") if step > 3 else 1.0), "no finite rate at step 4"),
        (lambda o: schedulers.LambdaLR(o, Kept()), "no checkpoint can hold"),
    ],
)
def test_a_schedule_that_would_end_a_run_is_found_first(make: Callable[[Any], Any], what: str) -> None:
    def configure(self: Any) -> Any:
        optimizer = adam(self)
        return [optimizer], [{"scheduler": make(optimizer), "interval": "step"}]

    with pytest.raises(RunFailed, match=what):
        OwnUpdates(module_with(configure), LENGTH).rehearse()
