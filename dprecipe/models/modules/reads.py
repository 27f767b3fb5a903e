"""Search for control flow that depends on values of records: with it, one record could change others' outputs."""

from __future__ import annotations

import inspect
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READING = frozenset(
    (
        *(Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.data_ptr, Tensor.untyped_storage, Tensor.__array__),
        *(Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__, Tensor.__bool__, Tensor.__int__, Tensor.__float__),
        Tensor.__index__,
    )
)
"""Methods that can take values out of a tensor without an operation that torch marks as such."""


def find_reads(module: nn.Module, features: Tensor) -> str:
    """Finds the line on which the module reads values of records; empty if it reads none, or constants only.

    Raises:
        Exception: what the module raises.
    """
    calls = _Calls()
    with calls, _Operations(calls.places):
        module(features)
    if not calls.places:
        return ""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def one(feature: Tensor) -> Any:
        return functional_call(module, state, (feature.unsqueeze(0),))

    try:
        with _Calls(refused=True):
            vmap(one, randomness="different")(features)
    except Exception:  # a value of a record, or of a draw, would have become one of Python's
        place = next((place for place in calls.places if place), "")
        return f"it decides by values of records{f' ({place})' if place else ''}"
    return ""


@final
class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Recorder of places that make a Python value of a tensor, or a tensor whose shape depends on values."""

    def __init__(self, places: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._places = places

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = getattr(func, "tags", ())
        if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
            self._places.append(find_user_line(inspect.currentframe()))
        return func(*args, **(kwargs or {}))


@final
class _Calls(TorchFunctionMode):
    """Recorder of places where values leave torch altogether, to numpy, to lists and to text."""

    def __init__(self, *, refused: bool = False) -> None:
        super().__init__()
        self.places: list[str] = []
        self._refused = refused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READING:
            if self._refused and args and torch._C._functorch.is_functorch_wrapped_tensor(args[0]):
                raise RuntimeError("a value of a record is read")
            self.places.append(find_user_line(inspect.currentframe()))
        return func(*args, **(kwargs or {}))


def find_user_line(frame: Any) -> str:
    """Returns the innermost line of the user's code, `file.py:12: code`; empty if there is none."""
    while frame is not None:
        info = inspect.getframeinfo(frame, context=1)
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "dprecipe", "contextlib", "functools", "inspect") and "self" in frame.f_locals:
            code = (info.code_context or [""])[0].strip()
            return f"{info.filename.replace(chr(92), '/').rpartition('/')[2]}:{info.lineno}: {code[:80]}".rstrip(": ")
        frame = frame.f_back
    return ""
