"""The settings of somebody's own Lightning trainer that a private run allows. Nothing is spent before this is asked."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lightning.pytorch.plugins.precision import Precision

from dprecipe.faults import UsageFault
from dprecipe.training.program.trainer_library import lightning

Objection = tuple[str, str]
"""A setting that can't be, and its remedy."""
LENGTH = "leave it out: training.epochs (or steps) of the recipe says how long to train; a time limit is max_time"


def check_trainer(
    trainer: lightning.Trainer,
    module: lightning.LightningModule,
    data: lightning.LightningDataModule,
    device: torch.device,
) -> None:
    """Checks that a trainer only counts steps: it divides, shortens, rounds and repeats nothing.

    `module`, `data`: what it has to fit, and on what. `device`: where the model is.

    Raises:
        UsageFault: names everything that has to change, with a remedy for each.
    """
    objections = [*_list_uses(trainer, module, data), *_list_arithmetic(trainer), *_list_lengths(trainer)]
    objections += [*_list_places(trainer, device), *_list_callbacks(trainer)]
    if objections:
        what = "; ".join(message for message, _ in objections)
        raise UsageFault(
            f"this trainer can't train a private model: {what}. Nothing was spent",
            "; ".join(dict.fromkeys(remedy for _, remedy in objections)),
        )


def _list_uses(
    trainer: lightning.Trainer, module: lightning.LightningModule, data: lightning.LightningDataModule
) -> Iterator[Objection]:
    if trainer.lightning_module is not module or getattr(module, "_compiler_ctx", None) is not None:
        yield "it was given another module than built.module", "write trainer.fit(built.module, built.data)"
    if trainer.state.fn != "fit":
        yield f"it was asked to {trainer.state.fn}", "score and predict with dprecipe.load_model(release)"
    elif getattr(trainer, "datamodule", None) is not data:
        yield "it was given other data than built.data", "write trainer.fit(built.module, built.data)"


def _list_arithmetic(trainer: lightning.Trainer) -> Iterator[Objection]:
    if trainer.accumulate_grad_batches != 1:
        yield "accumulate_grad_batches", "runtime.physical_batch is how many records are in memory at once"
    if trainer.gradient_clip_val:
        yield "gradient_clip_val clips a batch, not a record", "leave it out: mechanism.clip clips each record"
    if type(trainer.precision_plugin) is not Precision or trainer.precision != "32-true":
        yield f"precision {trainer.precision!r}", "leave it out: runtime.precision says what may be rounded"


def _list_lengths(trainer: lightning.Trainer) -> Iterator[Objection]:
    given = vars(trainer)  # not all is declared
    if given["fast_dev_run"]:
        yield "fast_dev_run", "dprecipe run --rehearse tries a recipe without a record"
    elif trainer.limit_train_batches != 1.0 or given["overfit_batches"]:
        yield "limit_train_batches or overfit_batches", LENGTH
    elif trainer.max_steps != -1:
        yield "max_steps", LENGTH
    if trainer.min_steps or (trainer.min_epochs or 0) > 1:
        yield "min_steps or min_epochs", LENGTH


def _list_places(trainer: lightning.Trainer, device: torch.device) -> Iterator[Objection]:
    if type(trainer.strategy) is not lightning.strategies.SingleDeviceStrategy:
        yield (
            f"strategy {type(trainer.strategy).__name__}",
            "write devices=1; several devices train together by runtime.processes and dprecipe run",
        )
    elif _place(trainer.strategy.root_device) != _place(device):
        accelerator = "gpu" if device.type == "cuda" else device.type
        yield (
            f"it trains on {trainer.strategy.root_device}, and the model is on {device}",
            f'write accelerator="{accelerator}", or another runtime.device in the recipe',
        )


def _place(device: torch.device) -> tuple[str, int]:
    return device.type, device.index or 0


def list_callbacks(trainer: lightning.Trainer) -> list[lightning.Callback]:
    """Returns the callbacks of a trainer, which its class does not declare."""
    callbacks: list[lightning.Callback] = vars(trainer)["callbacks"]
    return callbacks


def _list_callbacks(trainer: lightning.Trainer) -> Iterator[Objection]:
    kinds = lightning.callbacks
    for callback in list_callbacks(trainer):
        for kind, remedy in (
            (kinds.GradientAccumulationScheduler, "runtime.physical_batch is how many records are in memory at once"),
            (kinds.StochasticWeightAveraging, "training.average averages weights, at no cost"),
            (kinds.WeightAveraging, "training.average averages weights, at no cost"),
            (kinds.BaseFinetuning, "model.train names the layers that learn"),
            (kinds.ModelPruning, "prune the released model"),
            (kinds.LearningRateFinder, "dprecipe tune looks for a rate, and pays for it"),
            (kinds.BatchSizeFinder, "runtime.physical_batch: auto measures it"),
        ):
            if isinstance(callback, kind):
                yield f"the callback {type(callback).__name__} changes what a step does", remedy
