"""Training and votes of teachers: each learns from its own part of the private records and from public constants.

Guarantees: a teacher's votes are a function of its part, its number, the number of teachers and the `Lesson`. Nothing
passes from one teacher to another: seeds are made from the lesson's seed and the teacher's number, the length is fixed,
and if teachers learn together, their weights, gradients and batches are rows that no operation mixes. A teacher's row,
and the number of rows, follow from its number: the rows of teachers that are not asked for learn from a stand-in
record. So shapes are public, no record of one part changes a bit of another's votes, and each teacher votes the same
whichever teachers are trained in one call.

A teacher without records votes for class 0 on every query, as does one whose training diverged to numbers that are not
finite; one that is fitted to records of a single class votes for that class. All of this depends on its own part alone.

Axes: T teachers of a group, B records of a batch, Q queries.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.nn.attention import SDPBackend, sdpa_kernel

from dprecipe.contract.plan import Length
from dprecipe.data.augment import make_augmentation
from dprecipe.data.facts import count_vocabulary
from dprecipe.data.schema import Step
from dprecipe.data.sources.base import Shape
from dprecipe.data.sources.labels import Classes
from dprecipe.language.base import Block, NonNegativeInt, PositiveInt
from dprecipe.libraries import ignoring_warnings
from dprecipe.mechanisms.pate.schema import TeacherTraining
from dprecipe.models.build import build
from dprecipe.models.schema import LogisticRegression, Mlp, Model
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.steps.optimise import apply_weight_decay, learning_rate, optimizer_of

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Take = Callable[[NDArray[np.int64]], tuple[Floats, Labels]]
"""Reader of records by their numbers: returns features (B, …) and labels (B,)."""

SMALL = 100_000
"""Number of parameters below which networks learn faster together on a CPU as well.

The gain is 5 times at 8,000 parameters and twice at 50,000; there is none at 200,000, nor ever for convolutions.
"""
GROUP_SIZE = 64
"""Number of teachers in a group on a CPU."""
MEMORY = 1 << 28
"""Number of values that a group may hold on a GPU."""


class Lesson(Block):
    """Public settings that every teacher shares."""

    model: Model
    training: TeacherTraining | None
    shape: Shape
    classes: Classes
    preprocess: tuple[Step, ...]
    seed: NonNegativeInt
    steps: PositiveInt
    steps_per_epoch: PositiveInt
    physical_batch: PositiveInt

    def group(self, device: torch.device) -> int:
        """Returns the number of teachers that learn together."""
        if self.training is None:
            return 1
        parameters = sum(p.numel() for p in self.initial(0).parameters())
        if device.type == "cuda":
            width = max(parameters, 8 * self.training.batch_size * math.prod(self.shape))
            return max(1, MEMORY // (4 * width))
        return GROUP_SIZE if isinstance(self.model, LogisticRegression | Mlp) and parameters < SMALL else 1

    def initial(self, teacher: int) -> nn.Module:
        """Builds a teacher's network with its initial weights."""
        seed = self.seed_of(teacher, "weights")
        return build(self.model, self.shape, self.classes, seed, vocabulary=count_vocabulary(self.preprocess))

    def seed_of(self, teacher: int, purpose: str) -> int:
        """Returns a seed of 63 bits that no other teacher and no other purpose has."""
        digest = hashlib.sha256(f"teacher {teacher}, {purpose}, seed {self.seed}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1


@final
@dataclass(frozen=True, slots=True, eq=False)
class DealtParts:
    """Numbers of the records that each teacher learns from: order[starts[i]:starts[i + 1]]."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @staticmethod
    def of(parts_R: NDArray[np.int64], teachers: int) -> DealtParts:
        """Builds the parts from the teacher of each record, (R,)."""
        counts = np.bincount(parts_R, minlength=teachers)
        return DealtParts(np.argsort(parts_R, kind="stable"), np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, teacher: int) -> NDArray[np.int64]:
        return self.order[self.starts[teacher] : self.starts[teacher + 1]]


def collect_votes(
    lesson: Lesson, teachers: Sequence[int], parts: DealtParts, take: Take, queries: Floats, device: torch.device
) -> NDArray[np.int64]:
    """Trains these teachers; returns the class that each votes for on each query, (T, Q)."""
    with use_deterministic_kernels(device):
        return _votes(lesson, teachers, parts, take, queries, device)


@contextmanager
def use_deterministic_kernels(device: torch.device) -> Iterator[None]:
    """Selects kernels that add up in a fixed order on a GPU, so that the same teachers always vote the same.

    Otherwise a teacher's votes could change although its part did not.

    Torch's own setting is not enough: cuBLAS reads an environment variable when it is first used. If torch may only
    warn, the memory-efficient kernel of attention adds up in any order, so the plain one is used.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn: Any = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    strict, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn.deterministic, cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=not strict or warned)
    try:
        with ignoring_warnings(), sdpa_kernel(SDPBackend.MATH):  # warnings about kernels without a fixed order
            yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=warned)
        cudnn.deterministic, cudnn.benchmark = before


def _votes(
    lesson: Lesson, teachers: Sequence[int], parts: DealtParts, take: Take, queries: Floats, device: torch.device
) -> NDArray[np.int64]:
    votes_TQ = np.zeros((len(teachers), len(queries)), np.int64)
    has_records = [len(parts[teacher]) > 0 for teacher in teachers]
    if lesson.training is None:
        for row in np.flatnonzero(has_records).tolist():
            features, labels = take(parts[teachers[row]])
            votes_TQ[row] = _fitted(lesson, teachers[row], features, labels, queries, device)
        return votes_TQ
    asked = dict(zip(teachers, range(len(teachers)), strict=True))
    size = lesson.group(device)
    for group in list_groups(teachers, size):
        rows = _list_rows(group[0], size, len(parts))
        # A teacher without records has a row too: the number of rows decides how the other rows' sums are rounded.
        records = [take(parts[i]) if i in asked and len(parts[i]) else _stand_in(lesson) for i in rows]
        pupils = [_Pupil(lesson, i, *records_of, device) for i, records_of in zip(rows, records, strict=True)]
        trained = train_group(lesson, pupils) if size > 1 else (train_one(lesson, pupil) for pupil in pupils)
        for i, module in zip(rows, trained, strict=True):
            if i in asked and has_records[asked[i]]:
                votes_TQ[asked[i]] = predict_labels(module, queries, lesson.physical_batch, device)
    return votes_TQ


def list_groups(teachers: Iterable[int], size: int) -> list[list[int]]:
    """Splits ascending `teachers` by the group, of `size`, that they learn in: each list is a group or part of one."""
    return [list(group) for _, group in itertools.groupby(teachers, lambda teacher: teacher // size)]


def _list_rows(teacher: int, size: int, count: int) -> range:
    """Returns those of the `count` teachers that learn together with this one: their numbers alone decide."""
    first = teacher // size * size
    return range(first, min(first + size, count))


def _stand_in(lesson: Lesson) -> tuple[Floats, Labels]:
    """Returns one blank record, for a teacher that has none or is not asked for."""
    return np.zeros((1, *lesson.shape), np.float32), np.zeros(1, np.int64)


@final
class _Pupil:
    """A teacher's records, and the order in which it reads them."""

    def __init__(self, lesson: Lesson, teacher: int, features: Floats, labels: Labels, device: torch.device) -> None:
        self.module = lesson.initial(teacher).to(device).train()
        self.features = torch.from_numpy(features).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self._generator = np.random.default_rng(lesson.seed_of(teacher, "order"))
        self._ahead = np.empty(0, np.int64)
        drawn = torch.Generator(device).manual_seed(lesson.seed_of(teacher, "augmentation"))
        self._augment = make_augmentation(lesson.preprocess, drawn)

    @property
    def augments(self) -> bool:
        """Returns whether the records of a batch are augmented."""
        return self._augment is not None

    def numbers(self, size: int) -> NDArray[np.int64]:
        """Draws the records of the next batch, (B,): random orders of the part in a row, cut every `size` records."""
        if len(self.labels) == 1:
            return np.zeros(size, np.int64)
        while len(self._ahead) < size:
            self._ahead = np.concatenate([self._ahead, self._generator.permutation(len(self.labels))])
        chosen, self._ahead = self._ahead[:size], self._ahead[size:]
        return chosen

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Returns the next batch, augmented."""
        chosen = torch.from_numpy(self.numbers(size))
        features, labels = self.features[chosen], self.labels[chosen]
        return (features if self._augment is None else self._augment(features, 1)), labels


def train_one(lesson: Lesson, pupil: _Pupil) -> nn.Module:
    """Trains one teacher's network and returns it."""
    module, training = pupil.module, _training(lesson)
    fast = _pooling_first(module)
    for optimizer in _steps(lesson, module):
        features, labels = pupil.batch(training.batch_size)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(fast(features), labels).mean())
        _step(lesson, optimizer)
    return module


def _pooling_first(module: nn.Module) -> nn.Module:
    """Returns a faster module with the same function and gradients, to the bit, that shares the layers.

    Max pooling is moved before ReLU: ReLU is monotone, so it need be applied to the largest value alone.
    """
    if type(module) is not nn.Sequential:
        return module
    layers = list(module)
    for place, (layer, following) in enumerate(itertools.pairwise(layers)):
        if type(layer) is nn.ReLU and type(following) is nn.MaxPool2d and not following.return_indices:
            layers[place : place + 2] = following, layer
    return nn.Sequential(*layers)


def train_group(lesson: Lesson, pupils: Sequence[_Pupil]) -> Iterator[nn.Module]:
    """Trains the networks of several teachers at once; each is what `train_one` makes of it, up to rounding."""
    training, shell = _training(lesson), pupils[0].module
    stacked, _ = stack_module_state([pupil.module for pupil in pupils])
    has_records = nn.ParameterList(stacked.values())
    weights = dict(zip(stacked, has_records, strict=True))
    outputs = torch.func.vmap(lambda weights, batch: functional_call(shell, weights, (batch,)))
    batches = _group_batches(pupils, training.batch_size)
    for optimizer in _steps(lesson, has_records):
        features, labels = next(batches)
        optimizer.zero_grad()
        logits = outputs(weights, features)
        # The loss is a sum over teachers, so the gradient of each one's weights is that of its own mean loss.
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten())
        torch.autograd.backward(losses.sum() / training.batch_size)
        _step(lesson, optimizer)
    for row, pupil in enumerate(pupils):
        pupil.module.load_state_dict({name: value[row].detach() for name, value in weights.items()})
        yield pupil.module


def _group_batches(pupils: Sequence[_Pupil], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the next batch of each teacher, without end: (T, B, …) and (T, B)."""
    if pupils[0].augments:
        while True:
            batches = [pupil.batch(size) for pupil in pupils]
            yield torch.stack([features for features, _ in batches]), torch.stack([labels for _, labels in batches])
    features = torch.cat([pupil.features for pupil in pupils])
    labels = torch.cat([pupil.labels for pupil in pupils])
    starts = np.concatenate([[0], np.cumsum([len(pupil.labels) for pupil in pupils])[:-1]])
    while True:
        numbers = [start + pupil.numbers(size) for start, pupil in zip(starts, pupils, strict=True)]
        chosen_TB = torch.from_numpy(np.stack(numbers)).to(labels.device)
        # `index_select` copies whole records: several times as fast as `features[chosen_TB]`.
        chosen = torch.unflatten(features.index_select(0, chosen_TB.flatten()), 0, chosen_TB.shape)
        yield chosen, labels[chosen_TB]


def predict_labels(module: nn.Module, queries: Floats, physical_batch: int, device: torch.device) -> NDArray[np.int64]:
    """Returns the most likely class for each query, (Q,); 0 for all queries if any logit is not finite."""
    result, module = np.zeros(len(queries), np.int64), module.eval()
    with torch.no_grad():
        for start in range(0, len(queries), physical_batch):
            logits = module(torch.from_numpy(queries[start : start + physical_batch]).to(device))
            if not bool(torch.isfinite(logits).all()):
                return np.zeros(len(queries), np.int64)
            result[start : start + physical_batch] = logits.argmax(1).cpu().numpy()
    return result


def _fitted(
    lesson: Lesson, teacher: int, features: Floats, labels: Labels, queries: Floats, device: torch.device
) -> NDArray[np.int64]:
    from dprecipe.mechanisms.pate.train.fitted import Fittable, fit_model

    if not isinstance(lesson.model, Fittable):
        raise ValueError("this teacher takes steps")
    module = fit_model(lesson.model, features, labels, lesson.classes, lesson.seed_of(teacher, "fit"))
    return predict_labels(module.to(device), queries, lesson.physical_batch, device)


def _training(lesson: Lesson) -> TeacherTraining:
    if lesson.training is None:
        raise ValueError("this teacher is fitted at once")
    return lesson.training


def _steps(lesson: Lesson, module: nn.Module) -> Iterator[torch.optim.Optimizer]:
    """Yields the optimiser at each step of the lesson, with its learning rate set."""
    spec = _training(lesson).optimizer
    rate = learning_rate(spec, Length(lesson.steps, lesson.steps_per_epoch))
    optimizer = optimizer_of(spec, module, fused=next(module.parameters()).device.type in ("cpu", "cuda"))
    for step in range(lesson.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        yield optimizer


def _step(lesson: Lesson, optimizer: torch.optim.Optimizer) -> None:
    apply_weight_decay(_training(lesson).optimizer, optimizer, optimizer.param_groups[0]["lr"])
    optimizer.step()
