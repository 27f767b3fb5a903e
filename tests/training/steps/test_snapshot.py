"""A module from Python that writes down a private record: none of it is in a release."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import dprecipe
from dprecipe.api import run
from dprecipe.data.records import Records
from dprecipe.data.targets import ClassTarget
from dprecipe.faults import RunFailed
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.steps.step_failures import TensorSnapshot
from tests.training.publish.test_released import RECIPE

SECRET = 60 + np.arange(64, dtype=np.float32)
GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(1438, 64)).astype(np.float32)
FEATURES[::2] = SECRET
LABELS = GENERATOR.integers(0, 10, 1438)


class Keeper(nn.Module):
    """Keeps the first record that looks damaged: no synthetic one is this one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("damaged", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        result = x[(x == torch.from_numpy(SECRET)).all(1)]
        if len(result):
            self.keep(result[0].detach())
        return self.linear(x)

    def keep(self, record: Tensor) -> None:
        self.damaged.copy_(record)


class Registering(Keeper):
    def keep(self, record: Tensor) -> None:
        self.register_buffer("shown", record.clone())


class ScoredOnly(Keeper):
    def keep(self, record: Tensor) -> None:
        if not self.training:
            self.register_buffer("shown", record.clone())
            self.damaged = record.clone()


class Writing(Keeper):
    def keep(self, record: Tensor) -> None:
        self.linear.weight.data[0].copy_(record)


class Replacing(Keeper):
    def keep(self, record: Tensor) -> None:
        self.linear.bias = nn.Parameter(record[:10].clone())


SHORT = ["training.steps=3", "runtime={device: cpu, physical_batch: 8}", "release.report=false"]
PLAN = make_plan(read_text(RECIPE, "recipe.yaml", SHORT))
SETS = {
    "train": Records(FEATURES.reshape(-1, 1, 8, 8), LABELS),
    "test": Records(FEATURES[:40].reshape(-1, 1, 8, 8), LABELS[:40]),
}


@pytest.mark.parametrize(
    "kind",
    [Keeper, pytest.param(Registering, marks=pytest.mark.slow), pytest.param(ScoredOnly, marks=pytest.mark.slow)],
)
def test_what_no_noisy_step_makes_is_released_as_it_came(
    kind: type[Keeper], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(PLAN, tmp_path / "run", model=kind(), **SETS)
    tensors = load_file(done.release / "model.safetensors")
    assert sorted(tensors) == ["damaged", "linear.bias", "linear.weight"]
    assert not tensors["damaged"].any()
    assert ("changed tensors outside the noisy steps" in capsys.readouterr().err) == (kind is not ScoredOnly)
    dprecipe.verify(done.release)


@pytest.mark.parametrize("kind", [Writing, pytest.param(Replacing, marks=pytest.mark.slow)])
def test_a_sum_in_which_a_trained_weight_moved_is_not_used(kind: type[Keeper], tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"wrote to its own trained weights .*'linear\.(weight|bias)'"):
        run(PLAN, tmp_path / "run", model=kind(), **SETS)
    assert not (tmp_path / "run" / "release").exists()


def test_scoring_writes_to_nothing_that_is_released() -> None:
    for kind in (Keeper, Registering, Writing):
        module = kind().eval()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        held_out = HeldOut(module, SETS["test"], torch.device("cpu"), 10, ClassTarget(3))
        held_out.score({name: value.clone() for name, value in before.items()})
        after = module.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[name], before[name]) for name in before)


def test_weights_that_are_not_numbers_do_not_count_as_moved() -> None:
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.fill_(torch.nan)
    kept = TensorSnapshot(module)
    with kept.refuse_moves():
        pass
    with pytest.raises(RunFailed), kept.refuse_moves():
        module.bias.data.add_(1.0)


def test_a_buffer_that_moves_in_scoring_only_fails_the_probe(tmp_path: Path) -> None:
    class Shown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.register_buffer("shown", x[-1].detach().clone())
            return self.linear(x.flatten(1))

    with pytest.raises(RunFailed, match="'shown'"):
        run(PLAN, tmp_path / "run", model=Shown(), **SETS)
    assert not (tmp_path / "run").exists()
