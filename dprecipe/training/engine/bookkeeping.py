"""Clipped sums from one backward pass. Layers keep the factors of their gradients, so that few gradients of single
records are ever in memory.

A plan (`planning`) says how the pass is made, `strategies` sum its terms, and each parameter has a share of norms and
sum (`shares`).

Legend: G groups, N records, P numbers of all trained parameters.
Source: Z. Bu, Y.-X. Wang, S. Zha, G. Karypis, "Differentially Private Optimization on Small Model at Large Cost"
(book-keeping), ICML 2023.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import Loss
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.rounding import Reserve
from dprecipe.training.engine.shares import GradientSource, Share, shares_of
from dprecipe.training.engine.standardised import BatchWeights
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.synthetic import preserve_generators, synthetic_records
from dprecipe.training.engine.taps import Unplanned

ROUNDING = 1.0 + 2.0**-20
"""Norms are raised by this much: more than double precision rounds the norms of up to 2^30 parameters, and
sums of n records in which K numbers meet at one coordinate, as long as n K < 2^32."""
LARGEST = 2.0**60
"""A longer gradient counts as not finite: its weight would round to zero in single precision."""
MIN_ROWS = 16
"""Fewer rows are padded to this many. Products of a few rows use different instructions for each number of rows, which
round differently: see `compiled.Passes`."""
STRATEGY_TEXTS = {
    "rows": "gradients of single records, as they come",
    "kept": "gradients of single records, kept",
    "twice": "gradients of a few records at a time, computed twice",
    "vectors": "norms from those of inputs and of gradients",
    "ghost": "norms without gradients of single records",
    "sparse": "rows of a table that were looked up",
    "tiles": "gradients of a few records and outputs at a time, for the sum only",
    "tiles_twice": "gradients of a few records and outputs at a time, computed twice",
    "tokens": "gradients of a few records and tokens at a time, for the sum only",
}
ISOLATED = ", of this layer by itself"


def add_clipped(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clipping: Clipping,
    total_P: Tensor,
    reserve: Reserve | None = None,
    source: GradientSource | None = None,
    min_rows: int = MIN_ROWS,
    weights: BatchWeights | None = None,
) -> None:
    """Clips each record's gradient and adds them all to `total_P`, float64 (and one longer, where records are counted).

    | record | what it adds |
    |---|---|
    | its gradient is not finite, or longer than 2^60 | nothing |
    | its gradient is zero | zeros |
    | none (an empty part) | nothing |

    If `Unplanned` is raised, nothing was added.

    `features` (N, …), `labels` (N, …), `total_P` (P,).
    `reserve`: that of the batch which these records belong to, whose first part is added to zero; without one, all sums
    are in double precision.
    `source`: makes the pass, or the sum, instead of this module.
    `min_rows`: fewer rows are padded to this many, with records of zeros that add nothing.
    `weights`: one for all parts of a batch.

    Guarantees: adding or removing one record moves the sum by at most what `clipping` bounds (and `SLACK` of it more,
    with a `reserve`), given the others' gradients; the model, its buffers, hooks and `.grad` are left as they were;
    memory is that of a backward pass, and `sizes.max_stored_numbers`.

    Raises:
        Unplanned: the model can't be summed in this way.
    """
    fresh = reserve is not None and reserve.begin()
    plan = replace(plan_of(model, loss, features, labels), weights=weights)
    if total_P.device != features.device:
        raise Unplanned("the device has no double precision")
    if clipping.norm != "l2":
        raise Unplanned("only L2 norms come from one backward pass")
    if min(clipping.thresholds) < 1 / LARGEST:
        reserve = None  # in single precision, weights of the longest gradients would be rounded to nothing
    arguments = features, labels, clipping, total_P
    if source is not None and reserve is not None and source.add(*arguments, reserve, fresh=fresh):
        return
    count, groups = len(labels), clipping.groups
    block_size = 1 if reserve is None else reserve.take_block(count)
    if source is not None:
        shares = shares_of(model, loss, features, labels, plan, groups=groups, source=source)
        _add(shares, clipping, count, block_size, total_P, fresh=fresh)
        return
    size = min(plan.max_records, math.ceil(min_rows / labels[0].numel()))
    if count <= plan.max_records:
        some = pad_records(features, size), pad_records(labels, size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, count, block_size, total_P, fresh=fresh)
        return
    sum_P = torch.zeros_like(total_P)  # all parts or none
    for start in range(0, count, plan.max_records):
        part = slice(start, min(start + plan.max_records, count))
        some = pad_records(features[part], size), pad_records(labels[part], size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, part.stop - start, block_size, sum_P)
    total_P += sum_P


def pad_records(tensor: Tensor, size: int) -> Tensor:
    """Returns (max(N, size), …): the records, followed by zeros if there are fewer than `size`."""
    if len(tensor) >= size:
        return tensor
    whole = tensor.new_zeros(size, *tensor.shape[1:])
    whole[: len(tensor)] = tensor
    return whole


def _add(
    shares: list[Share], clipping: Clipping, count: int, block_size: int, total_P: Tensor, *, fresh: bool = False
) -> None:
    """Adds the first `count` records of the shares."""
    by_group = weigh_shares(shares, clipping, count, block_size, total_P, fresh=fresh)
    for share in shares:
        share.strategy.add([total_P[place] for place in share.slices], by_group[share.group])


def weigh_shares(
    shares: list[Share], clipping: Clipping, count: int, block_size: int, total_P: Tensor, *, fresh: bool
) -> list[Weights]:
    """Returns, for each group, the weights of the first `count` records of the shares, and zero for the others, which
    are padding."""
    by_group: list[list[Tensor]] = [[] for _ in clipping.thresholds]
    for share in shares:
        by_group[share.group].append(share.strategy.squares())
    rows = max((len(squares_N) for squares in by_group for squares_N in squares), default=count)
    sums = [_add_up(squares) if squares else total_P.new_zeros(rows) for squares in by_group]
    weights_GN = weigh_gradients(torch.stack(sums) if len(sums) > 1 else sums[0][None], clipping, total_P, count)
    sound = bool((weights_GN > 0).all())
    if rows > count:
        weights_GN[:, count:] = 0.0
    return [Weights(weights_N, sound, block_size, fresh) for weights_N in weights_GN]


def _add_up(squares: list[Tensor]) -> Tensor:
    """Returns the sum, on a CPU in order; a GPU adds many at once."""
    return reduce(torch.add, squares) if len(squares) < 3 or squares[0].is_cpu else torch.stack(squares).sum(0)


def weigh_gradients(squares_GN: Tensor, clipping: Clipping, total_P: Tensor, count: int) -> Tensor:
    """Returns (G, N): the factor of each record's gradient, given squared norms. The first `count` records are counted
    in `total_P`; the others are padding."""
    norms_GN = squares_GN.sqrt().mul_(ROUNDING)
    norms_GN.masked_fill_(norms_GN > LARGEST, math.inf)
    if clipping.counted is not None:
        total_P[-1:] += clipping.bits(norms_GN[:, :count])
    return clipping.weights(norms_GN)


def describe_plan(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> dict[str, str]:
    """Maps each parameter to the strategy by which its clipped sum is taken, for this many records like these.

    If the model can't be planned, the text of every parameter is that it needs gradients of single records, and why.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        plan = plan_of(model, loss, features, labels)
        records = synthetic_records(features, labels, min(len(features), plan.max_records))
        with preserve_generators(features.device):
            shares = shares_of(model, loss, *records, plan)
    except Unplanned as reason:
        return dict.fromkeys(names, f"gradients of single records, for the whole model: {reason}")
    text = {
        name: STRATEGY_TEXTS[share.chosen] + (ISOLATED if share.isolated else "")
        for share in shares
        for name in share.names
    }
    return {name: text.get(name, "no gradient") for name in names}
