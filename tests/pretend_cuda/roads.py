"""How a process comes to pretend: by its environment, or by a plugin of pytest; both put a hook before torch.

`start/sitecustomize.py` arms the hook in each process that has `environment`. A process that imports no torch loads
nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]
START = Path(__file__).resolve().parent / "start"
VARIABLE = "DPRECIPE_PRETENDED_CUDA"
PLUGIN = "tests.pretend_cuda.plugin"


@dataclass(frozen=True)
class Settings:
    """What is pretended."""

    devices: int = 1
    current: int = 0
    """The device that the main thread begins with."""
    mib: int = 8192
    """The memory of each device."""
    backing: Literal["cpu", "meta"] = "cpu"


USUAL = Settings()


def environment(settings: Settings, base: dict[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which each process that is started has the device, and so have those that it starts."""
    base = dict(os.environ) if base is None else base
    paths = [str(START), str(ROOT), *filter(None, [base.get("PYTHONPATH")])]
    return {**base, VARIABLE: json.dumps(asdict(settings)), "PYTHONPATH": os.pathsep.join(paths)}


def read_settings() -> Settings:
    """Return the settings that the environment has, else the usual ones."""
    return Settings(**json.loads(os.environ.get(VARIABLE, "{}")))


class _BeforeTorch(importlib.abc.MetaPathFinder):
    """Finds torch with a loader that puts the device there."""

    _looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        from tests.pretend_cuda import guard

        settings = read_settings()
        guard.load(settings.devices, settings.current)
        self._real.exec_module(module)
        from tests.pretend_cuda import install

        install.install(settings)


def arm() -> None:
    """Pretend from when torch is imported, which must not have been; twice is as once."""
    if "torch" in sys.modules:
        raise ImportError("torch is there already, and asks only once whether there is a device")
    if not any(isinstance(finder, _BeforeTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorch())
