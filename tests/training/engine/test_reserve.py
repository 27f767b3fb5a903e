"""Sums in single precision stay within what is reserved for them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.rounding import MIN_BLOCK, SLACK, Reserve
from dprecipe.training.engine.strategies import Small, Weights
from dprecipe.training.engine.terms import Rows


@pytest.mark.parametrize("told", [1.0, 0.5, 0.01])
@pytest.mark.parametrize("parts", [[256], [1], [100, 300, 50], [1024] * 4, [64] * 200, [5000], [16] * 3])
def test_single_precision_stays_within_what_is_reserved(told: float, parts: list[int]) -> None:
    """The sum of what each part may be off by, in clip norms, for the batch and for one of a record more; also of a
    batch that is longer than was told."""
    batches = []
    for more in (0, 1):
        sizes = [*parts[:-1], parts[-1] + more]
        reserve = Reserve(int(told * sum(sizes)))
        block_size = [reserve.take_block(size) for size in sizes]
        if told == 1 and sum(parts) <= 1000:
            assert all(c >= min(size, MIN_BLOCK) for c, size in zip(block_size, sizes, strict=True))
        batches.append(sum(2.0**-24 * n * (c / 2 + 3) for n, c in zip(sizes, block_size, strict=True) if c > 1))
    assert sum(batches) <= SLACK


@pytest.mark.parametrize("processes", [2, 3, 64])
def test_several_processes_share_what_is_reserved(processes: int) -> None:
    """Each unit may be in another process's part when one is left out, so that all their sums are rounded anew."""
    off = 0.0
    for count in [256] * processes:
        block_size = Reserve(count, processes).take_block(count)
        off += 2.0**-24 * (count + 1) * (block_size + 6) if block_size > 1 else 0.0
    assert off <= SLACK
    assert Reserve(256, 2).take_block(256) > 1


@pytest.mark.parametrize("clip", [1.3e-7, 6e-7, 1e-4, 1e-19])
def test_the_longest_gradients_pass_no_bound(clip: float) -> None:
    """Weights of gradients near the largest that count would be rounded in single precision, if they were smaller."""
    net = nn.Linear(128, 128)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs * scales[: len(outputs), None]).sum(1)

    for exponent in (29.0, 40.0, 60.0):
        scales = torch.full((32,), 2.0**exponent / 2)
        features = torch.zeros(32, 128)
        features[0] = 2.0**exponent
        features[1:] = 0.0
        sums = [
            clipped_sum(net, loss, BatchPart(features[part], torch.zeros(len(features[part]))), Clipping.flat(clip), 32)
            for part in (slice(None), slice(1, None))
        ]
        assert float((sums[0].value - sums[1].value).norm()) <= float(sums[0].bound) * (1 + 1e-9)


@pytest.mark.parametrize("distribution", ["alike", "cancelling", "any size"])
def test_sums_in_single_precision_are_off_by_no_more_than_what_is_reserved(distribution: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows_NP = torch.randn(512, 300, generator=generator)
    if distribution == "alike":
        rows_NP = rows_NP[:1] * (1 + 1e-3 * rows_NP)
    if distribution == "cancelling":
        rows_NP[256:] = -rows_NP[:256] * (1 + 1e-6)
    if distribution == "any size":
        rows_NP *= 10 ** torch.empty(512, 1).uniform_(-15, 15, generator=generator)
    strategy = Small([Rows(rows_NP)], 512)
    weights_N = strategy.squares().rsqrt()
    result_P = torch.zeros(300, dtype=torch.float64)
    block_size = Reserve(512).take_block(512)
    assert block_size >= MIN_BLOCK
    strategy.add([result_P], Weights(weights_N, block_size=block_size))
    assert float((result_P - weights_N @ rows_NP.double()).norm()) <= SLACK / 2
