"""Tests that take a GPU: `make gpu-check`, or `pytest -m gpu`.

`DPRECIPE_GPU_TESTS_ON=cpu` runs on the CPU what can run there: it tries the tests, and says nothing of a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.encoded.train import encoded_sum
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from dprecipe.training.engine import clipped_sum, parts, planning, single, terms
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.probe import program as probe
from dprecipe.training.program import records
from tests.recipe_texts import DIGITS, DPSGD

DEVICE = os.environ.get("DPRECIPE_GPU_TESTS_ON", "cuda")
RECIPE = f"""\
recipe: dprecipe/v1
name: gpu
{DIGITS}model: {{kind: mlp, hidden: [32]}}
{DPSGD}training:
  steps: 20
  optimizer: {{kind: adam, lr: 0.01}}
  average: {{kind: ema, decay: 0.9}}
runtime: {{device: %s, physical_batch: 64, compile: false}}
"""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device under test, on which single precision is what it is in a run."""
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if DEVICE != "cuda":  # what is done on a GPU is tried
        for module in (parts, clipped_sum, planning, encoded_sum, records, probe, terms, single):
            monkeypatch.setattr(module, "one_size", lambda device: True)
    torch.manual_seed(0)
    with in_full_precision():
        yield torch.device("cuda", torch.cuda.current_device()) if DEVICE == "cuda" else torch.device(DEVICE)


@pytest.fixture
def cuda(gpu: torch.device) -> torch.device:
    """A device under test that has to be CUDA."""
    if gpu.type != "cuda":
        pytest.skip("the tests are tried on the CPU, and this one can't be")
    return gpu


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Plan]:
    """The plan of a small recipe on the device, with overrides."""
    recipe = tmp_path / "gpu.yaml"
    recipe.write_text(RECIPE % DEVICE, encoding="utf-8")
    return lambda *overrides: plan(read(recipe, overrides))
