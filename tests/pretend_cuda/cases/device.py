"""The pretended device itself: what it raises, what it counts, and what it computes. Run by `test_device.py`."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pretend_cuda.counting import recording
from tests.pretend_cuda.tensor import Pretended

CUDA, CPU = torch.device("cuda", torch.cuda.current_device()), torch.device("cpu")
THIS = "tests/pretend_cuda/cases/device.py:"


@pytest.fixture
def waits() -> Iterator[Callable[[str], None]]:
    """Sets what is done about waits."""
    yield torch.cuda.set_sync_debug_mode
    torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def ones(*shape: int, **options: object) -> Tensor:
    return torch.ones(*shape, device=CUDA, **options)  # type: ignore[call-overload, no-any-return]


def test_torch_has_a_device() -> None:
    assert torch.cuda.is_available()
    assert ones(2).is_cuda
    assert torch.zeros(2).cuda().device == CUDA
    assert torch.tensor([1.0], device="cuda").device == CUDA


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.ones(3) + x,
        lambda x: x.add_(torch.ones(3)),
        lambda x: torch.ones(3).add_(x),
        lambda x: torch.zeros(()).add_(x.sum()),
        lambda x: torch.cat([x, torch.ones(3)]),
        lambda x: torch.ones(2, 3) @ x,
        lambda x: nn.Linear(3, 2)(x),
        lambda x: torch.ones(3)[torch.zeros(1, dtype=torch.int64, device=CUDA)],
        lambda x: x.index_put_((torch.zeros(2, dtype=torch.int64),), torch.ones(2)),
        lambda x: torch.where(torch.ones(3) > 0, x, x),
    ],
)
def test_tensors_of_two_devices_raise(mixed: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match=r"same device|on cpu or on the same device"):
        mixed(ones(3))


def test_numbers_and_indices_of_the_cpu_are_taken() -> None:
    x = ones(3)
    assert (x * torch.tensor(2.0)).tolist() == [2.0] * 3
    assert x.masked_fill(x > 0, torch.tensor(4.0)).tolist() == [4.0] * 3
    assert x[torch.tensor([0, 2])].shape == (2,)
    x[torch.tensor([1])] = 5.0
    assert x.tolist() == [1.0, 5.0, 1.0]


def test_values_are_asked_for_on_the_cpu() -> None:
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        ones(3).numpy()
    assert ones(3).cpu().numpy().tolist() == [1.0] * 3
    assert f"{ones(1).sum():.2f}" == "1.00"


def test_a_generator_is_of_the_device_of_what_it_draws() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(3, device=CUDA, generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        ones(3).normal_(generator=torch.Generator())
    assert torch.Generator(CUDA).device == CUDA
    drawn = [torch.randn(3, device=CUDA, generator=torch.Generator(CUDA).manual_seed(1)) for _ in range(2)]
    assert torch.equal(*drawn)


def test_draws_of_the_device_leave_those_of_the_cpu_as_they_are() -> None:
    def draw(count: int) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        there = torch.cat([torch.randn(2, device=CUDA), *(ones(2).uniform_() for _ in range(count))])
        nn.functional.dropout(ones(4), 0.5)
        return there[:2].tolist(), torch.randn(2).tolist()

    assert draw(0) == draw(3)
    state = torch.cuda.get_rng_state()
    first = torch.rand(4, device=CUDA)
    torch.cuda.set_rng_state(state)
    assert torch.equal(first, torch.rand(4, device=CUDA))
    with pytest.raises(TypeError, match="on the CPU"):
        torch.cuda.set_rng_state(state.cuda())


def test_products_of_integers_are_refused() -> None:
    integers = ones(2, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"not implemented for 'torch\.int64'"):
        integers @ integers
    assert int((integers + integers).sum()) == 8


@pytest.mark.usefixtures("deterministic")
def test_determinism_takes_a_workspace_and_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG"):
        ones(2, 2) @ ones(2, 2)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert bool((ones(2, 2) @ ones(2, 2) == 2).all())
    with pytest.raises(RuntimeError, match="cumsum_cuda does not have a deterministic implementation"):
        ones(3).cumsum(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="cumsum"):
        ones(3).cumsum(0)


def test_memory_ends() -> None:
    total = torch.cuda.get_device_properties(CUDA).total_memory
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(total + 1, dtype=torch.uint8, device=CUDA)
    torch.cuda.set_per_process_memory_fraction(2**20 / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(2**20 + 1, dtype=torch.uint8, device=CUDA)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_memory_is_taken_and_given_back() -> None:
    before = torch.cuda.memory_allocated()
    x = ones(1 << 18)
    view = x[5:].view(-1)
    assert torch.cuda.memory_allocated() == before + (1 << 20)
    torch.cuda.reset_peak_memory_stats()
    y = x + 1
    del x, y
    assert torch.cuda.memory_allocated() == before + (1 << 20)  # the view has it
    assert torch.cuda.max_memory_allocated() == before + (2 << 20)
    del view
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda x: x.sum().item(), "_local_scalar_dense"),
        (lambda x: bool(x.any()), "_local_scalar_dense"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "index by a mask"),
        (lambda x: x[torch.zeros(1, dtype=torch.int64)], "an index of the CPU"),
        (lambda x: x.cpu(), "a copy to the CPU"),
        (lambda x: x.copy_(torch.ones(3)), "a copy to the device"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: torch.cuda.synchronize(), "synchronize"),
    ],
)
def test_waits_are_counted_with_their_line_and_refused_where_that_is_asked_for(
    waits: Callable[[str], None], asked: Callable[[Tensor], object], what: str
) -> None:
    x = ones(3)
    with recording() as seen:
        asked(x)
    ((found, line),) = seen.waits
    assert found == what
    assert line.startswith(THIS)
    waits("warn")
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as caught:
        asked(x)
    assert {Path(w.filename).name for w in caught} <= {"device.py", "_tensor.py"}
    waits("error")
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        asked(x)


@pytest.mark.parametrize(
    "asked",
    [
        lambda x: x + 1,
        lambda x: x[x.long().clamp(max=2)],
        lambda x: x.masked_fill(x > 0, 2.0),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.to("cpu", non_blocking=True),
        lambda x: x.copy_(torch.ones(3).pin_memory(), non_blocking=True),
        lambda x: torch.full((3,), 2.0, device=CUDA),
        lambda x: x.repeat_interleave(
            torch.ones(3, dtype=torch.int64).pin_memory().to(CUDA, non_blocking=True), output_size=3
        ),
    ],
)
def test_nothing_else_waits(waits: Callable[[str], None], asked: Callable[[Tensor], object]) -> None:
    x = ones(3)
    waits("error")
    with recording() as seen:
        asked(x)
    assert not seen.waits
    assert not seen.pageable


def test_bytes_over_the_bus_are_counted_and_memory_that_is_not_pinned() -> None:
    with recording() as seen:
        x = torch.ones(100).to(CUDA)
        x += 1
        x[:10].cpu()
        torch.ones(5).to(CUDA, non_blocking=True)
        torch.empty(8, pin_memory=True)[2:].to(CUDA, non_blocking=True)
    assert seen.to_device.total() == 4 * (100 + 5 + 6)
    assert seen.to_host.total() == 40
    assert all(line.startswith(THIS) for line in [*seen.to_device, *seen.to_host])
    assert seen.pageable.total() == 1


def test_operations_are_counted_and_views_are_not() -> None:
    x, weight = ones(8, 16), ones(16, 4)
    with recording() as seen:
        (x @ weight).t()[:2].relu()
    assert dict(seen.operations) == {("mm", "float32"): 1, ("relu", "float32"): 1}
    assert seen.flops["mm", "float32"] == 2 * 8 * 16 * 4
    assert seen.bytes["mm", "float32"] == 4 * (8 * 16 + 16 * 4 + 8 * 4)
    assert seen.launches == 2
    with recording() as after:
        pass
    assert not after.launches


def test_backward_is_in_the_thread_of_the_device() -> None:
    seen: list[threading.Thread] = []

    class Seen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            seen.append(threading.current_thread())
            return grad

    for device in (CPU, CUDA):
        x = torch.ones(3, device=device, requires_grad=True)
        Seen.apply(x).sum().backward()  # type: ignore[no-untyped-call]
        assert x.grad is not None
        assert x.grad.device == device
    assert seen[0] is threading.main_thread()
    assert seen[1] is not threading.main_thread()


def test_a_model_goes_there_and_back_and_learns_as_on_the_cpu() -> None:
    def learn(device: torch.device, kind: type[torch.optim.Optimizer]) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(48, 4))
        images, labels = torch.randn(5, 1, 6, 6), torch.arange(5) % 4
        model = copy.deepcopy(model.to(device))
        optimizer = kind(model.parameters(), lr=0.01)  # type: ignore[call-arg]
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert all(isinstance(p, Pretended) == (device == CUDA) for p in model.parameters())
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, map_location=device)
        assert {value.device for value in loaded.values()} == {device}
        first = next(model.parameters())
        assert next(model.cpu().parameters()) is first
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    for kind in (torch.optim.SGD, torch.optim.AdamW):
        torch.testing.assert_close(learn(CUDA, kind), learn(CPU, kind))


def test_transforms_of_functions_go_through() -> None:
    weight, x = torch.randn(4, 3), torch.randn(6, 3)

    def loss(weight: Tensor, row: Tensor) -> Tensor:
        return (weight @ row).square().sum()

    there, here = (
        torch.func.vmap(torch.func.grad(loss), (None, 0))(weight.to(device), x.to(device)) for device in (CUDA, CPU)
    )
    torch.testing.assert_close(there.cpu(), here)


def test_shapes_change_in_place() -> None:
    x = ones(2, 1, 3)
    x.squeeze_()
    assert x.shape == (2, 3)
    assert x.t_().shape == (3, 2)
    assert (ones(3) @ ones(3, 4)).shape == (4,)
    assert x.resize_(20).shape == (20,)
    out = torch.empty(0, device=CUDA)
    torch.mm(ones(2, 3), ones(3, 5), out=out)
    assert out.shape == (2, 5)
    assert bool((out == 3).all())


def test_a_stream_and_an_event_are_there() -> None:
    cuda: Any = torch.cuda
    stream, events = cuda.Stream(), [cuda.Event(enable_timing=True) for _ in range(2)]
    with cuda.stream(stream):
        for event in events:
            event.record()
    cuda.current_stream().wait_stream(stream)
    assert events[0].elapsed_time(events[1]) >= 0
    with recording() as seen:
        events[1].synchronize()
    assert seen.waits.total() == 1


def test_a_process_that_is_started_here_has_the_device_too() -> None:
    code = "import torch; print(torch.cuda.get_device_name(), torch.ones(2, device='cuda').sum().item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "Pretended CUDA device 2.0"
