"""DP-SGD's program: runs exactly the planned events, through the gate.

One event is a transaction: admitted and recorded, its lots drawn, each lot's clipped sum released with noise, the
optimiser moved. A transaction that is cut short is never continued; what it was charged stays charged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn

from dprecipe.data.lots import Lot, draw
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.model import Plan
from dprecipe.training.engine.clipped_sum import clipped_sum
from dprecipe.training.gate import Gate, Ticket
from dprecipe.training.losses import cross_entropy
from dprecipe.training.optimise import Average, decay, learning_rate, optimizer_of
from dprecipe.training.records import Store


def build(plan: Plan, model: nn.Module, store: Store, gate: Gate, secrets: Secrets) -> DpsgdModule:
    """The program of a plan."""
    return DpsgdModule(plan, model, store, gate, secrets)


@contextmanager
def drawing_from(seed: int, device: torch.device) -> Iterator[None]:
    """Let layers that draw (dropout) draw from a fresh secret seed, for the reason given in `Store.lot`."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@final
class DpsgdModule(lightning.LightningModule):
    """Algorithm 1 of Abadi et al. 2016 under manual optimisation; the trainer only counts."""

    def __init__(self, plan: Plan, model: nn.Module, store: Store, gate: Gate, secrets: Secrets) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.gate = gate
        self.average = Average(plan.training.average, plan.length.steps)
        self.steps_done = 0
        """Updates the model holds."""
        self.events_done = gate.done
        """Events the model holds whole: a checkpoint is taken between events only."""
        self.stop_requested = False
        self._plan = plan
        self._clip_norm = float(plan.settings["clip_norm"])
        self._store = store
        self._secrets = secrets
        self._lr = learning_rate(plan.training.optimizer, plan.length)
        self._optimizer = optimizer_of(plan.training.optimizer, model)
        self._pending: tuple[Ticket, Iterator[Lot]] | None = None

    @property
    def steps_left(self) -> int:
        """Steps from here to the end of the plan."""
        return self._plan.length.steps - self.steps_done

    def request_stop(self) -> None:
        """Admit no further event."""
        self.stop_requested = True

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer

    def on_train_start(self) -> None:
        self.model.train()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One noisy update, or none: the refusal is in here, before noise is drawn."""
        if self._pending is None:
            ticket = None if self.stop_requested else self.gate.admit()
            if ticket is None:
                self.trainer.should_stop = True
                return
            stream = self._secrets.stream("sampling", ticket.index)
            self._pending = (ticket, draw(ticket.event, self._store.units, stream))
        ticket, lots = self._pending
        seed = self._secrets.stream("program", (ticket.index << 32) + ticket.used).seed()
        lot = self._store.lot(next(lots), seed)
        with drawing_from(seed, self.device):
            clipped = clipped_sum(self.model, cross_entropy, lot, self._clip_norm, self._plan.runtime.physical_batch)
        noisy = self.gate.release(ticket, clipped)
        self._update(noisy / self._plan.length.expected_lot)
        if ticket.used == ticket.releases:
            self._pending = None
            self.events_done += 1

    def _update(self, gradient: Tensor) -> None:
        spec, lr = self._plan.training.optimizer, self._lr(self.steps_done)
        optimizer = self.optimizers()
        raw = self._optimizer
        for group in raw.param_groups:
            group["lr"] = lr
        start = 0
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                part = gradient[start : start + parameter.numel()]
                parameter.grad = part.view_as(parameter).to(parameter)
                start += parameter.numel()
        decay(spec, raw, lr)
        optimizer.step()  # type: ignore[union-attr]
        self.average.take(self.steps_done, self.model)
        self.steps_done += 1

    def state(self) -> dict[str, Any]:
        """All that a later attempt needs: tensors and numbers only."""
        return {
            "events_done": self.events_done,
            "steps_done": self.steps_done,
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": self.average.value,
            "average_count": self.average.count,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, but never from the lots or the noise of the attempt it is from."""
        self.events_done = int(state["events_done"])
        self.steps_done = int(state["steps_done"])
        self.gate.done = self.events_done
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.average.value, self.average.count = state["average"], int(state["average_count"])

    def released_state(self) -> dict[str, Tensor]:
        """The weights that are released: the average where there is one."""
        if self.average.value is not None:
            copy = {name: value.clone() for name, value in self.model.state_dict().items()}
            start = 0
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    part = self.average.value[start : start + parameter.numel()]
                    copy[name] = part.view_as(parameter).clone()
                    start += parameter.numel()
            return copy
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}
