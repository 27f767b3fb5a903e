"""Clipped sums from one backward pass: layers keep what their gradients are made of, and few gradients of single
records are ever held.

The pass is made by a plan (`planning`), its terms are summed by `strategies`, and each parameter has its share of both
norms and sum (`shares`).

Legend: G groups, N records, P numbers of all trained parameters.
Source: Z. Bu, Y.-X. Wang, S. Zha, G. Karypis, "Differentially Private Optimization on Small Model at Large Cost"
(book-keeping), ICML 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import Loss
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.reserve import Reserve
from dprecipe.training.engine.shares import GradientSource, Share, shares_of
from dprecipe.training.engine.strategies import Weights
from dprecipe.training.engine.synthetic import left_alone, made_up
from dprecipe.training.engine.taps import Unplanned

ROUNDING = 1.0 + 2.0**-20
"""Norms are raised by this much: more than double precision rounds the norms of up to 2^30 parameters, and
sums of n records in which K numbers meet at one coordinate, as long as n K < 2^32."""
LARGEST = 2.0**60
"""A longer gradient counts as one that is not finite: its weight would be none in single precision."""
ALIKE = 16
"""Fewer rows are filled up to so many. Products of a few rows are made by other instructions, for each number of them,
which round otherwise: see `compiled.Passes`."""
WORDS = {
    "rows": "gradients of single records, as they come",
    "kept": "gradients of single records, kept",
    "twice": "gradients of a few records at a time, computed twice",
    "vectors": "norms from those of inputs and of gradients",
    "ghost": "norms without gradients of single records",
    "sparse": "rows of a table that were looked up",
}
ALONE = ", of this layer by itself"


def add_clipped(
    model: nn.Module,
    loss: Loss,
    features: Tensor,
    labels: Tensor,
    clipping: Clipping,
    total_P: Tensor,
    reserve: Reserve | None = None,
    source: GradientSource | None = None,
    least: int = ALIKE,
) -> None:
    """Clip each record's gradient and add them all to `total_P`, float64 (and one longer, where records are counted).

    A record with a gradient that is not finite, or longer than 2^60, adds nothing. Where `Unplanned` is raised,
    nothing was added at all.

    `reserve`: of the batch that these records are of, whose first part is added to zero; without one, all sums are in
    double precision.
    `source`: who makes the pass, or the sum, if not this module.
    `least`: fewer rows are filled up to so many, with records of zeros that add nothing.

    Guarantees: adding or removing one record moves the sum by at most what `clipping` bounds (and `SLACK` of it more,
    with a `reserve`), given the others' gradients; the model, its buffers, hooks and `.grad` are left as they were;
    memory is that of a backward pass, and `sizes.numbers_kept`.

    Raises:
        Unplanned: the model can't be summed in this way.
    """
    fresh = reserve is not None and reserve.begin()
    plan = plan_of(model, loss, features, labels)
    if total_P.device != features.device:
        raise Unplanned("the device has no double precision")
    if clipping.norm != "l2":
        raise Unplanned("only L2 norms come from one backward pass")
    if min(clipping.thresholds) < 1 / LARGEST:
        reserve = None  # in single precision, weights of the longest gradients would be rounded to nothing
    given = features, labels, clipping, total_P
    if source is not None and reserve is not None and source.add(*given, reserve, fresh=fresh):
        return
    count, groups = len(labels), clipping.groups
    together = 1 if reserve is None else reserve.together(count)
    if source is not None:
        shares = shares_of(model, loss, features, labels, plan, groups=groups, source=source)
        _add(shares, clipping, count, together, total_P, fresh=fresh)
        return
    size = min(plan.most, math.ceil(least / labels[0].numel()))
    if count <= plan.most:
        some = pad_records(features, size), pad_records(labels, size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, count, together, total_P, fresh=fresh)
        return
    sum_P = torch.zeros_like(total_P)  # all parts or none
    for start in range(0, count, plan.most):
        part = slice(start, min(start + plan.most, count))
        some = pad_records(features[part], size), pad_records(labels[part], size)
        _add(shares_of(model, loss, *some, plan, groups=groups), clipping, part.stop - start, together, sum_P)
    total_P += sum_P


def pad_records(tensor: Tensor, size: int) -> Tensor:
    """(max(N, size), …): with zeros behind the records, where there are fewer."""
    if len(tensor) >= size:
        return tensor
    whole = tensor.new_zeros(size, *tensor.shape[1:])
    whole[: len(tensor)] = tensor
    return whole


def _add(
    shares: list[Share], clipping: Clipping, count: int, together: int, total_P: Tensor, *, fresh: bool = False
) -> None:
    """The first `count` records of the shares."""
    squares_by_share = [share.strategy.squares() for share in shares]
    if len(shares) == 1 and len(clipping.thresholds) == 1:
        squares_GN = squares_by_share[0][None]
    else:
        rows = len(squares_by_share[0]) if shares else count
        squares_GN = total_P.new_zeros(len(clipping.thresholds), rows)
        for share, squares_N in zip(shares, squares_by_share, strict=True):
            squares_GN[share.group] += squares_N
    weights_GN = weigh_gradients(squares_GN[:, :count], clipping, total_P)
    if squares_GN.shape[1] > count:
        weights_GN = nn.functional.pad(weights_GN, (0, squares_GN.shape[1] - count))
    sound = bool((weights_GN > 0).all())
    by_group = [Weights(weights_N, sound, together, fresh) for weights_N in weights_GN]
    for share in shares:
        share.strategy.add([total_P[where] for where in share.wheres], by_group[share.group])


def weigh_gradients(squares_GN: Tensor, clipping: Clipping, total_P: Tensor) -> Tensor:
    """(G, N): what each record's gradient is multiplied by, given squared norms; records are counted in `total_P`."""
    norms_GN = squares_GN.sqrt().mul_(ROUNDING)
    norms_GN.masked_fill_(norms_GN > LARGEST, math.inf)
    if clipping.counted is not None:
        total_P[-1:] += clipping.bits(norms_GN)
    return clipping.weights(norms_GN)


def describe_plan(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> dict[str, str]:
    """Parameter to the strategy by which its clipped sum is taken, for as many records like these.

    For a model that can't be planned, every parameter is told to take gradients of single records, with the reason.
    """
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    try:
        plan = plan_of(model, loss, features, labels)
        records = made_up(features, labels, min(len(features), plan.most))
        with left_alone(features.device):
            shares = shares_of(model, loss, *records, plan)
    except Unplanned as reason:
        return dict.fromkeys(names, f"gradients of single records, for the whole model: {reason}")
    text = {name: WORDS[share.chosen] + (ALONE if share.alone else "") for share in shares for name in share.names}
    return {name: text.get(name, "no gradient") for name in names}
