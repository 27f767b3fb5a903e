"""Two pretended devices in one process, of which the main thread begins with the second."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


def test_a_tensor_without_a_number_is_on_the_device_of_its_thread() -> None:
    seen: list[Tensor] = []
    seen.append(torch.ones(2, device="cuda"))
    thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda")))
    thread.start()
    thread.join()
    with torch.cuda.device(0):
        seen.append(torch.ones(2).cuda())
    assert [x.device for x in seen] == [SECOND, FIRST, FIRST]
    assert torch.cuda.current_device() == 1


def test_tensors_of_two_devices_raise_and_can_be_brought_together() -> None:
    here, there = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:1"):
        here + there
    with pytest.raises(RuntimeError, match="same device"):
        here + torch.ones((), device=SECOND)  # of the CPU it would be taken
    assert (here.to(SECOND) + there).device == SECOND
    assert here.copy_(there).device == FIRST


def test_each_has_its_own_memory_draws_and_thread_of_autograd() -> None:
    before = [torch.cuda.memory_allocated(device) for device in (FIRST, SECOND)]
    x = torch.ones(1 << 10, device=FIRST)
    assert [torch.cuda.memory_allocated(d) for d in (FIRST, SECOND)] == [before[0] + (4 << 10), before[1]]
    del x
    states = [torch.cuda.get_rng_state(device) for device in (FIRST, SECOND)]
    torch.rand(3, device=FIRST)
    assert not torch.equal(torch.cuda.get_rng_state(FIRST), states[0])
    assert torch.equal(torch.cuda.get_rng_state(SECOND), states[1])
    for device in (FIRST, SECOND):
        model = nn.Linear(3, 2).to(device)
        model(torch.ones(4, 3, device=device)).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.device == device
