"""Whatever a certificate has no room for is told before anything is spent; what it has room for is released."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import MECHANISMS
from dprecipe.faults import UsageFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read, read_text
from dprecipe.release.facts import ReleasedTensor
from dprecipe.release.verify import verify
from dprecipe.training.probe.program import Check
from dprecipe.training.publish.draft import check_publishable
from dprecipe.training.publish.provenance import RunProvenance

RECIPES = Path(__file__).parents[3] / "recipes"
RECIPE = """\
recipe: dprecipe/v1
name: draft
data: {train: {source: digits, split: train}, size: 1438}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 8.0}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
"""


def plan_of(*overrides: str) -> Plan:
    return make_plan(read_text(RECIPE, "recipe.yaml", overrides))


class Carrying(nn.Module):
    """Learns, and carries what it is told to."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.flatten(1))
        return result


def named(letters: str) -> nn.Module:
    module = Carrying()
    module.register_parameter(letters, nn.Parameter(torch.zeros(2), requires_grad=False))
    return module


UNFIT = {
    "a parameter's name of 1,100 letters": (lambda: named("w" * 1100), "tensors.name", "shorter names"),
    "a tensor of seventeen axes": (lambda: Carrying(b=torch.zeros((1,) * 17)), "tensors.shape", "fewer axes"),
    "numbers of a type that no file holds": (
        lambda: Carrying(b=torch.zeros(3).to(torch.complex128)),
        "complex128",
        "another type",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_module_that_no_certificate_can_name_is_refused_before_it_spends(name: str, tmp_path: Path) -> None:
    result, what, remedy = UNFIT[name]
    with pytest.raises(UsageFault) as fault:
        run(plan_of(), tmp_path / "run", model=result())
    assert what in fault.value.message
    assert remedy in (fault.value.remedy or "")
    assert not (tmp_path / "run").exists()


FIT = {
    "twelve names of 80 emoji": lambda: Carrying(**{chr(0x1F600 + i) * 80: torch.zeros(1) for i in range(12)}),
    "complex numbers": lambda: Carrying(b=torch.zeros(3, dtype=torch.complex64)),
    "small numbers": lambda: Carrying(b=torch.zeros(3).to(torch.float8_e4m3fn)),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if "emoji" in name else pytest.mark.slow) for name in FIT]
)
def test_a_module_that_a_certificate_can_name_is_released(name: str, tmp_path: Path) -> None:
    done = run(plan_of(), tmp_path / "run", model=FIT[name]())
    assert done.verified
    verify(done.release)


ONE_OF_EACH = ("quickstart", "encoded-mnist", "pate-digits", "papers/asoodeh2020-figure2", "correlated-digits")
"""A recipe of each mechanism."""


@pytest.mark.parametrize("recipe", ONE_OF_EACH)
def test_the_draft_of_every_mechanism(recipe: str) -> None:
    plan = make_plan(read(RECIPES / f"{recipe}.yaml"))
    provenance = RunProvenance((Check("noise_scale", "as planned", True, ""),), torch.device("cpu"))
    check_publishable(plan, provenance)
    long = replace(plan, source=replace(plan.source, overrides=("training.steps=2",) * 1001))
    with pytest.raises(UsageFault, match=r"provenance\.recipe\.overrides"):
        check_publishable(long, provenance)
    named = (ReleasedTensor("w" * 1100, (1,), "noisy_steps"),)
    with pytest.raises(UsageFault, match=r"tensors\.name"):
        check_publishable(plan, provenance, named)


def test_the_recipes_are_of_every_mechanism() -> None:
    assert {read(RECIPES / f"{recipe}.yaml").recipe.mechanism.kind for recipe in ONE_OF_EACH} == set(MECHANISMS)


WHERE = {"file": "provenance.recipe.file", "parent": "provenance.recipe.parents", "more": "provenance.recipe.overrides"}


@pytest.mark.parametrize("long", WHERE)
def test_a_recipe_with_names_that_no_certificate_holds(long: str, tmp_path: Path) -> None:
    folder, path = tmp_path / ("e" * 210), tmp_path / ("n" * 235 + ".yaml" if long == "file" else "child.yaml")
    folder.mkdir()
    (folder / "parent.yaml").write_text(RECIPE)
    path.write_text(f"extends: {folder.name}/parent.yaml\nname: child\n" if long == "parent" else RECIPE)
    plan = make_plan(read(path))
    if long == "more":
        plan = replace(plan, source=replace(plan.source, overrides=("training.steps=2",) * 1001))
    with pytest.raises(UsageFault, match=WHERE[long]):
        run(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    if long == "file":  # the remedy works
        shutil.copy(path, tmp_path / "short.yaml")
        assert run(make_plan(read(tmp_path / "short.yaml")), tmp_path / "run").verified
