"""Chains of operations on large tensors as one GPU kernel: intermediate values are then never in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from dprecipe.libraries import ignoring_warnings
from dprecipe.training.engine.compilers import find_missing, keep_programs, read_clock
from dprecipe.training.engine.sizes import is_out_of_memory, one_size

MIN_NUMBERS = 1 << 24
"""The smallest tensor that is worth a program: below this, starting kernels and making the program cost more than they
gain."""
CLOSE = 2.0**-20
"""The allowed difference of a program's results from those of single operations, relative to the largest."""
ROUNDS = 3


@final
class Fused:
    """A function of tensors that is compiled where that is faster; elsewhere it is called as it is.

    The first call on a GPU with a large first tensor decides. It is made by a plan on synthetic records, before
    anything is spent: a program is made, its results are compared with the function's, and both are timed. Without a
    compiler, with other results, or with no gain the function stays as it is. A program that fails later is not called
    again: torch makes one for each kind of shapes, and only a limited number. The function must have bounds that hold
    in
    whatever order a compiler adds and whatever it fuses; its first argument is a tensor.
    """

    def __init__(self, function: Callable[..., Tensor], fusible: Callable[..., Tensor] | None = None) -> None:
        """`fusible`: the same, written so that a compiler can make one kernel of it."""
        self.__doc__ = function.__doc__
        self._function, self._fusible = function, fusible or function
        self._program: Callable[..., Tensor] | None = None
        self._tried = False

    def __call__(self, first: Tensor, *more: Tensor | float) -> Tensor:
        if not one_size(first.device) or first.numel() < MIN_NUMBERS or _is_traced(first):
            return self._function(first, *more)
        if not self._tried:
            self._tried = True
            self._program = find_program(self._function, self._fusible, first, *more)
        if self._program is not None:
            try:
                return self._program(first, *more)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._program = None
        return self._function(first, *more)


def _is_traced(tensor: Tensor) -> bool:
    """Returns True if operations are recorded, by a type of tensors or by a mode: a compiler does so itself."""
    return type(tensor) is not Tensor or bool(torch._C._len_torch_dispatch_stack()) or torch.compiler.is_compiling()


def find_program(
    function: Callable[..., Tensor], fusible: Callable[..., Tensor], first: Tensor, *more: Tensor | float
) -> Callable[..., Tensor] | None:
    """Returns a faster program of the function, for tensors of any size; None if there is none."""
    if find_missing(first.device):
        return None
    keep_programs()
    program: Callable[..., Tensor] = torch.compile(fusible, dynamic=True, fullgraph=True)
    times = {function: float("inf"), program: float("inf")}
    try:
        with ignoring_warnings():
            expected, found = function(first, *more), program(first, *more)
            if not bool((found - expected).abs().max() <= CLOSE * expected.abs().max()):
                return None
            for each in [*times] * ROUNDS:
                start = read_clock(first.device)
                each(first, *more)
                times[each] = min(times[each], read_clock(first.device) - start)
    except Exception:  # a compiler does not promise what it raises
        return None
    return program if times[program] < times[function] else None
