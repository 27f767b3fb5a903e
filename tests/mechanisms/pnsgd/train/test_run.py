"""The runner: what it reads and refuses, what it releases, and that its ledger stands before its noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dprecipe
from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.faults import BudgetSpent, DataFault, RunFailed, UsageFault
from dprecipe.mechanisms.pnsgd.certificate import CHECKS
from dprecipe.mechanisms.pnsgd.train import descent
from dprecipe.mechanisms.pnsgd.train import run as train
from dprecipe.models.load import load
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import read
from dprecipe.training.run.runner import PythonInputs
from dprecipe.training.run.start import rehearse

Planned = Callable[..., Plan]

KINDS = [
    ("mechanism.batch_size=1", "training.epochs=null", "training.steps=60"),
    ("model.bias=false", "mechanism.batch_size=70", "training.epochs=3"),
    ("model={kind: softmax_regression, l2: 0.01}", "mechanism.batch_size=300", "training.epochs=20"),
    (
        "model={kind: huber_svm}",
        "mechanism.constraint={kind: box, bound: 0.5}",
        "mechanism.stop=random",
        "training.epochs=4",
    ),
    ("mechanism.order=sequential", "mechanism.checkpoint=none", "training.epochs=2"),
    (
        "mechanism.learning_rate={schedule: linear, from: 0.5, to: 0.1}",
        "mechanism.noise=[{family: gaussian, multiplier: 4.0, epochs: 1}, {family: gaussian, multiplier: 6.0}]",
    ),
]


def final(plan: Plan, out: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The last iterate of a run, as the engine had it."""
    seen: list[np.ndarray] = []
    honest = train.build_weights

    def watched(plan: Plan, facts: Any, iterate: np.ndarray) -> Any:
        seen.append(iterate)
        return honest(plan, facts, iterate)

    monkeypatch.setattr(train, "build_weights", watched)
    run(plan, out)
    return seen[0]


@pytest.mark.parametrize("overrides", KINDS, ids=str)
def test_a_run_releases_its_last_iterate(
    hidden: Planned, tmp_path: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = hidden(*overrides)
    w = final(plan, tmp_path / "run", monkeypatch)
    objective = train.build_objective(plan)
    assert w.shape == objective.shape
    x = np.random.default_rng(3).normal(size=(20, 5)).astype(np.float32)
    bias = w[..., -1] if plan.mechanism_plan.bias else 0.0
    z = x @ w[..., :5].T + bias
    expected = np.stack([np.zeros(20), z], axis=1) if z.ndim == 1 else z
    module = load(tmp_path / "run" / "release")
    assert np.abs(module(torch.from_numpy(x)).detach().numpy() - expected).max() < 1e-5
    ledger = read(tmp_path / "run" / "private" / "ledger.jsonl")
    assert ledger.charges == ledger.settled == plan.events
    assert ledger.stop_reason == "completed"
    certificate = dprecipe.verify(tmp_path / "run" / "release")
    assert certificate is not None


def test_it_learns_as_far_as_the_noise_lets_it(hidden: Planned, tmp_path: Path) -> None:
    """Two classes apart by 1 along one feature, noise of 0.3: a line at 0 is right 95 times of 100."""
    plan = hidden("mechanism.batch_size=300", "training.epochs=400", "mechanism.noise.multiplier=0.001")
    score = run(plan, tmp_path / "run").score
    assert score is not None
    assert score.accuracy is not None
    assert score.accuracy > 0.9
    metrics = json.loads((tmp_path / "run" / "release" / "metrics.json").read_text("utf-8"))
    assert "0.9" in json.dumps(metrics)


def test_a_torch_run_is_the_same_run(hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = hidden("runtime.insecure={seed: 4}", "mechanism.batch_size=80", "training.epochs=5")
    in_numpy = final(plan, tmp_path / "numpy", monkeypatch)
    monkeypatch.setattr(
        train, "_backend", lambda objective, device: train.DeviceBackend(objective, torch.device("cpu"))
    )
    in_torch = final(plan, tmp_path / "torch", monkeypatch)
    assert np.abs(in_numpy - in_torch).max() < 1e-12
    assert np.abs(in_numpy).max() > 0.01


def test_the_event_is_on_disk_before_the_first_noise(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = hidden(), tmp_path / "run"
    reserved: list[bool] = []
    honest = descent.draw_noise

    def watched(*arguments: Any) -> Any:
        path = out / "private" / "ledger.jsonl"
        reserved.append(path.exists() and read(path).charges == (Charge(plan.events[0].event, 1),))
        return honest(*arguments)

    program = train.prepare(plan, tmp_path, PythonInputs())
    monkeypatch.setattr(train, "prepare", lambda *_: program)  # the probe draws noise, onto nothing
    monkeypatch.setattr(descent, "draw_noise", watched)
    run(plan, out)
    assert reserved
    assert all(reserved)


def test_the_budget_is_asked_before_anything_is_drawn(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier attempt left can be carried on; another event beside it can't, and the budget holds but one."""
    plan, out = hidden(), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(train, "_descend", lambda *_: (_ for _ in ()).throw(RunFailed("the disk is full")))
        with pytest.raises(RunFailed):
            run(plan, out)
    monkeypatch.setattr("dprecipe.training.run.spend_once.is_reserved", lambda *_: False)
    monkeypatch.setattr(train, "_descend", lambda *_: pytest.fail("noise was drawn"))
    with pytest.raises(BudgetSpent, match="can't hold this run"):
        run(plan, out, resume=True)
    ledger = read(out / "private" / "ledger.jsonl")
    assert (ledger.attempts, ledger.charges) == (1, plan.events)


def records(count: int = 300, width: int = 5, units: Any = None) -> Records:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(count, width)).astype(np.float32)
    return Records(features, generator.integers(2, size=count), units)


def test_records_from_python_are_bounded_like_any(
    hidden: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = records()
    wild.features[:10] *= np.float32(1e20)
    assert run(hidden(), tmp_path / "run", train=wild).stop_reason == "completed"
    certificate = json.loads((tmp_path / "run" / "release" / "certificate.json").read_text("utf-8"))
    assert certificate["predicate"]["provenance"]["data"] == "python"


@pytest.mark.parametrize(
    ("given", "fault", "message"),
    [
        ({"model": nn.Linear(5, 2)}, UsageFault, "takes no model from Python"),
        ({"public": records()}, UsageFault, "public"),
        ({"train": records(299)}, DataFault, "the number of records that data.size"),
        ({"train": records(300, 4)}, DataFault, "4 features"),
        ({"train": records(300, 5, np.arange(300))}, DataFault, "units"),
        ({"train": replace(records(), labels=np.full(300, 77))}, DataFault, "a label of `train` is not an integer"),
    ],
)
def test_what_a_run_can_not_be_given(
    hidden: Planned, tmp_path: Path, given: dict[str, Any], fault: type[Exception], message: str
) -> None:
    with pytest.raises(fault, match=message):
        run(hidden(), tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_a_rehearsal_reads_nothing_and_tries_everything(hidden: Planned, tmp_path: Path) -> None:
    plan = hidden("mechanism.batch_size=7")
    (tmp_path / "records.npz").unlink()
    rehearsal = rehearse(plan)
    assert {check.id for check in rehearsal.checks} == CHECKS.keys()
    assert rehearsal.seconds is not None
    assert rehearsal.seconds > 0
    assert "steps on synthetic records" in rehearsal.done


def test_an_accelerator_is_asked_for_where_it_is_worth_it(hidden: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "device_of", lambda name: torch.device("meta"))
    plan = hidden()
    assert train._device(plan, train.build_objective(plan)).type == "cpu"
    monkeypatch.setattr(train, "MIN_GPU_OPERATIONS", 6)
    assert train._device(plan, train.build_objective(plan)).type == "meta"


REGRESSION = """\
recipe: dprecipe/v1
name: regression
data:
  train: {source: npz, path: %(folder)s/numbers.npz, shape: [5], range: [10, 30], records: [0, 300]}
  test: {source: npz, path: %(folder)s/numbers.npz, shape: [5], range: [10, 30], records: [300, 400], access: public}
  size: 300
  preprocess: [{clip_features: {norm: 2.0}}]
model: %(model)s
mechanism:
  kind: pnsgd
  constraint: {kind: box, bound: 1.0}
  learning_rate: 0.1
  noise: {family: %(family)s, multiplier: 0.004}
  batch_size: 300
budget: {epsilon: auto, delta: 1e-5, neighbouring: replace_one}
training: {epochs: %(epochs)d}
release: {report: false}
"""


@pytest.mark.parametrize(
    ("model", "family", "epochs", "error"),
    [
        ("{kind: least_squares}", "gaussian", 300, 1.2),
        ("{kind: huber_regression, threshold: 0.2}", "gaussian", 300, 1.2),
        ("{kind: location}", "laplace", 50, 4.0),
    ],
)
def test_regressions_are_released_in_the_units_of_their_target(
    tmp_path: Path, model: str, family: str, epochs: int, error: float
) -> None:
    from dprecipe.planning.make import plan as make_plan
    from dprecipe.recipe.read import read_text

    generator = np.random.default_rng(2)
    features = (generator.normal(size=(400, 5)) * 0.3).astype(np.float32)
    targets = 20 + 10 * (features @ np.array([0.5, -0.3, 0.2, 0.0, 0.1]) + 0.1)
    np.savez(tmp_path / "numbers.npz", features=features, labels=targets.astype(np.float32))
    text = REGRESSION % {"folder": tmp_path, "model": model, "family": family, "epochs": epochs}
    done = run(make_plan(read_text(text, str(tmp_path / "r.yaml"))), tmp_path / "run")
    assert done.score is not None
    assert done.score.mean_absolute_error is not None
    assert done.score.mean_absolute_error < error
    weights = load_file(tmp_path / "run" / "release" / "model.safetensors")
    if "location" in weights:
        assert 10 * float(weights["location"]) + 20 == pytest.approx(21.0, abs=0.5)
    dprecipe.verify(done.release)
