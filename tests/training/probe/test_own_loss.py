"""A module's own loss runs by single records; one that would mean something else there is refused, with its reason."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.data.targets import ClassTarget, NumberTarget, SeveralTarget, Target
from dprecipe.faults import RunFailed
from dprecipe.training.probe.own_loss import require_loss
from dprecipe.training.program.own_loss import OwnLoss

CLASSES = ClassTarget(3)
SHAPE = (4,)
WEIGHTS = torch.tensor([0.5, 1.0, 2.0])
COUNTS = torch.ones(3)
SEEN: list[Any] = []
Step = Callable[[Any, Any], Any]


class Module(lightning.LightningModule):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.net = nn.Linear(4, outputs)
        self.register_buffer("weights", WEIGHTS.clone())
        self.register_buffer("counts", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def require(step: Step, target: Target = CLASSES, method: str = "training_step") -> OwnLoss:
    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return step(self, batch)

    def loss(self: Any, outputs: Tensor, batch: Any) -> Any:
        return step(outputs, batch)

    module = type("Own", (Module,), {method: training_step if method == "training_step" else loss})(target.outputs)
    names = len(target.names) if isinstance(target, SeveralTarget) else None
    own = OwnLoss(weakref.ref(module), SHAPE, names)
    SEEN.clear()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.get_rng_state(), random.getstate()
    try:
        require_loss(own, module, target)
    finally:
        assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
        assert torch.equal(state[0], torch.get_rng_state())
        assert state[1] == random.getstate()
    SEEN.append(module)  # or it would be gone
    return own


def cross_entropy(self: Any, batch: Any, **given: Any) -> Tensor:
    return functional.cross_entropy(self(batch[0]), batch[1], **given)


FINE: dict[str, Step] = {
    "by record": lambda self, batch: cross_entropy(self, batch, reduction="none"),
    "weighted": lambda self, batch: cross_entropy(self, batch, weight=self.weights, reduction="none"),
    "mean": cross_entropy,
    "in a dictionary": lambda self, batch: {"loss": cross_entropy(self, batch), "more": 1},
    "smoothed": lambda self, batch: cross_entropy(self, batch, label_smoothing=0.1),
    "focal": lambda self, batch: (
        (1 - torch.exp(-cross_entropy(self, batch, reduction="none"))) ** 2 * cross_entropy_again(batch, self)
    ).mean(),
}


def cross_entropy_again(batch: Any, self: Any) -> Tensor:
    return torch.ones(len(batch[1]))


@pytest.mark.parametrize("name", FINE)
def test_a_loss_of_records_is_taken_and_is_what_it_is_in_a_batch(name: str) -> None:
    own = require(FINE[name])
    outputs, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 1])
    together, alone = own.of_batch(outputs, labels), own(outputs, labels)
    assert alone.shape == (5,)
    torch.testing.assert_close(together if together.dim() else 5 * together, alone if together.dim() else alone.sum())


def test_a_method_loss_gets_outputs_and_batch() -> None:
    own = require(
        lambda outputs, batch: functional.cross_entropy(outputs, batch[1], reduction="none"), CLASSES, method="loss"
    )
    outputs, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 1])
    expected = functional.cross_entropy(outputs, labels, reduction="none")
    torch.testing.assert_close(own(outputs, labels), expected)


def test_several_names_come_as_zeros_and_ones() -> None:
    target = SeveralTarget(("a", "b", "c"))
    own = require(lambda self, batch: functional.binary_cross_entropy_with_logits(self(batch[0]), batch[1]), target)
    answers = torch.tensor([[1.0, 0.0, 1.0]])
    expected = functional.binary_cross_entropy_with_logits(torch.ones(1, 3), answers)
    torch.testing.assert_close(own(torch.ones(1, 3), torch.tensor([0b101]))[0], expected)


def test_a_number_has_one_output() -> None:
    require(lambda self, batch: functional.l1_loss(self(batch[0])[:, 0], batch[1]), NumberTarget(0.0, 1.0))


def keep_count(batch: Any) -> None:
    COUNTS.index_add_(0, batch[1], torch.ones(len(batch[1])))


def with_counted(self: Any, batch: Any) -> Tensor:
    keep_count(batch)
    return cross_entropy(self, batch, weight=1 / COUNTS, reduction="none")


def with_seen(self: Any, batch: Any) -> Tensor:
    SEEN.append(batch[1])
    return cross_entropy(self, batch, reduction="none") / len(SEEN)


def with_buffer(self: Any, batch: Any) -> Tensor:
    self.counts += functional.one_hot(batch[1], 3).sum(0)
    return cross_entropy(self, batch, reduction="none")


def with_attribute(self: Any, batch: Any) -> Tensor:
    self.last = loss = cross_entropy(self, batch)
    return loss


def contrast(self: Any, batch: Any) -> Tensor:
    outputs = functional.normalize(self(batch[0]), dim=1)
    return functional.cross_entropy(10 * outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")


def standardise(self: Any, batch: Any) -> Tensor:
    outputs = self(batch[0])
    return functional.cross_entropy((outputs - outputs.mean(0)) / (1e-3 + outputs.std(0)), batch[1], reduction="none")


def balance(self: Any, batch: Any) -> Tensor:
    counts = torch.bincount(batch[1], minlength=3).clamp(min=1)
    return cross_entropy(self, batch, weight=1.0 / counts, reduction="none")


def coupled_gradient(self: Any, batch: Any) -> Tensor:
    outputs = self(batch[0])
    mean = outputs.mean()
    return functional.cross_entropy(outputs, batch[1], reduction="none") + (mean - mean.detach())


FAULTS: dict[str, tuple[Step, str]] = {
    "divided by the batch's mean": (
        lambda self, batch: (each := cross_entropy(self, batch, reduction="none")) / each.mean(),
        "records share a part of it",
    ),
    "pairs": (contrast, "records share a part of it"),
    "standardised over the batch": (standardise, "records share a part of it|raises on single records"),
    "weights of classes counted in the batch": (balance, "records share a part of it|raises on single records"),
    "a gradient through the batch's mean": (coupled_gradient, "gradient of training_step is not that of its records"),
    "torch's weighted mean": (
        lambda self, batch: cross_entropy(self, batch, weight=self.weights),
        "not the mean of its records' own",
    ),
    "a sum": (lambda self, batch: cross_entropy(self, batch, reduction="sum"), "not the mean of its records' own"),
    "the trainer": (
        lambda self, batch: cross_entropy(self, batch) * self.trainer.current_epoch,
        "asks its trainer for 'current_epoch'",
    ),
    "the epoch": (lambda self, batch: cross_entropy(self, batch) * self.current_epoch, "for 'current_epoch'"),
    "a global buffer": (with_counted, "raises on single records|keeps something between calls"),
    "a list": (with_seen, "keeps something between calls"),
    "a buffer of its own": (with_buffer, "raises on single records"),
    "an attribute": (with_attribute, "sets self.last"),
    "features": (
        lambda self, batch: cross_entropy(self, batch, reduction="none") + batch[0].square().sum(1),
        "looks at features",
    ),
    "features by comparison": (
        lambda self, batch: cross_entropy(self, batch, reduction="none") * (1 + (batch[0] == 0).float().mean(1)),
        "changes with the features",
    ),
    "changed features": (
        lambda self, batch: functional.cross_entropy(self(batch[0] / 255), batch[1]),
        "must write self\\(x\\) exactly once",
    ),
    "no call": (lambda self, batch: batch[1].float(), "must write self\\(x\\) exactly once"),
    "two calls": (
        lambda self, batch: cross_entropy(self, batch) + cross_entropy(self, batch),
        "must write self\\(x\\) exactly once",
    ),
    "a layer": (
        lambda self, batch: functional.cross_entropy(self.net(batch[0]), batch[1]),
        "must write self\\(x\\) exactly once",
    ),
    "weights": (
        lambda self, batch: cross_entropy(self, batch, reduction="none") + self.net.weight.square().sum(),
        "reaches weights past the outputs",
    ),
    "dropout": (
        lambda self, batch: cross_entropy(self, batch, reduction="none") * functional.dropout(torch.ones(1), 0.5),
        "draws random numbers",
    ),
    "Python's generator": (lambda self, batch: cross_entropy(self, batch) * random.random(), "draws random numbers"),
    "the clock": (
        lambda self, batch: cross_entropy(self, batch, reduction="none") * (1 + time.perf_counter() % 1.0),
        "keeps something between calls",
    ),
    "an item": (lambda self, batch: (each := cross_entropy(self, batch)) * (1 + each.item()), "raises on single"),
    "detached": (lambda self, batch: cross_entropy(self, batch).detach(), "does not depend on the outputs"),
    "nothing": (lambda self, batch: self(batch[0]) and None, "raises|returns a NoneType"),
    "a shape": (lambda self, batch: self(batch[0]), "returns shape"),
    "an optimiser": (lambda self, batch: (self.optimizers(), cross_entropy(self, batch))[1], "asks its trainer"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_loss_that_is_not_each_record_s_own_is_refused(name: str) -> None:
    step, what = FAULTS[name]
    COUNTS.fill_(1.0)
    with pytest.raises(RunFailed, match=what) as caught:
        require(step)
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["divided by the batch's mean", "pairs", "a gradient through the batch's mean"])
def test_even_unchecked_no_record_can_reach_another(name: str) -> None:
    """Privacy rests on the calls by single records, and not on what was tried before."""
    step, module = FAULTS[name][0], Module()
    module.__class__ = type("Own", (Module,), {"training_step": lambda self, batch, number: step(self, batch)})
    own = OwnLoss(weakref.ref(module), SHAPE)
    outputs, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])
    others = torch.cat([outputs[:1].detach(), 3 * torch.randn(3, 3)]).requires_grad_()
    losses, beside = own(outputs, labels), own(others, labels.flip(0))
    assert torch.equal(losses[0], beside[0])
    for one, other in ((losses, outputs), (beside, others)):
        gradient = torch.autograd.grad(one[0], other, retain_graph=True)[0]
        assert not gradient[1:].any()


def test_what_is_logged_goes_nowhere_and_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    def step(self: Any, batch: Any) -> Tensor:
        loss = cross_entropy(self, batch)
        self.log("train_loss", loss)
        self.log_dict({"twice": 2 * loss})
        return loss

    require(step)
    assert "self.log in training_step goes nowhere" in capfd.readouterr().err
