"""Scores on held-out records: of classes accuracy and loss, of numbers and counts the errors, in declared units."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from dprecipe import durable
from dprecipe.data.raw import Labels
from dprecipe.data.targets import ClassTarget, Target
from dprecipe.models.outputs import interpret_outputs, label_units
from dprecipe.timeline import phase
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.losses import cross_entropy
from dprecipe.training.metrics import describe_metrics, measure


@dataclass(frozen=True, slots=True)
class Score:
    """Over all held-out records.

    Of classes `accuracy` and the cross entropy as `loss`. Of a number or a count, whose `accuracy` is None, the
    `mean_absolute_error`, and as `loss` the mean squared error, in the label's units.
    """

    accuracy: float | None
    loss: float
    records: int
    mean_absolute_error: float | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The figures by name, the one that says most first."""
        figures = {"accuracy": self.accuracy, "mean_absolute_error": self.mean_absolute_error, "loss": self.loss}
        return {name: value for name, value in figures.items() if value is not None}

    @property
    def summary(self) -> str:
        """The figure that says most, in words."""
        name, value = next(iter(self.metrics.items()))
        return f"accuracy {value:.2%}" if name == "accuracy" else f"{name.replace('_', ' ')} {value:.4g}"


METRICS = "metrics.json"
"""The file in `private/` with the full set of scores of a finished model."""


class Scored(Protocol):
    """What is scored."""

    def __len__(self) -> int: ...
    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]: ...


MIN_SAMPLE, MAX_SAMPLE = 100, 1000
"""Training records that are scored along a run, at least and at most: between these, a twentieth of all."""


def size_sample(records: int) -> int:
    """How many of so many training records are scored along a run."""
    return min(records, max(MIN_SAMPLE, min(records // 20, MAX_SAMPLE)))


@final
class Sample:
    """A few records, evenly spread over a set of them and the same each time."""

    def __init__(self, records: Scored) -> None:
        self._records = records
        self._indices = np.unique(np.linspace(0, len(records) - 1, size_sample(len(records))).astype(np.int64))

    def __len__(self) -> int:
        return len(self._indices)

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]:
        """Records of the sample by their places in it."""
        return self._records.batch(self._indices[indices])


class HeldOut:
    """Held-out records on the device, scored in physical batches."""

    def __init__(
        self,
        model: nn.Module,
        records: Scored,
        device: torch.device,
        physical_batch: int,
        target: Target,
    ) -> None:
        """`model`: a copy of it is scored, taken now, so that whatever its code keeps of these records stays there."""
        # Parameters are not copied: those of each score's `state` take their place.
        self._model = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
        self._records = records
        self._device = device
        self._size = physical_batch
        self._target = target

    def __len__(self) -> int:
        return len(self._records)

    @phase("scores")
    def score(self, state: Mapping[str, Tensor]) -> Score:
        """Score the model with the weights in `state`, in evaluation mode; its code may write to them."""
        correct, loss, absolute = 0, 0.0, 0.0
        with torch.no_grad(), in_full_precision():
            for start in range(0, len(self._records), self._size):
                arrays = self._records.batch(slice(start, start + self._size))
                features, labels = (torch.from_numpy(array).to(self._device) for array in arrays)
                outputs = functional_call(self._model, dict(state), (features,))
                if isinstance(self._target, ClassTarget):
                    correct += int((outputs.argmax(1) == labels).sum())
                    loss += float(cross_entropy(outputs, labels).sum())
                else:
                    predicted = interpret_outputs(outputs, self._target)[:, 0]
                    errors = predicted - label_units(labels, self._target)
                    loss += float(errors.square().sum())
                    absolute += float(errors.abs().sum())
        count = len(self._records)
        mean_loss, mean_absolute = loss / max(1, count), absolute / max(1, count)
        if isinstance(self._target, ClassTarget):
            return Score(correct / max(1, count), mean_loss, count)
        return Score(None, mean_loss, count, mean_absolute)

    @phase("scores")
    def measure(self, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """The full set of scores (`training.metrics`) of the model with these weights: once, at the end of a run."""
        predicted, labels = [], []
        with torch.no_grad(), in_full_precision():
            for start in range(0, len(self._records), self._size):
                features, some = self._records.batch(slice(start, start + self._size))
                outputs = functional_call(self._model, dict(state), (torch.from_numpy(features).to(self._device),))
                found = interpret_outputs(outputs.double().cpu(), self._target)
                given = torch.from_numpy(some)
                if isinstance(self._target, ClassTarget):
                    found = found.softmax(1)
                else:
                    given = label_units(given, self._target)
                predicted.append(found.numpy())
                labels.append(given.double().numpy())
        if not predicted:
            return {}
        return measure(np.concatenate(predicted), np.concatenate(labels), self._target)

    def keep_metrics(self, state: Mapping[str, Tensor], path: Path) -> None:
        """Write the full set of scores to a file in `private/`. One that can't be written does not stop the run."""
        content = json.dumps(describe_metrics(self.measure(state), len(self)), indent=1)
        with suppress(OSError):
            durable.replace_file(path, content.encode())
