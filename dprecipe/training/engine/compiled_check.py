"""Compares a compiled program with the eager engine on synthetic records, before it is used."""

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
from dprecipe.training.engine.compiled_program import Program, SumPrograms, Uncompiled
from dprecipe.training.engine.full_precision import gradient_tolerance, in_full_precision
from dprecipe.training.engine.planning import CANCELLATION, plan_of
from dprecipe.training.engine.rounding import Reserve, limit_difference, move_records
from dprecipe.training.engine.shares import GradientSource, shares_of_pass
from dprecipe.training.engine.strategies import Weights

TOLERANCE = 1e-4
"""Relative error of a program's norms and sums on synthetic records: above single precision's, below a wrong one's."""
CLIP_ALL, CLIP_NONE = 1e-6, 1e6
"""Two clip norms: one below those of gradients, one above."""


def measure_seconds(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, source: GradientSource | None
) -> float:
    """Measures the seconds that a clipped sum of these records takes, after one sum as a warm-up."""
    elapsed = math.inf
    for _ in range(2):
        start = time.perf_counter()
        _sum(model, loss, features, labels, Clipping.flat(1.0), source).sum().item()  # waits for the device
        elapsed = time.perf_counter() - start
    return elapsed


@in_full_precision()
def check_equal(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, program: Program) -> None:
    """Compares a program's sums with those of the eager engine, on these synthetic records.

    Sums of gradients that are all clipped show wrong norms; unclipped ones show wrong gradients. Fewer records, padded
    to the size of the program, must give the sum that they give without padding. A record of NaN must not change
    another. At a kink of a network, rounding moves gradients by more than its own size; a program may differ by as much
    as `limit_difference` allows for how the eager engine's own sums move with the records.

    Raises:
        Uncompiled: they are not equal.
    """
    if program.sum_programs is not None:
        _check_sums(program.sum_programs, program, model, loss, features, labels)
    count = len(labels)
    with_nan = features.clone()
    if features.is_floating_point():
        with_nan[count // 2] = torch.nan
    sizes = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    programs = [program] if program.sum_programs is None else [program, replace(program, sum_programs=None)]
    for quantity, clip, inputs in (
        ("clipped sum", CLIP_ALL, features),
        ("sum", CLIP_NONE, features),
        ("sum of fewer records", CLIP_ALL, features[: max(1, count - count // 3)]),
        ("sum next to a record that is not a number", CLIP_ALL, with_nan),
    ):

        def summed(records: Tensor, source: GradientSource | None, clip: float = clip) -> list[Tensor]:
            total_P = _sum(model, loss, records, labels[: len(records)], Clipping.flat(clip), source)
            return list(torch.split(total_P, sizes))

        eager = summed(inputs, None)
        cancelled = CANCELLATION * max(float(sum_P.abs().max()) for sum_P in eager)
        moved = summed(move_records(inputs), None) if inputs.is_floating_point() else eager
        kinks = max(_relative_difference(before, after, cancelled) for before, after in zip(eager, moved, strict=True))
        allowed = max(gradient_tolerance(model, TOLERANCE), limit_difference(kinks))
        for compiled in (summed(inputs, one) for one in programs):
            for name, expected, result in zip(names, eager, compiled, strict=True):
                if not _relative_difference(expected, result, cancelled) <= allowed:
                    raise Uncompiled(f"the compiled {quantity} differs from the eager one, in {name!r}")


def _check_sums(
    sum_programs: SumPrograms, program: Program, model: nn.Module, loss: Loss, features: Tensor, labels: Tensor
) -> None:
    """Compares norms and sums of a pass's outputs with those of the same outputs in double precision.

    No norm may be smaller by more than `ROUNDING` covers, and no sum may differ by more than is reserved, even beside a
    record of NaN, which has weight zero.

    Raises:
        Uncompiled: they are not equal.
    """
    size, plan = program.size, plan_of(model, loss, features, labels)
    answers = [answer.clone() for answer in program.answers(features, labels)]
    for answer in answers:
        if answer.is_floating_point() and len(answer) == size:
            answer[size // 2] = torch.nan
    exact = [answer.double() if answer.is_floating_point() else answer for answer in answers]
    shares = shares_of_pass(program.terms(exact, size), model, size, features.device, plan, join=False)
    squares_N = torch.stack([share.strategy.squares() for share in shares]).sum(0)
    ratio_N = (sum_programs.norms(*answers)[0] / squares_N)[torch.arange(size, device=features.device) != size // 2]
    if not (float(ratio_N.min()) >= 1 / ROUNDING and float(ratio_N.max()) <= 1 + TOLERANCE):
        raise Uncompiled("the compiled norms differ from those in double precision")
    weights_N = squares_N.rsqrt().nan_to_num(0.0) * torch.linspace(0.1, 1.0, size).to(squares_N)
    weights_N[::5] = 0.0
    limit = (sum_programs.block_size + 6) * 2.0**-24 * float(weights_N.mul(squares_N.sqrt()).nan_to_num(0.0).sum())
    totals = [weights_N.new_zeros(place.stop - place.start) for place in sum_programs.slices]
    remaining = iter(totals)
    for share in shares:
        share.strategy.add([next(remaining) for _ in share.slices], Weights(weights_N))
    difference = torch.cat([a - b for a, b in zip(totals, sum_programs.sums(*answers, weights_N), strict=True)])
    if not float(difference.norm()) <= limit:
        raise Uncompiled("the compiled sums differ from those in double precision")


def _relative_difference(expected: Tensor, result: Tensor, cancelled: float) -> float:
    """Returns the largest difference beyond `cancelled`, relative to the largest number; infinite if one is NaN."""
    beyond = float((expected - result).abs().max()) - cancelled
    if not beyond > 0:
        return 0.0 if beyond <= 0 else math.inf
    return beyond / max(float(expected.abs().max()), sys.float_info.min)


def _sum(
    model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, clipping: Clipping, source: GradientSource | None
) -> Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total_P = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64, device=features.device)
    add_clipped(model, loss, features, labels, clipping, total_P, Reserve(len(labels)), source)
    return total_P
