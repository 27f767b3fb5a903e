"""The library in C++ that torch needs before it believes in a device: compiled once, and loaded before torch."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("guard.cpp")
COMPILER = "g++"


def find_torch() -> Path | None:
    """Return the folder of torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def explain_absence() -> str | None:
    """Return why no device can be pretended here; None where it can."""
    torch = find_torch()
    if sys.platform != "linux":
        return "a device is pretended on Linux alone"
    if torch is None:
        return "torch is not installed"
    if not re.search(r"^cuda\b.*= None$", (torch / "version.py").read_text(encoding="utf-8"), re.MULTILINE):
        return "this torch was built for CUDA, and has hooks of its own"
    if shutil.which(COMPILER) is None:
        return f"there is no {COMPILER}, which compiles the guard of the pretended device"
    return None


def cache_folder() -> Path:
    """Return a folder outside the tree that is this user's alone: code is loaded from it."""
    folder = Path(tempfile.gettempdir()) / f"dprecipe-pretended-cuda-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    return folder


def build() -> Path:
    """Return the compiled library, which is made where it is not there; several processes may ask at once."""
    torch = find_torch()
    assert torch is not None
    version = (torch / "version.py").read_bytes()
    tag = hashlib.sha256(SOURCE.read_bytes() + version + str(torch).encode()).hexdigest()[:16]
    library = cache_folder() / f"guard-{tag}.so"
    if not library.exists():
        made = library.with_suffix(f".{os.getpid()}")
        paths = [f"-I{torch / 'include'}", str(SOURCE), f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"]
        command = [COMPILER, "-O0", "-shared", "-fPIC", "-std=c++20", *paths, "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True)
        made.replace(library)
    return library


@cache
def _library() -> ctypes.CDLL:
    torch = find_torch()
    assert torch is not None
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(build()), mode=ctypes.RTLD_GLOBAL)


def load(devices: int, current: int) -> None:
    """Let there be so many devices for the torch that is imported next."""
    if reason := explain_absence():
        raise ImportError(reason)
    _library().pretend_set_devices(devices)
    set_current(current)


def get_current() -> int:
    """Return the device of this thread."""
    return int(_library().pretend_current())


def set_current(index: int) -> int:
    """Make a device that of this thread; return the one before it. A negative number changes nothing."""
    before = get_current()
    if index >= 0:
        _library().pretend_set_current(index)
    return before
