"""Scores on held-out records: accuracy and loss for classes and names; errors in declared units for numbers and
counts."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dprecipe import durable
from dprecipe.data.omitted import is_omitted
from dprecipe.data.raw import Labels
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target, TokenTarget
from dprecipe.models.outputs import call_with, find_right, interpret_outputs, label_units, unpack_labels
from dprecipe.release.scores import describe_scores, hint_at_classes, list_leading, select_numbers
from dprecipe.timeline import phase
from dprecipe.training.engine.backward import channels_last
from dprecipe.training.engine.full_precision import in_full_precision
from dprecipe.training.engine.sizes import widest_type
from dprecipe.training.program.losses import BinaryCrossEntropy, NextTokenLoss, cross_entropy
from dprecipe.training.program.metrics import measure, render_metrics
from dprecipe.training.program.prefetch import carry_to_device


@dataclass(frozen=True, slots=True)
class Score:
    """A score over all held-out records.

    For classes, `accuracy` and the cross entropy as `loss`. For names that may apply, `accuracy` is the share of
    records with every answer right, and `loss` the binary cross entropy. For a number or a count `accuracy` is
    None; there is the `mean_absolute_error` in the label's units, and `loss` is the mean squared error, for a count the
    mean Poisson deviance. For texts, `loss` is the mean over records of their loss by token, and `full` has the
    `perplexity` of all learned tokens together, their number and the base's perplexity. `full`: what is measured of a
    finished model (`dprecipe.training.program.metrics`).
    """

    accuracy: float | None
    loss: float
    records: int
    mean_absolute_error: float | None = None
    full: Mapping[str, Any] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """Returns the figures by name, the one that says most first."""
        figures = {
            "accuracy": self.accuracy,
            "mean_absolute_error": self.mean_absolute_error,
            "perplexity": self.full.get("perplexity"),
            "loss": self.loss,
        }
        return {name: value for name, value in figures.items() if value is not None}

    @property
    def all(self) -> dict[str, Any]:
        """Returns the full set of scores, and the loss."""
        return {**self.full, "loss": self.loss}

    def describe(self) -> str:
        """Returns the scores that say most in words, each beside the score that takes no model, where it was
        measured."""
        numbers = {**self.metrics, **select_numbers(self.full), **self.metrics}
        return describe_scores(numbers, list_leading(numbers))

    @property
    def hints(self) -> list[str]:
        """Returns what may help, in words."""
        return hint_at_classes(select_numbers(self.full))

    @property
    def summary(self) -> str:
        """Returns the first figure in words, for a line along the run."""
        name, value = next(iter(self.metrics.items()))
        return f"accuracy {value:.2%}" if name == "accuracy" else f"{name.replace('_', ' ')} {value:.4g}"


_CORRECT, _LOSS, _ABSOLUTE, _NATS, _TOKENS = range(5)
"""Places of the sums that scores are made of."""
MAX_NATS = 700.0
"""The largest loss of a token, in nats: beyond it the perplexity exceeds double precision."""
METRICS = "metrics.json"
"""The file in `private/` with the full set of scores of a finished model."""
TRAINING_SAMPLE = "training_sample"
"""The key of the scores on training records in it."""


class Scored(Protocol):
    """Records that can be scored."""

    def __len__(self) -> int: ...
    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], Labels]: ...


MAX_TEXTS = 128
"""Records of tokens that are scored at once on a CPU, at most: what attention makes of more of them leaves its cache,
and takes up to twice as long."""
MIN_SAMPLE, MAX_SAMPLE = 100, 1000
"""Training records that are scored along a run, at least and at most: between these, a twentieth of all."""


def size_sample(records: int) -> int:
    """Returns the number of training records, out of `records`, that are scored along a run."""
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
        *,
        from_python: bool = False,
        base: float | None = None,
    ) -> None:
        """`model`: a copy of it is scored, taken now, so that whatever its code keeps of these records stays there.
        `from_python`: its code is the user's, who may count on the order of images in memory. `base`: the
        perplexity of the weights that training begins from."""
        # Parameters are not copied: those of each score's `state` take their place.
        self._model = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
        for layer in self._model.modules():  # the model may train elsewhere
            layer._buffers = {name: None if b is None else b.to(device) for name, b in layer._buffers.items()}
        self._records = records
        self._device = device
        embeds = any(isinstance(layer, nn.Embedding) for layer in model.modules())
        self._size = min(physical_batch, MAX_TEXTS) if embeds and device.type == "cpu" else physical_batch
        self._target, self._base = target, base
        convolves = any(isinstance(layer, nn.Conv2d) for layer in self._model.modules())
        self._channels_last = convolves and device.type == "cpu" and not from_python
        """A CPU takes half the time for the convolutions of small images."""

    def __len__(self) -> int:
        return len(self._records)

    @property
    def module(self) -> nn.Module:
        """The copy that is scored."""
        return self._model

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields features and labels of the records that have a label, on the device."""
        for start in range(0, len(self._records), self._size):
            arrays = _select_labelled(*self._records.batch(slice(start, start + self._size)))
            if len(arrays[1]):
                features, labels = (carry_to_device(torch.from_numpy(array), self._device) for array in arrays)
                yield features, labels

    @phase("scores")
    def score(self, state: Mapping[str, Tensor], *, full: bool = False) -> Score:
        """Scores the model with the weights in `state`, in evaluation mode; its code may write to them. `full`: with
        everything that `dprecipe.training.program.metrics` measures, which a run needs at its end alone.

        Sums are added up where the model is, and fetched at the end: a GPU is waited for once, and not in each part
        (`full`: there too). In double precision, as Python would add them; counts are exact in it.
        """
        sums = torch.zeros(5, dtype=torch.float64, device=widest_type(self._device))

        def add(place: int, value: Tensor) -> None:
            sums[place].add_(value.to(sums.device))

        all_predicted, all_labels = [], []
        target, count = self._target, 0
        with torch.no_grad(), in_full_precision():
            for features, labels in self.batches():
                count += len(labels)
                if self._channels_last and features.dim() > 3:
                    features = channels_last(features)
                outputs = call_with(self._model, state, features)
                if target.is_choice:
                    add(_CORRECT, find_right(outputs, labels, target).sum())
                if isinstance(target, ClassTarget):
                    add(_LOSS, cross_entropy(outputs, labels).sum())
                    predicted = outputs.double().softmax(1) if full else outputs
                elif isinstance(target, SeveralTarget):
                    add(_LOSS, BinaryCrossEntropy(target.outputs)(outputs, labels).sum())
                    labels = unpack_labels(labels, target.outputs)
                    predicted = outputs.double().sigmoid() if full else outputs
                elif isinstance(target, TokenTarget):
                    add(_LOSS, NextTokenLoss()(outputs, labels).sum())
                    add(_NATS, -outputs.double().sum())
                    add(_TOKENS, labels.sum())
                    continue
                else:
                    predicted, labels = interpret_outputs(outputs.double(), target), label_units(labels, target)
                    add(_LOSS, _sum_errors(predicted[:, 0], labels, target))
                    add(_ABSOLUTE, (predicted[:, 0] - labels).abs().sum())
                if full:
                    all_predicted.append(predicted.cpu().numpy())
                    all_labels.append(labels.double().cpu().numpy())
        correct, loss, absolute, nats, tokens = sums.tolist()
        scores = dict[str, Any]()
        if isinstance(target, TokenTarget):
            return Score(None, loss / max(1, count), count, full=_text_scores(nats, int(tokens), self._base))
        if full and count:
            scores = measure(np.concatenate(all_predicted), np.concatenate(all_labels), target)
        mean_loss = loss / max(1, count)
        if target.is_choice:
            return Score(correct / max(1, count), mean_loss, count, full=scores)
        return Score(None, mean_loss, count, absolute / max(1, count), scores)


def _select_labelled(features: NDArray[np.float32], labels: Labels) -> tuple[NDArray[np.float32], Labels]:
    """Returns the records of a batch that have a label."""
    omitted = is_omitted(labels)
    return (features[~omitted], labels[~omitted]) if omitted.any() else (features, labels)


def _text_scores(nats: float, tokens: int, base: float | None) -> dict[str, Any]:
    """Returns the scores of `tokens` learned tokens that cost `nats` together; empty for no tokens."""
    if not tokens:
        return {}
    by_token = nats / tokens
    perplexity = math.exp(by_token) if by_token < MAX_NATS else math.inf
    return {"perplexity": perplexity, "tokens": tokens} | ({} if base is None else {"base_perplexity": base})


def _sum_errors(predicted: Tensor, labels: Tensor, target: NumberTarget | CountTarget) -> Tensor:
    """Returns squared errors; for counts, Poisson deviances."""
    if isinstance(target, NumberTarget):
        return (predicted - labels).square().sum()
    deviances: Tensor = 2 * (torch.special.xlogy(labels, labels / predicted) - labels + predicted)
    return deviances.sum()


def keep_metrics(score: Score | None, path: Path, training: Score | None = None) -> None:
    """Writes the full set of scores to a file in `private/`: on held-out records, and on a sample of `training`
    records. One that can't be written does not stop the run."""
    if score is None and training is None:
        return
    content = {} if score is None else score.all
    if training is not None:
        content |= {TRAINING_SAMPLE: {"records": training.records, **training.all}}
    with suppress(OSError):
        durable.replace_file(path, render_metrics(content, 0 if score is None else score.records))
