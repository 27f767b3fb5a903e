"""What `benchmarks/gpu.py` measures: models, batches, and Opacus's step of the same model."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dprecipe.models.schema import Lora, WideResNet
from dprecipe.models.zoo.cnn import PRESETS, build_wide_resnet
from dprecipe.training.program.losses import NextTokenLoss, cross_entropy

TOKENS = 32_000
RANK, ALPHA = 8, 16.0
LLAMA_1B = {
    "model_type": "llama", "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192,
    "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 2048, "rope_theta": 500_000.0, "tie_word_embeddings": True,
}  # fmt: skip
"""1.24 billion parameters."""
TINY = {
    "model_type": "llama", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip


class Encoder(nn.Module):
    """Classifies sequences, of tokens or of patches."""

    def __init__(self, embed: nn.Module, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.embed(x)
        hidden = hidden + self.positions(torch.arange(hidden.shape[1], device=hidden.device))
        for layer in self.layers:
            hidden = layer(hidden)
        logits: Tensor = self.head(self.norm(hidden).mean(1))
        return logits


class Patches(nn.Module):
    """Images (N, 3, 32, 32) as 64 patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, 4, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        patches: Tensor = self.project(x)
        return patches.flatten(2).transpose(1, 2)


class Case(NamedTuple):
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    part: int
    tokens: int = 0
    """Features are numbers of so many tokens."""
    writes: bool = False
    """It is a decoder: its loss is of the next tokens."""

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        return NextTokenLoss() if self.writes else cross_entropy

    def records(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Made up, on the device."""
        shape = (count, *self.shape)
        if self.writes:
            tokens = torch.randint(self.tokens, (count, 1, self.shape[-1]), device=device).expand(shape)
            return tokens.float(), torch.full((count,), self.shape[-1] - 1, device=device)
        features = (
            torch.randint(self.tokens, shape, device=device) if self.tokens else torch.randn(shape, device=device)
        )
        return features, torch.randint(10, (count,), device=device)


def resnet(depth: int, width: int) -> Callable[[], nn.Module]:
    spec = WideResNet.model_validate({"kind": "wide_resnet", "depth": depth, "width": width})
    return lambda: build_wide_resnet(spec, 3, 10)


def decoder(config: dict[str, Any], length: int) -> Callable[[], nn.Module]:
    """With adapters of all products, on weights of no use."""

    def build() -> nn.Module:
        from dprecipe.models.decoder_config import check_decoder_config
        from dprecipe.models.lora import add_adapters
        from dprecipe.models.zoo.causal_lm import causal_model

        model = causal_model(check_decoder_config(config), length)
        add_adapters(model, Lora(rank=RANK, alpha=ALPHA), (), 0)
        return model

    return build


CASES = {
    "MNIST CNN": Case(lambda: PRESETS["tempered-mnist"]((1, 28, 28), 10), (1, 28, 28), 1024, 512),
    "WRN-16-4": Case(resnet(16, 4), (3, 32, 32), 4096, 1024),
    "WRN-40-4": Case(resnet(40, 4), (3, 32, 32), 4096, 512),
    "ViT-small": Case(lambda: Encoder(Patches(384), 64, 384, 12, 6), (3, 32, 32), 1024, 512),
    "transformer 100M": Case(lambda: Encoder(nn.Embedding(TOKENS, 768), 512, 768, 11, 12), (512,), 256, 64, TOKENS),
    "LoRA 1B": Case(decoder(LLAMA_1B, 512), (2, 512), 64, 8, LLAMA_1B["vocab_size"], writes=True),  # type: ignore[arg-type]
}
SHORT = ("MNIST CNN", "WRN-16-4")
TRIED = {
    "images": Case(resnet(10, 1), (3, 16, 16), 12, 8),
    "tokens": Case(lambda: Encoder(nn.Embedding(50, 32), 8, 32, 1, 2), (8,), 12, 8, 50),
    "texts": Case(decoder(TINY, 8), (2, 8), 12, 8, 61, writes=True),
}
"""Small enough for a CPU, to try the script."""


class _WithLogits(nn.Module):
    """A decoder as Opacus takes it: logits, positions of each record, and layers that it knows."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.backbone = getattr(model, model.backbone_name)
        self.head = nn.Linear(model.embedding.embedding_dim, model.embedding.num_embeddings, bias=False)
        self.head.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        tokens = features[:, 0].long()
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)[None, None]
        places = torch.arange(length, device=tokens.device).expand(len(tokens), -1)
        hidden = self.backbone(input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False)
        logits: Tensor = self.head(hidden.last_hidden_state)
        return logits[:, :-1]


def opacus_step(case: Case, model: nn.Module, clip: float, rate: float) -> Callable[[Tensor, Tensor], None]:
    """A step of Opacus's ghost clipping, in parts, with its own noise, which is not secure.

    OPACUS_PYTHON names an interpreter that has Opacus, if this one has not.
    """
    if python := os.environ.get("OPACUS_PYTHON"):
        asked = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
        path = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
        if path not in sys.path:
            sys.path.append(path)
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import (  # type: ignore[import-not-found]
        GradSampleModuleFastGradientClipping,
    )
    from opacus.optimizers.optimizer_fast_gradient_clipping import (  # type: ignore[import-not-found]
        DPOptimizerFastGradientClipping,
    )
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping  # type: ignore[import-not-found]

    warnings.filterwarnings("ignore")
    module = _WithLogits(model).to(next(model.parameters()).device) if case.writes else model
    net = GradSampleModuleFastGradientClipping(module, max_grad_norm=clip, use_ghost_clipping=True, strict=False)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": clip, "expected_batch_size": case.batch}
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = DPOptimizerFastGradientClipping(torch.optim.SGD(trained, rate), **settings)
    criterion = DPLossFastGradientClipping(net, optimizer, nn.CrossEntropyLoss(reduction="mean"))

    def step(features: Tensor, labels: Tensor) -> None:
        for start in range(0, len(labels), case.part):
            some, targets = features[start : start + case.part], labels[start : start + case.part]
            outputs, more = net(some), {}
            if case.writes:
                targets = some[:, 1, 1:].long()
                more = {"shape": tuple(targets.shape)}
                outputs, targets = outputs.flatten(0, 1), targets.flatten()
            optimizer.signal_skip_step(do_skip=start + case.part < len(labels))
            criterion(outputs, targets, **more).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step
