"""Layers of the zoo that torch does not have; the last layer of a language model with its loss among them.

`NextTokens` computes log-likelihoods of the next tokens, without all logits at once. Each depends on the hidden values
of one place alone. Its derivative with respect to them is therefore computed from the same logits, in the forward pass,
and the backward pass needs no logits for it.

Axes: B records, L places of a record, W width, V tokens of the vocabulary, R rows: places of records.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

MIN_VARIANCE = 1e-4
"""Least variance of a kernel, times its inputs: a constant kernel becomes zero and not infinite."""


@final
class StandardisedConv2d(nn.Conv2d):
    """A convolution whose kernels are standardised wherever they are used: mean 0, variance 1 / inputs, each by itself.

    It reads no statistics of records: the weights alone say what is used. Padding is by zeros.

    Source: S. Qiao, H. Wang, C. Liu, W. Shen, A. Yuille, "Micro-Batch Training with Batch-Channel Normalization and
    Weight Standardization", 2019; over the root of the inputs as in A. Brock, S. De, S. Smith, "Characterizing Signal
    Propagation to Close the Performance Gap in Unnormalized ResNets", ICLR 2021, without its gains: the normalisation
    that follows has them.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        return self.convolve(inputs, standardise_weights(self.weight))

    def convolve(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Computes the convolution with kernels that are standardised already."""
        return functional.conv2d(inputs, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def standardise_weights(weight: Tensor) -> Tensor:
    """Maps weights (O, …) to kernels of mean 0 and variance 1 / I, where each has I entries."""
    flat_OI = weight.flatten(1)
    centred_OI = flat_OI - flat_OI.mean(1, keepdim=True)
    squares_O1 = centred_OI.square().sum(1, keepdim=True)  # the variance times I
    return (centred_OI * torch.rsqrt(squares_O1.clamp_min(MIN_VARIANCE))).view_as(weight)


@final
class TransposedLinear(nn.Module):
    """Linear layer, (…, I) to (…, O), whose weight lies as (I, O), as in GPT-2's checkpoints."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, self.weight.T, self.bias)


@final
class WideRMSNorm(nn.Module):
    """Normalisation, (…, W) to (…, W): values over the root of their mean square, times weight, in its precision.

    torch's own takes values in bfloat16 as they are, and has no fused kernel for them beside weights in single
    precision: it warns, and computes step by step.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.rms_norm(inputs.to(self.weight.dtype), self.normalized_shape, self.weight, self.eps)


@final
class OffsetRMSNorm(nn.Module):
    """Normalisation like `WideRMSNorm`, times 1 + weight, as in Gemma."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.normalized_shape, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.rms_norm(inputs.to(self.weight.dtype), self.normalized_shape, 1.0 + self.weight, self.eps)


LOGITS = 1 << 22
"""Logits that exist at once, on a CPU; elsewhere 16 times as many, or starting the kernels would take longer."""


def count_logits(device: torch.device) -> int:
    """Returns how many logits exist at once on this device."""
    return LOGITS if device.type == "cpu" else LOGITS << 4


@final
class NextTokens(nn.Module):
    """Hidden values (B, L, W) and labels (B, L) to log-likelihoods (B, L - 1) of the labels at places 1 … L - 1, each
    from the hidden values of the place before it. 0 where the label is negative: such a place is ignored.

    `weight` (V, W) may be that of the embedding: one parameter of two layers.
    Edge cases: labels beyond the vocabulary count as its last token; L = 1 has no places.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, hidden_BLW: Tensor, labels_BL: Tensor) -> Tensor:
        hidden, labels = hidden_BLW[:, :-1], labels_BL[:, 1:]
        sloped = torch.is_grad_enabled() and hidden.requires_grad
        result: Tensor = _LogLikelihoods.apply(hidden, self.weight, labels, sloped)[0]  # type: ignore[no-untyped-call]
        return result

    def logits(self, hidden_BLW: Tensor) -> Tensor:
        """Returns the logits (B, L, V) of the tokens that follow each place."""
        return hidden_BLW @ self.weight.T


@final
class _LogLikelihoods(torch.autograd.Function):
    """Logits are computed in pieces, and again in the backward pass where the weight is trained.

    `sloped`: the derivatives with respect to the hidden values are wanted.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor, weight_VW: Tensor, labels: Tensor, sloped: bool) -> tuple[Tensor, Tensor]:
        rows_RW, labels_R = hidden.flatten(0, 1), labels.flatten()
        parts, slopes = [], []
        for rows, some in _pieces(rows_RW, labels_R, size=len(weight_VW)):
            logits_RV = _widened(rows @ weight_VW.T)
            parts.append(_chosen(logits_RV, some))
            if sloped:
                slopes.append(_residuals(logits_RV, some).to(rows.dtype) @ weight_VW)
        likelihoods = (torch.cat(parts) if parts else rows_RW.new_zeros(0)).view(labels.shape)
        return likelihoods, torch.cat(slopes).view(hidden.shape) if slopes else rows_RW.new_zeros(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, bool], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:3], output[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight_VW, labels, slopes = ctx.saved_tensors
        of_hidden = of_weight = None
        if ctx.needs_input_grad[0]:
            of_hidden = slopes.view(hidden.shape) * gradients[0][..., None].to(slopes.dtype)
        if ctx.needs_input_grad[1]:
            of_weight = torch.zeros_like(weight_VW)
            columns = hidden.flatten(0, 1), labels.flatten(), gradients[0].flatten()
            for rows, some, gradient in _pieces(*columns, size=len(weight_VW)):
                by_logit_RV = _residuals(_widened(rows @ weight_VW.T), some) * gradient[:, None]
                of_weight = of_weight + by_logit_RV.to(rows.dtype).T @ rows
        return of_hidden, of_weight, None, None


def _pieces(*tensors: Tensor, size: int) -> Any:
    """Returns the tensors, a few rows at a time: as many as may have logits at once, `size` of each."""
    rows = max(1, count_logits(tensors[0].device) // size)
    return zip(*(torch.split(tensor, rows) for tensor in tensors if len(tensor)), strict=True)


def _chosen(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
    """Returns the labels' log-likelihoods, (R,)."""
    chosen_R1 = labels_R.clamp(0, logits_RV.shape[1] - 1).long()[:, None]
    likelihoods_R = logits_RV.gather(1, chosen_R1)[:, 0] - logits_RV.logsumexp(1)
    return torch.where(labels_R < 0, 0.0, likelihoods_R)


def _residuals(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
    """Returns the derivatives (R, V) of the log-likelihoods with respect to the logits."""
    chosen_R1 = labels_R.clamp(0, logits_RV.shape[1] - 1).long()[:, None]
    residuals_RV = -logits_RV.softmax(1)
    residuals_RV = residuals_RV.scatter_add(1, chosen_R1, torch.ones_like(residuals_RV[:, :1]))
    return torch.where(labels_R[:, None] < 0, 0.0, residuals_RV)


def _widened(logits_RV: Tensor) -> Tensor:
    return logits_RV.float() if logits_RV.itemsize < 4 else logits_RV
