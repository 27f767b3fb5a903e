"""What is counted of what a program does with the device: operations, waits, bytes over the bus."""

from __future__ import annotations

import linecache
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils.flop_counter import flop_registry

from tests.pretend_cuda.roads import ROOT
from tests.pretend_cuda.state import STATE

HERE = str(Path(__file__).resolve().parent)
CASES = str(Path(HERE) / "cases")
PROJECT = tuple(str(ROOT / folder) for folder in ("dprecipe", "tests", "benchmarks", "examples"))
BANDWIDTH = 2.8e12
"""Bytes in a second that kernels of an H100 read and write."""
RATES = {"float64": 50e12, "float32": 45e12, "bfloat16": 500e12, "float16": 500e12}
"""Its floating-point operations in a second, without TF32."""
SHORTEST = 2e-6
"""Seconds of its shortest kernel."""
Key = tuple[str, str]
"""The name of an operation and its widest dtype."""


class Recording:
    """What happened between two moments."""

    def __init__(self) -> None:
        self.operations: Counter[Key] = Counter()  # about one kernel each; views are not counted
        self.bytes: Counter[Key] = Counter()  # read and written
        self.flops: Counter[Key] = Counter()
        self.seconds = 0.0  # an H100's, estimated by what limits it: its memory, its arithmetic, or starting a kernel
        self.waits: Counter[tuple[str, str]] = Counter()  # what for, and the line
        self.pageable: Counter[str] = Counter()  # lines that copy without waiting, from memory that is not pinned
        self.to_device: Counter[str] = Counter()  # bytes, by line
        self.to_host: Counter[str] = Counter()

    @property
    def launches(self) -> int:
        return self.operations.total()

    def add(self, func: Any, args: Any, kwargs: Any, out: Any, tensors: Sequence[torch.Tensor]) -> None:
        """Count an operation that answered `out`."""
        results = [leaf for leaf in (out if isinstance(out, list | tuple) else [out]) if isinstance(leaf, torch.Tensor)]
        dtypes = [t.dtype for t in (*tensors, *results) if t.is_floating_point()]
        widest = str(max(dtypes, key=lambda d: d.itemsize, default=torch.int64)).removeprefix("torch.")
        key = str(func).removeprefix("aten.").removesuffix(".default"), widest
        moved = sum(t.numel() * t.element_size() for t in (*tensors, *results))
        flops = count_flops(func, args, kwargs, out)
        self.operations[key] += 1
        self.bytes[key] += moved
        self.flops[key] += flops
        self.seconds += max(moved / BANDWIDTH, flops / RATES.get(widest, RATES["float32"]), SHORTEST)


_recordings: list[Recording] = []


@contextmanager
def recording() -> Iterator[Recording]:
    """Count what is done inside, by all threads."""
    mine = Recording()
    _recordings.append(mine)
    try:
        yield mine
    finally:
        _recordings[:] = [other for other in _recordings if other is not mine]


def count_flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return the floating-point operations of products and convolutions; 0 of all else, which memory limits."""
    name = func._overloadpacket.__name__
    if name in ("mv", "addmv", "addmv_"):
        return 2 * int(args[0 if name == "mv" else 1].numel())
    known = flop_registry.get(getattr(torch.ops.aten, name.rstrip("_"), None))
    return int(known(*args, **kwargs, out_val=out)) if known is not None else 0


def count_operation(func: Any, args: Any, kwargs: Any, out: Any, tensors: Sequence[torch.Tensor]) -> None:
    for each in _recordings:
        each.add(func, args, kwargs, out, tensors)


def find_line() -> str:
    """Return the innermost line of the project, as "dprecipe/training/steps/noise.py:12 code"; not of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PROJECT) and not _is_own(name) and "site-packages" not in name:
            return f"{name[len(str(ROOT)) + 1 :]}:{frame.f_lineno} {linecache.getline(name, frame.f_lineno).strip()}"
        frame = frame.f_back
    return "elsewhere"


def _is_own(name: str) -> bool:
    return name.startswith(HERE) and not name.startswith(CASES)


def wait(what: str) -> None:
    """The program waits for the device; says so as torch does where `set_sync_debug_mode` asks for it."""
    if _recordings:
        line = find_line()
        for each in _recordings:
            each.waits[what, line] += 1
    message = f"called a synchronizing CUDA operation (pretended: {what})"
    if STATE.waits == 2:
        raise RuntimeError(message)
    if STATE.waits == 1:
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and _is_own(frame.f_code.co_filename):
            frame = frame.f_back
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def count_copy(direction: Literal["to_device", "to_host"], values: torch.Tensor, *, pageable: bool = False) -> None:
    """Count the bytes of a copy over the bus."""
    if _recordings:
        line = find_line()
        for each in _recordings:
            getattr(each, direction)[line] += values.numel() * values.element_size()
            if pageable:
                each.pageable[line] += 1
