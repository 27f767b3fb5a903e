"""The iterate that is released is the best of those scored on public records, whatever interrupts the run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.faults import Interrupted
from dprecipe.language.training import Keep
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from dprecipe.release.verify import verify
from dprecipe.training.program.evaluate import Score
from dprecipe.training.run import checkpoint
from dprecipe.training.steps.keep import BestIterate
from dprecipe.training.steps.noisy_steps import NoisySteps

By = Literal["accuracy", "loss", "mean_absolute_error"]


def best(by: By = "accuracy") -> BestIterate:
    return BestIterate(Keep(by=by))


def score(accuracy: float | None, loss: float = 1.0, error: float | None = None) -> Score:
    return Score(accuracy, loss, 10, error)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def test_the_best_is_kept_and_of_equal_ones_the_first() -> None:
    kept = best()
    assert kept.facts is None
    for step, accuracy in enumerate((0.3, 0.7, 0.5, 0.7, 0.6), 1):
        kept.take(step, score(accuracy), weights(step))
    assert kept.weights == weights(2)
    assert (kept.facts.step, kept.facts.looked_at) == (2, 5) if kept.facts else False


@pytest.mark.parametrize("by", ["loss", "mean_absolute_error"])
def test_of_an_error_the_smallest_is_the_best(by: By) -> None:
    kept = best(by)
    for step, value in enumerate((3.0, 1.0, 2.0), 1):
        kept.take(step, score(None, value, value), weights(step))
    assert kept.weights == weights(2)


def test_an_iterate_that_diverged_is_not_kept() -> None:
    kept = best()
    for loss in (math.nan, math.inf):
        kept.take(1, score(0.9, loss), weights(1))
    kept.take(2, score(None), weights(1))
    assert kept.weights is None
    assert kept.facts is None
    kept.take(3, score(0.1), weights(3))
    assert kept.facts is not None
    assert kept.facts.looked_at == 1


def test_what_is_kept_does_not_move_with_the_weights() -> None:
    kept, moving = best(), weights(1)
    kept.take(1, score(0.5), moving)
    moving["w"].zero_()
    assert kept.weights == weights(1)


def test_a_later_attempt_goes_on_with_it() -> None:
    first, second, empty = best(), best(), best()
    first.take(4, score(0.5), weights(4))
    second.restore(first.state())
    second.take(5, score(0.4), weights(5))
    assert second.weights == weights(4)
    assert (second.facts.step, second.facts.looked_at) == (4, 2) if second.facts else False
    empty.restore(best().state())
    assert empty.facts is None
    for damaged in ({}, {**first.state(), "step": "x"}):
        with pytest.raises((KeyError, ValueError)):
            best().restore(damaged)


RECIPE = """\
recipe: dprecipe/v1
name: kept
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: auto, delta: 1e-5}
training:
  steps: 60
  optimizer: {kind: sgd, lr: 1.0}
  keep: {by: accuracy, on: public}
runtime: {device: cpu, compile: false, checkpoint_seconds: 0.001}
release: {report: true}
"""
SPOILT, STOPPED = 46, 45


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Turns all weights round after `SPOILT` steps, so that the last iterate is far from the best; where the list has
    a step, a run is stopped there, once."""
    taken, stops = NoisySteps.take_step, list[int]()

    def take_step(self: NoisySteps) -> bool:
        if self.steps_done == SPOILT:
            with torch.no_grad():
                for tensor in (*self.model.parameters(), *self.state()["vectors"].values()):
                    tensor.mul_(-1)
        if self.steps_done in stops:
            stops.clear()
            self.request_stop()
        return taken(self)

    monkeypatch.setattr(NoisySteps, "take_step", take_step)
    return stops


def planned(*overrides: str) -> Plan:
    return plan(read_text(RECIPE, "kept.yaml", overrides))


def of_release(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The evaluation that a certificate states, the history, and the weights."""
    stated = json.loads((folder / "certificate.json").read_text("utf-8"))["predicate"]["data_access"]["evaluation"]
    history = json.loads((folder / "metrics.json").read_text("utf-8"))["history"]
    return stated, history, load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.usefixtures("spoilt")
@pytest.mark.parametrize("average", ["null", "{kind: ema, decay: 0.5}"])
def test_the_best_iterate_is_released_and_certified(tmp_path: Path, average: str) -> None:
    result = planned(f"training.average={average}")
    done = run(result, tmp_path / "run")
    verify(done.release)
    stated, history, released = of_release(done.release)
    first = max(history, key=lambda point: (point["accuracy"], -point["step"]))
    assert stated["kept"] == {"by": "accuracy", "step": first["step"], "looked_at": len(history)}
    assert stated["released"]["accuracy"] == pytest.approx(first["accuracy"], abs=1e-5)
    assert first["accuracy"] > history[-1]["accuracy"] + 0.01
    state = checkpoint.load(done.folder / "private" / "checkpoints" / "last.pt")
    assert state is not None
    assert state["steps_done"] == 60, "the steps after it are taken, and charged"
    last = state["vectors"].get("average", torch.cat([state["model"][name].flatten() for name in state["model"]]))
    assert not torch.equal(torch.cat([released[name].flatten() for name in state["model"]]), last)
    card = (done.release / "card.md").read_text("utf-8")
    assert f"The model is that after step {first['step']}, the best by accuracy of {len(history)} iterates" in card
    assert f"after step {first['step']}, the best" in (done.release / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_resumed_run_still_has_the_best_iterate(tmp_path: Path, spoilt: list[int]) -> None:
    spoilt.append(STOPPED)
    result = planned()
    with pytest.raises(Interrupted):
        run(result, tmp_path / "run")
    state = checkpoint.load(tmp_path / "run" / "private" / "checkpoints" / "last.pt")
    assert state is not None
    before = state["best"]
    assert before["looked_at"] >= 2
    done = run(result, tmp_path / "run", resume=True)
    stated, history, _ = of_release(done.release)
    first = max(history, key=lambda point: (point["accuracy"], -point["step"]))
    assert stated["kept"] == {"by": "accuracy", "step": first["step"], "looked_at": len(history)}
    assert stated["kept"]["step"] == before["step"] <= STOPPED


def test_without_it_the_last_iterate_is_released(tmp_path: Path) -> None:
    done = run(planned("training.keep=null", "training.optimizer.lr=1.0"), tmp_path / "run")
    stated, history, _ = of_release(done.release)
    assert "kept" not in stated
    assert stated["released"]["accuracy"] == pytest.approx(history[-1]["accuracy"], abs=1e-5)
    assert "best" not in (checkpoint.load(done.folder / "private" / "checkpoints" / "last.pt") or {})
