"""Single precision that is single precision: no product of matrices and no convolution rounds its factors to TF32,
but for those that come before a norm.

Why it matters: a record's factors that are rounded after its norm was taken are no longer those that the norm bounds,
and what `rounding.Reserve` counts is the rounding of 24 bits. TF32 has 11, bfloat16 has 8. Before the norm is taken any
rounding is sound: the numbers whose norm is taken are those that are added.

`Reduced` is a model whose products of matrices and convolutions are computed in bfloat16. Parameters stay in
single precision, and so do the outputs, the norms of gradients, and all that is added up: bfloat16 is used only within
one record's forward and backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import grad as convolutions

PLACES = (
    ("generic", "all"),
    *(("cuda", operation) for operation in ("all", "matmul", "conv", "rnn")),
    *(("mkldnn", operation) for operation in ("all", "matmul", "conv", "rnn")),
)
"""The places where torch keeps a precision, from 2.9 on. A place without its own takes that of the one above it."""
TERMS = 8
"""Products that are added to one number: few, so that single precision rounds their sum by less than 2^-21 of it."""


_tensor_cores = ContextVar("tensor cores before norms", default=False)


@contextmanager
def in_run_precision() -> Iterator[None]:
    """Sets `in_full_precision`, as runs have it: a GPU may use its tensor cores `before_norms`. Checks that compare two
    computations of the same quantity do not use it."""
    with in_full_precision():
        token = _tensor_cores.set(True)
        try:
            yield
        finally:
            _tensor_cores.reset(token)


@contextmanager
def before_norms(device: torch.device) -> Iterator[None]:
    """Inside, products and convolutions on a GPU may round their factors to TF32, if a run is in its precision.

    Only for what is computed of single records before their norms: the forward and the backward pass, and the rows
    whose norms are taken and which are then added as they are, or measured again. On a CPU nothing changes. Takes
    torch 2.9 or newer; compiled passes stay in single precision.
    """
    if not _tensor_cores.get() or not has_tensor_cores(device) or torch.compiler.is_compiling():
        yield
        return
    token = _tensor_cores.set(False)  # of blocks inside each other, the outermost one restores
    set_cuda_precision("tf32")
    try:
        yield
    finally:
        set_cuda_precision("ieee")
        _tensor_cores.reset(token)


def has_tensor_cores(device: torch.device) -> bool:
    """Returns True for devices on which torch can round to TF32, and has a setting for it."""
    return device.type == "cuda" and hasattr(torch._C, "_set_fp32_precision_setter")


def set_cuda_precision(precision: str) -> None:
    """Sets the precision of products and convolutions on CUDA, "tf32" or "ieee"; torch's other settings stay."""
    put: Any = torch._C._set_fp32_precision_setter
    for operation in ("matmul", "conv"):
        put("cuda", operation, precision)


@contextmanager
def in_full_precision() -> Iterator[None]:
    """Inside, single precision is not rounded to fewer bits, and cuDNN chooses no algorithm by time.

    Whatever was set, by the older interface of torch (`allow_tf32`, `set_float32_matmul_precision`), by the newer
    (`fp32_precision`) or by a mixture, is the same afterwards. Libraries that the environment sets otherwise follow the
    environment: `largest_error` measures what they do.
    """
    cudnn: Any = torch.backends.cudnn
    benchmark, restore = cudnn.benchmark, _full()
    cudnn.benchmark = False
    token = _tensor_cores.set(False)
    try:
        yield
    finally:
        _tensor_cores.reset(token)
        cudnn.benchmark = benchmark
        restore()


def _full() -> Callable[[], None]:
    """Sets both interfaces, and returns the function that undoes it."""
    cudnn: Any = torch.backends.cudnn
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    put: Any = getattr(torch._C, "_set_fp32_precision_setter", None)
    precisions: list[str] = []
    if get is not None:
        for place in PLACES:  # those above first: without theirs, each reports its own
            precisions.append(get(*place))
            put(*place, "none")
    products = torch.get_float32_matmul_precision()
    convolutions = _convolutions_allowed(put)
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = False
    if get is not None:
        for place in PLACES:
            put(*place, "ieee")

    def restore() -> None:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions
        for place, value in zip(PLACES, precisions, strict=False):
            put(*place, value)

    return restore


def _convolutions_allowed(put: Any) -> bool:
    """Returns the older interface's setting for convolutions, which can be read only while the newer one agrees."""
    cudnn: Any = torch.backends.cudnn
    if put is not None:
        put("cuda", "conv", "tf32")
        put("cuda", "rnn", "tf32")
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:
        return False


def largest_error(device: torch.device) -> float:
    """Measures the largest relative error of products of matrices, of batches of them, and of convolutions on a device.

    The factors are 1 + 2^-12, which TF32 rounds to 1, and numbers of 24 bits; a number is the sum of `TERMS` products
    or one more, whatever the shape. Convolutions have a stride of 2: of others there are algorithms that transform
    their inputs, and lose as much as bits.
    """
    generator = torch.Generator().manual_seed(0)
    by_images: Any = convolutions.conv2d_input
    worst = 0.0

    def compare(result: Tensor, exact: Tensor) -> None:
        nonlocal worst
        error = ((result.cpu().double() - exact).abs() / exact.clamp_min(1.0)).max()
        worst = max(worst, float(error.nan_to_num(torch.inf)))

    def factors(*shape: int) -> Iterator[Tensor]:
        yield torch.full(shape, 1 + 2.0**-12)
        yield 1 + torch.rand(shape, generator=generator)

    size = 256
    mask = (torch.arange(size)[:, None] + torch.arange(size)) % (size // TERMS) == 0
    with in_full_precision(), torch.no_grad():
        for left, right in zip(factors(size, size), factors(size, size), strict=True):
            left = left * mask
            a, b, exact = left.to(device), right.to(device), left.double() @ right.double()
            for result in (
                a @ b,
                a.t().contiguous().t() @ b,
                (b.t() @ a.t()).t(),
                torch.addmm(torch.zeros_like(b), a, b),
            ):
                compare(result, exact)
            stacked, beside = a.view(4, 64, size), b.expand(4, -1, -1)
            compare(torch.bmm(stacked, beside).flatten(0, 1), exact)
        for images, kernels in zip(factors(8, 16, 17, 17), factors(16, 16, 3, 3), strict=True):
            # Of the weights, those of one channel: nine products.
            kernels = kernels * torch.eye(16)[:, :, None, None]
            exact = torch.nn.functional.conv2d(images.double(), kernels.double(), stride=2)
            x, w = images.to(device), kernels.to(device)
            compare(torch.nn.functional.conv2d(x, w, stride=2), exact)
            # And by the images: at most four windows of a stride of 2 meet at a pixel.
            shape = list(images.shape)
            ones = torch.ones(exact.shape)
            exact = by_images(shape, kernels.double(), ones.double(), stride=2)
            compare(by_images(shape, w, ones.to(device), stride=2), exact)
    return worst


HALF = 0.05
"""Relative error of a gradient in bfloat16, between two ways to compute it: eight bits, and sums of such numbers."""


def gradient_tolerance(model: nn.Module, single: float) -> float:
    """Returns the relative error by which equal gradients may differ: `single`, or `HALF` if the model is reduced."""
    return HALF if any(isinstance(layer, Reduced) for layer in model.modules()) else single


@final
class Reduced(nn.Module):
    """`model`, with its parameters, in mixed precision: whatever torch's autocast takes to bfloat16 is in bfloat16."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        device = next(self.model.parameters()).device
        # Casts of weights are not kept: a parameter may be another one in the next pass.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            outputs: Tensor = self.model(*args, **kwargs)
        return outputs.float()
