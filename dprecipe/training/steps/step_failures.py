"""Failures that end an attempt within a step, before anything of the step is used: a module from Python that raises,
memory that runs out.

The step stays charged. Steps before it are kept, and `--resume` goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from dprecipe.faults import Fault, RunFailed
from dprecipe.training.engine.single import shorten_error
from dprecipe.training.engine.sizes import is_out_of_memory
from dprecipe.training.probe.place import name_failure, place_failure
from dprecipe.training.steps.snapshot import TensorSnapshot

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
