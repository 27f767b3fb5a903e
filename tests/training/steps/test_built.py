"""Somebody's own trainer takes the steps of a recipe; whatever its callbacks do, the ledger and the claim hold."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, StochasticWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.profilers import SimpleProfiler
from safetensors.torch import load_file
from torch import Tensor, nn

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.faults import Interrupted, RunFailed, UsageFault
from dprecipe.policy.find import POLICY_FILE
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import lock_ledger
from dprecipe.training.run import gate
from dprecipe.training.steps import built as built_module
from dprecipe.training.steps.built import Built

Small = Callable[..., Plan]
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "max_epochs": 1,
}
FIXED = "runtime.insecure={seed: 3}"


def train(
    built: Built, *callbacks: lightning.Callback, callbacks_first: bool = False, **given: Any
) -> lightning.Trainer:
    """`callbacks_first`: they are handed over before those of the run."""
    both = [*callbacks, *built.callbacks] if callbacks_first else [*built.callbacks, *callbacks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about its libraries and its settings
        trainer = lightning.Trainer(**{**QUIET, **given}, callbacks=both)
        trainer.fit(built.module, built.data)
    return trainer


def weights(folder: Path) -> dict[str, Tensor]:
    (file,) = folder.rglob("model.safetensors")
    return load_file(file)


def charged(folder: Path) -> int:
    with lock_ledger(folder / "private" / "ledger.jsonl") as ledger:
        return count_events(ledger.charges)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each draw of noise on a sum of records: those of the probe are left out."""
    draws: list[int] = []
    add_noise, prepare = gate.add_noise, built_module.prepare

    def prepared(*given: Any) -> Any:
        before, result = len(draws), prepare(*given)
        del draws[before:]
        return result

    monkeypatch.setattr(gate, "add_noise", lambda *given: (draws.append(1), add_noise(*given))[1])
    monkeypatch.setattr(built_module, "prepare", prepared)
    return draws


class Counting(lightning.Callback):
    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.seen.append(trainer.global_step)


@pytest.mark.slow
def test_a_trainer_of_ones_own_trains_certifies_and_verifies(small: Small, tmp_path: Path) -> None:
    plan, counting = small("data.test.access=public"), Counting()
    built = dprecipe.build(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    kept = ModelCheckpoint(tmp_path / "kept", monitor="accuracy", mode="max", every_n_train_steps=1)
    logger = CSVLogger(tmp_path / "logs")
    train(
        built,
        kept,
        LearningRateMonitor(),
        counting,
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=True,
        enable_model_summary=True,
        profiler=SimpleProfiler(tmp_path, "profile"),
    )
    run = built.release()
    steps = plan.length.steps
    assert run.stop_reason == "completed"
    assert counting.seen == [*range(1, steps + 1), steps]  # the last call is refused
    verified = dprecipe.verify(run.release)
    provenance = verified.statement.predicate.provenance
    assert (provenance.trainer, provenance.model) == ("python", "recipe")
    assert any("a trainer from Python" in a.text for a in verified.statement.predicate.assumptions)
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").read_text("utf-8").splitlines()))
    assert {"epsilon", "learning_rate", "accuracy", "lr-SGD"} <= set(rows[0])
    spent = [float(row["epsilon"]) for row in rows if row["epsilon"]]
    assert spent == sorted(spent)
    assert spent[-1] <= plan.budget.epsilon
    state = torch.load(kept.best_model_path, weights_only=False)["state_dict"]
    assert {name.removeprefix("model.") for name in state} == set(weights(run.release))


@pytest.mark.slow
def test_the_weights_are_those_of_a_run_by_command(small: Small, tmp_path: Path) -> None:
    plan = small(FIXED)
    dprecipe.run(plan, tmp_path / "run")
    built = dprecipe.build(plan, tmp_path / "built")
    train(built)
    assert not built.release().verified
    mine, theirs = weights(tmp_path / "run"), weights(tmp_path / "built")
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.slow
def test_what_a_trainer_stops_goes_on_by_command(small: Small, tmp_path: Path) -> None:
    plan = small()

    class Stops(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            trainer.should_stop = module.steps.steps_done == 2

    built = dprecipe.build(plan, tmp_path / "run")
    train(built, Stops())
    with pytest.raises(Interrupted, match="stopped after 2 of"):
        built.release()
    assert charged(tmp_path / "run") == 2
    run = dprecipe.run(plan, tmp_path / "run", resume=True)
    predicate = dprecipe.verify(run.release).statement.predicate
    assert predicate.provenance.trainer == "python"  # of any attempt
    assert charged(tmp_path / "run") == plan.length.steps
    assert predicate.budget.attempts == 2


@pytest.mark.slow
def test_a_stop_within_a_dealt_epoch_charges_it_and_ends_in_a_release_of_the_steps_planned(
    small: Small, tmp_path: Path
) -> None:
    plan = small(
        "mechanism.sampling={scheme: dealt, batch_size: 400}", "mechanism.noise.multiplier=9.0", "training.steps=8"
    )

    class Stops(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            trainer.should_stop = module.steps.steps_done == 2

    built = dprecipe.build(plan, tmp_path / "run")
    train(built, Stops())
    with pytest.raises(Interrupted, match="stopped after 2 of 8"):
        built.release()
    assert charged(tmp_path / "run") == 1
    run = dprecipe.run(plan, tmp_path / "run", resume=True)
    sampling = dprecipe.verify(run.release).statement.predicate.sampling
    assert sampling is not None
    assert (sampling.steps_planned, sampling.steps_trained) == (8, 8)
    assert sampling.steps_charged == 12


@pytest.mark.slow
def test_a_run_by_command_goes_on_under_a_trainer(small: Small, tmp_path: Path) -> None:
    plan = small()
    first = dprecipe.build(plan, tmp_path / "run")
    train(first, Each(lambda trainer, module: module.steps.steps_done == 1 and first.request_stop()))
    second = dprecipe.build(plan, tmp_path / "run", resume=True)
    train(second)
    assert second.release().stop_reason == "completed"
    assert charged(tmp_path / "run") == plan.length.steps


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"accumulate_grad_batches": 2}, "runtime.physical_batch"),
    ({"gradient_clip_val": 1.0}, "mechanism.clip"),
    ({"limit_train_batches": 3}, "training.epochs"),
    ({"overfit_batches": 1}, "training.epochs"),
    ({"max_steps": 3}, "training.epochs"),
    ({"min_steps": 300}, "training.epochs"),
    ({"fast_dev_run": True}, "--rehearse"),
    ({"precision": "bf16-mixed"}, "runtime.precision"),
    ({"precision": "64-true"}, "runtime.precision"),
    ({"strategy": "ddp", "accelerator": "cpu", "devices": 1}, "runtime.processes"),
]


def test_a_trainer_that_does_more_than_count_is_refused(small: Small, tmp_path: Path) -> None:
    built = dprecipe.build(small(), tmp_path / "run")
    for given, words in REFUSED:
        with pytest.raises(UsageFault) as refused:
            train(built, **given)
        assert words in refused.value.remedy, given
    assert not (tmp_path / "run").exists()
    train(built)  # the remedy of each
    assert built.release().stop_reason == "completed"


@pytest.mark.slow
def test_other_uses_are_refused_before_anything_is_spent(small: Small, tmp_path: Path) -> None:
    built = dprecipe.build(small(), tmp_path / "run")
    plain = lightning.Trainer(**QUIET)
    with pytest.raises(UsageFault, match="lacks the callbacks"):
        plain.fit(built.module, built.data)
    trainer = lightning.Trainer(**QUIET, callbacks=built.callbacks)
    with pytest.raises(UsageFault, match="other data"):
        trainer.fit(built.module, built.data.train_dataloader())
    torch.save({"pytorch-lightning_version": "2.0.0", "state_dict": {}}, tmp_path / "some.ckpt")
    with pytest.raises(UsageFault, match="ckpt_path"):
        trainer.fit(built.module, built.data, ckpt_path=tmp_path / "some.ckpt")
    with pytest.raises(UsageFault, match=r"another module than built\.module"):
        trainer.fit(torch.compile(built.module, backend="eager"), built.data)
    vars(built.module)["_compiler_ctx"] = None  # as Lightning has it without a compiler
    with pytest.raises(UsageFault, match=r"training\.average"):
        train(built, StochasticWeightAveraging(0.1))
    with pytest.raises(UsageFault, match="nothing was trained"):
        built.release()
    assert not (tmp_path / "run").exists()


def test_recipes_without_steps_to_count_are_refused(small: Small, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="several processes"):
        dprecipe.build(small("runtime.processes=2"), tmp_path / "run")
    pnsgd = dprecipe.plan(dprecipe.load(Path(__file__).parents[3] / "recipes" / "adult-pnsgd.yaml"))
    with pytest.raises(UsageFault, match="takes no steps"):
        dprecipe.build(pnsgd, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Planted: what a callback can do. Each leads to a run as planned, or to one without a release; and never is a draw of
# noise missing in the ledger.


class Each(lightning.Callback):
    """Does something after each step."""

    def __init__(self, act: Callable[[Any, Any], object]) -> None:
        self._act = act

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self._act(trainer, module)


def _fail(trainer: Any, module: Any) -> None:
    raise ZeroDivisionError("a callback")


def _freeze(trainer: Any, module: Any) -> None:
    next(module.steps.model.parameters()).requires_grad_(False)


def _add_weight(trainer: Any, module: Any) -> None:
    module.steps.model.register_parameter("more", nn.Parameter(torch.zeros(2)))


def _replace_weight(trainer: Any, module: Any) -> None:
    layer = next(layer for layer in module.steps.model.modules() if hasattr(layer, "weight"))
    layer.weight = nn.Parameter(layer.weight.detach().clone())


def _load(trainer: Any, module: Any) -> None:
    model = module.steps.model
    model.load_state_dict({name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()})


def _write_data(trainer: Any, module: Any) -> None:
    next(module.steps.model.parameters()).data.view(-1)[0] = 7.0


def _learn(trainer: Any, module: Any) -> None:
    module.optimizers().step()


def _mix_records(trainer: Any, module: Any) -> None:
    module.steps.model.register_forward_hook(lambda layer, given, out: out + out.mean(0, keepdim=True))


def _move_average(trainer: Any, module: Any) -> None:
    module.steps.average.value.fill_(9.0)


def _move_momentum(trainer: Any, module: Any) -> None:
    for state in module.steps.optimizer.state.values():
        state["momentum_buffer"].fill_(50.0)


def _change_settings(trainer: Any, module: Any) -> None:
    module.steps.optimizer.param_groups[0].update(momentum=0.99, maximize=True)


def _hook_optimizer(trainer: Any, module: Any) -> None:
    module.steps.optimizer.register_step_post_hook(lambda *_: _write_data(trainer, module))


def _halve(trainer: Any, module: Any) -> None:
    module.steps.model.half()


def _regroup(trainer: Any, module: Any) -> None:
    module.steps.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


SLOW = [
    pytest.param(act, marks=pytest.mark.slow)
    for act in (_add_weight, _replace_weight, _load, _learn, _regroup, _change_settings, _hook_optimizer, _halve)
]


@pytest.mark.parametrize("act", [_freeze, _write_data, _mix_records, _move_average, _move_momentum, *SLOW])
def test_a_callback_that_moves_the_model_ends_the_attempt(
    small: Small, tmp_path: Path, drawn: list[int], act: Callable[[Any, Any], None]
) -> None:
    momentum, average = "training.optimizer.momentum=0.5", "training.average={kind: ema, decay: 0.5}"
    plan = small(momentum, average, "training.steps=6")
    built = dprecipe.build(plan, tmp_path / "run")
    with pytest.raises(RunFailed, match="other than a noisy step changed the run"):
        train(built, Each(act), callbacks_first=True)
    assert not (tmp_path / "run" / "release").exists()
    assert charged(tmp_path / "run") == len(drawn) == 1
    with pytest.raises(RunFailed, match="other than a noisy step"):
        built.release()
    again = dprecipe.build(plan, tmp_path / "run", resume=True)  # the remedy
    train(again)
    assert dprecipe.verify(again.release().release)
    assert charged(tmp_path / "run") == len(drawn) == plan.length.steps


@pytest.mark.slow
def test_a_weight_that_moves_after_the_last_step_is_not_released(small: Small, tmp_path: Path) -> None:
    plan = small()

    class AtEnd(lightning.Callback):
        def on_train_end(self, trainer: Any, module: Any) -> None:
            _load(trainer, module)

    built = dprecipe.build(plan, tmp_path / "run")
    with pytest.raises(RunFailed, match="other than a noisy step"):
        train(built, AtEnd())
    assert not (tmp_path / "run" / "release").exists()
    run = dprecipe.run(plan, tmp_path / "run", resume=True)
    assert all(not bool((value == 0.5).all()) for value in weights(run.release).values())
    assert charged(tmp_path / "run") == plan.length.steps


@pytest.mark.slow
def test_a_callback_that_raises_loses_no_record_of_what_was_drawn(
    small: Small, tmp_path: Path, drawn: list[int]
) -> None:
    built = dprecipe.build(small(), tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(built, Each(_fail))
    assert len(drawn) == 1 <= charged(tmp_path / "run")
    with pytest.raises(RunFailed, match="ended with ZeroDivisionError"):
        built.release()
    with pytest.raises(UsageFault, match="trained already"):
        train(built)


def test_steps_that_a_callback_takes_are_steps_of_the_plan(small: Small, tmp_path: Path, drawn: list[int]) -> None:
    plan = small()
    built = dprecipe.build(plan, tmp_path / "run")

    def step(trainer: Any, module: Any) -> None:
        module.steps.take_step()
        module.guard.keep()

    train(built, Each(step))
    assert dprecipe.verify(built.release().release)
    assert len(drawn) == charged(tmp_path / "run") == plan.length.steps


@pytest.mark.slow
def test_another_loader_changes_nothing(small: Small, tmp_path: Path, drawn: list[int]) -> None:
    plan = small()

    class Swaps(lightning.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            records = torch.utils.data.TensorDataset(torch.from_numpy(np.ones((500, 3), dtype=np.float32)))
            trainer.fit_loop._combined_loader.flattened = [torch.utils.data.DataLoader(records)]
            trainer.fit_loop._data_fetcher.setup(trainer.fit_loop._combined_loader)

    built = dprecipe.build(plan, tmp_path / "swaps")
    train(built, Swaps())
    assert dprecipe.verify(built.release().release)
    assert len(drawn) == charged(tmp_path / "swaps") == plan.length.steps


def test_a_run_is_trained_once(small: Small, tmp_path: Path, drawn: list[int]) -> None:
    plan = small()
    built = dprecipe.build(plan, tmp_path / "run")
    trainer = train(built)
    run = built.release()
    with pytest.raises(UsageFault, match="trained already"):
        trainer.fit(built.module, built.data)
    assert len(drawn) == plan.length.steps
    assert built.release() is run
    with pytest.raises(UsageFault, match="complete"):
        dprecipe.build(plan, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_a_used_ticket_and_a_forged_one_draw_nothing(small: Small, tmp_path: Path, drawn: list[int]) -> None:
    built = dprecipe.build(small(), tmp_path / "run")
    caught: list[str] = []

    def forge(trainer: Any, module: Any) -> None:
        steps = module.steps
        mine = gate.Ticket(steps.gate.planned[0].event, 77)
        for ticket in (mine, steps.gate._ticket):
            try:
                steps.gate.release(ticket, steps.sum_units(mine, 0, np.arange(8)))
            except Exception as error:
                caught.append(str(error))

    train(built, Each(forge))
    assert built.release().stop_reason == "completed"
    assert len([text for text in caught if "no such ticket" in text]) * 2 == len(caught) > 50
    assert len(drawn) == charged(tmp_path / "run")


@pytest.mark.slow
def test_autocast_of_somebody_elses_rounds_nothing(small: Small, tmp_path: Path) -> None:
    plan, inside = small(FIXED), torch.autocast("cpu", torch.bfloat16)

    class Rounds(lightning.Callback):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            inside.__enter__()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            inside.__exit__(None, None, None)

    dprecipe.run(plan, tmp_path / "run")
    built = dprecipe.build(plan, tmp_path / "built")
    train(built, Rounds())
    mine, theirs = weights(tmp_path / "run"), weights(tmp_path / "built")
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_settings_that_change_after_the_first_look_are_seen(small: Small, tmp_path: Path) -> None:
    class Changes(lightning.Callback):
        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            trainer.strategy.precision_plugin = lightning.plugins.MixedPrecision("bf16-mixed", "cpu")

    built = dprecipe.build(small(), tmp_path / "run")
    with pytest.raises(UsageFault, match="precision"):
        train(built, Changes())
    with pytest.raises(UsageFault):
        built.module.configure_optimizers()
    assert not (tmp_path / "run").exists()
    train(built)
    assert built.release().stop_reason == "completed"


@pytest.mark.slow
def test_a_ledger_is_closed_whoever_raises_first(small: Small, tmp_path: Path) -> None:
    class Raises(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            raise ZeroDivisionError

        def on_exception(self, trainer: Any, module: Any, error: BaseException) -> None:
            raise KeyError

    plan = small("training.steps=4")
    built = dprecipe.build(plan, tmp_path / "run")
    with pytest.raises((ZeroDivisionError, KeyError)):
        train(built, Raises(), callbacks_first=True)
    again = dprecipe.build(plan, tmp_path / "run", resume=True)  # its lock is free
    train(again)
    assert again.release().stop_reason == "completed"


@pytest.mark.slow
def test_a_policy_is_asked_about_an_earlier_trainer(small: Small, tmp_path: Path) -> None:
    plan = small("training.steps=4")
    built = dprecipe.build(plan, tmp_path / "run")
    train(built, Each(lambda trainer, module: built.request_stop()))
    policy = "policy: dprecipe/v1\nname: house\nrules: [{name: plain, models: [logistic_regression]}]\n"
    (tmp_path / POLICY_FILE).write_text(policy, encoding="utf-8")
    with pytest.raises(dprecipe.PlanRefused, match="Q109"):
        dprecipe.run(plan, tmp_path / "run", resume=True)
    (tmp_path / POLICY_FILE).unlink()
    assert dprecipe.run(plan, tmp_path / "run", resume=True).verified


def test_a_certificate_that_hides_the_trainer_does_not_verify(small: Small, tmp_path: Path) -> None:
    built = dprecipe.build(small(), tmp_path / "run")
    train(built)
    release = built.release().release
    path = release / "certificate.json"
    content = json.loads(path.read_text("utf-8"))
    content["predicate"]["provenance"]["trainer"] = "recipe"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(dprecipe.CertificateInvalid, match=r"provenance\.trainer"):
        dprecipe.verify(release)
