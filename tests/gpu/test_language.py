"""Language models on a GPU: sums, recomputation, mixed precision, a run of adapters, and texts that are written."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dprecipe
from dprecipe.models.decoder_config import check_decoder_config
from dprecipe.models.language_model import load_language_model
from dprecipe.models.lora import add_adapters
from dprecipe.models.schema import Lora
from dprecipe.models.zoo.causal_lm import CausalLanguageModel, causal_model
from dprecipe.training.engine import shares
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum, find_fallbacks
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.compiled import Passes
from dprecipe.training.engine.full_precision import HALF, Reduced
from dprecipe.training.engine.planning import plan_of
from dprecipe.training.engine.recompute import Recompute
from dprecipe.training.program.losses import NextTokenLoss
from tests.decoders import DECODERS

pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("tokenizers", reason="tokenizers is not installed")
pytestmark = pytest.mark.gpu
CPU, LOSS = torch.device("cpu"), NextTokenLoss()
TOKENS, LENGTH, COUNT = 700, 24, 20
WIDE = {"hidden_size": 256, "intermediate_size": 288, "vocab_size": TOKENS}
CONFIGS = {
    "gpt2": {**DECODERS["gpt2"], "n_embd": 256, "vocab_size": TOKENS},  # its head is tied
    "llama": {**DECODERS["llama"], **WIDE},
    "qwen3": {**DECODERS["qwen3"], **WIDE},
}
"""Large enough for sums by tiles."""


def decoder(family: str, *, adapters: bool = False) -> CausalLanguageModel:
    torch.manual_seed(0)
    model = causal_model(check_decoder_config(CONFIGS[family]), LENGTH)
    if adapters:
        add_adapters(model, Lora(rank=2), (), 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return model


def texts(device: torch.device, count: int = COUNT) -> BatchPart:
    """Tokens that repeat, of which some places are not learned."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(TOKENS, (count, LENGTH // 2), generator=generator).repeat(1, 2).float()
    labels = tokens.clone()
    labels[0, :9] = -100
    features = torch.stack([tokens, labels], 1)
    return BatchPart(features.to(device), (labels[:, 1:] >= 0).sum(1).to(device))


def passes_of(model: nn.Module) -> Passes:
    return Passes(model, LOSS, False, float(COUNT), 10)


def summed(model: nn.Module, batch: BatchPart, clip: float = 0.3) -> Tensor:
    assert find_fallbacks(model, LOSS, batch, Clipping.flat(clip), model) == ()
    return clipped_sum(model, LOSS, batch, Clipping.flat(clip), 8, passes_of(model)).value.cpu()


def off(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def no_warnings() -> warnings.catch_warnings[None]:
    return warnings.catch_warnings(action="error")


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_28_sums_of_a_decoder_are_those_of_the_cpu(gpu: torch.device, family: str, adapters: bool) -> None:
    expected = summed(decoder(family, adapters=adapters), texts(CPU))
    with no_warnings():
        actual = summed(decoder(family, adapters=adapters).to(gpu), texts(gpu))
    assert off(actual, expected) < 1e-4


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_28_recomputed_blocks_have_the_same_sums(gpu: torch.device, family: str, adapters: bool) -> None:
    """Their second computation is in the thread in which autograd works for the device."""
    model = decoder(family, adapters=adapters).to(gpu)
    expected = summed(model, texts(gpu))
    assert off(summed(Recompute(model, model.blocks), texts(gpu)), expected) < 1e-4


@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("family", CONFIGS)
def test_28_bfloat16_is_near_and_raises_no_warning(gpu: torch.device, family: str, recomputed: bool) -> None:
    model = decoder(family).to(gpu)
    expected = summed(model, texts(gpu))
    with no_warnings():
        actual = summed(Reduced(Recompute(model, model.blocks) if recomputed else model), texts(gpu))
    assert 1e-6 < off(actual, expected) < HALF


@pytest.mark.parametrize("family", CONFIGS)
def test_28_one_more_text_moves_the_sum_by_no_more_than_the_bound(gpu: torch.device, family: str) -> None:
    model, batch = decoder(family).to(gpu), texts(gpu)
    passes, clipping = passes_of(model), Clipping.flat(0.05)
    for count in (0, 1, 7, 8, 15, 16, 19):
        one, more = (
            clipped_sum(model, LOSS, BatchPart(batch.features[:n], batch.labels[:n]), clipping, 8, passes)
            for n in (count, count + 1)
        )
        assert float((more.value - one.value).norm()) <= float(one.bound)


def test_28_a_text_that_is_not_finite_adds_nothing(gpu: torch.device) -> None:
    model, batch = decoder("gpt2").to(gpu), texts(gpu)
    spoilt = batch.features.clone()
    spoilt[7, 0, 3] = math.nan
    rest = [number for number in range(COUNT) if number != 7]
    expected = summed(model, BatchPart(batch.features[rest], batch.labels[rest]))
    assert off(summed(model, BatchPart(spoilt, batch.labels)), expected) < 1e-5


def test_28_nobody_waits_for_tiles_and_tokens(cuda: torch.device) -> None:
    """Of each part, one wait: whether all its gradients are finite."""
    model, batch = decoder("gpt2").to(cuda), texts(cuda)
    passes = passes_of(model)
    clipped_sum(model, LOSS, batch, Clipping.flat(0.3), 8, passes)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            clipped_sum(model, LOSS, batch, Clipping.flat(0.3), 8, passes)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waited = [Path(w.filename).name for w in caught if "synchroniz" in str(w.message)]
    assert set(waited) <= {"bookkeeping.py", "clipped_sum.py"}, waited
    assert len(waited) <= 2 * math.ceil(COUNT / 8)


def test_28_memory_is_freed_after_each_sum(cuda: torch.device) -> None:
    """No closure of a recomputed block keeps its inputs."""
    model, batch = decoder("llama").to(cuda), texts(cuda)
    wrapped = Recompute(model, model.blocks)
    passes, after = passes_of(wrapped), []
    for _ in range(6):
        clipped_sum(wrapped, LOSS, batch, Clipping.flat(0.3), 8, passes)
        after.append(torch.cuda.memory_allocated(cuda))
    assert len(set(after[2:])) == 1, after


def test_27_norms_of_large_products_are_timed_both_ways(cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[str]] = []
    real = shares.list_candidates
    monkeypatch.setattr(
        "dprecipe.training.engine.shares.list_candidates",
        lambda *given, **options: seen.append(set(found := real(*given, **options))) or found,  # type: ignore[func-returns-value]
    )
    batch = texts(cuda)
    plan_of(decoder("llama").to(cuda), LOSS, batch.features, batch.labels)
    assert {"tiles", "tiles_twice"} in seen


RECIPE = """\
recipe: dprecipe/v1
name: texts
data:
  train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: next_token
  test: {source: csv, path: test.csv, access: public}
  size: 60
  preprocess:
    - sequences: {text: text, tokenizer: {path: base/tokenizer.json, vocabulary: %d}, end: 0, max_length: 24}
model: {kind: causal_lm, init: base, lora: {rank: 2}}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 20}
budget: {epsilon: 8.0, delta: 1e-4}
training: {steps: 3, optimizer: {kind: adam, lr: 0.01}}
runtime: {device: %s, physical_batch: 8%s}
release: {report: false}
"""


@pytest.fixture
def start(tmp_path: Path, gpu: torch.device) -> Callable[[str], Path]:
    from safetensors.torch import save_file

    from dprecipe.models.decoder_config import library_config
    from dprecipe.models.library_files import METADATA
    from tests.languages import LETTERS, config_of, write_letters

    base, config = tmp_path / "base", config_of("llama")
    base.mkdir()
    torch.manual_seed(2)
    save_file(causal_model(config, LENGTH).state_dict(), base / "model.safetensors", METADATA)
    (base / "config.json").write_text(json.dumps(library_config(config)))
    write_letters(base)
    for name, count in (("texts.csv", 60), ("test.csv", 10)):
        rows = [f"see you at {number % 10}" for number in range(count)]
        (tmp_path / name).write_text("\n".join(["text", *rows]) + "\n")

    def run(runtime: str) -> Path:
        (tmp_path / "recipe.yaml").write_text(RECIPE % (len(LETTERS), gpu.type, runtime))
        plan = dprecipe.plan(dprecipe.load(tmp_path / "recipe.yaml"))
        return Path(dprecipe.run(plan, out=tmp_path / "out", data_root=tmp_path).release)

    return run


@pytest.mark.parametrize("runtime", ["", ", precision: bf16", ", recompute: true"])
def test_28_a_run_of_adapters_is_published_and_writes_on_the_device(
    gpu: torch.device, start: Callable[[str], Path], runtime: str
) -> None:
    release = start(runtime)
    dprecipe.verify(release)
    scores = json.loads((release / "metrics.json").read_text(encoding="utf-8"))["public_evaluation"]
    assert scores["perplexity"] > 1
    model = load_language_model(release)
    model.module.to(gpu)
    written = model.generate("see", 3, max_tokens=6, seed=1)
    assert written == model.generate("see", 3, max_tokens=6, seed=1)
    assert len(written) == 3
