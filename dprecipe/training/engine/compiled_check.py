"""A compiled program is held against the eager engine on synthetic records, before it is used."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from dprecipe.training.engine.backward import Loss
from dprecipe.training.engine.bookkeeping import ROUNDING, add_clipped
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled_program import Program, Uncompiled, Whole
from dprecipe.training.engine.plan_check import LOST
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.reduced import gradient_tolerance
from dprecipe.training.engine.reserve import Reserve
from dprecipe.training.engine.shares import GradientSource, shares_of_pass
from dprecipe.training.engine.strategies import Weights

TOLERANCE = 1e-4
"""Relative error of a program's norms and sums on synthetic records: above single precision's, below a wrong one's."""
LITTLE, MUCH = 1e-6, 1e6
"""Clip norms, below those of gradients and above."""
MOVED = 1e-6
"""Of a record's numbers: what passes through some layers in single precision is rounded by about as much."""
KINKS = 4.0
"""How many times as much as that moves the eager engine's sum, a program's may differ."""
MAX_DIFFERENCE = 0.1
"""But by no more than this."""


def seconds(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, source: GradientSource | None) -> float:
    """How long a clipped sum of these records takes, after one that warms up."""
    taken = math.inf
    for _ in range(2):
        start = time.perf_counter()
        _sum(model, loss, features, labels, Clipping.flat(1.0), source).sum().item()  # waits for the device
        taken = time.perf_counter() - start
    return taken


def check_equal(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, program: Program) -> None:
    """Hold a program's sums against those of the eager engine, on these synthetic records.

    Sums of gradients that are all clipped show wrong norms, others wrong gradients; fewer records that are filled up to
    the size of the program have to give what they give by themselves; and a record without a number must not touch
    another. Where a network has kinks, a rounding moves gradients by more than it is, of one parameter here and of
    another there: so much as the eager engine's own sums move at most when records do by `MOVED`, programs may differ.

    Raises:
        Uncompiled: they are not equal.
    """
    if program.whole is not None:
        _check_whole(program.whole, program, model, loss, features, labels)
    count = len(labels)
    spoilt = features.clone()
    if features.is_floating_point():
        spoilt[count // 2] = torch.nan
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    programs = [program] if program.whole is None else [program, replace(program, whole=None)]
    for what, clip, given in (
        ("clipped sum", LITTLE, features),
        ("sum", MUCH, features),
        ("sum of fewer records", LITTLE, features[: max(1, count - count // 3)]),
        ("sum next to a record that is not a number", LITTLE, spoilt),
    ):

        def summed(records: Tensor, source: GradientSource | None, clip: float = clip) -> list[Tensor]:
            total_P = _sum(model, loss, records, labels[: len(records)], Clipping.flat(clip), source)
            return list(torch.split(total_P, sizes))

        eager = summed(given, None)
        lost = LOST * max(float(sum_P.abs().max()) for sum_P in eager)
        moved = summed(given + MOVED * given.roll(1, -1), None) if given.is_floating_point() else eager
        kinks = max(_apart(before, after, lost) for before, after in zip(eager, moved, strict=True))
        allowed = max(gradient_tolerance(model, TOLERANCE), min(KINKS * kinks, MAX_DIFFERENCE))
        for compiled in (summed(given, one) for one in programs):
            for name, right, result in zip(names, eager, compiled, strict=True):
                if not _apart(right, result, lost) <= allowed:
                    raise Uncompiled(f"the compiled {what} differs from the eager one, in {name!r}")


def _check_whole(
    whole: Whole, program: Program, model: nn.Module, loss: Loss, features: Tensor, labels: Tensor
) -> None:
    """Hold norms and sums of a pass's answers against those of the same answers in double precision.

    No norm may be smaller by more than is covered, and no sum farther off than is reserved, also next to a record that
    is not a number and has weight zero.

    Raises:
        Uncompiled: they are not equal.
    """
    size, plan = program.size, plan_of(model, loss, features, labels)
    answers = [answer.clone() for answer in program.answers(features, labels)]
    for answer in answers:
        if answer.is_floating_point() and len(answer) == size:
            answer[size // 2] = torch.nan
    exact = [answer.double() if answer.is_floating_point() else answer for answer in answers]
    shares = shares_of_pass(program.terms(exact, size), model, size, features.device, plan)
    squares_N = torch.stack([share.strategy.squares() for share in shares]).sum(0)
    ratio_N = (whole.norms(*answers)[0] / squares_N)[torch.arange(size, device=features.device) != size // 2]
    if not (float(ratio_N.min()) >= 1 / ROUNDING and float(ratio_N.max()) <= 1 + TOLERANCE):
        raise Uncompiled("the compiled norms differ from those in double precision")
    weights_N = squares_N.rsqrt().nan_to_num(0.0) * torch.linspace(0.1, 1.0, size).to(squares_N)
    weights_N[::5] = 0.0
    limit = (whole.together + 6) * 2.0**-24 * float(weights_N.mul(squares_N.sqrt()).nan_to_num(0.0).sum())
    totals = [weights_N.new_zeros(where.stop - where.start) for where in whole.wheres]
    rest = iter(totals)
    for share in shares:
        share.strategy.add([next(rest) for _ in share.wheres], Weights(weights_N))
    off = torch.cat([a - b for a, b in zip(totals, whole.sums(*answers, weights_N), strict=True)])
    if not float(off.norm()) <= limit:
        raise Uncompiled("the compiled sums differ from those in double precision")


def _apart(right: Tensor, found: Tensor, lost: float) -> float:
    """The largest difference, relative to the largest number, beyond what is lost; infinite where one is no number."""
    beyond = float((right - found).abs().max()) - lost
    if not beyond > 0:
        return 0.0 if beyond <= 0 else math.inf
    return beyond / max(float(right.abs().max()), sys.float_info.min)


def _sum(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, clipping: Clipping, source: GradientSource | None
) -> Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total_P = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=features.device)
    add_clipped(model, loss, features, labels, clipping, total_P, Reserve(len(labels)), source)
    return total_P
