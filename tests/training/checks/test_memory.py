"""A step that has no room is told before anything is spent, with the number that has."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from dprecipe.api import run
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed
from dprecipe.models.form import Form
from dprecipe.training.checks.memory import check_step, run_synthetic_step
from dprecipe.training.checks.memory_meter import fits
from dprecipe.training.engine import compiled
from dprecipe.training.program.program import Sets, StepwiseProgram, Synthetic, build_started_model
from dprecipe.training.program.records import StoredBatch
from dprecipe.training.steps import clipped_sums as train
from dprecipe.training.steps import stepwise
from dprecipe.training.steps.noisy_steps import NoisySteps
from tests.modules import DigitsNet


def program_of(model: nn.Module, records: Any, form: Form) -> StepwiseProgram:
    """The parts of a program that a synthetic step asks for."""
    parts = {"model": model, "sets": Sets(records), "form": form, "device": CPU, "custom_model": False}
    return cast(StepwiseProgram, SimpleNamespace(**parts))


CPU = torch.device("cpu")
Small = Callable[..., Plan]


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Give the device room for so many records of a part; what was tried."""

    def of(most: int) -> list[int]:
        tried: list[int] = []
        real = train.clipped_sum

        def limited(model: Any, loss: Any, batch: Any, clipping: Any, records: int, *more: Any) -> Any:
            if isinstance(batch, StoredBatch):  # and not the probe's
                tried.append(records)
            if records > most and isinstance(batch, StoredBatch):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            return real(model, loss, batch, clipping, records, *more)

        monkeypatch.setattr(train, "clipped_sum", limited)
        monkeypatch.setattr(
            stepwise,
            "check_memory",
            lambda plan, build, program: check_step(
                plan.runtime.physical_batch, lambda most: run_synthetic_step(plan, build, program, most), program.device
            ),
        )
        return tried

    return of


def test_the_number_that_fits_is_named_and_nothing_is_charged(
    small: Small, tmp_path: Path, holds: Callable[[int], list[int]]
) -> None:
    tried = holds(100)
    with pytest.raises(RunFailed, match="does not fit") as failed:
        run(small("runtime.physical_batch=512"), tmp_path / "run")
    assert "set runtime.physical_batch to 64, which fits" in str(failed.value.remedy)
    assert tried == [512, 256, 128, 64]
    assert not (tmp_path / "run").exists()  # no ledger either
    finished = run(small("runtime.physical_batch=64"), tmp_path / "run")
    assert finished.stop_reason == "completed"


def test_a_model_of_which_no_record_fits(small: Small, tmp_path: Path, holds: Callable[[int], list[int]]) -> None:
    tried = holds(0)
    with pytest.raises(RunFailed, match="does not fit") as failed:
        run(small("runtime.physical_batch=4"), tmp_path / "run")
    assert tried == [4, 2, 1]
    assert "smaller model" in str(failed.value.remedy)


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("mechanism.clip={norm: 1.0, mode: adaptive}",),
        ("training.optimizer={kind: adam, lr: 0.1}", "training.average={kind: ema, decay: 0.9}"),
    ],
)
def test_a_step_that_is_tried_leaves_nothing(small: Small, more: tuple[str, ...]) -> None:
    """Neither weights nor buffers nor generators move; the run's records are not asked for."""
    result = small(*more)
    model, _ = build_started_model(result, describe_data(result.data))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state, drawn = torch.random.get_rng_state(), np.random.get_state()[1].tolist()
    run_synthetic_step(result, train.build, program_of(model, Synthetic(result), Form.of((1, 8, 8))), 64)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == drawn


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "scheme", "kept"),
    [
        ("{form: banded, bands: 4, power: 0.8, multiplier: auto}", "cyclic_poisson", 3),
        ("{form: previous_step, multiplier: auto}", "fixed_order", 0),
    ],
)
def test_a_step_that_is_tried_has_the_noise_that_later_steps_keep(
    small: Small, monkeypatch: pytest.MonkeyPatch, noise: str, scheme: str, kept: int
) -> None:
    """A run would spend on its first steps, and find no memory in a later one: again and again."""
    result = small(
        f"mechanism={{kind: correlated, clip: {{norm: 1.0}}, noise: {noise}, "
        f"sampling: {{scheme: {scheme}, batch_size: 64}}}}",
        "training.steps=null",
        "training.epochs=2",
    )
    model, _ = build_started_model(result, describe_data(result.data))
    size = sum(parameter.numel() for parameter in model.parameters())
    there: list[int] = []

    def count(*given: Any) -> None:
        known = (each for each in gc.get_objects() if isinstance(each, Tensor))
        there.append(sum(each.dtype == torch.float64 and each.numel() == size for each in known))

    monkeypatch.setattr(NoisySteps, "try_out", count)
    count()
    run_synthetic_step(result, train.build, program_of(model, Synthetic(result), Form.of((1, 8, 8))), 64)
    before, within = there
    assert within - before == kept


def test_other_errors_are_not_taken_for_it() -> None:
    def wrong(records: int) -> None:
        raise RuntimeError("shapes don't match")

    with pytest.raises(RuntimeError, match="shapes"):
        fits(lambda: wrong(3))

    def library(records: int) -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    assert not fits(lambda: library(3))


def test_memory_that_runs_out_in_a_step_is_a_fault(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The charge stands, and the run can be continued."""
    real = train.clipped_sum
    calls: list[int] = []

    def full(*given: Any) -> Any:
        if isinstance(given[2], StoredBatch):
            calls.append(1)
            if len(calls) == 5:
                raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(*given)

    monkeypatch.setattr(train, "clipped_sum", full)
    with pytest.raises(RunFailed, match="ran out in a step"):
        run(small(), tmp_path / "run")
    assert run(small(), tmp_path / "run", resume=True).stop_reason in ("completed", "budget")


@pytest.mark.slow
def test_memory_that_runs_out_after_the_last_step_is_a_fault_and_the_run_goes_on(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of scores, say. What was trained is in the checkpoint, and is released by the next attempt."""

    def full(*given: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.49 GiB.")

    with monkeypatch.context() as patch:
        patch.setattr(stepwise, "check_learned", full)
        with pytest.raises(RunFailed, match="ran out in the run: CUDA out of memory") as failed:
            run(small(), tmp_path / "run")
    assert "runtime.physical_batch" in str(failed.value.remedy)
    assert not (tmp_path / "run" / "release").exists()
    assert run(small(), tmp_path / "run", resume=True).stop_reason in ("completed", "budget")


@pytest.mark.parametrize("where", ["whole_on", "examine_module", "noise_scale"])
def test_memory_that_runs_out_before_the_first_step_is_a_fault(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A model that does not fit, the probe, or the noise that is measured; nothing is written."""

    def full(*given: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.49 GiB. GPU 0 has a capacity of 1 GiB")

    monkeypatch.setattr(f"dprecipe.training.program.program.{where}", full)
    with pytest.raises(RunFailed, match=r"ran out before the first step, and nothing was spent: CUDA out of memory"):
        run(small(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_step_is_tried_on_records_of_the_run_s_own_type(small: Small) -> None:
    """Tokens are whole numbers: a module that looks them up takes no others."""

    class Tokens:
        unit_count, units = 1438, None

        def __len__(self) -> int:
            return 1438

        def batch(self, indices: Any) -> Any:
            assert len(np.arange(1438)[indices]) == 1  # for its shape and type
            return np.full((1, 7), 3), np.zeros(1, np.int64)

    seen = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.head = nn.Embedding(5, 4), nn.Linear(4, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((x.dtype, bool(x.any())))
            logits: torch.Tensor = self.head(self.tokens(x).mean(1))
            return logits

    run_synthetic_step(small(), train.build, program_of(Model(), Tokens(), Form((7,), (5,))), 64)
    assert set(seen) == {(torch.int64, True)}  # and none is padding alone, which some layers refuse


class Dropping(DigitsNet):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.1)


class Reading(DigitsNet):
    """Reads a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.full((10,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Unplanned(DigitsNet):
    """Uses a weight outside of its layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.linear.bias


class Singles(DigitsNet):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if float(x.detach().max()) < 1e9 else self.linear(x.flatten(1))


class Single(DigitsNet):
    """Takes single precision alone."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = super().forward(x)
        if result.dtype is not torch.float32:
            raise TypeError("single precision, please")
        return result


def failing(graph: GraphModule, inputs: list[Tensor]) -> Any:
    raise OSError("no space left")


def wrong(graph: GraphModule, inputs: list[Tensor]) -> Any:
    return lambda *given: [2 * answer for answer in graph(*given)]


def as_it_is(graph: GraphModule, inputs: list[Tensor]) -> Any:
    return graph


RECORDS = Records(np.random.default_rng(0).normal(size=(1438, 1, 8, 8)).astype(np.float32), np.arange(1438) % 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "compiler", "why"),
    [
        (Dropping, as_it_is, "random numbers"),
        (Reading, as_it_is, "neither a parameter nor a buffer"),
        (Unplanned, as_it_is, "a trained parameter is used outside its layer"),
        (Singles, as_it_is, ""),
        (DigitsNet, failing, "the compiler failed: OSError: no space left"),
        (DigitsNet, wrong, "differ"),
    ],
    ids=["draws", "reads", "has no plan", "one by one", "compiler fails", "compiler errs"],
)
def test_what_can_not_be_compiled_is_refused_before_there_is_a_folder(
    module: type[nn.Module], compiler: Any, why: str, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "Passes", partial(compiled.Passes, compiler=compiler))
    plan = small("runtime.compile=true")
    with pytest.raises(RunFailed, match=f"the gradient engine can't be compiled: .*{why}") as failed:
        run(plan, tmp_path / "run", model=module(), train=RECORDS)
    assert failed.value.remedy == "set runtime.compile to auto, or to false"
    assert not (tmp_path / "run").exists()
    if compiler is as_it_is:  # the remedy
        assert run(small(), tmp_path / "run", model=module(), train=RECORDS).stop_reason == "completed"


@pytest.mark.parametrize("missing", ["CXX", "triton", "gcc", "Python.h"])
def test_without_a_compiler_it_is_refused_before_there_is_a_folder(
    missing: str, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "CXX":
        monkeypatch.setenv("CXX", "nope")
    else:  # of a GPU: tests/training/engine/test_on_device.py says how each is found
        monkeypatch.setattr(compiled, "find_missing", lambda device: f"there is no {missing}")
    with pytest.raises(RunFailed, match="there is no "):
        run(small("runtime.compile=true"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_what_was_compiled_is_what_the_run_uses(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled a second time, in the first step, it could fail after a charge."""
    calls, folder = [], tmp_path / "run"

    def counted(graph: GraphModule, inputs: list[Tensor]) -> Any:
        calls.append(folder.exists())
        return graph

    monkeypatch.setattr(train, "Passes", partial(compiled.Passes, compiler=counted))
    flips = ("mechanism.augmentations=2", "data.preprocess=[{flip: {probability: 0.5}}]")
    for number, more in enumerate(((), flips, ("runtime.precision=bf16",))):
        run(small("runtime.compile=true", *more), folder, model=DigitsNet(), train=RECORDS)
        assert calls
        assert not any(calls)
        calls.clear()
        folder.rename(tmp_path / f"run-{number}")


def test_a_module_that_can_not_compute_in_half_precision_is_refused_before_there_is_a_folder(
    small: Small, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"raised TypeError while it saw synthetic records.* at test_memory"):
        run(small("runtime.precision=bf16"), tmp_path / "run", model=Single(), train=RECORDS)
    assert not (tmp_path / "run").exists()
