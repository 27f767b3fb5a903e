"""The loss of a LightningModule: its `training_step`, or its `loss(outputs, batch)`, for one record at a time.

Formal guarantee: the loss of a record is a function of that record's outputs and label and of what the module holds.
Each call of the module's code gets one record, as a batch of one, under `torch.func.vmap`: a call has no other record
to look at. Nor may it keep one for the next: there, what would read a value, branch on it, draw, or write it to an
outside tensor raises an error, and so does an attribute that is set on `self`. What the code keeps elsewhere in Python
is declared (`python_loss` of the certificate). The gradient of a record is therefore its own, whatever the code
computes, and clipping bounds it.

That the loss means in a batch what it means here is no matter of privacy: `dprecipe.training.probe.own_loss` tries it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import vmap

from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.targets import SeveralTarget
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.models.modules.adapted import RecordByRecord
from dprecipe.models.modules.inspection import STEP, find_loss
from dprecipe.models.outputs import unpack_labels
from dprecipe.training.program.losses import LabelledLoss, Loss, choose_loss
from dprecipe.training.program.standin import find_writes, stand_in


def loss_of(plan: Plan, model: nn.Module) -> Loss:
    """Returns the loss that a plan trains a model with."""
    facts = describe_data(plan.data)
    if not plan.training.own_loss:
        return choose_loss(facts.target, plan.training, omits=plan.data.omits_records)
    names = len(facts.target.names) if isinstance(facts.target, SeveralTarget) else None
    loss = OwnLoss(weakref.ref(module_of(model)), facts.shape, names)
    return LabelledLoss(loss) if plan.data.omits_records else loss


def module_of(model: nn.Module) -> nn.Module:
    """Returns the module as it came from Python."""
    return model.module if isinstance(model, RecordByRecord) else model


@final
@dataclass(frozen=True, slots=True)
class OwnLoss:
    """The loss of a module from Python; `shape` is that of a record's features, `names` how many names a label has,
    where several may apply."""

    module: weakref.ref[nn.Module]
    shape: tuple[int, ...]
    names: int | None = None

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """(N, outputs), (N,) -> (N,)."""
        if not len(labels):
            return outputs.flatten(1).sum(1)

        def of_one(output: Tensor, label: Tensor) -> Tensor:
            return self.of_batch(output.unsqueeze(0), label.unsqueeze(0)).reshape(())

        losses: Tensor = vmap(of_one, randomness="error")(outputs, labels)
        return losses

    def of_batch(
        self,
        outputs: Tensor,
        labels: Tensor,
        features: Tensor | None = None,
        log: Callable[..., None] | None = None,
    ) -> Tensor:
        """Returns what the module makes of a batch: a number for each record, or one.

        `log`: takes what it logs, which else goes nowhere. `features`: what it gets for them. NaN by default, because a
        loss that looked at features would pass a record to the weights by a way that the engine does not see.

        Raises:
            RunFailed: the module does not call itself exactly once with the batch's features, sets an attribute, or
                returns no tensor.
        """
        module = self.module()
        if module is None:
            raise InternalFault("the module of a loss is gone")
        if features is None:
            features = torch.full((len(labels), *self.shape), torch.nan, device=labels.device)
        called: list[bool] = []

        def forward(*given: object, **named: object) -> Tensor:
            called.append(len(given) == 1 and given[0] is features and not named)
            return outputs

        targets = labels if self.names is None else unpack_labels(labels, self.names).to(outputs)
        name, batch = find_loss(module), (features, targets)
        called_module = stand_in(module, forward=forward if name == STEP else _refuse_forward, log=log)
        before = dict(vars(called_module))
        method: Callable[..., Any] = getattr(called_module, name)
        answer = method(batch, 0) if name == STEP else method(outputs, batch)
        if name == STEP and called != [True]:
            raise RunFailed(
                "training_step must write self(x) exactly once, with the features x of its batch as they are",
                "move what prepares the features into forward, which the step calls by itself",
            )
        if written := find_writes(called_module, before):
            raise RunFailed(
                f"{name} sets {', '.join(f'self.{each}' for each in written[:8])}: it keeps something of the records",
                "let it return the loss alone; scores are those of data.test",
            )
        if isinstance(answer, Mapping):
            answer = answer.get("loss")
        if not isinstance(answer, Tensor):
            raise RunFailed(
                f"{name} returns a {type(answer).__name__}, expected a tensor", "return one loss for each record"
            )
        return answer


def _refuse_forward(*_: object, **__: object) -> Tensor:
    raise RunFailed("loss calls forward again", "use the outputs that it is given")
