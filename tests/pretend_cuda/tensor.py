"""A tensor that says it is on a CUDA device, and holds its values on the CPU."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch

from tests.pretend_cuda.state import STATE, Block, block_of


class Pretended(torch.Tensor):
    """A tensor on a pretended device; `values_` is what it holds."""

    values_: torch.Tensor
    block: Block

    @staticmethod
    def __new__(cls, values: torch.Tensor, index: int) -> Pretended:
        block = block_of(values, index)
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Pretended = make(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=STATE.devices[index].name,
            storage_size=values.untyped_storage().nbytes(),
        )
        made.values_, made.block = values, block
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        from tests.pretend_cuda.dispatch import dispatch

        return dispatch(func, args, kwargs or {})

    def __tensor_flatten__(self) -> tuple[list[str], int]:
        return ["values_"], self.number

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], index: int, size: Any, stride: Any) -> Pretended:
        return Pretended(inner["values_"], index)

    @property
    def number(self) -> int:
        return self.block.device.name.index

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"pretended({self.values_!r}, device='{self.device}')"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    def __array__(self, dtype: object = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def data_ptr(self) -> int:
        return self.values_.data_ptr() or id(self.values_)

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values_.untyped_storage()

    def is_pinned(self, device: object = None) -> bool:
        return False

    def pin_memory(self, device: object = None) -> torch.Tensor:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("Only Tensors created explicitly by the user support the deepcopy protocol")
        with torch.no_grad():
            made = Pretended(self.values_.clone(), self.number)
        made.requires_grad_(self.requires_grad)
        if is_parameter(self):
            mark_parameter(made)
        if self.grad is not None:
            made.grad = deepcopy(self.grad, memo)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A file has the values alone; torch's would be brought to their device again where `map_location` is none."""
        values = self.values_.detach()
        if is_parameter(self):
            values = torch.nn.Parameter(values, self.requires_grad)
        return values.requires_grad_(self.requires_grad).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def is_parameter(tensor: torch.Tensor) -> bool:
    """Return True for parameters of a subclass, which torch marks."""
    return bool(getattr(tensor, "_is_param", False))


def mark_parameter(tensor: Any) -> None:
    tensor._is_param = True


def unwrap(value: Any) -> Any:
    """Return the same with values in the place of pretended tensors, in lists and tuples too."""
    if isinstance(value, Pretended):
        return value.values_
    if isinstance(value, list | tuple):
        return type(value)(map(unwrap, value))
    return value
