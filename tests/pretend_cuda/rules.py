"""What CUDA refuses where a CPU goes on, and which operations wait for the device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from tests.pretend_cuda.counting import count_copy, wait
from tests.pretend_cuda.interface import Generator
from tests.pretend_cuda.tensor import Pretended

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
"""They take indices of the CPU."""
MOVING = {"copy_", "_to_copy", "_pin_memory", "lift_fresh", "set_"}
"""They take tensors of two devices."""
SCALARS = {"fill_", "masked_fill_", "masked_fill", "lerp", "where"} | {
    f"_foreach_{name}{suffix}" for name in ("mul", "add", "div") for suffix in ("", "_")
}
"""They take a number that is a tensor of the CPU, as operations on single elements do."""
WAITING = {
    "_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive",
    "bincount", "histc", "_linalg_check_errors", "linalg_cholesky", "linalg_eigh", "_linalg_eigh", "linalg_lstsq",
}  # fmt: skip
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "addmm_", "baddbmm_", "addmv_", "addbmm"}
"""Of cuBLAS: none of integers, and deterministic with a workspace alone."""
WORKSPACES = (":4096:8", ":16:8")
NOT_DETERMINISTIC = {
    "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward",
    "adaptive_max_pool3d_backward", "avg_pool3d_backward", "cumsum", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward", "histc", "kthvalue",
    "max_pool3d_with_indices_backward", "max_unpool2d", "median", "nll_loss2d_backward", "nll_loss2d_forward", "put_",
    "reflection_pad1d_backward", "reflection_pad3d_backward", "replication_pad1d_backward",
    "replication_pad2d_backward", "replication_pad3d_backward", "_ctc_loss_backward", "_embedding_bag_dense_backward",
    "scatter_reduce", "scatter_reduce_", "upsample_bicubic2d_backward", "upsample_linear1d_backward",
    "upsample_trilinear3d_backward",
}  # fmt: skip


def check(func: Any, name: str, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> None:
    """Raise what CUDA would of an operation."""
    foreign = find_foreign(func, name, args, kwargs, tensors)
    if foreign:
        here = next(t.device for t in tensors if isinstance(t, Pretended))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {here} and "
            f"{foreign[0].device}! (pretended: {func} of {[(tuple(t.shape), str(t.device)) for t in tensors]})"
        )
    generator = kwargs.get("generator") or next((a for a in args if isinstance(a, torch._C.Generator)), None)
    if generator is not None and not Generator.is_of_device(generator):
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    if name in PRODUCTS and any(not (t.is_floating_point() or t.is_complex()) for t in tensors):
        raise RuntimeError(f"\"{name}_cuda\" not implemented for '{tensors[0].dtype}'")
    if torch.are_deterministic_algorithms_enabled():
        check_determinism(name, tensors)


def find_foreign(
    func: Any, name: str, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """Return the tensors that are not on the device of the others, and may not be."""
    if name in MOVING:
        return []
    here = next(t.device for t in tensors if isinstance(t, Pretended))
    foreign = [t for t in tensors if t.device != here]
    if not foreign:
        return []
    if name in INDEXING:
        return find_foreign_of_index(args)
    if name in SCALARS or torch.Tag.pointwise in func.tags:
        written = args[0] if name.endswith("_") else kwargs.get("out")
        return [t for t in foreign if t.dim() or t is written or t.device.type != "cpu"]
    return foreign


def find_foreign_of_index(args: Any) -> Sequence[torch.Tensor]:
    """Indices of the CPU are brought to the device, which waits; the numbers that are put there have to be on it."""
    if not isinstance(args[0], Pretended):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    foreign = [
        v
        for v in args[2:3]
        if isinstance(v, torch.Tensor) and v.device != args[0].device and not (v.is_cpu and not v.dim())
    ]
    for index in args[1]:
        if index is not None and index.device != args[0].device:
            if index.device.type != "cpu":
                foreign.append(index)
            else:
                count_copy("to_device", index)
                wait("an index of the CPU")
    return foreign


def check_determinism(name: str, tensors: Sequence[torch.Tensor]) -> None:
    if name in PRODUCTS and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in WORKSPACES:
        message = (
            "Deterministic behavior was enabled, but this operation is not deterministic because it uses CuBLAS. To "
            "enable it, set CUBLAS_WORKSPACE_CONFIG=:4096:8 (pretended)"
        )
    elif name in NOT_DETERMINISTIC and any(t.is_floating_point() for t in tensors):
        message = f"{name}_cuda does not have a deterministic implementation (pretended)"
    else:
        return
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        raise RuntimeError(message)
    warnings.warn(message, stacklevel=5)


def count_waits(name: str, args: Any, kwargs: Any) -> None:
    """Wait where the size of an answer, or a number of it, has to be known on the CPU."""
    if name in WAITING or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        wait(name)
    elif name in INDEXING:
        masked = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        value = args[2] if len(args) > 2 else None
        if masked and not (isinstance(value, torch.Tensor) and value.numel() == 1):  # one number is filled in
            wait(f"{name} by a mask")
