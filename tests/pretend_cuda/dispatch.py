"""How an operation on pretended tensors is done: checked, counted, computed by the CPU, and its answer wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.pretend_cuda.counting import count_copy, count_operation, wait
from tests.pretend_cuda.rules import check, count_waits
from tests.pretend_cuda.state import CPU, LOCK, STATE, index_of
from tests.pretend_cuda.tensor import Pretended, unwrap

aten = torch.ops.aten
RESHAPING = {"resize_", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_", "set_", "swapdims_"}
"""They change the shape of the tensor that they are given."""
FREE = {
    "detach", "alias", "lift_fresh", "_reshape_alias", "_unsafe_view", "unbind", "split", "empty_like", "new_empty",
    "new_empty_strided",
}  # fmt: skip
"""They start no kernel, and are no views by their schema."""


def dispatch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do an operation of ATen of which some tensor is pretended."""
    name: str = func._overloadpacket.__name__
    tensors = list(find_tensors([*args, *kwargs.values()]))
    check(func, name, args, kwargs, tensors)
    if name == "copy_":
        return copy(args[0], args[1], bool(kwargs.get("non_blocking", args[2] if len(args) > 2 else False)))
    device = kwargs.get("device")
    leaves = device is not None and torch.device(device).type != "cuda"
    if name == "_to_copy" and leaves:
        return fetch(func, args, kwargs)
    count_waits(name, args, kwargs)
    if STATE.meta and (known := answer_without_values(name, args)) is not None:
        return known
    pretended = [t for t in tensors if isinstance(t, Pretended)]
    index = pretended[0].number if device is None or leaves else index_of(device)
    values, options = unwrap(args), {key: unwrap(value) for key, value in kwargs.items()}
    if device is not None:
        options["device"] = torch.device(device) if leaves else STATE.backing
    if options.get("pin_memory"):
        options["pin_memory"] = False
    if STATE.meta:
        values, options = to_meta(values), {key: to_meta(value) for key, value in options.items()}
    with drawing(func, options, index):
        out = func(*values, **options)
    if not func.is_view and name not in FREE:
        count_operation(func, values, options, out, [unwrap(t) for t in tensors])
    if name in RESHAPING or kwargs.get("out") is not None:
        for tensor in pretended:
            restride(tensor)
    return out if leaves else wrap(out, index, {id(t.values_): t for t in pretended})


def find_tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from find_tensors(value)


def wrap(out: Any, index: int, known: dict[int, Pretended]) -> Any:
    """Return an answer with a pretended tensor for each tensor: that which holds it, or a new one."""
    if isinstance(out, torch.Tensor):
        return known.get(id(out)) or Pretended(out, index) if id(out) not in known else known[id(out)]
    if isinstance(out, list | tuple):
        return type(out)([wrap(value, index, known) for value in out])
    return out


def to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to("meta") if value.is_cpu else value
    if isinstance(value, list | tuple):
        return type(value)(map(to_meta, value))
    return value


def answer_without_values(name: str, args: Any) -> Any:
    """Return what is asked of values that are not there: 1 or True, and that all numbers differ from 0."""
    if name == "_local_scalar_dense":
        dtype = args[0].dtype
        return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
    if name in ("equal", "is_nonzero"):
        return True
    if name == "nonzero":
        shape = args[0].numel(), args[0].dim()
        return Pretended(torch.empty(shape, dtype=torch.int64, device="meta"), args[0].number)
    return None


def restride(tensor: Pretended) -> None:
    """Give a tensor the shape of what it holds: the tensor itself, since C++ may hold it (`vector @ matrix`)."""
    values = tensor.values_
    if tensor.shape == values.shape and tensor.stride() == values.stride():
        return
    try:
        with torch._C._DisableTorchDispatch():
            tensor.as_strided_(values.size(), values.stride(), values.storage_offset())
    except RuntimeError:  # it has grown (`resize_`): another tensor in its place, for Python alone
        grown = Pretended(values, tensor.number)
        grown.requires_grad_(tensor.requires_grad)
        torch._C._swap_tensor_impl(tensor, grown)
        tensor.block = grown.block


@contextmanager
def drawing(func: Any, options: dict[str, Any], index: int) -> Iterator[None]:
    """Inside, draws without a generator are those of the device's own."""
    if torch.Tag.nondeterministic_seeded not in func.tags or STATE.meta or options.get("generator") is not None:
        yield
        return
    own, general = torch.cuda.default_generators[index], torch.default_generator
    with LOCK:
        before = general.get_state()
        general.set_state(own.get_state())
        try:
            yield
        finally:
            own.set_state(general.get_state())
            general.set_state(before)


def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    """Copy over the bus, or on the device, or between devices."""
    here, there = isinstance(source, Pretended), isinstance(target, Pretended)
    values = unwrap(source)
    if there and not here:
        count_copy("to_device", values, pageable=non_blocking and not source.is_pinned())
        if not non_blocking:
            wait("a copy to the device")
    elif here and not there:
        count_copy("to_host", values)
        if not non_blocking:
            wait("a copy to the CPU")
    if not there:
        return target.zero_() if STATE.meta else target.copy_(values)
    held = unwrap(target)
    held.copy_(to_meta(values) if STATE.meta else values)
    count_operation(aten.copy_.default, (held, values), {}, held, [values])
    return target


def fetch(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """Copy from the device into a new tensor of the CPU."""
    values = args[0].values_
    target = torch.device(kwargs["device"])
    if target.type != "meta":
        count_copy("to_host", values)
        if not kwargs.get("non_blocking"):
            wait("a copy to the CPU")
        if values.is_meta:
            values = torch.zeros(values.shape, dtype=values.dtype)
    options = {**kwargs, "device": target, "non_blocking": False}
    answer: torch.Tensor = func(values, **{k: v for k, v in options.items() if k != "pin_memory"})
    assert target != CPU or answer is not values
    return answer
