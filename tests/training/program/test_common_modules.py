"""Modules as people write them, for which users of other libraries report wrong gradients: sums equal a loop over
records, and runs end in a release that holds what was trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed
from dprecipe.models.form import Form
from dprecipe.models.load import load
from dprecipe.models.modules.adapted import adapt_module
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, per_record_gradients
from dprecipe.training.engine.clipping import Clipping, layer_numbers
from dprecipe.training.probe.program import Check, examine_module
from dprecipe.training.probe.sums import clipping_tests
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.steps import clipped_sums as train
from tests.training.engine.reference import CLASSES, looped

TOKENS, LENGTH, COUNT = 30, 6, 9
IDS = Form((LENGTH,), (TOKENS,))
RECIPE = """\
recipe: dprecipe/v1
name: common
data:
  train: {{source: npz, path: reviews.npz, shape: {shape}, classes: 4}}
  size: 300
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: poisson, batch_size: 32}}
budget: {{epsilon: 20.0, delta: 1e-4}}
training: {{steps: 6, optimizer: {{kind: sgd, lr: 0.5}}}}
runtime: {{device: cpu, insecure: {{seed: 1}}}}
release: {{report: false}}
"""


def planned(shape: tuple[int, ...], *overrides: str) -> Plan:
    return make_plan(read_text(RECIPE.format(shape=list(shape)), "recipe.yaml", overrides))


class Tied(nn.Module):
    """Two names of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(TOKENS, 8)
        self.fc2 = nn.Linear(8, TOKENS, bias=False)
        self.fc2.weight = self.emb.weight
        self.fc3 = nn.Linear(TOKENS, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc3(torch.tanh(self.fc2(self.emb(ids).mean(1))))


class SequenceFirst(nn.Module):
    """Transposes for layers that have places first; `exchanged`: forgets to."""

    def __init__(self, exchanged: bool = False) -> None:
        super().__init__()
        self.exchanged = exchanged
        self.table = nn.Embedding(TOKENS, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
        self.encoder, self.head = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.table(ids)
        if self.exchanged:
            return self.head(self.encoder(hidden).mean(1))
        return self.head(self.encoder(hidden.transpose(0, 1), src_key_padding_mask=ids == 0).mean(0))


class FloatMask(SequenceFirst):
    """A record of padding alone has a softmax over nothing."""

    def forward(self, ids: Tensor) -> Tensor:
        mask = torch.zeros_like(ids, dtype=torch.float32).masked_fill(ids == 0, -torch.inf)
        return self.head(self.encoder(self.table(ids).transpose(0, 1), src_key_padding_mask=mask).mean(0))


class BasicBlock(nn.Module):
    """As torchvision has it, with group normalisation."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.GroupNorm(2, width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.GroupNorm(2, width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        identity = self.shortcut(x)
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += identity
        return self.relu(out)


def residual(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        BasicBlock(1, 4),
        BasicBlock(4, 4),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 8),
        nn.Dropout(dropout, inplace=True),  # after a ReLU torch itself refuses it: what it overwrites is needed
        nn.ReLU(inplace=True),
        nn.Linear(8, CLASSES),
    )


class InPlace(nn.Module):
    """Adds to single columns of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = torch.zeros_like(x)
        for column in (0, 0, 1, 1):
            y[:, column] += x[:, 2].abs()
        return self.b(y)


def inputs_of(module: nn.Module) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(module, Tied | SequenceFirst):
        return torch.randint(1, TOKENS, (COUNT, LENGTH), generator=generator)
    shape = (8,) if isinstance(module, InPlace) else (1, 8, 8)
    return torch.randn(COUNT, *shape, generator=generator)


def clip_rows(rows_NP: Tensor, sizes: list[int], groups: tuple[int, ...], clip: float, mode: str) -> Tensor:
    """(N, P): each record's gradient as its clipping leaves it, group by group, written down once more."""
    result, parts_N = [], list(torch.split(rows_NP, sizes, dim=1))
    for group in sorted(set(groups)):
        norms_N1 = torch.cat([p for p, g in zip(parts_N, groups, strict=True) if g == group], 1).norm(dim=1)[:, None]
        weight_N1 = clip / (norms_N1 + 0.01) if mode == "automatic" else (clip / norms_N1).clamp(max=1.0)
        result.append(weight_N1)
    return torch.cat([p * result[g] for p, g in zip(parts_N, groups, strict=True)], 1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["flat", "per_layer", "automatic"])
@pytest.mark.parametrize("build", [Tied, SequenceFirst, residual, InPlace], ids=lambda build: build.__name__)
def test_sums_are_those_of_a_loop_in_every_clip_mode(build: Callable[[], nn.Module], mode: str) -> None:
    torch.manual_seed(0)
    module = build()
    features, labels = inputs_of(module), torch.arange(COUNT) % CLASSES
    rows_NP = looped(module, features, labels)
    sizes = [p.numel() for p in module.parameters()]
    layers = layer_numbers(module)
    groups = layers if mode == "per_layer" else (0,) * len(sizes)
    clip = float(rows_NP.norm(dim=1).median()) / (2 if mode == "per_layer" else 1)
    thresholds = (clip,) * (max(groups) + 1)
    clipping = Clipping(
        thresholds, layers if mode == "per_layer" else None, stability=0.01 if mode == "automatic" else None
    )
    expected_P = clip_rows(rows_NP, sizes, groups, clip, mode).sum(0)
    for physical in (COUNT, 1, 4):
        result = clipped_sum(module, cross_entropy, BatchPart(features, labels), clipping, physical).value
        assert float((result - expected_P).abs().max()) <= 2e-5 * float(expected_P.abs().max()), physical
    units = torch.arange(COUNT) // 3  # a unit is the mean of three records
    means = torch.stack([rows_NP[units == unit].mean(0) for unit in range(3)])
    result = clipped_sum(module, cross_entropy, BatchPart(features, labels, units), clipping, COUNT).value
    expected_P = clip_rows(means, sizes, groups, clip, mode).sum(0)
    assert float((result - expected_P).abs().max()) <= 2e-5 * float(expected_P.abs().max())


def test_a_shared_tensor_is_one_layer() -> None:
    module = Tied()
    assert [name for name, _ in module.named_parameters()] == ["emb.weight", "fc3.weight", "fc3.bias"]
    assert layer_numbers(module) == (0, 1, 1)


def texts() -> Records:
    generator = np.random.default_rng(0)
    return Records(generator.integers(1, TOKENS, (300, LENGTH)), generator.integers(CLASSES, size=300))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("mechanism.clip={norm: 1.0, mode: per_layer}", "model={kind: mlp, hidden: [8]}"),
        ("training.average={kind: ema, decay: 0.9}",),
        ("training.average={kind: tail, fraction: 0.5}",),
        ("training.optimizer={kind: adam, lr: 0.1, weight_decay: 0.1}",),
    ],
    ids=["plain", "per layer", "ema", "tail", "adam"],
)
def test_a_release_keeps_the_tie(more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    module = Tied()
    first = module.emb.weight.detach().clone()
    done = run(planned((LENGTH,), *more), tmp_path / "run", model=module, train=texts())
    assert "no longer scored" not in capsys.readouterr().err
    tensors = load_file(done.release / "model.safetensors")
    assert not torch.equal(tensors["emb.weight"], first)
    assert torch.equal(tensors["emb.weight"], tensors["fc2.weight"])
    released = load(done.release, module=Tied())
    assert isinstance(released.module, nn.Module)
    result = released.outputs(texts().batch(slice(0, 5))[0])
    assert np.isfinite(result).all()


@pytest.mark.slow
@pytest.mark.parametrize("length", [2, 5, 6, 7, 8, 16, 33])
def test_exchanged_axes_are_refused_also_where_as_many_records_come_as_places(length: int) -> None:
    torch.manual_seed(0)
    checks = examined(SequenceFirst(exchanged=True), Form((length,), (TOKENS,)))
    assert not checks["records_independent"].passed
    assert all(check.passed for check in examined(SequenceFirst(), Form((length,), (TOKENS,))).values())


def examined(module: nn.Module, form: Form) -> dict[str, Check]:
    module, form, _ = adapt_module(module, form)
    tests = clipping_tests(clipped_sum)
    return {
        check.id: check for check in examine_module(module, cross_entropy, form, CLASSES, per_record_gradients, tests)
    }


@pytest.mark.parametrize("build", [SequenceFirst, pytest.param(FloatMask, marks=pytest.mark.slow)])
def test_a_record_of_padding_alone_adds_nothing_that_is_not_finite(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    module = build()
    assert all(check.passed for check in examined(module, IDS).values())
    features, labels = inputs_of(module), torch.arange(COUNT) % CLASSES
    without = clipped_sum(module, cross_entropy, BatchPart(features[1:], labels[1:]), Clipping.flat(0.5), COUNT).value
    features[0] = 0
    result = clipped_sum(module, cross_entropy, BatchPart(features, labels), Clipping.flat(0.5), COUNT).value
    assert bool(torch.isfinite(result).all())
    assert float((result - without).norm()) <= 0.5 + 1e-4


@pytest.mark.slow
def test_a_batch_with_padding_alone_trains(tmp_path: Path) -> None:
    torch.manual_seed(0)
    records = texts()
    records.features[::7] = 0
    done = run(planned((LENGTH,)), tmp_path / "run", model=FloatMask(), train=records)
    assert all(bool(torch.isfinite(t).all()) for t in load_file(done.release / "model.safetensors").values())


class LossOfBatch(SequenceFirst):
    """The mean over the tokens of a batch, without padding: others' lengths scale a gradient."""

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.head(self.encoder(self.table(ids).transpose(0, 1)).transpose(0, 1))
        labels = torch.where(ids == 0, -100, ids % CLASSES)
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


class ScaledByBatch(SequenceFirst):
    """The same in the place of logits: each record's, over the number of tokens of all."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) / (ids != 0).sum()


@pytest.mark.slow
@pytest.mark.parametrize(("build", "check"), [(LossOfBatch, "output"), (ScaledByBatch, "records_independent")])
def test_a_mean_over_the_tokens_of_a_batch_is_refused(build: Callable[[], nn.Module], check: str) -> None:
    torch.manual_seed(0)
    assert not examined(build(), IDS)[check].passed


def trained(module: nn.Module, records: Records, folder: Path, shape: tuple[int, ...], *more: str) -> dict[str, Tensor]:
    done = run(planned(shape, *more), folder, model=module, train=records)
    return load_file(done.release / "model.safetensors")


def quantities() -> Records:
    generator = np.random.default_rng(0)
    return Records(generator.normal(size=(300, 8)).astype(np.float32), generator.integers(CLASSES, size=300))


@pytest.mark.parametrize("compiler", ["traced", pytest.param("compiled", marks=pytest.mark.slow)])
def test_additions_in_place_are_compiled_to_the_same_weights(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler == "traced":
        traced: Any = lambda graph, inputs: graph  # noqa: E731
        passes = train.Passes
        monkeypatch.setattr(train, "Passes", lambda *given, **named: passes(*given, **named, compiler=traced))
    released = []
    for compiled in ("false", "true"):
        torch.manual_seed(0)
        module = InPlace()
        first = {name: value.clone() for name, value in module.state_dict().items()}
        released.append(trained(module, quantities(), tmp_path / compiled, (8,), f"runtime.compile={compiled}"))
    eager, other = released
    for name, value in eager.items():
        assert float((value - first[name]).abs().max()) > 1e-3
        torch.testing.assert_close(value, other[name], atol=1e-6, rtol=0.0)


@pytest.mark.slow
def test_blocks_in_place_train_as_they_are_written_and_dropout_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    records = Records(generator.normal(size=(300, 1, 8, 8)).astype(np.float32), generator.integers(CLASSES, size=300))
    done = run(planned((8, 8)), tmp_path / "run", model=residual(0.1), train=records)
    assert done.stop_reason == "completed"


class Overwriting(nn.Module):
    """Writes into what a layer keeps for its gradient: torch can't differentiate it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.inner(x))
        hidden += 1.0
        return self.head(hidden)


def test_what_torch_can_not_differentiate_is_refused_with_its_line(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(RunFailed, match="modified by an inplace operation"):
        run(planned((8,)), tmp_path / "run", model=Overwriting(), train=quantities())


PLAN = """\
recipe: dprecipe/v1
name: lots
data:
  train: {source: npz, path: images.npz, shape: [8, 8], classes: 10}
  preprocess: [{flip: {probability: 0.5}}]
  size: 14732
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 1024}
budget: {epsilon: 4.0, delta: 2e-5}
training: {epochs: 3, optimizer: {kind: sgd, lr: 0.5}}
"""


def test_noise_and_length_are_those_of_the_batch_and_of_no_part_of_it() -> None:
    whole = make_plan(read_text(PLAN, "recipe.yaml"))
    for more in ("4", "256", "1024", "auto"):
        for processes in (1, 2):
            overrides = [f"runtime={{physical_batch: {more}, processes: {processes}}}"]
            assert make_plan(read_text(PLAN, "recipe.yaml", overrides)).digest == whole.digest
    copies = make_plan(read_text(PLAN, "recipe.yaml", ["mechanism.augmentations=4"]))
    assert copies.events == whole.events
    assert copies.length == whole.length
    assert 0.9 < whole.events[0].event.noise_multiplier < 0.92  # of the batch; of a part of 4 it would be half of it
