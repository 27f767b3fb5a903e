"""A compiled keystream has the words of the one that is not, and is used only where it is sound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dprecipe.contract.plan import Plan
from dprecipe.training.checks import noise as noise_check
from dprecipe.training.checks.noise import MIN_CHUNKS, keystream_known, noise_scale
from dprecipe.training.engine.compilers import find_missing
from dprecipe.training.steps import chacha, compiled_keystream
from dprecipe.training.steps.chacha import PROGRAM_BLOCKS, PROGRAMS, Keystream
from dprecipe.training.steps.compiled_keystream import compile_keystream
from dprecipe.training.steps.noise import DEVICE_CHUNK, MIN_ON_DEVICE

CPU, KEY = torch.device("cpu"), bytes(range(32))
CUTS = ((0, 1), (0, PROGRAM_BLOCKS + 5), (2**31 - 1, 3), (2**32 - 2, 2))


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No program is left behind."""
    yield
    PROGRAMS.clear()


def words() -> list[Tensor]:
    return [Keystream(KEY, CPU, first).next(count) for first, count in CUTS]


def eager(graph: Any, _: list[Tensor]) -> Callable[..., Any]:
    """A compiler that compiles nothing."""
    return graph  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.skipif(find_missing(CPU) is not None, reason="there is no compiler")
def test_a_compiled_keystream_is_the_same_to_the_bit() -> None:
    """In any mode; and it is OpenSSL's."""
    expected = words()
    assert compile_keystream(CPU) == compile_keystream(CPU) == "compiled"
    assert CPU in PROGRAMS
    for mode in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with mode:
            assert all(map(torch.equal, words(), expected))
    keystream_known(CPU)


@pytest.mark.slow
def test_what_is_compiled_is_a_double_round(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = words()
    monkeypatch.setattr(compiled_keystream, "find_compiler", eager)
    assert compile_keystream(CPU) == "compiled"
    monkeypatch.setattr(Keystream, "_double_round", None)
    assert all(map(torch.equal, words(), expected))


@pytest.mark.parametrize("place", [(0, 0), (15, PROGRAM_BLOCKS - 1)])
def test_a_compiler_with_a_fault_is_not_used(monkeypatch: pytest.MonkeyPatch, place: tuple[int, int]) -> None:
    def faulty(graph: Any, inputs: list[Tensor]) -> Callable[..., Any]:
        def compute(state: Tensor) -> list[Tensor]:
            (result,) = graph(state)
            result[place] ^= 1 << 30
            return [result]

        return compute

    monkeypatch.setattr(compiled_keystream, "find_compiler", faulty)
    assert compile_keystream(CPU) == "not compiled: the compiler's program makes other words"
    assert not PROGRAMS


def test_a_compiler_that_fails_is_told_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_keystream, "find_compiler", lambda *_: 1 / 0)
    assert compile_keystream(CPU) == "not compiled: ZeroDivisionError"
    assert compile_keystream(torch.device("meta")) == "not compiled: nothing compiles for meta"
    assert not PROGRAMS


@pytest.mark.parametrize(
    ("trained", "settings", "tried"),
    [
        (MIN_ON_DEVICE - 1, ("runtime.compile=true",), False),
        (MIN_ON_DEVICE, ("runtime.compile=true",), True),
        (MIN_ON_DEVICE, ("runtime.compile=auto",), False),
        (MIN_CHUNKS * DEVICE_CHUNK, ("runtime.compile=auto",), True),
        (MIN_CHUNKS * DEVICE_CHUNK, ("runtime.compile=false",), False),
    ],
)
def test_it_is_compiled_where_it_pays_and_before_it_is_compared(
    small: Callable[..., Plan],
    monkeypatch: pytest.MonkeyPatch,
    trained: int,
    settings: tuple[str, ...],
    tried: bool,
) -> None:
    done: list[str] = []
    monkeypatch.setattr(noise_check, "compile_keystream", lambda device: done.append("compiled") or "compiled")
    monkeypatch.setattr(noise_check, "keystream_known", lambda device: done.append("compared"))
    monkeypatch.setattr(
        noise_check, "_draw_noises", lambda plan, charge, place, count, bound: [Keystream(KEY, CPU).next(1).numpy()]
    )
    monkeypatch.setattr(noise_check, "measure_noise", lambda *_: "measured")
    plan = small(*settings)
    assert plan.length.steps < MIN_CHUNKS
    check = noise_scale(plan, torch.device("meta"), trained)
    assert done == ["compiled"] * tried + ["compared"]
    assert check.measured.endswith("is OpenSSL's" + " (compiled)" * tried)


def test_a_program_is_never_made_by_a_keystream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_keystream, "find_compiler", lambda *_: pytest.fail("compiled while noise is drawn"))
    Keystream(KEY, CPU).next(3)
    assert not chacha.PROGRAMS
