"""A plan's norms and sums against plain backpropagation, on synthetic records.

Legend: N records, P numbers of the parameters of a share.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import GradientPlan, Loss, channels_last
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.engine.reduced import gradient_tolerance
from dprecipe.training.engine.shares import shares_of
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.synthetic import preserve_generators
from dprecipe.training.engine.taps import Unplanned, copy_buffers, layers_of

TOLERANCE = 1e-3
"""Relative error of the check on synthetic records: far above single precision's, far below a wrong formula's."""
CANCELLATION = 3e-5
"""A gradient that is this much smaller than the largest may be what is left where others cancel: it is not compared."""


@in_full_precision()
def check_plan(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan) -> None:
    """Compares norms and a weighted sum with those of plain backpropagation, with the same draws.

    Raises:
        Unplanned: they are not equal.
    """
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    count = len(labels)
    weights_N = 0.5 ** torch.arange(count, dtype=torch.float64, device=features.device)
    with preserve_generators(features.device):
        shares = shares_of(model, loss, features, labels, plan)
    # From the same seed, for whichever generator the layers draw from: a GPU's is not the CPU's.
    with preserve_generators(features.device), torch.enable_grad(), copy_buffers(layers_of(model)):
        # In the same memory order: otherwise, where two values nearly tie, a maximum may pick the other one.
        losses = loss(model(channels_last(features) if plan.channels_last else features), labels)
    rows: list[tuple[Tensor | None, ...]] = []
    for n in range(count):
        if losses.requires_grad:
            tensors = [p for _, p in parameters]
            rows.append(torch.autograd.grad(losses[n], tensors, retain_graph=True, allow_unused=True))
    expected = {}
    for i, (name, parameter) in enumerate(parameters):
        single = [torch.zeros_like(parameter) if (gradient := row[i]) is None else gradient for row in rows]
        expected[name] = weights_N.new_zeros(count, parameter.numel())
        if single:
            expected[name] += torch.stack(single).reshape(count, -1)
    largest = max(float(rows_NP.abs().max()) for rows_NP in expected.values())
    for share in shares:
        reference_NP = torch.cat([expected.pop(name) for name in share.names], 1)
        totals = [weights_N.new_zeros(place.stop - place.start) for place in share.slices]
        norms_N = share.strategy.squares().sqrt()
        share.strategy.add(totals, Weights(weights_N, block_size=count))
        for result, reference in ((norms_N, reference_NP.norm(dim=1)), (torch.cat(totals), weights_N @ reference_NP)):
            if (
                not float((result - reference).abs().max())
                <= gradient_tolerance(model, TOLERANCE) * float(reference.abs().max()) + CANCELLATION * largest
            ):
                raise Unplanned(f"the bookkeeping of {share.names[0]!r} does not equal plain backpropagation")
    for name, reference_NP in expected.items():
        if not float(reference_NP.abs().max()) <= CANCELLATION * largest:
            raise Unplanned(f"the bookkeeping of {name!r} does not equal plain backpropagation")
