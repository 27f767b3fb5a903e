"""Batches as large as the engine takes at once: no record may depend on how many there are, or on who is beside it.

What a module does at a size that was not tried, or at values that no synthetic record has, no probe can exclude.

Legend: B records, P parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dprecipe.training.engine.choice import read_clock
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.probe.case import ROUNDING, TOLERANCE, Case, Failed

SECONDS = 4.0
"""What the probe may take for outputs, and as much for a sum."""
CHUNK = 4
"""Records that go through the module together for what others are compared with: fewer than at any tried size."""
BACKWARD = 6
"""How many times as long as outputs, or less, a clipped sum and its parts take."""


def probe_sizes(largest: int) -> list[int]:
    """Every size up to 9, powers of two with their neighbours, and the largest with its own; ascending."""
    result = {*range(1, 10), largest, largest - 1, largest // 2}
    power = 16
    while power - 1 <= largest:
        result.update((power - 1, power, power + 1))
        power *= 2
    return sorted(size for size in result if 1 <= size <= largest)


def larger_batches(case: Case, largest: int) -> str:
    """Compare outputs, and the clipped sum, of batches of many sizes with those of `CHUNK` records at a time.

    Sizes for which there is no time are left out, the largest first; the answer says which were seen.

    Raises:
        Failed: a record's output, or the sum, depends on the size or on the rest of the batch.
    """
    with case.rest():
        device = case.features.device
        started = read_clock(device)  # of this thread: what others do on the machine doesn't count
        case.outputs(case.features, case.labels)
        each = (read_clock(device) - started) / len(case.labels)
        wanted = probe_sizes(largest)
        seen, left = [], SECONDS
        for size in [largest, *wanted[:-1]]:  # the largest first, as long as there is time
            cost = each * size
            if cost <= left or size <= len(case.labels):
                seen.append(size)
                left -= cost
        most = max(seen)
        features, labels = case.more(most)
        expected = torch.cat([case.outputs(x, y) for x, y in _chunks(features, labels)])
        scale = float(expected.abs().max()) + 1e-30
        for size in sorted(seen):
            _same(case.outputs(features[:size], labels[:size]), expected[:size], scale, f"in a batch of {size}")
        others, _ = case.more(most, distant=True)
        nothing = torch.full_like(others, torch.nan)
        for company in (others, nothing):
            result = case.outputs(_beside(features, company), labels)[::2]
            _same(result, expected[::2], scale, f"in a batch of {most} where others are replaced")
        copies = case.outputs(features[:1].expand_as(features).contiguous(), labels[:1].expand_as(labels))
        _same(copies, expected[:1].expand_as(expected), scale, f"in a batch of {most} copies of a record")
        if case.form.tokens is None:  # zeros and ones, of which tables and images are full, and no normal draw is one
            binary = (features > 0).to(features)
            parts = torch.cat([case.outputs(x, y) for x, y in _chunks(binary, labels)])
            _same(case.outputs(binary, labels), parts, scale, f"in a batch of {most} records of zeros and ones")
        summed = max(size for size in seen if size <= max(len(case.labels), SECONDS / max(each * BACKWARD, 1e-9)))
        _sum_equal(case, features[:summed], labels[:summed], nothing[:summed])
    missing = f"; too slow here: {largest}, which the engine can take at once" if most < largest else ""
    return f"outputs in batches of {_listed(sorted(seen))}, the clipped sum of {summed}{missing}"


def _beside(features: Tensor, company: Tensor) -> Tensor:
    """Every second record, with others between them."""
    mixed = features.clone()
    mixed[1::2] = company[1::2]
    return mixed


def _same(found: Tensor, expected: Tensor, scale: float, where: str) -> None:
    error_B = torch.where(found == expected, 0.0, found - expected).abs().flatten(1).amax(1) / scale
    wrong = (~(error_B <= 10 * ROUNDING)).nonzero()[:, 0]
    if len(wrong):
        raise Failed(
            f"{where} {len(wrong)} outputs are others than in a batch of {CHUNK}, that of record {int(wrong[0])} by "
            f"{float(error_B[wrong[0]]):.1e} of the largest"
        )


def _sum_equal(case: Case, features: Tensor, labels: Tensor, nothing: Tensor) -> None:
    """The clipped sum of all equals that of a few at a time; beside records that count nothing, that of the others."""
    clipping = Clipping.flat(max(float(case.single_gradients.norm(dim=1).median()), 1e-6))
    for whole, kept, where in (
        (features, slice(None), "at once"),
        (_beside(features, nothing), slice(None, None, 2), "of which every second is not finite"),
    ):
        result = clipped_sum(case.module, case.loss, BatchPart(whole, labels), clipping, len(labels)).value
        parts = torch.zeros_like(result)
        for some, their in _chunks(features[kept], labels[kept]):
            parts += clipped_sum(case.module, case.loss, BatchPart(some, their), clipping, CHUNK).value
        error = float((result - parts).abs().max()) / (float(parts.abs().max()) + 1e-30)
        if not error <= 10 * TOLERANCE:
            raise Failed(
                f"the clipped sum of {len(labels)} records {where} differs by {error:.1e} from that of the others, "
                f"{CHUNK} at a time"
            )


def _chunks(features: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(features, CHUNK), torch.split(labels, CHUNK), strict=True)


def _listed(numbers: list[int]) -> str:
    """1, 2, 3, 15 as "1 to 3, 15"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
