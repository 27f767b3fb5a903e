"""A LightningModule for one call of its own methods: with its layers, and without a trainer, hooks or logs.

A trainer of Lightning's knows batches, records and devices. `PlannedTrainer` knows the planned lengths alone, which are
public. What `self.log` is given was made of private records, so it goes nowhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, final

from torch import nn

from dprecipe.contract.plan import Length
from dprecipe.faults import RunFailed

UNHOOKED = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
LOGS = ("log", "log_dict")


@final
class PlannedTrainer:
    """A module's `self.trainer`, which tells the lengths of the plan, all of them public."""

    def __init__(self, length: Length | None) -> None:
        """None: it tells nothing."""
        if length is not None:
            self.estimated_stepping_batches = self.max_steps = length.steps
            self.num_training_batches = length.steps_per_epoch
            self.max_epochs = -(-length.steps // length.steps_per_epoch)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuses whatever else a trainer would tell.

        Raises:
            RunFailed: always.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        known = ", ".join(vars(self)) or "nothing"
        raise RunFailed(
            f"the module asks its trainer for {name!r}, and there is no trainer that could tell",
            f"remove it from the module; here self.trainer tells {known}",
        )


def stand_in(
    module: nn.Module,
    length: Length | None = None,
    forward: Callable[..., Any] | None = None,
    log: Callable[..., None] | None = None,
) -> nn.Module:
    """Returns an object of the module's class with the module's own layers, weights and buffers.

    `length`: what its trainer tells. `forward` and `log` replace its own; without `log`, logs go nowhere. Attributes
    that a call sets stay in the result: see `find_writes`.
    """
    result = nn.Module.__new__(type(module))
    vars(result).update(vars(module))
    vars(result).update({name: OrderedDict() for name in UNHOOKED})
    vars(result).update(dict.fromkeys(LOGS, log or _ignore))
    vars(result).update(_trainer=PlannedTrainer(length), _fabric=None)
    if forward is not None:
        vars(result)["forward"] = forward
    return result


def find_writes(result: nn.Module, before: Mapping[str, object]) -> list[str]:
    """Returns the attributes of a stand-in that are others than `before`, which is a copy of its `vars`."""
    now = vars(result)
    return [name for name in {**before, **now} if now.get(name, before) is not before.get(name, now)]


def _ignore(*given: object, **named: object) -> None:
    """Takes what `self.log` is given."""
