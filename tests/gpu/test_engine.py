"""The clipped sum on a GPU: what it answers, what it takes of memory, and what it waits for."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dprecipe.models.schema import WideResNet
from dprecipe.models.zoo.cnn import PRESETS, build_wide_resnet
from dprecipe.models.zoo.layers import StandardisedConv2d
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.training.engine import compilers
from dprecipe.training.engine.backward import find_terms
from dprecipe.training.engine.bookkeeping import add_clipped, pad_records
from dprecipe.training.engine.clipped_sum import (
    BatchPart,
    clipped_sum,
    clipped_sum_of_rows,
    find_fallbacks,
    per_record_gradients,
)
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.clipping import layer_numbers as layers_of
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.compilers import read_clock
from dprecipe.training.engine.full_precision import HALF, Reduced, in_full_precision, in_run_precision
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.shares import list_candidates, shares_of
from dprecipe.training.engine.strategies import GradientStore, Weights
from dprecipe.training.engine.taps import Unplanned
from dprecipe.training.probe.program import examine_module, require_passed
from dprecipe.training.probe.sums import clipping_tests
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.steps.noise import add_noise

pytestmark = pytest.mark.gpu
TOKENS, CLASSES = 30, 4


class Attention(nn.Module):
    """A small encoder of text: embedding, attention, layer and RMS norms."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.norm, self.rms, self.head = nn.LayerNorm(16), nn.RMSNorm(16), nn.Linear(16, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.tokens(tokens))
        heads = [f(hidden).unflatten(2, (2, 8)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        attended = nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        logits: Tensor = self.head(self.rms(hidden + attended).mean(1))
        return logits


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        StandardisedConv2d(8, 8, 3, stride=2),
        nn.InstanceNorm2d(8, affine=True),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (images, (3, 9, 9)),
    "perceptron": (lambda: nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, CLASSES)), (20,)),
    "series": (
        lambda: nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(18, 4)),
        (2, 12),
    ),
    "volumes": (lambda: nn.Sequential(nn.Conv3d(1, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)), (1, 4, 4, 4)),
    "text": (Attention, (11,)),
    "unknown": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, CLASSES)), (6,)),
}


def make_case(name: str, count: int, device: torch.device, seed: int = 1) -> tuple[nn.Module, BatchPart]:
    torch.manual_seed(seed)
    build, shape = NETS[name]
    features = torch.randint(TOKENS, (count, *shape)) if name == "text" else torch.randn(count, *shape)
    return build().to(device), BatchPart(features.to(device), torch.arange(count, device=device) % CLASSES)


def passes_of(model: nn.Module, expected: float) -> Passes:
    return Passes(model, cross_entropy, False, expected, 10)


def off(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def clippings(model: nn.Module, norm: str) -> Iterator[Clipping]:
    groups = layers_of(model)
    yield Clipping.flat(0.3, norm)  # type: ignore[arg-type]
    yield Clipping(tuple(0.1 + 0.1 * group for group in range(max(groups) + 1)), groups, norm=norm)  # type: ignore[arg-type]
    yield Clipping((0.3,), stability=0.01, norm=norm)  # type: ignore[arg-type]
    yield Clipping((0.3,), norm=norm, counted=10.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("name", NETS)
def test_07_the_sum_is_that_of_single_records(gpu: torch.device, name: str, norm: str) -> None:
    model, batch = make_case(name, 37, gpu)
    for clipping in clippings(model, norm):
        actual = clipped_sum(model, cross_entropy, batch, clipping, 16, passes_of(model, 30.0))
        wide_batch = BatchPart(
            batch.features.double() if batch.features.is_floating_point() else batch.features, batch.labels
        )
        expected = clipped_sum_of_rows(model.double(), cross_entropy, wide_batch, clipping, 16)
        model.float()
        assert off(actual.value, expected.value) < 1e-4
        assert actual.value.device == gpu


def test_08_dropout_needs_no_fallback(gpu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.ReLU(), nn.Linear(30, CLASSES)).to(gpu).train()
    batch = BatchPart(torch.randn(9, 20, device=gpu), torch.zeros(9, dtype=torch.int64, device=gpu))
    assert find_fallbacks(model, cross_entropy, batch, Clipping.flat(1.0), model) == ()


@pytest.mark.parametrize("precision", [in_full_precision, in_run_precision])
@pytest.mark.parametrize("name", ["images", "text", "perceptron"])
def test_09_one_more_record_moves_the_sum_by_no_more_than_the_bound(
    gpu: torch.device, name: str, precision: Callable[[], AbstractContextManager[None]]
) -> None:
    model, batch = make_case(name, 66, gpu)
    passes, clipping = passes_of(model, 40.0), Clipping.flat(0.05)
    with precision():
        for count in (0, 1, 15, 16, 17, 31, 32, 47, 48, 63, 64, 65):
            one, more = (
                clipped_sum(model, cross_entropy, BatchPart(batch.features[:n], batch.labels[:n]), clipping, 16, passes)
                for n in (count, count + 1)
            )
            assert float((more.value - one.value).norm()) <= float(one.bound)


@pytest.mark.parametrize("width", [512, 64])
def test_29_tensor_cores_come_before_norms_and_never_after(cuda: torch.device, width: int) -> None:
    """Inputs between two numbers of TF32, so that each rounds up: a sum that is rounded after its norms would be longer
    than they allow by 2^-11."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, CLASSES)).to(cuda)
    batch = BatchPart(torch.full((64, width), 1 + 2.0**-11, device=cuda), torch.zeros(64).long().to(cuda))
    sums = []
    for precision in (in_full_precision, in_run_precision):
        with precision():
            sums.append(clipped_sum(model, cross_entropy, batch, Clipping.flat(0.01), 64, passes_of(model, 64.0)).value)
        assert float(sums[-1].norm()) <= 64 * 0.01 * (1 + 1e-5)
    if torch.cuda.get_device_capability(cuda) >= (8, 0):  # from Ampere on
        assert 0 < off(sums[1], sums[0]) < 1e-2  # it is used


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", ["images", "perceptron"])
def test_10_a_record_that_is_not_finite_adds_nothing(gpu: torch.device, name: str, value: float) -> None:
    model, batch = make_case(name, 20, gpu)
    # A loss that passes the number on: the gradient is as large.
    spoilt = batch.features.clone()
    spoilt[7] = value
    clipping, passes = Clipping.flat(0.3), passes_of(model, 20.0)
    actual = clipped_sum(model, cross_entropy, BatchPart(spoilt, batch.labels), clipping, 32, passes).value
    rest = [n for n in range(20) if n != 7]
    without = clipped_sum(
        model, cross_entropy, BatchPart(batch.features[rest], batch.labels[rest]), clipping, 32, passes
    ).value
    assert bool(torch.isfinite(actual).all())
    limit = 0.3001 if value == 1e30 else 1e-5  # a huge number may pass through a norm, as a finite gradient
    assert float((actual - without).norm()) <= limit


def test_11_an_empty_batch_is_zero_and_calls_nobody(gpu: torch.device) -> None:
    class Never(nn.Linear):
        def forward(self, _: Tensor) -> Tensor:
            raise AssertionError

    model = Never(3, 2).to(gpu)
    empty = BatchPart(torch.zeros(0, 3, device=gpu), torch.zeros(0, dtype=torch.int64, device=gpu))
    value = clipped_sum(model, cross_entropy, empty, Clipping.flat(1.0), 8, passes_of(model, 8.0)).value
    assert value.tolist() == [0.0] * 8


@pytest.mark.parametrize("name", ["images", "text", "perceptron", "series"])
def test_12_a_gradient_has_the_same_bits_whoever_is_beside_it(gpu: torch.device, name: str) -> None:
    """Parts of one size: neighbours are replaced, or are zeros that fill the part up."""
    model, batch = make_case(name, 64, gpu)
    plan = plan_of(model, cross_entropy, batch.features, batch.labels, 64)
    seen = []
    for others in (64, 40, 6, 1):
        features, labels = pad_records(batch.features[:others], 64), pad_records(batch.labels[:others], 64)
        shares = shares_of(model, cross_entropy, features, labels, plan)
        # Lookups are added by atomic operations, in double precision: in no order.
        squares = torch.stack([share.strategy.squares()[:1] for share in shares if share.chosen != "sparse"])
        seen.append((squares, per_record_gradients(model, cross_entropy, features, labels)[0]))
    for squares, row in seen[1:]:
        assert torch.equal(squares, seen[0][0])
        assert torch.equal(row, seen[0][1])


@pytest.mark.parametrize("name", ["images", "perceptron"])
def test_13_bfloat16_is_near_and_its_sums_are_single(gpu: torch.device, name: str) -> None:
    model, batch = make_case(name, 64, gpu)
    half = Reduced(model)
    expected = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 32, passes_of(model, 64.0)).value
    actual = clipped_sum(half, cross_entropy, batch, Clipping.flat(0.3), 32, passes_of(half, 64.0)).value
    assert actual.dtype == torch.float64
    assert 1e-6 < off(actual, expected) < HALF


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", ["perceptron", "images"])
def test_14_compiled_is_eager(cuda: torch.device, name: str, half: bool) -> None:
    assert compilers.find_missing(cuda) is None
    model, batch = make_case(name, 48, cuda)
    whole: nn.Module = Reduced(model) if half else model
    passes = Passes(whole, cross_entropy, True, 40.0, 10)
    spoilt = batch.features.clone()
    spoilt[5] = math.nan
    for features in (batch.features, spoilt, batch.features[:13]):
        some = BatchPart(features, batch.labels[: len(features)])
        expected = clipped_sum(whole, cross_entropy, some, Clipping.flat(0.3), 512).value
        actual = clipped_sum(whole, cross_entropy, some, Clipping.flat(0.3), 512, passes).value
        assert passes.remark.startswith("compiled for")
        assert off(actual, expected) < (HALF if half else 1e-4)


def test_18_memory_is_level_over_poisson_batches(cuda: torch.device) -> None:
    model, batch = make_case("images", 512, cuda)
    passes, generator = passes_of(model, 200.0), torch.Generator().manual_seed(0)
    after, reserved = [], []
    for _ in range(200):
        chosen = torch.rand(512, generator=generator) < 200 / 512
        some = BatchPart(batch.features[chosen.to(cuda)], batch.labels[chosen.to(cuda)])
        clipped_sum(model, cross_entropy, some, Clipping.flat(0.3), 64, passes)
        del some
        after.append(torch.cuda.memory_allocated(cuda))
        reserved.append(torch.cuda.memory_reserved(cuda))
    assert len(set(after[5:])) == 1
    assert max(reserved) <= 1.1 * reserved[5]


WAITS = {"bookkeeping.py", "clipped_sum.py", "noise.py"}
"""Who may wait for the device: the test for records whose numbers are not finite, and scales of noise."""


def test_19_nobody_else_waits(cuda: torch.device) -> None:
    model, batch = make_case("images", 200, cuda)
    passes, stream = passes_of(model, 200.0), Secrets().stream("noise", 1)
    clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 64, passes)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            actual = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 64, passes).value
            add_noise(actual, Distribution("gaussian"), 1.0, stream)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waited = [Path(w.filename).name for w in caught if "synchroniz" in str(w.message)]
    assert set(waited) <= WAITS, waited
    assert len(waited) <= 2 * math.ceil(230 / 64) + 2


def test_20_no_copy_of_all_numbers_crosses_the_bus(cuda: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, CLASSES)).to(cuda)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    batch = BatchPart(torch.randn(64, 1000, device=cuda), torch.zeros(64, dtype=torch.int64, device=cuda))
    passes = passes_of(model, 64.0)

    def step(number: int) -> None:
        clipping = Clipping((0.3,), counted=10.0)
        summed = clipped_sum(model, cross_entropy, batch, clipping, 64, passes)
        assert isinstance(summed.bound, Tensor)
        add_noise(summed.value, Distribution("gaussian"), summed.bound * 1.0, Secrets().stream("noise", number))

    step(1)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiled:
        step(2)
        torch.cuda.synchronize(cuda)
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    copies = [e for e in events if "HtoD" in e.get("name", "") or "DtoH" in e.get("name", "")]
    assert copies  # flags, at least
    assert sum(int(e["args"]["bytes"]) for e in copies) < numbers


def probed(model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks = require_passed(
            examine_module(model, cross_entropy, shape, classes, per_record_gradients, clipping_tests(clipped_sum)),
            model,
        )
    assert all(check.passed for check in checks)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("tempered-mnist", (1, 28, 28)),
        ("tempered-cifar", (3, 32, 32)),
        ("lenet", (1, 28, 28)),
        ("lenet-norm", (1, 28, 28)),
    ],
)
def test_25_presets_pass_the_probe(gpu: torch.device, name: str, shape: tuple[int, int, int]) -> None:
    probed(PRESETS[name](shape, 10).to(gpu), shape, 10)


def test_25_a_wide_resnet_passes_the_probe(gpu: torch.device) -> None:
    spec = WideResNet(kind="wide_resnet", depth=10, width=2, weight_standardisation=True)
    probed(build_wide_resnet(spec, 3, 10).to(gpu), (3, 32, 32), 10)


def test_25_the_probe_finds_batch_norm(gpu: torch.device) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES)).to(gpu)
    checks = {
        check.id: check.passed for check in examine_module(model, cross_entropy, (6,), CLASSES, per_record_gradients)
    }
    assert not checks["records_independent"]


@pytest.mark.parametrize("name", NETS)
def test_25_gradients_one_by_one_without_a_warning(gpu: torch.device, name: str) -> None:
    model, batch = make_case(name, 5, gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = per_record_gradients(model, cross_entropy, batch.features, batch.labels)
    for n in range(5):
        loss = cross_entropy(model(batch.features[n : n + 1]), batch.labels[n : n + 1]).sum()
        single = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        assert off(rows[n], single) < 1e-4


def test_10_nothing_is_added_where_a_model_can_t_be_planned(gpu: torch.device) -> None:
    model, batch = make_case("perceptron", 5, gpu)
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64, device=gpu)
    with pytest.raises(Unplanned):
        add_clipped(model, cross_entropy, batch.features, batch.labels, Clipping.flat(1.0, "l1"), total)
    assert not bool(total.any())


@pytest.mark.parametrize(("positions", "width"), [(8, 512), (128, 256), (256, 128)])
def test_27_the_way_taken_is_the_fastest(cuda: torch.device, positions: int, width: int) -> None:
    """Norms by pairs of positions take products in double precision, 64 times slower on many a GPU: the clock finds
    out. Timed anew, no other way takes half the time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(positions * width, 4))
    model.to(cuda)
    features, labels = torch.randn(64, positions, width, device=cuda), torch.zeros(64, dtype=torch.int64, device=cuda)
    plan = plan_of(model, cross_entropy, features, labels, 64, 1)
    answered = find_terms(model, cross_entropy, features, labels, plan)
    terms = [term for call in answered for name, term in call if name == "0.weight"]
    size = width * width
    tried = list_candidates(terms, 64, size, features, plan.storable, GradientStore())
    assert len(tried) == 2
    weights = Weights(torch.ones(64, dtype=torch.float64, device=cuda), sound=True, block_size=1)
    total = torch.zeros(size, dtype=torch.float64, device=cuda)
    taken = dict.fromkeys(tried, math.inf)
    for name, making in [*tried.items()] * 5:
        start = read_clock(cuda)
        way = making()
        way.squares()
        way.add([total], weights)
        taken[name] = min(taken[name], read_clock(cuda) - start)
    assert taken[plan.strategies["0.weight"]] <= 2 * min(taken.values()), taken
