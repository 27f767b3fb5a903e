"""The last layer of a language model, with its loss: log-likelihoods of the next tokens, without all logits at once.

Axes: B records, L places of a record, W width, V tokens of the vocabulary, R rows: places of records.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

LOGITS = 1 << 22
"""Logits that exist at once."""


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
        result: Tensor = _LogLikelihoods.apply(hidden_BLW[:, :-1], self.weight, labels_BL[:, 1:])  # type: ignore[no-untyped-call]
        return result

    def logits(self, hidden_BLW: Tensor) -> Tensor:
        """(B, L, V): of the tokens that follow each place."""
        return hidden_BLW @ self.weight.T


@final
class _LogLikelihoods(torch.autograd.Function):
    """Logits are computed in pieces, and again in the backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden: Tensor, weight_VW: Tensor, labels: Tensor) -> Tensor:
        rows_RW, labels_R = hidden.flatten(0, 1), labels.flatten()
        parts = [
            _chosen((rows @ weight_VW.T).float(), some)
            for rows, some in _pieces(rows_RW, labels_R, size=len(weight_VW))
        ]
        return (torch.cat(parts) if parts else rows_RW.new_zeros(0)).view(labels.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        hidden, weight_VW, labels = ctx.saved_tensors
        rows_RW, labels_R, gradient_R = hidden.flatten(0, 1), labels.flatten(), gradients[0].flatten()
        of_rows, of_weight = [], torch.zeros_like(weight_VW) if ctx.needs_input_grad[1] else None
        for rows, some, gradient in _pieces(rows_RW, labels_R, gradient_R, size=len(weight_VW)):
            by_logit_RV = _residuals((rows @ weight_VW.T).float(), some) * gradient[:, None]
            by_logit_RV = by_logit_RV.to(rows.dtype)
            of_rows.append(by_logit_RV @ weight_VW)
            if of_weight is not None:
                of_weight = of_weight + by_logit_RV.T @ rows
        of_hidden = torch.cat(of_rows).view(hidden.shape) if of_rows else torch.zeros_like(hidden)
        return of_hidden, of_weight, None


def _pieces(*tensors: Tensor, size: int) -> Any:
    """The tensors, a few rows at a time: as many as have `LOGITS` logits of `size` each."""
    return zip(*(torch.split(tensor, max(1, LOGITS // size)) for tensor in tensors if len(tensor)), strict=True)


def _chosen(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
    """(R,): the labels' log-likelihoods."""
    chosen_R1 = labels_R.clamp(0, logits_RV.shape[1] - 1).long()[:, None]
    likelihoods_R = logits_RV.gather(1, chosen_R1)[:, 0] - logits_RV.logsumexp(1)
    return torch.where(labels_R < 0, 0.0, likelihoods_R)


def _residuals(logits_RV: Tensor, labels_R: Tensor) -> Tensor:
    """(R, V): derivatives of the log-likelihoods with respect to the logits."""
    chosen_R1 = labels_R.clamp(0, logits_RV.shape[1] - 1).long()[:, None]
    residuals_RV = -logits_RV.softmax(1)
    residuals_RV = residuals_RV.scatter_add(1, chosen_R1, torch.ones_like(residuals_RV[:, :1]))
    return torch.where(labels_R[:, None] < 0, 0.0, residuals_RV)
