"""A pretended device of shapes alone, on which a model that no machine here could hold is counted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.pretend_cuda.counting import RATES, recording


def test_a_large_model_is_counted_without_its_values() -> None:
    width, depth, batch = 8192, 24, 4096
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="cuda") for _ in range(depth)))
    assert torch.cuda.memory_allocated() == 4 * width * width * depth
    with recording() as seen:
        loss = model(torch.ones(batch, width, device="cuda")).mean()
        loss.backward()
        assert loss.item() == 1.0  # of shapes there is nothing to answer
    products = 3 * depth - 1  # forward, by weights, by inputs but for the first
    assert seen.flops.total() == products * 2 * batch * width * width
    assert seen.waits.total() == 1
    assert seen.seconds == pytest.approx(seen.flops.total() / RATES["float32"], rel=0.1)
    assert torch.cuda.max_memory_allocated() > 2 * 4 * width * width * depth


def test_more_than_there_is_does_not_fit() -> None:
    total = torch.cuda.get_device_properties().total_memory
    try:
        torch.empty(total + 1, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return
    raise AssertionError
