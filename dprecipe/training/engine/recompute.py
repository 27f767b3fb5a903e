"""Blocks of a model whose inner values are computed again in the backward pass, instead of being stored.

Only the inputs of each block are stored. The gradient of a record does not change, and so nothing changes for privacy.

Source: T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Differentiate = Callable[[Callable[[], Tensor], Sequence[Tensor], Tensor], Sequence[Tensor | None]]
"""(the block's computation, inputs, gradient of its output) -> gradients of the inputs."""


@final
class Recompute(nn.Module):
    """`model`, with its parameters. Where the engine differentiates it, `blocks` are computed twice.

    A block takes tensors and returns one, and draws no random numbers.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.model = model
        self.blocks = tuple(blocks)
        self.train(model.training)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        outputs: Tensor = self.model(*args, **kwargs)
        return outputs


def run_block(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], anchor: Tensor, differentiate: Differentiate
) -> Tensor:
    """Returns the output of a block, whose backward pass computes the block again, in `differentiate`.

    `anchor`: a number that needs a gradient, so that the output does.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def compute(*inputs: Tensor) -> Tensor:
        for place, leaf in zip(places, inputs, strict=True):
            leaves[place] = leaf
        inner_args, inner_kwargs = pytree.tree_unflatten(leaves, spec)
        output: Tensor = type(block).forward(block, *inner_args, **inner_kwargs)
        return output

    inputs = [leaves[place] for place in places]
    kind = anchor.device.type
    cast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def backward(inputs: Sequence[Tensor], gradient: Tensor) -> Sequence[Tensor | None]:
        with torch.enable_grad(), torch.autocast(kind, enabled=cast[0], dtype=cast[1], cache_enabled=False):
            again = [leaf.detach().requires_grad_() for leaf in inputs]
            return differentiate(lambda: compute(*again), again, gradient)

    result: Tensor = _ComputedTwice.apply(compute, backward, anchor, *inputs)  # type: ignore[no-untyped-call]
    return result


class _ComputedTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, compute: Any, backward: Any, anchor: Tensor, *inputs: Tensor) -> Tensor:
        ctx.differentiate = backward
        ctx.save_for_backward(*inputs)
        result: Tensor = compute(*inputs)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.differentiate(ctx.saved_tensors, gradients[0])
