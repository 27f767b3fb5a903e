"""Images for runs on the device, and how a run is started."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import dprecipe
from dprecipe.api import run
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from tests.pretend_cuda.cases.recipes import Start


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images as MNIST has them: a class is the place of a bright square."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name, count in (("train", 120), ("test", 30)):
        labels = np.arange(count, dtype=np.uint8) % 10
        pixels = generator.integers(60, size=(count, 28, 28), dtype=np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            row, column = divmod(int(label), 5)
            image[12 * row : 12 * row + 8, 5 * column : 5 * column + 5] += 150
        for kind, values in (("images", pixels), ("labels", labels)):
            header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
            (folder / f"{name}-{kind}.gz").write_bytes(gzip.compress(header + values.tobytes(), 1))
    return folder


@pytest.fixture
def start(tmp_path: Path, images: Path) -> Start:
    """Runs a recipe on the device, verifies what it released, and returns the release."""

    def start(text: str, *overrides: str, device: str = "cuda", resume: bool = False) -> Path:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(f"recipe: dprecipe/v1\nname: pretended\n{text}", encoding="utf-8")
        plan = make_plan(read(recipe, [f"runtime.device={device}", *overrides]))
        done = run(plan, tmp_path / "run", data_root=images, resume=resume)
        assert done.stop_reason in ("completed", "budget")
        dprecipe.verify(done.release)
        certificate = (done.release / "certificate.json").read_text(encoding="utf-8")
        assert torch.cuda.get_device_name() in certificate
        return Path(done.release)

    return start
