"""A student from Python is tried before anything is spent, and what it raises later is a fault with its place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dprecipe
from dprecipe.api import run
from dprecipe.data.records import Records
from dprecipe.faults import PlanRefused, RunFailed
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.trainer_library import lightning
from tests.modules import DigitsNet
from tests.training.publish.test_released import STUDENT

PLAN = make_plan(read_text(STUDENT, "recipe.yaml", ["mechanism.teachers.count=20", "release.report=false"]))
GENERATOR = np.random.default_rng(0)


def records(count: int) -> Records:
    return Records(GENERATOR.random((count, 1, 8, 8), dtype=np.float32), GENERATOR.integers(10, size=count))


SETS = {"train": records(1000), "public": records(100)}


class Whole(DigitsNet, lightning.LightningModule):
    def training_step(self, batch: object, number: int) -> None: ...


class Narrow(DigitsNet):
    def __init__(self) -> None:
        super().__init__(9)


class Flat(Narrow):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Later(DigitsNet):
    """Fails in its fourth update."""

    calls, whole = 0, False

    def forward(self, x: Tensor) -> Tensor:
        Later.calls += 1
        if Later.calls > 5 and not Later.whole:
            raise ValueError("not today")
        return super().forward(x)


@pytest.mark.parametrize(
    ("module", "fault", "what"),
    [
        (Whole, PlanRefused, "R345 model: .*'training_step'"),
        (Narrow, RunFailed, "does not return one number for each of 10 classes"),
        (Flat, RunFailed, r"raised RuntimeError while it was tried .* in layer .linear. .*, at test_plan_student.py:"),
    ],
)
def test_one_that_can_not_learn_is_refused_before_there_is_a_folder(
    module: type[nn.Module], fault: type[Exception], what: str, tmp_path: Path
) -> None:
    with pytest.raises(fault, match=what):
        run(PLAN, tmp_path / "run", model=module(), **SETS)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_one_that_fails_later_goes_on_once_it_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(Later, "calls", 0)
    with pytest.raises(RunFailed, match=r"raised ValueError while it learned.* at test_plan_student.py:") as caught:
        run(PLAN, tmp_path / "run", model=Later(), **SETS)
    assert "not today" not in caught.value.message.partition("raise ")[0]
    monkeypatch.setattr(Later, "whole", True)
    done = run(PLAN, tmp_path / "run", model=Later(), resume=True, **SETS)
    dprecipe.verify(done.release)
