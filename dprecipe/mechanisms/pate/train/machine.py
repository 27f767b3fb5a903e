"""The kind of a machine: machines of one kind round sums alike, so a teacher votes the same on each."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from dprecipe.training.publish.provenance import device_name

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")
MAX_TEXT = 500


def describe_machine(device: torch.device) -> str:
    """Describes in one line the processor, its vector instructions, the device and versions of numeric libraries."""
    parts = [platform.system(), platform.machine(), _name_processor(), torch.backends.cpu.get_cpu_capability()]
    if device.type != "cpu":
        parts.append(device_name(device))
    parts += [f"{name} {_version_of(name)}" for name in LIBRARIES]
    return ", ".join(" ".join(part.split()) for part in parts if part)[:MAX_TEXT]


def _name_processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
