"""The place in a module where something happened: layer, class, and the line of its author's source."""

from __future__ import annotations

import sysconfig
import textwrap
import traceback
from types import TracebackType

from torch import nn

from dprecipe.models.modules.adapted import RecordByRecord

WIDTH = 240
NOT_THE_USERS = ("torch", "dprecipe", "contextlib", "functools")
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Folders of libraries: a line in there is named only where the error passed no line of the user's."""


def locate_failure(error: BaseException, module: nn.Module) -> str:
    """Describes an error in one line that ends with a word, the layer it came from and the line that raised it."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", WIDTH, placeholder=" …") + place_failure(error, module)


def place_failure(error: BaseException, module: nn.Module) -> str:
    """Returns the layer that an error came from and the line that raised it, as the end of a sentence; empty if none is
    known.

    Guarantees: nothing of what the error says.
    """
    layer, line = _places(error.__traceback__, module)
    return (f", in {layer}" if layer else "") + (f", at {line}" if line else "")


def name_failure(module: nn.Module, name: str) -> str:
    """Returns a layer by its path and class, as the module's author knows it."""
    layer = module.get_submodule(name) if name else module
    kind = type(layer.module if isinstance(layer, RecordByRecord) else layer).__name__
    return f"layer {name!r} ({kind})" if name else f"the module ({kind})"


def _places(trace: TracebackType | None, module: nn.Module) -> tuple[str, str]:
    names = {id(layer): name for name, layer in module.named_modules()}
    if isinstance(module, RecordByRecord):
        names[id(module.module)] = ""
    layer = line = library = ""
    for frame, number in traceback.walk_tb(trace):
        owner = frame.f_locals.get("self")
        if id(owner) in names and not isinstance(owner, RecordByRecord):
            layer = name_failure(module, names[id(owner)])
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in NOT_THE_USERS:
            [summary] = traceback.StackSummary.extract(iter([(frame, number)]))
            file = summary.filename.replace("\\", "/").rpartition("/")[2]
            place = f"{file}:{number}: {summary.line}" if summary.line else f"{file}:{number}"
            if summary.filename.startswith(INSTALLED):
                library = place
            else:
                line = place
    return layer, line or library
