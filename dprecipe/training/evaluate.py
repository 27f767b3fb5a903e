"""Accuracy and loss on held-out records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dprecipe.training.losses import cross_entropy
from dprecipe.training.records import RecordSource


@dataclass(frozen=True, slots=True)
class Score:
    """Over all held-out records."""

    accuracy: float
    loss: float
    records: int


class HeldOut:
    """Held-out records on the device, scored in physical batches."""

    def __init__(self, records: RecordSource, device: torch.device, physical_batch: int) -> None:
        self._records = records
        self._device = device
        self._size = physical_batch

    def score(self, model: nn.Module, state: dict[str, Tensor]) -> Score:
        """Score `model` with the weights in `state`, in evaluation mode; the model is left as it was."""
        training = model.training
        model.eval()
        right, loss = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(self._records), self._size):
                arrays = self._records.batch(slice(start, start + self._size))
                features, labels = (torch.from_numpy(array).to(self._device) for array in arrays)
                outputs = functional_call(model, state, (features,))
                right += int((outputs.argmax(1) == labels).sum())
                loss += float(cross_entropy(outputs, labels).sum())
        model.train(training)
        count = max(1, len(self._records))
        return Score(right / count, loss / count, len(self._records))
