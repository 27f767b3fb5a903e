"""What a module or records from Python carry into a release is named in its certificate, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.raw import Reading
from dprecipe.data.records import Records
from dprecipe.faults import UsageFault
from dprecipe.models.lora import add_adapters
from dprecipe.models.schema import Lora
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.program import build_started_model
from dprecipe.training.publish.released import tensors_of, trained_names
from tests.sweeps import sweep

RECIPE = """\
recipe: dprecipe/v1
name: carried
data: {train: {source: digits, split: train}, size: 1438}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 2.0, delta: 1e-5}
training: {steps: 5, optimizer: {kind: sgd, lr: 0.5}}
"""
STUDENT = """\
recipe: dprecipe/v1
name: student
data:
  train: {source: digits, split: train, records: [0, 1000]}
  public: {source: digits, split: train, records: [1000, 1437]}
  size: 1000
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers: {count: 50, model: {kind: logistic_regression}}
  aggregator: {kind: gnmax, noise: {family: gaussian, multiplier: auto}}
  queries: {max: 50}
budget: {epsilon: 16.0, delta: 1e-5, neighbouring: replace_one}
training: {steps: 5, optimizer: {kind: adam, lr: 5e-3}}
"""


def plan_of(text: str = RECIPE, *overrides: str) -> Plan:
    return make_plan(read_text(text, "recipe.yaml", overrides))


def digits() -> np.ndarray[Any, np.dtype[np.float32]]:
    data = plan_of().data
    raw = data.train.read(Path(), Reading.of(data.train, data, "train"))
    return np.asarray(raw.features, dtype=np.float32).reshape(-1, 1, 8, 8)


class Carrier(nn.Module):
    """Trains like any module, and carries the column means and a whole record of the private data."""

    def __init__(self, features: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        super().__init__()
        self.register_buffer("means", torch.from_numpy(features.reshape(len(features), -1).mean(axis=0)))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        self.record = nn.Parameter(torch.from_numpy(features[0].copy()), requires_grad=False)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x.flatten(1) - self.means)
        return result


def certificate(release: Path) -> Any:
    return json.loads((release / "certificate.json").read_text("utf-8"))["predicate"]


@pytest.mark.slow
def test_a_buffer_with_means_and_a_fixed_record_are_named(tmp_path: Path) -> None:
    done = run(plan_of(), tmp_path / "run", model=Carrier(digits()))
    stated = certificate(done.release)
    assert {t["name"]: (t["shape"], t["made_by"]) for t in stated["tensors"]} == {
        "linear.bias": ([10], "noisy_steps"),
        "linear.weight": ([10, 64], "noisy_steps"),
        "means": ([64], "python"),
        "record": ([1, 8, 8], "python"),
    }
    (assumed,) = (a for a in stated["assumptions"] if a["id"] == "python_module")
    assert assumed["checked_by"] == "declaration"
    told = dprecipe.verify(done.release).statement.predicate
    (text,) = (a.text for a in told.assumptions if a.id == "python_module")
    assert text.endswith("released unchanged, without noise: 'means' [64], 'record' [1, 8, 8]")
    for name in ("card.md", "report.html"):
        assert "released unchanged, without noise" in (done.release / name).read_text("utf-8").replace("\\", "")
    dprecipe.verify(done.release)


@pytest.mark.slow
@pytest.mark.parametrize("text", sweep([RECIPE, STUDENT], (0,)), ids=["dpsgd", "pate"])
def test_a_recipe_can_refuse_them_before_anything_is_spent(text: str, tmp_path: Path) -> None:
    plan = plan_of(text, "runtime.python_tensors=refuse")
    with pytest.raises(UsageFault, match=r"'means' \[64\], 'record' \[1, 8, 8\]"):
        run(plan, tmp_path / "run", model=Carrier(digits()))
    assert not (tmp_path / "run").exists()
    done = run(plan, tmp_path / "sound", model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    told = dprecipe.verify(done.release).statement.predicate
    (assumed,) = (a for a in told.assumptions if a.id == "python_module")
    assert "none of its other tensors is released" in assumed.text


@pytest.mark.slow
def test_a_student_from_python_is_named_too(tmp_path: Path) -> None:
    done = run(plan_of(STUDENT), tmp_path / "run", model=Carrier(digits()))
    result = {t["name"]: t["made_by"] for t in certificate(done.release)["tensors"]}
    assert result == {
        "linear.bias": "noisy_steps", "linear.weight": "noisy_steps", "means": "python", "record": "python"
    }  # fmt: skip
    dprecipe.verify(done.release)


@pytest.mark.slow
def test_a_student_of_the_recipe_that_was_fitted_is_made_by_answers(tmp_path: Path) -> None:
    text = STUDENT.replace("training: {steps: 5, optimizer: {kind: adam, lr: 5e-3}}\n", "")
    done = run(plan_of(text), tmp_path / "run")
    assert {t["made_by"] for t in certificate(done.release)["tensors"]} == {"noisy_steps"}
    dprecipe.verify(done.release)


@pytest.mark.parametrize("which", ["train", "test"])
def test_records_that_were_standardised_by_their_own_mean_are_declared(which: str, tmp_path: Path) -> None:
    features = digits()
    features = (features - features.mean(axis=0)) / (features.std(axis=0) + 1e-6)
    labels = np.arange(len(features)) % 10
    done = run(plan_of(), tmp_path / "run", **{which: Records(features, labels)})  # type: ignore[arg-type]
    stated = certificate(done.release)
    assert stated["provenance"]["data"] == "python"
    access = stated["data_access"]["preprocessing"]
    assert access["status"] == "declared"
    assert any(a["id"] == "python_records" and a["checked_by"] == "declaration" for a in stated["assumptions"])
    assert "records came from Python" in (done.release / "card.md").read_text("utf-8")
    told = dprecipe.verify(done.release).statement.predicate
    assert "depend on no other record" in told.data_access.preprocessing.text


def test_a_recipe_s_own_module_has_no_tensor_from_python(tmp_path: Path) -> None:
    done = run(plan_of(), tmp_path / "run")
    stated = certificate(done.release)
    assert {t["made_by"] for t in stated["tensors"]} == {"noisy_steps"}
    assert stated["data_access"]["preprocessing"]["status"] == "public"
    assert not any(a["id"].startswith("python") for a in stated["assumptions"])


def test_an_adapted_layer_counts_as_trained_and_what_stays_of_it_does_not() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    add_adapters(module, Lora(rank=2, alpha=2.0), {"2.weight", "2.bias"}, 0)
    assert trained_names(module) == {"0.weight", "2.weight", "2.bias"}


def test_a_tensor_under_the_name_of_a_trained_parameter_is_not_that_parameter() -> None:
    module = nn.Linear(3, 2)
    module.register_state_dict_post_hook(lambda m, state, prefix, metadata: state.update(bias=torch.ones(2)))
    assert trained_names(module) == {"weight"}
    result = {t.name: t.made_by for t in tensors_of(module.state_dict(), trained_names(module), True, False)}
    assert result == {"weight": "noisy_steps", "bias": "python"}


def test_tied_parameters_are_trained_under_both_names() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    assert trained_names(module) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_what_a_recipe_s_model_keeps_fixed_is_the_seed_s_or_the_file_s() -> None:
    from dprecipe.data.facts import describe_data

    plan = plan_of()
    module, _ = build_started_model(plan, describe_data(plan.data))
    module.requires_grad_(False)
    for from_file, made_by in ((False, "seed"), (True, "file")):
        result = tensors_of(module.state_dict(), trained_names(module), False, from_file)
        assert {tensor.made_by for tensor in result} == {made_by}
