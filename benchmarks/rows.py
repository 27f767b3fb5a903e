"""What `endtoend.py` compares: recipes, some of their values overridden, and the same values for the scripts."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """What is trained: a recipe with some values overridden, and the same for the scripts."""

    recipe: str
    overrides: tuple[str, ...]
    settings: Mapping[str, Any]
    """For the scripts; the noise is added to them."""
    files: tuple[str, ...] = ()
    """Below the folder of the data."""
    script: str | None = None
    """The one peer, where it isn't DP-SGD."""
    noise: float = 1.0
    """What the scripts call noise, as a multiple of the solved multiplier."""
    needs: tuple[str, ...] = ()
    """Libraries that all programs import."""
    plain_lr: float | None = None
    """The learning rate without privacy, where that of clipped gradients would diverge."""
    rounds: int = 3
    make: Callable[[Path, str], None] | None = None
    """Writes files of the row to a folder, with an interpreter that has the libraries."""


def dpsgd_row(recipe: str, task: str, batch: int | None, steps: int, clip: float, rates: Mapping[str, float],
              optimizer: str = "SGD", delta: float = 1e-5, **more: Any) -> Row:  # fmt: skip
    """Of DP-SGD; without a batch, all records are one."""
    rest = "".join(f", {name}: {value}" for name, value in rates.items())
    overrides = [
        "training.epochs=null",
        "training.average=null",
        f"training.steps={steps}",
        f"mechanism.clip.norm={clip}",
        f"training.optimizer={{kind: {optimizer.lower()}{rest}}}",
    ]
    if batch is not None:
        overrides.append(f"mechanism.sampling.batch_size={batch}")
    settings = {
        "task": task, "batch": batch or 1438, "full_batch": batch is None, "steps": steps, "clip": clip,
        "delta": delta, "optimizer": optimizer, "rates": dict(rates),
    }  # fmt: skip
    return Row(recipe, tuple(overrides), settings, **more)


LORA_RECIPE = """\
recipe: dprecipe/v1
name: lora-encoder
data:
  train: {source: npz, path: train.npz, shape: [64], classes: 2}
  test: {source: npz, path: test.npz, shape: [64], classes: 2, access: public}
  size: 4096
model: {kind: transformers, init: encoder, lora: {rank: 8, alpha: 16}}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 40, optimizer: {kind: adam, lr: 1e-3}}
release: {report: true}
"""
MAKE_ENCODER = """\
import sys
import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification
torch.manual_seed(0)
config = DistilBertConfig(
    vocab_size=4000, max_position_embeddings=64, dim=128, n_layers=2, n_heads=4, hidden_dim=512,
    dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
)
DistilBertForSequenceClassification(config).save_pretrained(sys.argv[1] + "/encoder")
draw = np.random.default_rng(0)
for part, count in (("train", 4096), ("test", 1024)):
    tokens = draw.integers(1, 4000, size=(count, 64))
    tokens[np.arange(64) >= draw.integers(16, 65, size=(count, 1))] = 0
    np.savez(f"{sys.argv[1]}/{part}.npz", features=tokens, labels=draw.integers(2, size=count))
"""


def make_lora(folder: Path, python: str) -> None:
    """A small encoder with weights of a seed, and made-up texts of 16 to 64 tokens."""
    (folder / "recipe.yaml").write_text(LORA_RECIPE, encoding="utf-8")
    subprocess.run([python, "-c", MAKE_ENCODER, str(folder)], check=True, capture_output=True)


SGD = {"lr": 2.0, "momentum": 0.9}
PATE = {"teachers": 250, "teacher_steps": 40, "teacher_batch": 24, "teacher_rate": 2e-3}
ROWS = {
    "quickstart": dpsgd_row("quickstart.yaml", "digits", None, 75, 0.3, {"lr": 2.2, "momentum": 0.9}, rounds=5),
    "adult": dpsgd_row("adult-dpsgd.yaml", "adult", 512, 1272, 1.0, SGD, delta=1e-6, files=("adult",)),
    "mnist": dpsgd_row("mnist-dpsgd.yaml", "mnist", 512, 236, 0.1, SGD, files=("mnist",), plain_lr=0.05),
    "cifar": dpsgd_row("cifar10-dpsgd.yaml", "cifar", 256, 24, 0.1, SGD, files=("cifar10",), plain_lr=0.05),
    "sms": dpsgd_row("sms-transformer.yaml", "sms", 512, 60, 0.5, {"lr": 0.003}, "Adam", files=("sms_spam",)),
    "lora": dpsgd_row(
        "recipe.yaml", "lora", 64, 40, 1.0, {"lr": 1e-3}, "Adam", needs=("transformers", "peft"), make=make_lora
    ),
    "pate": Row(
        "papers/papernot2018-mnist.yaml",
        (
            "data.public.records=[0, 640]",
            "data.preprocess=[{scale: {mean: 0.1307, std: 0.3081}}]",
            "model={kind: cnn, preset: lenet}",
            "mechanism.aggregator={kind: gnmax, noise: {family: gaussian, multiplier: 40}}",
            "mechanism.analysis=data_independent",
            "mechanism.teachers.training={steps: 40, batch_size: 24, optimizer: {kind: adam, lr: 2e-3}}",
            "training={steps: 300, batch_size: 32, optimizer: {kind: adam, lr: 2e-3}, robustness: 0, augment: null, "
            "semi_supervised: null, average: null}",
            "budget.epsilon=auto",
        ),
        {**PATE, "queries": 640, "steps": 300, "batch": 32, "rate": 2e-3, "noise": 40.0},
        ("mnist",),
        "pate.py",
    ),
    "pnsgd": Row(
        "adult-pnsgd.yaml", (), {"passes": 80, "batch": 4096, "rate": 0.76, "radius": 7.0}, ("adult",), "pnsgd.py",
        10**0.5,  # the Lipschitz constant, by which the recipe's noise is multiplied
    ),
}  # fmt: skip
