"""A teacher's votes come from its own part, its number and public constants, however the teachers are trained."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest
import torch

from dprecipe.language.training import Adam, Sgd, WarmSchedule
from dprecipe.mechanisms.pate.schema import TeacherTraining
from dprecipe.mechanisms.pate.train import learn
from dprecipe.mechanisms.pate.train.learn import (
    DealtParts,
    Lesson,
    collect_votes,
    train_group,
    train_one,
    use_deterministic_kernels,
)
from tests.sweeps import sweep

CPU = torch.device("cpu")
LOGISTIC: dict[str, Any] = {"kind": "logistic_regression"}
MLP: dict[str, Any] = {"kind": "mlp", "hidden": (7,)}
LENET: dict[str, Any] = {"kind": "cnn", "preset": "lenet"}
FOREST: dict[str, Any] = {"kind": "random_forest", "trees": 3}
SCHEDULE = WarmSchedule(**{"schedule": "cosine", "from": 0.05, "to": 0.0})
ADAM = Adam(kind="adam", lr=0.01, weight_decay=0.01)
SGD = Sgd(kind="sgd", lr=SCHEDULE, momentum=0.9, weight_decay=0.01)


def lesson(model: dict[str, Any], optimizer: Adam | Sgd | None = ADAM, **changes: Any) -> Lesson:
    training = None if optimizer is None else TeacherTraining(steps=30, batch_size=8, optimizer=optimizer)
    fields: dict[str, Any] = {
        "model": model,
        "training": None if training is None else training.model_dump(by_alias=True),
        "shape": (1, 16, 16) if model is LENET else (1, 4, 4),
        "classes": 3,
        "preprocess": (),
        "seed": 0,
        "steps": 30,
        "steps_per_epoch": 3,
        "physical_batch": 13,
    }
    return Lesson(**(fields | changes))


class Class:
    """Records of eight teachers: teacher i has i of them, so the first has none."""

    def __init__(self, shape: tuple[int, ...] = (1, 4, 4), seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        self.dealt = generator.permutation(np.repeat(np.arange(8), 3 * np.arange(8)))
        self.features = generator.random((len(self.dealt), *shape), dtype=np.float32)
        self.labels = generator.integers(3, size=len(self.dealt))
        self.queries = np.random.default_rng(1).random((40, *shape), dtype=np.float32)
        self.parts = DealtParts.of(self.dealt, 8)

    def take(self, numbers: Any) -> Any:
        return self.features[numbers], self.labels[numbers]

    def votes(self, task: Lesson, teachers: Any = range(8)) -> Any:
        return collect_votes(task, teachers, self.parts, self.take, self.queries, CPU)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


def test_parts_are_disjoint_and_whole() -> None:
    parts = DealtParts.of(np.array([2, 0, 2, 2, 0]), 4)
    assert [parts[i].tolist() for i in range(len(parts))] == [[1, 4], [], [0, 2, 3], []]


@pytest.mark.parametrize("preprocess", [(), ({"crop": {"padding": 2}},)], ids=["plain", "augmented"])
@pytest.mark.parametrize("optimizer", [ADAM, SGD])
@pytest.mark.parametrize("model", sweep([LOGISTIC, MLP, LENET], (0, 1)))
def test_together_is_alone_to_rounding(model: dict[str, Any], optimizer: Adam | Sgd, preprocess: Any) -> None:
    if preprocess and optimizer is ADAM:  # with zeros around, many gradients are rounding: no sign of theirs may count
        optimizer = ADAM.model_copy(update={"eps": 1e-3})
    task = lesson(model, optimizer, preprocess=preprocess)
    planned = Class(tuple(task.shape))
    pupils = [[learn._Pupil(task, i, *planned.take(planned.parts[i]), CPU) for i in range(1, 8)] for _ in range(2)]
    started = [flat(pupil.module).clone() for pupil in pupils[0]]
    trained = zip((train_one(task, pupil) for pupil in pupils[0]), train_group(task, pupils[1]), strict=True)
    for initial, (one, both) in zip(started, trained, strict=True):
        moved = (flat(one) - initial).norm()
        # Of Adam's first steps, the sign of a gradient that is hardly there may be rounding.
        assert (flat(both) - flat(one)).norm() < 1e-3 * moved
        assert moved > 0.01


@pytest.mark.parametrize("preprocess", [(), ({"crop": {"padding": 2}},)], ids=["plain", "augmented"])
@pytest.mark.parametrize("optimizer", [ADAM, SGD])
@pytest.mark.parametrize("model", [LOGISTIC, MLP, LENET])
def test_no_bit_passes_between_teachers_that_learn_together(
    model: dict[str, Any], optimizer: Adam | Sgd, preprocess: Any
) -> None:
    """Of the weights, whatever the records of others are, and however many they have."""
    task = lesson(model, optimizer, preprocess=preprocess, steps=8)
    planned = Class(tuple(task.shape))
    parts = [planned.take(planned.parts[i]) for i in range(1, 8)]

    def trained(parts: Any) -> list[torch.Tensor]:
        pupils = [learn._Pupil(task, i, *part, CPU) for i, part in enumerate(parts, 1)]
        return [flat(module) for module in train_group(task, pupils)]

    before = trained(parts)
    for change in (
        lambda features, labels: (np.full_like(features, np.nan), labels),
        lambda features, labels: (features * np.float32(1e30), (labels + 1) % 3),
        lambda features, labels: (features[1:], labels[1:]),
        lambda features, labels: (features[:1], labels[:1]),
    ):
        changed = [part if i in (2, 6) else change(*part) for i, part in enumerate(parts)]
        after = trained(changed)
        assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [i in (2, 6) for i in range(7)]


def test_pooling_before_relu_changes_no_bit() -> None:
    """Ties included: of equal numbers the first is taken either way, and below zero no gradient passes."""
    generator = torch.Generator().manual_seed(0)
    layers = (torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten())
    features = torch.round(2 * torch.randn(9, 1, 10, 10, generator=generator))
    features[4] = torch.nan
    network = torch.nn.Sequential(*layers)
    faster = learn._pooling_first(network)
    assert [type(layer).__name__ for layer in faster] == ["Conv2d", "MaxPool2d", "ReLU", "Flatten"]
    answers = [module(features) for module in (network, faster)]
    assert torch.equal(*(torch.nan_to_num(answer, 7.0) for answer in answers))
    features[4] = 0.0
    answers = [module(features) for module in (network, faster)]
    weights, parameters = torch.randn(answers[0].shape, generator=generator), list(network.parameters())
    gradients = [torch.autograd.grad((answer * weights).sum(), parameters) for answer in answers]
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
    assert learn._pooling_first(layers[0]) is layers[0]


@pytest.mark.parametrize("model", [LOGISTIC, MLP])
def test_in_whichever_group_a_teacher_votes_the_same(model: dict[str, Any]) -> None:
    task, planned = lesson(model), Class()
    assert task.group(CPU) > 1
    every = planned.votes(task)
    assert np.array_equal(every[[5, 2]], planned.votes(task, [5, 2]))


@pytest.mark.parametrize(
    ("model", "optimizer"),
    sweep([(LOGISTIC, ADAM), (MLP, SGD), (LENET, ADAM), (FOREST, None), (LOGISTIC, None)], (0, 1, 3, 4), several=True),
)
@pytest.mark.parametrize("others", ["other records", "not a number", "removed"])
def test_nothing_passes_between_teachers(model: dict[str, Any], optimizer: Any, others: str) -> None:
    task = lesson(model, optimizer, **({"shape": (16,)} if model is FOREST else {}))
    planned = Class(tuple(task.shape))
    before, mine = planned.votes(task), planned.dealt == 4
    if others == "removed":
        kept = mine | (np.arange(len(mine)) % 2 == 0)
        planned.features, planned.labels = planned.features[kept], planned.labels[kept]
        planned.parts = DealtParts.of(planned.dealt[kept], 8)
    else:
        planned.features[~mine] = np.nan if others == "not a number" else 5 - planned.features[~mine]
        planned.labels[~mine] = (planned.labels[~mine] + 1) % 3
    after = planned.votes(task)
    assert np.array_equal(before[4], after[4])
    assert not np.array_equal(before, after)


@pytest.mark.parametrize(("model", "optimizer"), [(LOGISTIC, ADAM), (LENET, SGD), (FOREST, None), (LOGISTIC, None)])
def test_who_can_not_learn_votes_for_one_class(model: dict[str, Any], optimizer: Any) -> None:
    task = lesson(model, optimizer, **({"shape": (16,)} if model is FOREST else {}))
    planned = Class(tuple(task.shape))
    planned.labels[planned.dealt == 6] = planned.labels[planned.dealt == 3] = 2
    assert planned.votes(task)[3].any()
    planned.features[planned.dealt == 3] = np.nan
    voted = planned.votes(task)
    assert not voted[[0, 3]].any()
    if optimizer is None:
        assert (voted[6] == 2).all()


def test_as_many_learn_together_whether_a_part_is_empty_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first record of a part would change the shape, and so the rounding, of what the others compute."""
    groups: list[int] = []
    real = learn.train_group

    def counted(task: Lesson, pupils: Any) -> Any:
        groups.append(len(pupils))
        return real(task, pupils)

    monkeypatch.setattr(learn, "train_group", counted)
    task, planned = lesson(MLP), Class()
    before = planned.votes(task)
    planned.parts = DealtParts.of(np.where(np.arange(len(planned.dealt)) == 0, 0, planned.dealt), 8)
    after = planned.votes(task)
    assert groups == [8, 8]
    assert not before[0].any()
    assert after[0].any()


def test_seeds_are_of_the_number_and_the_purpose_alone() -> None:
    task = lesson(MLP)
    seeds = [task.seed_of(i, what) for i in range(500) for what in ("weights", "order", "augmentation", "fit")]
    assert len(set(seeds)) == 2000
    assert all(0 <= seed < 2**63 for seed in seeds)
    first, second = (flat(task.initial(i)) for i in (0, 1))
    assert not torch.equal(first, second)
    assert torch.equal(second, flat(lesson(MLP, SGD).initial(1)))


def test_a_small_part_takes_as_many_steps_as_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[int, int] = {}
    real = learn._Pupil.numbers

    def counted(self: Any, size: int) -> Any:
        read[len(self.labels)] = read.get(len(self.labels), 0) + size
        return real(self, size)

    monkeypatch.setattr(learn._Pupil, "numbers", counted)
    for task in (lesson(LOGISTIC), lesson(LENET)):
        read.clear()
        planned = Class(tuple(task.shape))
        planned.votes(task)
        assert read == {len(planned.parts[i]) or 1: 30 * 8 for i in range(8)}


def test_each_pass_reads_every_record_once() -> None:
    task, planned = lesson(LOGISTIC), Class()
    pupil = learn._Pupil(task, 5, *planned.take(planned.parts[5]), CPU)  # 15 records
    read = np.concatenate([pupil.numbers(8) for _ in range(15)])
    passes = read.reshape(8, 15)
    assert (np.sort(passes, axis=1) == np.arange(15)).all()
    assert len({tuple(order) for order in passes.tolist()}) == 8


def test_augmentation_moves_images_and_is_repeatable() -> None:
    task = lesson(LENET, preprocess=({"crop": {"padding": 4}}, {"flip": {}}))
    planned = Class(tuple(task.shape))
    pupils = [learn._Pupil(task, 7, *planned.take(planned.parts[7]), CPU) for _ in range(2)]
    first, second = (pupil.batch(8) for pupil in pupils)
    assert torch.equal(first[0], second[0])
    chosen = learn._Pupil(lesson(LENET), 7, *planned.take(planned.parts[7]), CPU).batch(8)
    assert torch.equal(first[1], chosen[1])
    assert not torch.equal(first[0], chosen[0])


def test_who_learns_together() -> None:
    cuda = torch.device("cuda")
    assert lesson(MLP).group(CPU) == learn.GROUP_SIZE
    assert lesson({"kind": "mlp", "hidden": (10_000,)}).group(CPU) == 1
    assert lesson(LENET).group(CPU) == 1
    assert lesson(LENET).group(cuda) > 100
    assert lesson(FOREST, None).group(cuda) == 1


def test_a_lesson_travels_as_json() -> None:
    task = lesson(LENET, SGD, preprocess=({"scale": {"mean": 0.5, "std": 0.5}},))
    assert Lesson.model_validate_json(task.model_dump_json(by_alias=True)) == task


def test_logits_that_are_no_numbers_are_no_votes() -> None:
    class Broken(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            logits = torch.ones(len(x), 3) * torch.tensor([0.0, 0.0, 1.0])
            logits[x.flatten(1)[:, 0] > 0.5] = math.nan
            return logits

    queries = np.zeros((30, 2), np.float32)
    assert (learn.predict_labels(Broken(), queries, 7, CPU) == 2).all()
    queries[29] = 1
    assert not learn.predict_labels(Broken(), queries, 7, CPU).any()


def test_teachers_on_a_gpu_are_trained_by_kernels_that_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's filter gradients add up in any order unless told; then a teacher's votes change with nothing. So do
    cuBLAS, and attention that saves memory."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")

    def read_flags() -> tuple[bool, ...]:
        cudnn, attention = torch.backends.cudnn, torch.backends.cuda.mem_efficient_sdp_enabled()
        strict, warned = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        return cudnn.deterministic, cudnn.benchmark, strict, warned, attention

    before = read_flags()
    with use_deterministic_kernels(CPU):
        assert read_flags() == before
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    with use_deterministic_kernels(torch.device("cuda")):
        assert read_flags() == (True, False, True, True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert read_flags() == before
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with use_deterministic_kernels(torch.device("cuda")):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    asked = []
    monkeypatch.setattr(
        learn, "use_deterministic_kernels", lambda device: asked.append(device) or use_deterministic_kernels(device)
    )
    learn.collect_votes(
        lesson(LOGISTIC),
        [],
        DealtParts.of(np.zeros(0, np.int64), 1),
        lambda _: pytest.fail("none"),
        np.zeros((1, 3)),
        CPU,
    )
    assert asked == [CPU]
