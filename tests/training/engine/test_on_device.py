"""What the engine does differently on a GPU, tried without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dprecipe.data.records import Records
from dprecipe.mechanisms.encoded import codebook
from dprecipe.mechanisms.encoded.train import encoded_sum
from dprecipe.training.engine import clipped_sum as clipped_sum_module
from dprecipe.training.engine import (
    compilers,
    gradient_rows,
    parts,
    planning,
    shares,
    single,
    sizes,
    strategies,
    terms,
)
from dprecipe.training.engine.backward import GradientPlan
from dprecipe.training.engine.clipped_sum import BatchPart, Loss, clipped_sum, clipped_sum_of_rows
from dprecipe.training.engine.clipping import Clipping, Norm
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.shares import Share
from dprecipe.training.engine.taps import Unplanned
from dprecipe.training.program import records
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.program.records import Store, UnitRowsBatch


class DropsElsewhere(nn.Module):
    """Dropout that draws from a generator of its device's own, as on CUDA: `torch.manual_seed` seeds it too, and
    `torch.random.set_rng_state` does not reach it."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=self.generator) < 0.5)


def test_a_model_with_dropout_on_a_device_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, seed = DropsElsewhere(), torch.manual_seed

    def everywhere(number: int) -> torch.Generator:
        layer.generator.manual_seed(number)
        return seed(number)

    monkeypatch.setattr(torch, "manual_seed", everywhere)
    model = nn.Sequential(nn.Linear(20, 20), layer, nn.Linear(20, 4))
    state = torch.random.get_rng_state()
    plan_of(model, cross_entropy, torch.zeros(5, 20), torch.zeros(5, dtype=torch.int64))
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a device on which parts have one size."""
    for module in (parts, clipped_sum_module, gradient_rows, planning, records, encoded_sum, terms, single):
        monkeypatch.setattr(module, "one_size", lambda device: True)


class Seen(nn.Module):
    """Notes how many rows of how many goes through it, and which are not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return x
        self.rows.append((len(x), int(x.flatten(1).any(1).sum())))
        return x


def classifier(seen: Seen) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(seen, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def passes_of(model: nn.Module, expected: float, hindrance: str = "") -> Passes:
    return Passes(model, cross_entropy, "auto", expected, 10, min_seconds=1e9, hindrance=hindrance)


def records_of(count: int) -> BatchPart:
    generator = torch.Generator().manual_seed(1)
    return BatchPart(torch.randn(count, 6, generator=generator), torch.arange(count) % 3)


@pytest.mark.usefixtures("gpu")
def test_all_parts_of_all_batches_have_one_size() -> None:
    """The size is that of the expected batch; who else is there changes neither it nor the sum of the others."""
    seen = Seen()
    model = classifier(seen)
    passes = passes_of(model, 90.0)
    for count in (1, 7, 60, 90, 130):
        batch = records_of(count)
        seen.rows.clear()
        result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.5), 64, passes)
        taken = [rows for rows in seen.rows if rows[0] == 56]  # 90 + 2 sqrt(90) in two parts, and in eights
        assert sum(real for _, real in taken) >= count
        assert len(taken) >= -(-count // 56)
        if count > 1:  # synthetic records have been planned with by now
            assert seen.rows == taken
        expected = clipped_sum_of_rows(model, cross_entropy, batch, Clipping.flat(0.5), 64)
        assert float((result.value - expected.value).norm() / expected.value.norm()) < 1e-5


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_gradients_taken_one_by_one_are_of_parts_of_one_size(norm: Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes_seen = []
    explain_loop = clipped_sum_module.per_record_gradients

    def noted(model: nn.Module, loss: Loss, features: Tensor, labels: Tensor) -> Tensor:
        sizes_seen.append(len(labels))
        return explain_loop(model, loss, features, labels)

    def unplanned(*_: object) -> None:
        raise Unplanned("not here")

    monkeypatch.setattr(clipped_sum_module, "per_record_gradients", noted)
    monkeypatch.setattr(planning, "_build_plan", unplanned)
    model = classifier(Seen())
    passes = passes_of(model, 90.0)
    for count in (1, 60, 130):
        clipped_sum(model, cross_entropy, records_of(count), Clipping.flat(0.5, norm), 64, passes)
    assert set(sizes_seen) == {56}


@pytest.mark.usefixtures("gpu")
def test_units_of_several_shapes_have_parts_of_their_own() -> None:
    """A unit is filled up to its own shape, whoever else was drawn."""
    units = np.repeat(np.arange(9), [1, 2, 2, 3, 5, 1, 4, 1, 2])
    stored = Records(torch.randn(len(units), 6).numpy(), np.zeros(len(units), np.int64), units)
    store = Store(stored, torch.device("cpu"))
    for chosen in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 3, 5, 6]):
        batch = UnitRowsBatch(store.batch(np.array(chosen), 0))
        shapes = sorted((part.labels.shape[1], len(part.labels)) for part in batch.parts(64))
        counts = np.bincount([{1: 1, 2: 2, 3: 3, 4: 4, 5: 6}[int((units == unit).sum())] for unit in chosen])
        assert shapes == [(size, count) for size, count in enumerate(counts.tolist()) if count]


def test_on_a_cpu_parts_are_as_large_as_they_are() -> None:
    passes = passes_of(classifier(Seen()), 90.0)
    assert passes.parts.size(torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64), 64) is None


def test_what_is_kept_is_a_part_of_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 MiB were twelve records of a WRN-16-4."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (30 << 30, 140 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 4 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 2 << 30)
    assert sizes.max_stored_numbers(torch.device("cuda")) == 2 << 30  # 8 GiB of single precision
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 140 << 30))
    assert sizes.max_stored_numbers(torch.device("cuda")) == 1 << 27
    assert sizes.max_stored_numbers(torch.device("cpu")) == sizes.MIN_STORED_NUMBERS


def test_room_decides_how_many_records_go_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 36, 3))
    features, labels = torch.zeros(5, 1, 8, 8), torch.zeros(5, dtype=torch.int64)
    monkeypatch.setattr(planning, "max_stored_numbers", lambda device: 72 * 50)
    assert plan_of(model, cross_entropy, features, labels).max_records == 32  # a power of two


@pytest.mark.usefixtures("gpu")
def test_strategies_are_timed_on_as_many_records_as_will_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    real = planning.shares_of

    def noted(
        model: nn.Module, loss: Loss, features: Tensor, labels: Tensor, plan: GradientPlan, **named: Any
    ) -> list[Share]:
        if named.get("timed"):
            timed.append(len(labels))
        return real(model, loss, features, labels, plan, **named)

    monkeypatch.setattr(planning, "shares_of", noted)
    model = classifier(Seen())
    passes_of(model, 90.0).parts.size(torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64), 64)
    assert timed == [56]


def positions() -> tuple[nn.Module, Tensor, Tensor]:
    """A layer whose norms are cheaper by pairs of positions, and not far cheaper than by rows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 40, bias=False), nn.Tanh(), nn.Flatten(), nn.Linear(160, 3))
    return model, torch.zeros(5, 4, 40), torch.zeros(5, dtype=torch.int64)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("slow", "chosen"), [("Ghost", ("kept", "twice")), ("StoredGradients", ("ghost",))])
@pytest.mark.parametrize("expected", [60.0, 60_000.0])
def test_where_double_precision_is_slow_rows_are_taken(
    slow: str, chosen: tuple[str, ...], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs of positions take products in double precision: on many a GPU 64 times as long. Both are tried there, by
    the clock, and either is sound."""
    time = [0.0]
    monkeypatch.setattr(shares, "read_clock", lambda device: time[0])
    real = getattr(shares, slow)

    class Slow(real):  # type: ignore[misc, valid-type]
        def squares(self) -> Tensor:
            time[0] += 1.0
            return super().squares()  # type: ignore[no-any-return]

    monkeypatch.setattr(shares, slow, Slow)
    model, features, labels = positions()
    passes = Passes(model, cross_entropy, False, expected, 10)
    passes.parts.size(features, labels, 64)
    plan = plan_of(model, cross_entropy, features, labels)
    assert plan.strategies["0.weight"] in chosen
    batch = BatchPart(torch.randn(70, 4, 40), torch.arange(70) % 3)
    result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 64, passes).value
    right = clipped_sum_of_rows(model, cross_entropy, batch, Clipping.flat(0.3), 64).value
    assert float((result - right).norm() / right.norm()) < 1e-5


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize(("expected", "single"), [(60.0, True), (60_000.0, False)])
def test_strategies_are_timed_as_a_batch_will_be_added_up(
    one: bool, expected: float, single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large batch, in double precision; on a CPU as before."""
    for module in (parts, clipped_sum_module, gradient_rows, planning):
        monkeypatch.setattr(module, "one_size", lambda device: one)
    seen = []
    real = shares.choose_cheapest
    monkeypatch.setattr(
        shares,
        "choose_cheapest",
        lambda tried, weights, size: (
            seen.append((len(weights.exact), weights.block_size)) or real(tried, weights, size)
        ),
    )
    monkeypatch.setattr(shares, "MAX_COST_RATIO", 32)
    model, features, labels = positions()
    passes = Passes(model, cross_entropy, False, expected, 10)
    if one:
        passes.parts.size(features, labels, 64)
    else:
        plan_of(model, cross_entropy, features, labels)
    size = 64 if expected > 1000 else 40
    assert seen == [(size, size if single else 1) if one else (16, 16)]


def test_plans_of_a_model_share_their_memory() -> None:
    """One plan for each shape of units kept its own."""
    model = nn.Sequential(nn.Conv1d(2, 8, 3), nn.Tanh(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 3))
    labels = torch.zeros(5, dtype=torch.int64)
    one, other = (plan_of(model, cross_entropy, torch.zeros(5, 2, length), labels) for length in (9, 12))
    assert one is not other
    assert one.stores is other.stores


def test_a_device_without_memory_is_no_reason_to_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of single records take far more; and for good, for a plan is made once."""
    model = classifier(Seen())
    real = planning._build_plan

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(planning, "_build_plan", full)
    with pytest.raises(torch.OutOfMemoryError):
        clipped_sum(model, cross_entropy, records_of(5), Clipping.flat(0.5), 64)
    monkeypatch.setattr(planning, "_build_plan", real)
    plan_of(model, cross_entropy, torch.zeros(5, 6), torch.zeros(5, dtype=torch.int64))


@pytest.mark.usefixtures("gpu")
def test_codes_are_made_of_blocks_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one gradient other instructions are used than of many; zeros add nothing."""
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(11, 40, generator=generator)
    monkeypatch.setattr(encoded_sum, "BLOCK", 40 * 8)
    encoder = encoded_sum.Encoder(codebook.draw_gaussian_codebook((40,), 6, 1e-5, 0), 1.0, torch.device("cpu"))
    sizes_seen = []
    real = encoder._rank
    monkeypatch.setattr(encoder, "_rank", lambda grads, *more: sizes_seen.append(len(grads)) or real(grads, *more))
    for count in (1, 8, 11):
        codes = encoder.encode(gradients[:count])
        assert codes.shape == (count, 40)
        assert torch.allclose(encoder.sum([gradients[:count]]), codes.sum(0))
    assert set(sizes_seen) == {8}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("size", [40, 5000])  # sorted, and counted
def test_codes_are_made_without_waiting_for_the_device(size: int) -> None:
    """On a device of shapes alone, whoever asks for a number fails."""
    book, shapes = codebook.draw_gaussian_codebook((size,), 6, 1e-5, 0), torch.device("meta")
    total = encoded_sum.Encoder(book, 1.0, shapes).sum([torch.empty(3, size, device=shapes)])
    assert (total.device, total.shape) == (shapes, (size,))


@pytest.mark.usefixtures("gpu")
def test_rows_of_gradients_come_from_products_of_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records there are, and whether they are units by themselves or not."""
    model, real = classifier(Seen()), gradient_rows._write
    sizes_seen: set[tuple[int, int]] = set()

    def noted(terms: list[terms.Term], part: slice, into: Tensor) -> None:
        sizes_seen.add((part.start, part.stop))
        real(terms, part, into)

    monkeypatch.setattr(gradient_rows, "_write", noted)
    for count in (1, 3, 5):
        batch = records_of(count)
        expected = clipped_sum_module.per_record_gradients(model, cross_entropy, batch.features, batch.labels)
        for units, sizes_expected in ((None, {(0, 6)}), (torch.arange(count), {(0, 8)})):
            sizes_seen.clear()
            part = BatchPart(batch.features, batch.labels, units)
            few = [rows.clone() for rows in gradient_rows.gradient_rows(model, cross_entropy, part, 8, 6)]
            torch.testing.assert_close(torch.cat(few), expected)
            assert sizes_seen == sizes_expected


@pytest.mark.parametrize("pixels", [False, True])
def test_records_that_have_room_are_kept_on_the_device(pixels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes of a batch is what comes of it where its records are fetched."""
    generator = np.random.default_rng(0)
    features = generator.integers(256, size=(50, 1, 4, 4)).astype(np.uint8) if pixels else generator.random((50, 6))
    units = np.sort(generator.integers(12, size=50))
    units = np.unique(units, return_inverse=True)[1]
    stored = Records(features if pixels else features.astype(np.float32), generator.integers(3, size=50), units)
    fetching = Store(stored, torch.device("cpu"))
    monkeypatch.setattr(records, "keeps_records", lambda device: True)
    monkeypatch.setattr(records, "bytes_for_records", lambda device: 50 * (features[0].size * 4 + 8))
    monkeypatch.setattr(records, "CHUNK_RECORDS", 7)
    keeping = Store(stored, torch.device("cpu"))
    assert keeping._resident is not None
    monkeypatch.setattr(records, "bytes_for_records", lambda device: 50 * (features[0].size * 4 + 8) - 1)
    assert Store(stored, torch.device("cpu"))._resident is None  # not one byte more
    monkeypatch.setattr(Records, "batch", lambda *_: pytest.fail("the records are on the device"))
    result = [*keeping.batch(np.array([0, 3, 4, 9]), 0).parts(8)]
    monkeypatch.undo()
    expected = [*fetching.batch(np.array([0, 3, 4, 9]), 0).parts(8)]
    assert len(result) == len(expected) > 1
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one.features, other.features)
        assert torch.equal(one.labels, other.labels)
        assert one.features.dtype == other.features.dtype
        assert torch.equal(one.units, other.units)  # type: ignore[arg-type]
    assert UnitRowsBatch(keeping.batch(np.array([0, 3]), 0)).gradients == 2


def test_scales_are_made_where_the_sum_is_and_kept_while_they_hold() -> None:
    """They were filled on the CPU and copied over in every step."""
    parameters = [torch.zeros(4, 3, device="meta"), torch.zeros(5, device="meta")]
    per_layer = Clipping((0.5, 2.0), (0, 1))
    first = per_layer.bounds(parameters)
    assert isinstance(first, Tensor)
    assert (first.device.type, first.dtype, len(first)) == ("meta", torch.float64, 17)
    assert per_layer.bounds(parameters) is first
    assert Clipping((0.5, 3.0), (0, 1)).bounds(parameters) is not first
    here = per_layer.bounds([torch.zeros(4, 3), torch.zeros(5)])
    assert here.tolist() == [0.5 * 2**0.5] * 12 + [2.0 * 2**0.5] * 5  # type: ignore[union-attr]


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.kernels: list[tuple[bool, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.kernels.append((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()))
        y = self.project(x)[:, None]
        attended: Tensor = functional.scaled_dot_product_attention(y, y, y)
        return attended.flatten(1)


@pytest.mark.usefixtures("gpu")
def test_attention_of_single_records_is_the_plain_one() -> None:
    """torch has no batching rule for the backward pass of the others, and warns: an error here."""
    model, features, labels = Attentive(), torch.randn(3, 2, 4), torch.tensor([0, 1, 2])
    result = clipped_sum_module.per_record_gradients(model, cross_entropy, features, labels)
    assert set(model.kernels) == {(False, False)}
    assert result.shape == (3, 20)


@pytest.mark.usefixtures("gpu")
def test_recurrent_layers_go_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][:, -1]  # type: ignore[no-any-return]

    monkeypatch.setattr(single, "vmap", lambda *_: pytest.fail("cuDNN has no rule for many at once"))
    model, features, labels = Last(), torch.randn(3, 5, 4), torch.tensor([0, 1, 2])
    result = clipped_sum_module.per_record_gradients(model, cross_entropy, features, labels)
    for row, feature, label in zip(result, features, labels, strict=True):
        loss = cross_entropy(model(feature[None]), label[None]).sum()
        alone = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        assert torch.allclose(row, alone, atol=1e-6)


def test_compiling_for_a_gpu_takes_a_c_compiler_and_python_s_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("torch.utils._triton")
    monkeypatch.setattr(triton, "has_triton", lambda: True)
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(compilers.sysconfig, "get_path", lambda name: str(tmp_path))
    cuda = torch.device("cuda")
    monkeypatch.setattr(compilers.shutil, "which", lambda name: None)
    assert "no C compiler" in str(compilers.find_missing(cuda))
    monkeypatch.setattr(compilers.shutil, "which", lambda name: "/usr/bin/gcc")
    assert compilers.find_missing(cuda) is None
    (tmp_path / "Python.h").unlink()
    assert "Python.h" in str(compilers.find_missing(cuda))


@pytest.mark.usefixtures("gpu")
def test_attention_of_a_layer_by_itself_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that nobody knows is differentiated by itself: one by one its records would take far too long."""
    allowed = []
    real = terms.vmap

    def noted(*given: Any, **named: Any) -> Any:
        allowed.append((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled()))
        return real(*given, **named)

    monkeypatch.setattr(terms, "vmap", noted)

    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ self.weight)[:, None]
            return functional.scaled_dot_product_attention(y, y, y).mean((1, 2))

    torch.manual_seed(0)
    model, batch = nn.Sequential(Mixes(), nn.Linear(8, 3)), BatchPart(torch.randn(9, 5, 8), torch.arange(9) % 3)
    result = clipped_sum(model, cross_entropy, batch, Clipping.flat(0.3), 16).value
    assert set(allowed) == {(False, False)}
    expected = clipped_sum_of_rows(model, cross_entropy, batch, Clipping.flat(0.3), 16).value
    assert float((result - expected).norm() / expected.norm()) < 1e-5


def test_on_a_gpu_more_strategies_are_tried() -> None:
    """What they cost is estimated for a CPU."""
    term = terms.Products(lambda part: torch.zeros(4, 1, 100, 50), torch.zeros(4, 1, 50, 100), 50)
    tried = {
        device: set(
            shares.list_candidates([term], 4, 2500, torch.empty((), device=device), 1 << 20, strategies.GradientStore())
        )
        for device in ("cpu", "meta")
    }
    assert tried == {"cpu": {"kept"}, "meta": {"kept", "ghost"}}
