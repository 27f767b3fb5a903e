"""Longer runs on the device: models, precisions, ways of clipping, and how a run goes on. Run by `test_runs.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import Interrupted
from dprecipe.mechanisms.encoded.train import encoded_sum
from dprecipe.privacy.ledger import read
from dprecipe.training.steps.noisy_steps import NoisySteps
from tests.pretend_cuda.cases.recipes import CNN, ENCODED, IMAGES, SMALL_DPSGD, TRAINING, Start
from tests.recipe_texts import DIGITS, DPSGD

MLP = DIGITS + "model: {kind: mlp, hidden: [16]}\n" + DPSGD + TRAINING


@pytest.mark.parametrize(
    "override",
    [
        "mechanism.clip={mode: per_layer, norm: 0.5}",
        "mechanism.clip={mode: adaptive, norm: 0.5}",
        "runtime.precision=bf16",
        "runtime.physical_batch=auto",
        "training.average={kind: ema, decay: 0.9}",
    ],
)
def test_a_convolutional_network_in_each_way(start: Start, override: str) -> None:
    start(CNN, "training.steps=2", override)


def test_other_noise_and_canaries(start: Start) -> None:
    laplace = "mechanism.noise={family: laplace, multiplier: 200.0}"
    start(MLP, laplace, "budget.epsilon=auto", "audit={canaries: 20}", "budget.neighbouring=zero_out_one")


def test_a_wide_residual_network_of_augmented_records(start: Start) -> None:
    images = IMAGES + "  preprocess: [{flip: {probability: 0.5}}]\nmodel: {kind: wide_resnet, depth: 10, width: 1}\n"
    others = ["mechanism.augmentations=2", "training.average={kind: ema, decay: 0.9}"]
    start(images + SMALL_DPSGD + TRAINING, "training.steps=1", "budget.neighbouring=zero_out_one", *others)


def test_encoded_gradients_that_are_denoised(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_sum, "BLOCK", 1 << 13)
    start(DIGITS + ENCODED + TRAINING, "mechanism.denoise=kolmogorov_smirnov")


def test_a_run_goes_from_the_cpu_to_the_device_and_on(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = NoisySteps.take_step

    def stopped(module: Any) -> bool:
        made = real(module)
        if module.steps_done in (2, 4):
            module.request_stop()
        return made

    monkeypatch.setattr(NoisySteps, "take_step", stopped)
    training = ["training.steps=6", "training.optimizer={kind: adam, lr: 0.01}"]
    with pytest.raises(Interrupted):
        start(MLP, *training, device="cpu")
    with pytest.raises(Interrupted):
        start(MLP, *training, resume=True)
    start(MLP, *training, resume=True)
    ledger = read(tmp_path / "run" / "private" / "ledger.jsonl")
    assert ledger.attempts == 3
    assert sum(charge.count for charge in ledger.charges) == 6
