"""Puts the pretended device into torch, once in a process and for good."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import getmembers, isclass, isfunction
from typing import Any

import torch

from tests.pretend_cuda import interface
from tests.pretend_cuda.dispatch import drawing
from tests.pretend_cuda.roads import Settings
from tests.pretend_cuda.state import CPU, STATE, Device, index_of
from tests.pretend_cuda.tensor import Pretended

FACTORIES = (
    "arange", "arange.start", "arange.start_step", "linspace", "logspace", "eye", "eye.m", "randperm.generator",
    "tril_indices", "triu_indices",
)  # fmt: skip
"""Whose kernels for a device make the tensor themselves; others take `empty`'s, and go on with it."""


def install(settings: Settings) -> None:
    """Let torch, which is there and had `guard.load` before it, have so many devices."""
    STATE.settings = settings
    STATE.devices = [Device(index, settings.mib << 20) for index in range(settings.devices)]
    put_interface()
    put_kernels()
    put_pinning()
    put_loading()
    put_profiler()
    # Optimisers take their kernels for many tensors, as of parameters on CUDA.
    from torch.optim import optimizer

    optimizer._foreach_supported_types.append(Pretended)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)


def put_interface() -> None:
    """Replace what `torch.cuda` has by what `interface` has of the same name, wherever torch keeps it."""
    cuda: Any = torch.cuda
    own = [
        (n, v)
        for n, v in getmembers(interface, lambda v: isfunction(v) or isclass(v))
        if v.__module__ == interface.__name__
    ]
    for name, value in own:
        for place in (cuda, cuda.memory, cuda.nvtx, cuda.random, cuda.streams):
            if hasattr(place, name):
                setattr(place, name, value)
    torch_: Any = torch
    torch_.Generator = interface.Generator
    cuda.default_generators = tuple(interface.Generator(device.name) for device in STATE.devices)
    torch_._C._cuda_getCurrentRawStream = lambda index: 0
    torch_.backends.cudnn.version = lambda: 91900
    torch_.backends.cudnn.is_available = lambda: True


_libraries: list[torch.library.Library] = []
"""A kernel goes with the library that put it."""


def put_kernels() -> None:
    """Register what makes new tensors on CUDA; all other operations find a pretended tensor among what they get."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)

    def put(name: str, kernel: Callable[..., Any]) -> None:
        library.impl(name, kernel, "CUDA", allow_override=True)

    def empty(
        size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
        memory_format: Any = None,
    ) -> Pretended:  # fmt: skip
        memory_format = memory_format or torch.contiguous_format
        values = torch.empty(size, dtype=dtype, device=STATE.backing, memory_format=memory_format)
        return Pretended(values, index_of(device))

    def empty_strided(
        size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None
    ) -> Pretended:
        return Pretended(torch.empty_strided(size, stride, dtype=dtype, device=STATE.backing), index_of(device))

    put("empty.memory_format", empty)
    put("empty_strided", empty_strided)
    for name in FACTORIES:
        put(name, make_factory(name))


def make_factory(name: str) -> Callable[..., Pretended]:
    packet, _, overload = name.partition(".")
    operation = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def made(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> Pretended:
        index = index_of(device)
        if STATE.meta:
            kwargs.pop("generator", None)
        with drawing(operation, kwargs, index):
            return Pretended(operation(*args, **kwargs, device=STATE.backing), index)

    return made


def put_pinning() -> None:
    """Memory that is pinned is remembered by its storage; nothing is pinned."""
    pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    tensor: Any = torch.Tensor

    def mark(made: torch.Tensor) -> torch.Tensor:
        storage = made.untyped_storage()
        pinned[storage._cdata] = storage
        return made

    def is_pinned(self: torch.Tensor, device: object = None) -> bool:
        return self.untyped_storage()._cdata in pinned

    tensor.pin_memory = lambda self, device=None: mark(self.detach().clone())
    tensor.is_pinned = is_pinned

    def pinning(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @wraps(factory)
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
            result = factory(*args, **kwargs)
            if pin_memory and not result.is_cpu:
                raise RuntimeError("Only dense CPU tensors can be pinned")
            return mark(result) if pin_memory else result

        return made

    for name in ("empty", "zeros", "ones", "full"):
        setattr(torch, name, pinning(getattr(torch, name)))


def put_loading() -> None:
    """`torch.load` brings tensors to a device where `map_location` says so."""
    torch_: Any = torch
    load = torch_.load

    @wraps(load)
    def loaded(f: Any, map_location: Any = None, **options: Any) -> Any:
        if map_location is None:
            warnings.warn("torch.load without map_location restores tensors to their device (pretended)", stacklevel=2)
        elif not callable(map_location) and not isinstance(map_location, dict):
            target = torch.device(map_location)
            if target.type == "cuda":
                return place(load(f, CPU, **options), target)
        return load(f, map_location, **options)

    torch_.load = loaded


def put_profiler() -> None:
    """The profiler of kernels sees the CPU's operations alone: asked for a GPU's, this torch warns at each of them."""
    profile: Any = torch.profiler.profile
    begin = profile.__init__

    @wraps(begin)
    def begun(self: Any, *, activities: Any = None, **options: Any) -> None:
        begin(self, activities=[torch.profiler.ProfilerActivity.CPU], **options)

    profile.__init__ = begun


def place(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return type(value)((key, place(item, device)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(place(item, device) for item in value)
    return value
