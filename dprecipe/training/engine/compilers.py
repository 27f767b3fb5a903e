"""Compilers of graphs and functions for a device, what they need, and a clock of the time that a device works."""

from __future__ import annotations

import os
import shutil
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.fx import GraphModule


def find_compiler(graph: GraphModule, inputs: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Compiles for shapes as they are. On a CPU the layouts stay those of eager torch: layouts of the compiler's choice
    give wrong gradients for a convolution under a pool (torch 2.13). On a GPU convolutions in bfloat16 are faster in
    another layout."""
    import torch._inductor

    keep_programs()
    on_gpu = any(tensor.device.type == "cuda" for tensor in inputs)
    half = any(torch.bfloat16 in node.kwargs.values() for node in graph.graph.nodes)
    compute = torch._inductor.compile(graph, list(inputs), options={"layout_optimization": on_gpu and half})
    return cast(Callable[..., Sequence[Tensor]], compute)


def keep_programs() -> None:
    """Lets torch keep what it compiles in the user's own folder: others may write to its default one."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dprecipe" / "inductor"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def find_missing(device: torch.device) -> str | None:
    """Says what the compiler lacks on this machine; None if it lacks nothing."""
    if device.type == "cpu":
        named = os.environ.get("CXX")
        known = any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++", "cl"]))
        return None if known else "there is no C++ compiler (g++ or clang++)"
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            return "there is no triton"
        named = os.environ.get("CC")  # triton compiles what starts its kernels
        if not any(shutil.which(name) for name in ([named] if named else ["gcc", "clang", "cc"])):
            return "there is no C compiler (gcc or clang), which triton needs"
        header = Path(sysconfig.get_path("include")) / "Python.h"
        return None if header.exists() else "there is no Python.h (the package python3-dev), which triton needs"
    return f"nothing compiles for {device.type}"


def read_clock(device: torch.device) -> float:
    """Returns seconds, after the device has finished its work. On a CPU, those of this thread, so that other programs
    do not count."""
    if device.type == "cpu":
        return time.thread_time()
    torch.zeros((), device=device).item()  # waits
    return time.perf_counter()
