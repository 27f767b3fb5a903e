"""A LightningModule as people write it: its loss and its optimiser train it, and the certificate says so."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import Fault, Interrupted, PlanRefused, UsageFault
from dprecipe.policy.find import POLICY_FILE
from dprecipe.release.origins import find_contradictions
from tests.recipe_texts import DIGITS

Small = Callable[..., Plan]
OWN = ("training.loss={kind: python}", "training.optimizer={kind: python}")
FIXED = "runtime.insecure={seed: 3}"
WEIGHTS = [0.5, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 3.0]


class Classifier(lightning.LightningModule):
    """Weighs classes in its loss, and has AdamW with one cycle."""

    def __init__(self, lr: float = 0.05) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.net = nn.Linear(64, 10)
        self.register_buffer("weights", torch.tensor(WEIGHTS))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.net(x.flatten(1))
        return result

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        losses = functional.cross_entropy(self(x), y, weight=self.weights, reduction="none")
        self.log("train_loss", losses.mean())
        return losses

    def configure_optimizers(self) -> Any:
        optimizer, steps = torch.optim.AdamW(self.parameters(), weight_decay=0.0), self.trainer.max_steps
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.hparams["lr"], total_steps=steps, cycle_momentum=False
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Pairs(Classifier):
    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        outputs = self(batch[0])
        return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)), reduction="none")


class Partial(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([self.net.weight])


class Long(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=7)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def weights(folder: Path) -> dict[str, Tensor]:
    (file,) = folder.rglob("model.safetensors")
    return load_file(file)


def train(built: Any, *callbacks: lightning.Callback) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[*built.callbacks, *callbacks],
        )
        trainer.fit(built.module, built.data)


ENCODED = """\
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 100}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
"""


def encoded(tmp_path: Path, denoise: str) -> Plan:
    recipe = tmp_path / "encoded.yaml"
    training = "training: {steps: 30, loss: {kind: python}, optimizer: {kind: python}}\n"
    text = f"recipe: dprecipe/v1\nname: encoded\n{DIGITS}model: {{kind: logistic_regression}}\n{ENCODED}{training}"
    recipe.write_text(text, encoding="utf-8")
    return dprecipe.plan(dprecipe.load(recipe, {"mechanism.denoise": denoise}))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dpsgd", "encoded"])
def test_it_is_trained_released_loaded_and_verified(small: Small, tmp_path: Path, mechanism: str) -> None:
    plan = small(*OWN) if mechanism == "dpsgd" else encoded(tmp_path, "none")
    run = dprecipe.run(plan, tmp_path / "run", model=Classifier())
    predicate = dprecipe.verify(run.release).statement.predicate
    assert predicate.provenance.model == "python"
    assert {"python_loss", "python_optimizer", "python_module"} <= {each.id for each in predicate.assumptions}
    released = dprecipe.load_model(run.release, Classifier())
    answers = released.predict(np.zeros((3, 8, 8), np.float32))
    assert len(answers) == 3
    assert json.loads((run.release / "metrics.json").read_bytes())["public_evaluation"]["accuracy"] > (
        0.5 if mechanism == "dpsgd" else 0
    )
    assert "train_loss" not in "".join(file.read_text("utf-8", "ignore") for file in run.release.iterdir())


@pytest.mark.slow
def test_loss_and_optimiser_are_those_that_the_recipe_would_name(small: Small, tmp_path: Path) -> None:
    module = Classifier()
    named = "training.optimizer={kind: adam, lr: {schedule: one_cycle, peak: 0.05}}"
    plain = nn.Sequential(nn.Flatten(), copy.deepcopy(module.net))
    dprecipe.run(small(FIXED, named, f"training.class_weights={WEIGHTS}"), tmp_path / "named", model=plain)
    dprecipe.run(small(FIXED, *OWN), tmp_path / "own", model=module)
    one, other = weights(tmp_path / "named"), weights(tmp_path / "own")
    torch.testing.assert_close(one["1.weight"], other["net.weight"], rtol=1e-4, atol=1e-6)
    assert not torch.equal(other["net.weight"], Classifier().net.weight)


@pytest.mark.slow
def test_run_and_build_give_the_same_weights(small: Small, tmp_path: Path) -> None:
    plan = small(FIXED, *OWN)
    dprecipe.run(plan, tmp_path / "run", model=Classifier())
    built = dprecipe.build(plan, tmp_path / "built", model=Classifier())
    train(built)
    built.release()
    one, other = weights(tmp_path / "run"), weights(tmp_path / "built")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


class StopAt(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= 9


@pytest.mark.slow
def test_what_was_stopped_goes_on_with_the_optimiser_s_state(small: Small, tmp_path: Path) -> None:
    plan = small(*OWN)
    built = dprecipe.build(plan, tmp_path / "run", model=Classifier())
    train(built, StopAt())
    with pytest.raises(Interrupted):
        built.release()
    state = torch.load(tmp_path / "run" / "private" / "checkpoints" / "last.pt", weights_only=True)
    assert state["optimizer"]["state"][0]["step"] == 9
    assert state["rates"]["schedules"][0]["last_epoch"] == 9
    run = dprecipe.run(plan, tmp_path / "run", model=Classifier(), resume=True)
    dprecipe.verify(run.release)


@pytest.mark.parametrize(
    ("kind", "overrides", "fault", "what"),
    [
        (Pairs, OWN, Fault, "records share a part of it"),
        (Partial, OWN, Fault, "leaves out"),
        (Long, OWN, Fault, "raises at step 8 of 30"),
        (Classifier, (), PlanRefused, "does not leave to it: 'configure_optimizers', 'training_step'"),
        (Classifier, OWN[:1], PlanRefused, "does not leave to it: 'configure_optimizers'"),
        (lambda: nn.Linear(64, 10), OWN, PlanRefused, "lacks what the recipe leaves to it"),
        (lambda: None, OWN, UsageFault, "a module from Python brings it, and none was passed"),
    ],
)
def test_others_are_refused_before_there_is_a_folder(
    kind: Callable[[], Any], overrides: tuple[str, ...], fault: type[Fault], what: str, small: Small, tmp_path: Path
) -> None:
    for train_by in (dprecipe.run, dprecipe.build):
        with pytest.raises(fault, match=what):
            train_by(small(*overrides), tmp_path / "run", model=kind())
        assert not (tmp_path / "run").exists()


class Validated(Classifier):
    """Scores itself by two means, one of a metric that is asked at the end."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        x, y = batch
        outputs = self(x)
        self.log("val_loss", functional.cross_entropy(outputs, y))
        self.log_dict({"val_right": (self.net(x.flatten(1)).argmax(1) == y).float().mean()}, prog_bar=True)


class Failing(Validated):
    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        raise ValueError("seven")


def test_validation_on_public_records_is_shown(small: Small, tmp_path: Path) -> None:
    plan, seen = small(FIXED, *OWN, "training.average={kind: tail, fraction: 0.5}"), {}

    class Look(lightning.Callback):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            seen.update(trainer.callback_metrics)

    built = dprecipe.build(plan, tmp_path / "run", model=Validated())
    train(built, Look())
    run = built.release()
    public = json.loads((run.release / "metrics.json").read_bytes())["public_evaluation"]
    assert float(seen["val_right"]) == pytest.approx(public["accuracy"], abs=1e-6)
    assert float(seen["val_loss"]) == pytest.approx(float(seen["loss"]), rel=1e-4)
    private = (file for file in (tmp_path / "run" / "private").iterdir() if file.is_file())
    assert any(b"val_loss" in file.read_bytes() for file in private)


def test_validation_is_refused_where_no_one_says_that_records_are_public(small: Small, tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="nothing calls: 'validation_step'") as caught:
        dprecipe.run(small(*OWN, "data.test.access=private_internal"), tmp_path / "run", model=Validated())
    assert "declare data.test public" in caught.value.findings[0].remedy
    test = (np.zeros((5, 1, 8, 8), np.float32), np.zeros(5, np.int64))
    with pytest.raises(UsageFault, match="nothing says that test records from Python are public"):
        dprecipe.run(small(*OWN), tmp_path / "run", model=Validated(), test=test)
    with pytest.raises(Fault, match="ValueError while its validation_step was tried"):
        dprecipe.run(small(*OWN), tmp_path / "run", model=Failing())
    assert not (tmp_path / "run").exists()


def test_a_policy_without_python_refuses_it(small: Small, tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text(
        "policy: dprecipe/v1\nname: house\nrules: [{name: plain, models: [logistic_regression]}]\n", "utf-8"
    )
    with pytest.raises(PlanRefused, match="python"):
        dprecipe.run(small(*OWN), tmp_path / "run", model=Classifier())


@pytest.mark.slow
def test_a_certificate_that_hides_them_does_not_verify(small: Small, tmp_path: Path) -> None:
    run = dprecipe.run(small(*OWN, "training.steps=3"), tmp_path / "run", model=Classifier())
    file = run.release / "certificate.json"
    statement = json.loads(file.read_bytes())
    assert any("python_loss" in each["id"] for each in statement["predicate"]["assumptions"])
    kept = [each for each in statement["predicate"]["assumptions"] if each["id"] != "python_loss"]
    assert len(kept) == len(statement["predicate"]["assumptions"]) - 1
    statement["predicate"]["assumptions"] = kept
    file.write_text(json.dumps(statement), "utf-8")
    with pytest.raises(Fault):
        dprecipe.verify(run.release)


def test_a_certificate_that_hides_whose_module_it_was_does_not_verify(small: Small, tmp_path: Path) -> None:
    """The origin of the module and all that is assumed of modules from Python, changed together."""
    run = dprecipe.run(small(*OWN, "training.steps=3"), tmp_path / "run", model=Classifier())
    predicate = dprecipe.verify(run.release).statement.predicate
    hidden = {"python_module", "python_behaviour"}
    forged = predicate.model_copy(
        update={
            "provenance": predicate.provenance.model_copy(update={"model": "recipe"}),
            "assumptions": tuple(each for each in predicate.assumptions if each.id not in hidden),
        }
    )
    assert find_contradictions(predicate) == []
    assert any("leaves its loss or its optimiser" in each for each in find_contradictions(forged))
