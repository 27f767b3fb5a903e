"""Single precision stays single precision, whatever torch was told, and what was told stays told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dprecipe.faults import RunFailed
from dprecipe.models.modules.draws import without_cudnn
from dprecipe.training.checks.noise import single_precision
from dprecipe.training.engine import full_precision
from dprecipe.training.engine.full_precision import PLACES, in_full_precision, largest_error

CPU = torch.device("cpu")
newer = pytest.mark.skipif(not hasattr(torch._C, "_get_fp32_precision_getter"), reason="torch 2.9 has this interface")


def put(place: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*place, value)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Tests mix the interfaces of torch in ways that only they can undo."""
    with in_full_precision():
        pass
    restore = full_precision._full()
    restore()
    yield
    restore()


def settings() -> list[Any]:
    """All there is to be told, read in a way that moves nothing: each place alone, with nothing set above it."""
    restore = full_precision._full()
    restore()
    message: list[Any] = [torch.backends.cudnn.benchmark]
    for read in (torch.get_float32_matmul_precision, lambda: torch.backends.cudnn.allow_tf32):
        try:
            message.append(read())
        except RuntimeError:
            message.append("mixed")
    if hasattr(torch._C, "_get_fp32_precision_getter"):
        message += [torch._C._get_fp32_precision_getter(*place) for place in PLACES]
        put(PLACES[0], "none")
        message += [torch._C._get_fp32_precision_getter(*place) for place in PLACES]
        put(PLACES[0], message[3])
    return message


TOLD: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "no convolutions": lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
    "benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
}
NEWER: dict[str, Callable[[], None]] = {
    "all": lambda: put(("generic", "all"), "tf32"),
    "cuda": lambda: put(("cuda", "all"), "tf32"),
    "products": lambda: put(("cuda", "matmul"), "tf32"),
    "convolutions": lambda: put(("cuda", "conv"), "ieee"),
    "bfloat16 on a CPU": lambda: put(("mkldnn", "matmul"), "bf16"),
    "both": lambda: (torch.set_float32_matmul_precision("high"), put(("cuda", "matmul"), "ieee"))[0],
}


@pytest.mark.parametrize("told", [*TOLD, *(pytest.param(name, marks=newer) for name in NEWER)])
def test_nothing_is_rounded_further_inside_and_all_is_as_before_afterwards(told: str) -> None:
    {**TOLD, **NEWER}[told]()
    before = settings()
    with in_full_precision(), in_full_precision():
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.benchmark
        if hasattr(torch._C, "_get_fp32_precision_getter"):
            assert {torch._C._get_fp32_precision_getter(*place) for place in PLACES} == {"ieee"}
    assert settings() == before


def test_an_error_inside_restores_as_well() -> None:
    torch.set_float32_matmul_precision("high")
    with pytest.raises(KeyError), in_full_precision():
        raise KeyError
    assert torch.get_float32_matmul_precision() == "high"


def test_what_this_processor_does_is_single_precision() -> None:
    torch.set_float32_matmul_precision("medium")
    check = single_precision(CPU)
    assert check.passed
    assert "on cpu" in check.measured


def rounded(tensor: Tensor) -> Tensor:
    """To the 11 bits of TF32."""
    return (tensor.view(torch.int32).add(1 << 12) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.mark.parametrize("operation", ["matmul", "addmm", "bmm", "conv2d"])
def test_a_device_that_rounds_to_tf32_all_the_same_is_found_out(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with NVIDIA_TF32_OVERRIDE=1, of which torch knows nothing."""

    def of(where: Any, name: str, first: int) -> None:
        real = getattr(where, name)

        def wrong(*given: Any, **named: Any) -> Any:
            if given[first].dtype != torch.float32:
                return real(*given, **named)
            factors = [rounded(tensor.contiguous()) for tensor in given[first : first + 2]]
            return real(*given[:first], *factors, *given[first + 2 :], **named)

        monkeypatch.setattr(where, name, wrong)

    where, name, first = {
        "matmul": (Tensor, "__matmul__", 0),
        "addmm": (torch, "addmm", 1),
        "bmm": (torch, "bmm", 0),
        "conv2d": (torch.nn.functional, "conv2d", 0),
    }[operation]
    of(where, name, first)
    assert largest_error(CPU) > 2.0**-13
    with pytest.raises(RunFailed, match="fewer bits"):
        single_precision(CPU)


def test_without_cudnn_nothing_else_is_told() -> None:
    """`torch.backends.cudnn.flags(enabled=False)` turns TF32 on."""
    with in_full_precision():
        before = settings()
        with without_cudnn():
            assert not torch.backends.cudnn.enabled
            assert settings() == before
        assert torch.backends.cudnn.enabled
