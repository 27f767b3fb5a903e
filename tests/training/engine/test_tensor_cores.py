"""A GPU may round to TF32 before norms are taken, and never after: shown on a CPU that rounds where a GPU would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.training.engine import full_precision, strategies
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, find_fallbacks
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled_check import check_equal
from dprecipe.training.engine.full_precision import before_norms, in_full_precision, in_run_precision
from dprecipe.training.engine.planning import check_plan, plan_of
from dprecipe.training.probe.program import examine_module
from dprecipe.training.program.losses import cross_entropy

CPU, CLIP, COUNT = torch.device("cpu"), 0.01, 16
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "convolution", "convolution_backward")


class TensorCores(TorchDispatchMode):
    """Rounds the factors of products to the 11 bits of TF32, while that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.precision = "ieee"
        self.rounded: list[str] = []
        self.exact: list[str] = []

    def set(self, precision: str) -> None:
        self.precision = precision

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function._schema.name).removeprefix("aten::").rstrip("_")
        if name in PRODUCTS:
            (self.rounded if self.precision == "tf32" else self.exact).append(name)
            if self.precision == "tf32":
                args = tuple(_rounded(value) if isinstance(value, Tensor) else value for value in args)
        return function(*args, **(kwargs or {}))


def _rounded(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    bits = tensor.contiguous().view(torch.int32)
    return (bits.add(1 << 12) & ~((1 << 13) - 1)).view(torch.float32)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[TensorCores]:
    mode = TensorCores()
    monkeypatch.setattr(full_precision, "has_tensor_cores", lambda device: True)
    monkeypatch.setattr(full_precision, "set_cuda_precision", mode.set)
    with mode:
        yield mode
    assert mode.precision == "ieee"


class Repeated(nn.Module):
    """(N, I) to (N, 4, 2I): sequences for a product."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x, x, x, x], 1).repeat(1, 1, 2)


def vectors() -> nn.Module:
    """Products of vectors, whose norms come from their factors: what is added must not be rounded further."""
    return nn.Sequential(nn.Linear(128, 160), nn.Tanh(), nn.Linear(160, 4))


def sequences() -> nn.Module:
    return nn.Sequential(Repeated(), nn.Linear(256, 260), nn.Tanh(), nn.Flatten(), nn.Linear(1040, 4))


def images() -> nn.Module:
    convolutions = nn.Conv2d(2, 8, 3), nn.Tanh(), StandardisedConv2d(8, 8, 3, stride=2)
    return nn.Sequential(nn.Unflatten(1, (2, 8, 8)), *convolutions, nn.Flatten(), nn.Linear(32, 4))


MODELS = {"vectors": vectors, "sequences": sequences, "images": images}


def excess(build: Any, cores: TensorCores) -> float:
    """By how much equal clipped gradients add up to more than their number times the clip norm, relatively.

    The inputs are between two numbers of TF32, so that each rounds up: a sum of products that are rounded after their
    norm was taken is longer by 2^-11 for each rounded factor.
    """
    torch.manual_seed(0)
    model = build()
    features = torch.full((COUNT, 128), 1 + 2.0**-11)
    with in_run_precision():
        total = clipped_sum(
            model, cross_entropy, BatchPart(features, torch.zeros(COUNT).long()), Clipping.flat(CLIP), COUNT
        )
    return float(total.value.norm()) / (COUNT * CLIP) - 1


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_no_longer_than_their_norms_allow(name: str, cores: TensorCores) -> None:
    assert excess(MODELS[name], cores) < 1e-5
    assert cores.rounded  # the pass, and rows
    model = MODELS[name]()
    batch = BatchPart(torch.randn(COUNT, 128), torch.zeros(COUNT).long())
    assert not find_fallbacks(model, cross_entropy, batch, Clipping.flat(CLIP), model)


def test_a_sum_that_is_rounded_after_its_norms_would_be_longer(
    cores: TensorCores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: products of vectors are added on tensor cores."""
    real = strategies.Vectors.add

    def add(self: Any, *given: Any) -> None:
        with before_norms(CPU):
            real(self, *given)

    monkeypatch.setattr(strategies.Vectors, "add", add)
    assert excess(vectors, cores) > 2e-4


@pytest.mark.parametrize("name", MODELS)
def test_one_more_record_moves_the_sum_by_no_more_than_the_bound(name: str, cores: TensorCores) -> None:
    torch.manual_seed(0)
    model, features, labels = MODELS[name](), torch.randn(COUNT + 1, 128), torch.arange(COUNT + 1) % 4
    with in_run_precision():
        one, more = (
            clipped_sum(model, cross_entropy, BatchPart(features[:n], labels[:n]), Clipping.flat(CLIP), 4)
            for n in (COUNT, COUNT + 1)
        )
    assert 0.9 * CLIP < float((more.value - one.value).norm()) <= float(one.bound)


def test_outside_of_a_run_nothing_is_rounded(cores: TensorCores) -> None:
    """Nor in the probe, nor where a plan is checked: both compare two computations of the same."""
    torch.manual_seed(0)
    model, features = vectors(), torch.randn(4, 128)
    with in_full_precision():
        clipped_sum(model, cross_entropy, BatchPart(features, torch.zeros(4).long()), Clipping.flat(CLIP), 4)
    with in_run_precision():
        examine_module(model, cross_entropy, (128,), 4)
    assert not cores.rounded
    assert cores.exact
    with in_run_precision(), before_norms(CPU):
        assert cores.precision == "tf32"
        with before_norms(CPU):
            assert cores.precision == "tf32"
        assert cores.precision == "tf32"  # the outer one goes on


@pytest.mark.parametrize("check", [check_plan, check_equal])
def test_checks_of_plans_and_of_programs_compare_without_tensor_cores(check: Any, cores: TensorCores) -> None:
    """Also where they are made within a run."""
    seen: set[str] = set()

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.add(cores.precision)
        return cross_entropy(outputs, labels)

    batch = torch.randn(4, 128), torch.arange(4)
    with in_run_precision():
        plan = plan_of(vectors(), cross_entropy, *batch)
        program = SimpleNamespace(sum_programs=None, find_terms=None, add=lambda *given, **more: False)
        with suppress(TypeError):  # of a program that computes nothing
            check(vectors(), loss, *batch, plan if check is check_plan else program)
        assert full_precision._tensor_cores.get()
    assert seen == {"ieee"}


def test_a_cpu_is_left_alone() -> None:
    assert not full_precision.has_tensor_cores(CPU)
    with in_run_precision(), before_norms(CPU):
        assert full_precision._tensor_cores.get()
