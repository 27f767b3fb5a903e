"""Libraries that training imports: one that is missing or broken is named, with the command that mends it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Set
from contextlib import contextmanager
from importlib import metadata

from dprecipe.faults import Fault, RunFailed

OURS = "dprecipe"
VISION = 15
"""torchvision 0.(n + 15) is made for torch 2.n, and breaks beside any other."""


@contextmanager
def importing_libraries(package: str = OURS) -> Iterator[None]:
    """Import libraries in here, for modules of `package`, whose own faults are raised as they are.

    Raises:
        RunFailed: one of them is missing, or raises while it is imported.
    """
    try:
        yield
    except Fault:
        raise
    except Exception as error:  # a library may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        own = {OURS, package.partition(".")[0]}
        name = _broken(error, own)
        if name in own:
            raise
        if missing in ("torch", "lightning", "safetensors"):
            raise RunFailed(f"training needs {missing}", "pip install 'dprecipe[train]'") from error
        text = " ".join(str(error).split())[:200]
        raise RunFailed(
            f"{name} can't be imported ({type(error).__name__}: {text}), and a library that training needs imports it",
            _remedy(name),
        ) from error


def _broken(error: Exception, own: Set[str]) -> str:
    """The package that was being imported: the innermost one that is neither torch, which all of them call, nor one
    of our `own`."""
    names = [str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    packages = [name.partition(".")[0] for name in names]
    known = [package for package in packages if package and package not in sys.stdlib_module_names]
    last = max((place for place, package in enumerate(known) if package in own), default=-1)
    imported = known[last + 1 :]  # by the innermost of our modules
    others = [package for package in imported if package != "torch"]
    return [OURS, *imported, *others][-1]


def _remedy(package: str) -> str:
    name = next(iter(metadata.packages_distributions().get(package, ())), package)
    unneeded = f"or, where nothing of yours needs it: pip uninstall {name}"
    if package == "torchvision":
        torch = metadata.version("torch").partition("+")[0]
        major, minor = (*torch.split("."), "0", "0")[:2]
        if major == "2" and minor.isdigit():
            return f"pip install 'torchvision==0.{int(minor) + VISION}.*', which is made for torch {torch}; {unneeded}"
    return f"pip install --force-reinstall {name}; {unneeded}"
