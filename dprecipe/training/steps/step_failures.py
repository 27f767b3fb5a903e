"""Failures that end an attempt within a step, before anything of the step is used: a module from Python that raises,
memory that runs out.

The step stays charged. Steps before it are kept, and `--resume` goes on from there.

A snapshot of a module from Python, from before its first private record, says what noise alone may move, and what
nothing may. The module's code runs on private records, and could write them into a weight, into a buffer, or under a
new name. Guarantees: `weights` has the names from before; behind those that are trained stand the very parameters that
the optimiser moves, behind the others the values from before. `refuse_moves` refuses a sum in whose making a trained
weight moved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.faults import Fault, RunFailed
from dprecipe.release.origins import quote_names
from dprecipe.training.engine.single import shorten_error
from dprecipe.training.engine.sizes import is_out_of_memory
from dprecipe.training.probe.place import name_failure, place_failure
from dprecipe.training.publish.released import trained_parameters

REMEDY = (
    "mend the module, and continue with --resume (resume=True); this step stays charged, the steps before it are kept, "
    "and each step that fails again is charged again"
)


class StepFailed(RunFailed):
    """A step failed, and neither weights nor state moved since the last one. Exit code 4."""


@contextmanager
def locate_failures(module: nn.Module, doing: str, remedy: str) -> Iterator[None]:
    """Inside, an error of the code of a module from Python becomes a fault, which names layer and line.

    `doing`: what was done with the module, in words.

    Guarantees: message and remedy quote nothing that the module says, for it may quote a record.

    Raises:
        StepFailed: the module raised; `private` is what it says.
    """
    try:
        yield
    except Fault:
        raise
    except Exception as error:  # of the module, whose code is the user's
        if is_out_of_memory(error):
            raise
        where = f"{name_failure(module, '')} raised {type(error).__name__} while {doing}{place_failure(error, module)}"
        raise StepFailed(where, remedy, shorten_error(error)) from None


@contextmanager
def watch_module(module: nn.Module, snapshot: TensorSnapshot | None) -> Iterator[None]:
    """Inside, a module from Python, which has a snapshot, may neither move a trained weight nor raise anything but a
    fault.

    Raises:
        StepFailed: see `locate_failures`.
        RunFailed: a trained weight moved.
    """
    if snapshot is None:
        yield
        return
    with locate_failures(module, "it saw private records", REMEDY), snapshot.refuse_moves():
        yield


@final
class TensorSnapshot:
    """The tensors of a module before its first private record; see the module's docstring."""

    def __init__(self, module: nn.Module) -> None:
        """Make it before the first private record is brought in; what is not trained is copied, to the CPU."""
        self._module = module
        self._names = tuple(module.state_dict())
        self._trained = trained_parameters(module)
        self._untrained = {
            name: value.detach().to("cpu", copy=True)
            for name, value in module.state_dict().items()
            if name not in self._trained
        }

    def weights(self) -> dict[str, Tensor]:
        """Returns the tensors that may be released, in the order of the module's `state_dict`; trained tensors are not
        copied."""
        device = next(self._module.parameters()).device
        return {
            name: self._trained[name].detach() if name in self._trained else self._untrained[name].to(device, copy=True)
            for name in self._names
        }

    def moved(self) -> tuple[str, ...]:
        """Returns the names of tensors that are new, are gone, or differ, and that no noisy step makes."""
        result = self._module.state_dict()
        names = dict.fromkeys((*self._names, *result))
        return tuple(
            name
            for name in names
            if not (name in self._trained and name in result)
            and not (
                name in self._untrained
                and name in result
                and are_equal(self._untrained[name], result[name].detach().cpu())
            )
        )

    @contextmanager
    def refuse_moves(self) -> Iterator[None]:
        """Checks that no trained weight moves or is replaced inside the block.

        Raises:
            RunFailed: one did, or was; names them.
        """
        before = {name: parameter.detach().clone() for name, parameter in _trainable(self._module).items()}
        objects = _trainable(self._module)
        try:
            yield
        finally:  # also where the module raised after it had written
            self._check_unmoved(before, objects)

    def _check_unmoved(self, before: Mapping[str, Tensor], objects: Mapping[str, nn.Parameter]) -> None:
        after = _trainable(self._module)
        moved = [
            name
            for name in dict.fromkeys((*objects, *after))
            if after.get(name) is not objects.get(name) or not are_equal(before[name], after[name].detach())
        ]
        if moved:
            raise RunFailed(
                f"the module from Python wrote to its own trained weights while it saw private records: "
                f"{quote_names(moved)}; the sum of this step is not used",
                "write to no weight in forward, nor to the `.data` of one; the step stays charged: continue with "
                "--resume once the module is mended",
            )


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Returns True if all numbers are equal; NaN equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    return bool(((one == other) | ((one != one) & (other != other))).all())
