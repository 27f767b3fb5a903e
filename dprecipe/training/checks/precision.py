"""Before training: the precision of single precision on the device is measured."""

from __future__ import annotations

import torch

from dprecipe.faults import RunFailed
from dprecipe.training.engine.full_precision import largest_error
from dprecipe.training.probe.program import Check

MAX_ERROR = 2.0**-20
"""Single precision stays below 2^-21 of it; TF32 is off by 2^-12 or more."""


def single_precision(device: torch.device) -> Check:
    """Checks that products of matrices and convolutions on the device round as single precision does.

    Raises:
        RunFailed: they round more, whatever torch's settings are.
    """
    error = largest_error(device)
    if not error <= MAX_ERROR:
        raise RunFailed(
            f"products of matrices on {device} are off by {error:.1e} of their size: single precision is rounded to "
            "fewer bits there, and clip norms would not hold",
            "unset NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and CUBLAS_EMULATE_SINGLE_PRECISION, or set "
            "runtime.device to cpu",
        )
    return Check(
        "single_precision",
        "products in single precision are not rounded to fewer bits after a norm was taken",
        True,
        f"largest relative error {error:.1e} on {device.type}",
    )
