"""Lightning, without torchmetrics where this process runs a command and nothing else.

Lightning imports torchmetrics for the names of two classes, and torchmetrics imports scipy.signal, matplotlib and
transformers, if they are there: 1.6 of the 2.5 s of processor time that Lightning's import takes. Runs log nothing
through Lightning, so none of it is ever called. In another program's process Lightning is imported as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

from torch import nn

from dprecipe.libraries import is_own_process

METRICS = "torchmetrics"


@contextmanager
def without_metrics() -> Iterator[None]:
    """Inside, an import of torchmetrics gives a module with the names that Lightning asks for. Later imports give the
    library itself. Nothing is replaced that was imported before."""
    if METRICS in sys.modules:
        yield
        return
    sys.modules[METRICS] = _name_metrics()
    try:
        yield
    finally:
        del sys.modules[METRICS]


def _name_metrics() -> ModuleType:
    named = ModuleType(METRICS)
    contents: dict[str, object] = {
        "__version__": version(METRICS),  # Lightning compares it
        "Metric": type("Metric", (nn.Module,), {}),
        "MetricCollection": type("MetricCollection", (nn.ModuleDict,), {}),
    }
    vars(named).update(contents)
    return named


if is_own_process():
    try:
        with without_metrics():
            import lightning.pytorch as lightning
    except (ImportError, AttributeError, PackageNotFoundError):  # this version of Lightning needs more of it
        import lightning.pytorch as lightning
else:
    import lightning.pytorch as lightning

__all__ = ["lightning"]
