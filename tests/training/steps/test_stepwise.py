"""A run's model and optimiser are where they belong, whatever its trainer moves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as lightning
import pytest
import torch
from lightning.fabric.utilities.optimizer import _optimizers_to_device
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from dprecipe.data.targets import ClassTarget
from dprecipe.faults import RunFailed
from dprecipe.training.program.evaluate import HeldOut
from dprecipe.training.publish import provenance
from dprecipe.training.run import checkpoint
from dprecipe.training.steps import fit, stepwise, together

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


class Steps:
    """With a model on a device that is not the CPU, and the state of AdamW, whose counters are on the CPU."""

    device = ELSEWHERE

    def __init__(self) -> None:
        self.model = nn.Linear(3, 2, device=ELSEWHERE)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()

    def request_stop(self) -> None: ...

    def devices(self) -> dict[str, str]:
        result = {name: tensor.device.type for name, tensor in self.model.state_dict().items()}
        for state in self.optimizer.state.values():
            result |= {name: value.device.type for name, value in state.items()}
        return result


class Trainer:
    """In the place of Lightning's: its strategies' teardown, as `Strategy.teardown` has it."""

    def __init__(self, **given: Any) -> None:
        assert type(given["strategy"]) is SingleDeviceStrategy  # and none that makes buckets of gradients
        assert given["strategy"].root_device == ELSEWHERE

    def fit(self, module: Any, _: Any) -> None:
        optimizer = module.steps.optimizer
        for state in optimizer.state.values():  # of a device without memory nothing can be moved
            state.update({name: torch.zeros(value.shape) for name, value in state.items()})
        _optimizers_to_device([optimizer], CPU)
        module.to(CPU)
        assert {*module.steps.devices().values()} == {"cpu", "meta"}  # the model is hidden from it


@pytest.mark.parametrize("ends", [None, SystemExit, RuntimeError])
def test_after_training_all_is_on_the_device(ends: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightning, "Trainer", Trainer)
    fit = Trainer.fit

    def cut_short(*given: Any) -> None:
        fit(*given)
        if ends is not None:
            raise ends("it ends")

    monkeypatch.setattr(Trainer, "fit", cut_short)
    steps = Steps()
    before = steps.devices()
    assert before == {
        "weight": "meta",
        "bias": "meta",
        "step": "cpu",
        "exp_avg": "meta",
        "exp_avg_sq": "meta",
    }
    if ends is None:
        stepwise.fit_steps(cast(Any, steps), lightning.Callback(), 1)
    else:
        with pytest.raises(KeyboardInterrupt if ends is SystemExit else ends):
            stepwise.fit_steps(cast(Any, steps), lightning.Callback(), 1)
    assert steps.devices() == before


def test_held_out_records_are_scored_in_full_precision() -> None:
    """The final score is taken after training, where nothing else sees to it."""

    class Records:
        unit_count, units = 4, None

        def __len__(self) -> int:
            return 4

        def batch(self, indices: slice) -> Any:
            return torch.zeros(4, 3)[indices].numpy(), torch.zeros(4, dtype=torch.int64)[indices].numpy()

    message = []

    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            message.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
            return super().forward(x)

    torch.set_float32_matmul_precision("high")
    try:
        model = Model(3, 2)
        HeldOut(model, Records(), CPU, 2, ClassTarget(2)).score(model.state_dict())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert message == [("highest", False)] * 2


def test_a_checkpoint_is_read_to_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read to a GPU, AdamW's counters of steps would stay there, and be fetched in every step, one by one."""
    checkpoint.save(tmp_path / "checkpoint.pt", {"a": torch.ones(2)})
    asked = []
    real = torch.load
    monkeypatch.setattr(torch, "load", lambda *given, **named: asked.append(named) or real(*given, **named))
    state = checkpoint.load(tmp_path / "checkpoint.pt")
    assert state is not None
    assert state["a"].tolist() == [1, 1]
    assert asked == [{"map_location": "cpu", "weights_only": True}]


def test_a_step_ends_when_the_device_has_done_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps only ask for what is to be done: their times would be those of asking."""
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    stopwatch, trainer = stepwise.Stopwatch(), lightning.Trainer.__new__(lightning.Trainer)
    for device in ("cuda:1", "cpu"):
        stopwatch.on_train_batch_end(trainer, SimpleNamespace(steps=SimpleNamespace(device=torch.device(device))))
    assert waited == [torch.device("cuda", 1)]
    assert stopwatch.seconds_per_step >= 0


def test_a_stopwatch_tells_the_usual_step_and_ends_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter([0.0, 0.9, 1.1, 1.3, 1.5, 9.5, 9.7])  # the first step warms up, and the machine was busy in one
    monkeypatch.setattr(fit.time, "monotonic", lambda: next(ends))
    stopwatch, trainer = fit.Stopwatch(), lightning.Trainer.__new__(lightning.Trainer)
    stops: list[int] = []
    steps = SimpleNamespace(device=torch.device("cpu"), request_stop=lambda: stops.append(1))
    module = SimpleNamespace(steps=steps)
    for step in range(1, 8):
        stopwatch.on_train_batch_end(trainer, module)
        assert len(stops) == max(0, step - 4)
    assert stopwatch.seconds_per_step == pytest.approx(0.2)


def test_processes_agree_on_who_adds_noise_which_is_outside_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that divides sums and one that does not would send each other parts of different things."""
    checked = dict[str, Any]()
    processes = SimpleNamespace(rank=0, count=2, check_same=checked.__setitem__)
    monkeypatch.setattr(together, "join_processes", lambda device: processes)
    monkeypatch.setattr(provenance, "private_of", lambda records: [b"records"])
    plan: Any = SimpleNamespace(
        digest="sha256:ab", runtime=SimpleNamespace(sharding="optimizer", physical_batch="auto")
    )
    program: Any = SimpleNamespace(device=CPU, model=nn.Linear(2, 1), sets=SimpleNamespace(train=None))
    together.processes_of(plan, program)
    assert checked["runtime.sharding"] == "optimizer"
    assert checked["runtime.physical_batch"] == "auto"
    assert {"version of dprecipe", "set of records", "model", "plan"} <= checked.keys()


def test_parameters_that_can_not_be_divided_are_refused_before_a_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the attempt, whose account has reserved and whose paid steps have been taken."""
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, dtype=torch.float64))
    monkeypatch.setattr(stepwise, "program_of", lambda *rest: SimpleNamespace(model=mixed))
    monkeypatch.setattr(stepwise, "is_worker", lambda: True)
    plan: Any = SimpleNamespace(runtime=SimpleNamespace(sharding="optimizer"))
    inputs: Any = SimpleNamespace(model=mixed, train=None)
    with pytest.raises(RunFailed, match="several types of numbers"):
        stepwise.StepwiseRunner(build=None, tests=None).prepare(plan, Path(), inputs)  # type: ignore[arg-type]
