"""Functions that are compiled where that is faster: on a CPU, whose compiler takes the place of a GPU's."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from dprecipe.training.engine import fused
from dprecipe.training.engine.fused import Fused
from dprecipe.training.engine.rounding import row_squares
from dprecipe.training.engine.strategies import sum_in_double
from dprecipe.training.engine.tiles import squares_of_pairs


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU counts as a GPU, and a program as faster."""
    seconds = itertools.cycle([0.0, 5.0, 0.0, 1.0])  # between a start and an end: of the function, of the program
    times = itertools.accumulate(seconds)
    monkeypatch.setattr(fused, "one_size", lambda device: True)
    monkeypatch.setattr(fused, "MIN_NUMBERS", 1)
    monkeypatch.setattr(fused, "read_clock", lambda device: next(times))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("function", "make"),
    [
        (row_squares, lambda rows: (torch.randn(rows, 1000),)),
        (sum_in_double, lambda rows: (torch.randn(rows, 300), torch.rand(rows, dtype=torch.float64))),
        (squares_of_pairs, lambda rows: (torch.randn(rows, 9, 9), torch.randn(rows, 9, 9), 12)),
    ],
    ids=["norms", "sums", "pairs"],
)
@pytest.mark.slow
def test_programs_do_what_functions_do(function: Fused, make: Callable[[int], tuple[Tensor, ...]]) -> None:
    mine = Fused(function._function, function._fusible)
    torch.manual_seed(0)
    for rows in (12, 7, 31):
        arguments = make(rows)
        found, expected = mine(*arguments), function._function(*arguments)
        assert mine._program is not None
        assert found.dtype == torch.float64
        assert torch.allclose(found, expected, rtol=1e-6)  # norms of blocks are in single precision


def ones(values: Tensor) -> Tensor:
    return values.sum(0)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Callable[..., Tensor]]:
    """What is put in here is what the compiler makes."""
    made: list[Callable[..., Tensor]] = []
    monkeypatch.setattr(torch, "compile", lambda function, **options: made[0])
    return made


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("fault", ["wrong", "raises", "nothing"])
def test_a_program_that_is_wrong_is_not_used(compiled: list[Callable[..., Tensor]], fault: str) -> None:
    calls = []

    def program(values: Tensor) -> Tensor:
        calls.append(fault)
        if fault == "raises":
            raise RuntimeError("no registers left")
        return ones(values) * (1.001 if fault == "wrong" else 1.0)

    compiled.append(program)
    mine = Fused(ones)
    for _ in range(3):
        assert torch.equal(mine(torch.ones(4, 2)), torch.full((2,), 4.0))
    assert (mine._program is program) == (fault == "nothing")
    assert calls.count("raises") <= 1  # it is tried once


@pytest.mark.usefixtures("device")
def test_a_program_that_is_not_faster_is_not_used(
    compiled: list[Callable[..., Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "read_clock", lambda device: 0.0)
    compiled.append(lambda values: ones(values))
    mine = Fused(ones)
    mine(torch.ones(4, 2))
    assert mine._tried
    assert mine._program is None


@pytest.mark.usefixtures("device")
def test_a_program_that_fails_later_is_not_called_again(compiled: list[Callable[..., Tensor]]) -> None:
    """In a run, after something was spent. Without memory it stays: the function takes no less."""
    failures: list[Exception] = []

    def program(values: Tensor) -> Tensor:
        if failures:
            raise failures.pop()
        return ones(values)

    compiled.append(program)
    mine = Fused(ones)
    mine(torch.ones(4, 2))
    failures.append(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(torch.OutOfMemoryError):
        mine(torch.ones(4, 2))
    assert mine._program is program
    failures.append(RuntimeError("no program for these shapes"))
    assert torch.equal(mine(torch.ones(4, 2)), torch.full((2,), 4.0))
    assert mine._program is None
    assert torch.equal(mine(torch.ones(5, 2)), torch.full((2,), 5.0))


@pytest.mark.slow
@pytest.mark.usefixtures("device")
def test_more_kinds_of_shapes_than_torch_makes_programs_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises then: one row, as many rows as columns, rows that are a part of others, each takes one of its own."""
    real, config = torch.compile, pytest.importorskip("torch._dynamo.config")
    monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, backend="eager", **options))
    mine = Fused(row_squares._function)
    torch.manual_seed(0)
    with config.patch(recompile_limit=2):
        for rows, columns, width in ((12, 300, 300), (12, 300, 310), (12, 256, 256), (1, 300, 300), (300, 300, 300)):
            values = torch.randn(rows, width)[:, :columns]
            assert torch.allclose(mine(values), values.double().square().sum(1), rtol=1e-4)
    assert mine._tried
    assert mine._program is None


def test_nothing_is_compiled_on_a_cpu_or_for_few_numbers(
    compiled: list[Callable[..., Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Fused(ones)
    mine(torch.ones(4, 2))
    monkeypatch.setattr(fused, "one_size", lambda device: True)
    mine(torch.ones(4, 2))
    assert not mine._tried


@pytest.mark.usefixtures("device")
def test_nothing_is_compiled_while_operations_are_recorded(compiled: list[Callable[..., Tensor]]) -> None:
    mine = Fused(ones)
    graph = make_fx(lambda values: mine(values))(torch.ones(4, 2))
    assert not mine._tried
    assert "sum" in graph.code
