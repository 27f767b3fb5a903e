"""Batches as large as the engine takes at once: no record may depend on the number of records or on the others.

No probe can exclude that a module behaves differently at sizes or values that were not tried.

Legend: B records, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compilers import read_clock
from dprecipe.training.engine.rounding import limit_difference, move_records
from dprecipe.training.probe.case import ROUNDING, TOLERANCE, Case, Failed

MIN_SECONDS, MAX_SECONDS = 1.0, 4.0
"""Time limit of the probe for outputs, and the same again for a sum: between these, `SHARE` of what the run takes."""
SHARE = 0.05
CHUNK = 4
"""Records in a batch of the reference, with which larger batches are compared."""
BACKWARD = 6
"""Upper estimate of the time of a clipped sum and its parts, as a multiple of that of outputs."""


def probe_sizes(largest: int) -> list[int]:
    """Returns every size up to 9, powers of two with their neighbours, and the largest with its own; ascending."""
    result = {*range(1, 10), largest, largest - 1, largest // 2}
    power = 16
    while power - 1 <= largest:
        result.update((power - 1, power, power + 1))
        power *= 2
    return sorted(size for size in result if 1 <= size <= largest)


def larger_batches(case: Case, largest: int, gradients: float) -> str:
    """Compares outputs, and the clipped sum, of batches of many sizes with those of `CHUNK` records at a time.

    Sizes for which there is no time are skipped; the result says which were tried. `gradients`: how many the run
    computes in all; a long run has more time for this.

    Raises:
        Failed: a record's output, or the sum, depends on the size or on the rest of the batch.
    """
    with case.freeze_draws():
        device = case.features.device
        started = read_clock(device)  # of this thread: what others do on the machine doesn't count
        case.outputs(case.features, case.labels)
        each = (read_clock(device) - started) / len(case.labels)
        limit = min(MAX_SECONDS, max(MIN_SECONDS, SHARE * gradients * each * BACKWARD))
        sizes = probe_sizes(largest)
        tried, seconds_left = [], limit
        for size in [largest, *sizes[:-1]]:  # the largest first, as long as there is time
            cost = each * size
            if cost <= seconds_left or size <= len(case.labels):
                tried.append(size)
                seconds_left -= cost
        tried_max = max(tried)
        features, labels = case.draw_records(tried_max)
        expected = torch.cat([case.outputs(x, y) for x, y in _chunks(features, labels)])
        scale = float(expected.abs().max()) + 1e-30
        for size in sorted(tried):
            _check_equal(case.outputs(features[:size], labels[:size]), expected[:size], scale, f"in a batch of {size}")
        others, _ = case.draw_records(tried_max, distant=True)
        nans = torch.full_like(others, torch.nan)
        for company in (others, nans):
            result = case.outputs(set_beside(features, company), labels)[::2]
            _check_equal(result, expected[::2], scale, f"in a batch of {tried_max} where others are replaced")
        copies = case.outputs(features[:1].expand_as(features).contiguous(), labels[:1].expand_as(labels))
        _check_equal(copies, expected[:1].expand_as(expected), scale, f"in a batch of {tried_max} copies of a record")
        if case.form.tokens is None:  # tables and images are full of zeros and ones, and no normal draw is one
            binary = (features > 0).to(features)
            parts = torch.cat([case.outputs(x, y) for x, y in _chunks(binary, labels)])
            _check_equal(
                case.outputs(binary, labels), parts, scale, f"in a batch of {tried_max} records of zeros and ones"
            )
        summed = max(size for size in tried if size <= max(len(case.labels), limit / max(each * BACKWARD, 1e-9)))
        _sum_equal(case, features[:summed], labels[:summed], nans[:summed])
    missing = f"; too slow here: {largest}, which the engine can take at once" if tried_max < largest else ""
    return f"outputs in batches of {_listed(sorted(tried))}, the clipped sum of {summed}{missing}"


def set_beside(features: Tensor, company: Tensor) -> Tensor:
    """Returns every second record, with others between them."""
    mixed = features.clone()
    mixed[1::2] = company[1::2]
    return mixed


def _check_equal(result: Tensor, expected: Tensor, scale: float, place: str) -> None:
    error_B = torch.where(result == expected, 0.0, result - expected).abs().flatten(1).amax(1) / scale
    wrong = (~(error_B <= 10 * ROUNDING)).nonzero()[:, 0]
    if len(wrong):
        raise Failed(
            f"{place} {len(wrong)} outputs are others than in a batch of {CHUNK}, that of record {int(wrong[0])} by "
            f"{float(error_B[wrong[0]]):.1e} of the largest"
        )


def _sum_equal(case: Case, features: Tensor, labels: Tensor, nans: Tensor) -> None:
    """The clipped sum of all equals that of a few at a time; beside records that count nothing, that of the others."""
    clipping = clip_half(case)
    # Every second record and the others apart: the sum of the former is that of both batches.
    counted, others = (_sum_chunks(case, features[at::2], labels[at::2], clipping) for at in (0, 1))
    # Records of two labels can cancel but for rounding, so the scale is that of the parts and not of their sum.
    scale = max(float(part.abs().max()) for part in (counted, others)) + 1e-30
    for whole, expected, place in (
        (features, counted + others, "at once"),
        (set_beside(features, nans), counted, "of which every second is not finite"),
    ):
        result = sum_at_once(case, whole, labels, clipping)
        error = float((result - expected).abs().max()) / scale
        if not error <= 10 * TOLERANCE and whole.is_floating_point():
            # Another batch size can add up in another order, and land on the other side of a kink.
            jump = (sum_at_once(case, move_records(whole), labels, clipping) - result).abs().max()
            error -= limit_difference(float(jump) / scale)
        if not error <= 10 * TOLERANCE:
            raise Failed(
                f"the clipped sum of {len(labels)} records {place} differs by {error:.1e} from that of the others, "
                f"{CHUNK} at a time"
            )


def clip_half(case: Case) -> Clipping:
    """Returns a clipping whose norm about half of the gradients of a case exceed."""
    return Clipping.flat(max(float(case.single_gradients.norm(dim=1).median()), 1e-6))


def sum_at_once(case: Case, features: Tensor, labels: Tensor, clipping: Clipping) -> Tensor:
    """Returns (P,): the clipped sum of the records in one part."""
    return clipped_sum(case.module, case.loss, BatchPart(features, labels), clipping, len(labels)).value


def _sum_chunks(case: Case, features: Tensor, labels: Tensor, clipping: Clipping) -> Tensor:
    """Returns (P,): the clipped sum of the records, taken `CHUNK` at a time; zero of none."""
    sums = (
        clipped_sum(case.module, case.loss, BatchPart(some, their), clipping, CHUNK).value
        for some, their in _chunks(features, labels)
    )
    total = next(sums)
    for each in sums:
        total += each
    return total


def _chunks(features: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(features, CHUNK), torch.split(labels, CHUNK), strict=True)


def _listed(numbers: list[int]) -> str:
    """Writes 1, 2, 3, 15 as "1 to 3, 15"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
