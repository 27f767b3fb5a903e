"""Scores are means over all held-out records, in whatever batches these are read."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import numpy as np  # noqa: E402
from sklearn.metrics import log_loss, mean_poisson_deviance, roc_auc_score  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dprecipe.data.records import Records  # noqa: E402
from dprecipe.data.several import pack_answers  # noqa: E402
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target, TokenTarget  # noqa: E402
from dprecipe.models.build import build  # noqa: E402
from dprecipe.models.outputs import interpret_outputs, label_units  # noqa: E402
from dprecipe.models.schema import Cnn, LeastSquares, Linear, SoftmaxRegression  # noqa: E402
from dprecipe.training.program.evaluate import MAX_TEXTS, HeldOut, Score  # noqa: E402
from dprecipe.training.program.losses import BinaryCrossEntropy, NextTokenLoss, cross_entropy  # noqa: E402

CPU = torch.device("cpu")
GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(23, 3)).astype(np.float32)


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(value.shape, generator=generator) for name, value in module.state_dict().items()}


@pytest.mark.parametrize("batch", [4, 23, 100])
def test_a_classifier(batch: int) -> None:
    labels = GENERATOR.integers(4, size=23)
    module = build(SoftmaxRegression(kind="softmax_regression"), (3,), 4, 0)
    state = state_of(module)
    score = HeldOut(module, Records(FEATURES, labels), CPU, batch, ClassTarget(4)).score(state)
    logits = torch.from_numpy(FEATURES) @ state["1.weight"].T + state["1.bias"]
    assert score.accuracy == pytest.approx((logits.argmax(1).numpy() == labels).mean())
    chances = logits.double().softmax(1).numpy()[np.arange(23), labels]
    assert score.loss == pytest.approx(-np.log(chances).mean(), rel=1e-5)
    assert (score.records, score.mean_absolute_error) == (23, None)
    assert score.metrics == {"accuracy": score.accuracy, "loss": score.loss}
    assert score.summary == score.describe() == f"accuracy {score.accuracy:.2%}"


@pytest.mark.parametrize("batch", [4, 23])
def test_names_that_may_apply(batch: int) -> None:
    answers = GENERATOR.integers(2, size=(23, 3))
    module = build(Linear(kind="linear"), (3,), 3, 0)
    state = state_of(module)
    target, records = SeveralTarget(("a", "b", "c")), Records(FEATURES, pack_answers(answers))
    score = HeldOut(module, records, CPU, batch, target).score(state, full=True)
    logits = (torch.from_numpy(FEATURES) @ state["1.weight"].T + state["1.bias"]).double().numpy()
    assert score.accuracy == pytest.approx(((logits > 0) == answers).all(1).mean())
    chances = 1 / (1 + np.exp(-logits))
    assert score.loss == pytest.approx(log_loss(answers.ravel(), chances.ravel()), rel=1e-5)
    assert score.full["accuracy"] == score.accuracy
    assert score.full["by_name"][1]["auc"] == pytest.approx(roc_auc_score(answers[:, 1], chances[:, 1]))
    assert score.mean_absolute_error is None


@pytest.mark.parametrize("batch", [4, 23, 100])
def test_a_regression_is_scored_in_the_units_of_its_target(batch: int) -> None:
    years, target = GENERATOR.uniform(1900, 2020, 23), NumberTarget(1900.0, 2020.0)
    module = build(LeastSquares(kind="least_squares"), (3,), 1, 0)
    state = state_of(module)
    records = Records(FEATURES, ((years - 1960) / 60).astype(np.float32))
    score = HeldOut(module, records, CPU, batch, target).score(state)
    predicted = 1960 + 60 * (FEATURES @ state["1.weight"].numpy()[0] + state["1.bias"].numpy()[0])
    assert score.accuracy is None
    assert score.loss == pytest.approx(((years - predicted) ** 2).mean(), rel=1e-5)
    assert score.mean_absolute_error == pytest.approx(np.abs(years - predicted).mean(), rel=1e-5)
    assert score.metrics == {"mean_absolute_error": score.mean_absolute_error, "loss": score.loss}
    assert score.summary == f"mean absolute error {score.mean_absolute_error:.4g}"


def test_no_records_at_all() -> None:
    module = build(LeastSquares(kind="least_squares"), (3,), 1, 0)
    none = Records(FEATURES[:0], np.zeros(0, np.float32))
    assert HeldOut(module, none, CPU, 4, NumberTarget(0.0, 1.0)).score(module.state_dict()) == Score(None, 0.0, 0, 0.0)


def test_a_count_is_scored_by_the_errors_of_its_rate() -> None:
    counts, target = GENERATOR.integers(9, size=23), CountTarget(8)
    module = build(Linear(kind="linear"), (3,), 1, 0)
    state = state_of(module)
    score = HeldOut(module, Records(FEATURES, counts.astype(np.float32)), CPU, 10, target).score(state)
    rates = np.exp(FEATURES.astype(float) @ state["1.weight"].numpy()[0] + float(state["1.bias"][0])).clip(max=8)
    assert score.mean_absolute_error == pytest.approx(np.abs(counts - rates).mean(), rel=1e-5)
    assert score.loss == pytest.approx(mean_poisson_deviance(counts, rates), rel=1e-5)


def test_images_are_scored_in_either_order_of_memory() -> None:
    images, labels = GENERATOR.normal(size=(9, 1, 28, 28)).astype(np.float32), GENERATOR.integers(10, size=9)
    module = build(Cnn(kind="cnn", preset="tempered-mnist"), (1, 28, 28), 10, 0)
    state, records = state_of(module), Records(images, labels)
    ours, theirs = (
        HeldOut(module, records, CPU, 4, ClassTarget(10), from_python=from_python).score(state)
        for from_python in (False, True)
    )
    assert (ours.accuracy, ours.loss) == (theirs.accuracy, pytest.approx(theirs.loss, rel=1e-5))


def test_images_of_a_module_from_python_keep_their_order_in_memory() -> None:
    class Flat(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.view(len(images), -1)

    module = torch.nn.Sequential(torch.nn.Conv2d(2, 1, 1), Flat())
    records = Records(GENERATOR.normal(size=(5, 2, 2, 2)).astype(np.float32), np.zeros(5, np.int64))
    score = HeldOut(module, records, CPU, 4, ClassTarget(4), from_python=True).score(state_of(module))
    assert score.records == 5


def test_texts_are_scored_a_few_at_a_time() -> None:
    sizes: list[int] = []

    class Words(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, 4)

        def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
            sizes.append(len(tokens_BT))
            outputs: torch.Tensor = self.table(tokens_BT.long()).mean(1)
            return outputs

    count = 2 * MAX_TEXTS + 5
    tokens, labels = GENERATOR.integers(7, size=(count, 3)), GENERATOR.integers(4, size=count)
    module, records = Words(), Records(tokens, labels)
    whole, parts = (HeldOut(module, records, CPU, batch, ClassTarget(4)) for batch in (1024, 9))
    scores = [each.score(module.state_dict()) for each in (whole, parts)]
    assert sizes[:3] == [MAX_TEXTS, MAX_TEXTS, 5]
    assert max(sizes[3:]) == 9
    assert (scores[0].accuracy, scores[0].loss) == (scores[1].accuracy, pytest.approx(scores[1].loss, rel=1e-5))


class Fetches(TorchDispatchMode):
    """Counts numbers for which a device would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


NAMES = SeveralTarget(("a", "b", "c"))


@pytest.mark.parametrize("batch", [1, 4, 23])
@pytest.mark.parametrize(
    "target",
    [ClassTarget(3), NAMES, NumberTarget(0.0, 5.0), CountTarget(8), TokenTarget(3)],
    ids=lambda target: type(target).__name__,
)
def test_no_part_is_waited_for_and_sums_are_python_s(target: Target, batch: int) -> None:
    """Records are carried as to a GPU; each sum is the one that Python makes of the sums of parts, to the bit."""
    generator = torch.Generator().manual_seed(7)
    outputs = torch.randn(23, 3 if target.is_choice else 1, generator=generator)
    if isinstance(target, TokenTarget):
        outputs = -torch.rand(23, 4, generator=generator)
    kind = np.int64 if target.is_choice or isinstance(target, TokenTarget) else np.float32
    labels = GENERATOR.integers(3, size=23).astype(kind)
    records = Records(outputs.numpy(), labels)
    with Fetches() as seen:
        score = HeldOut(torch.nn.Identity(), records, CPU, batch, target).score({})
    assert seen.count == 0
    right, loss, absolute, nats = 0, 0.0, 0.0, 0.0
    for start in range(0, 23, batch):
        part, own = outputs[start : start + batch], torch.from_numpy(labels[start : start + batch])
        if isinstance(target, ClassTarget):
            right += int((part.argmax(1) == own).sum())
            loss += float(cross_entropy(part, own).sum())
        elif isinstance(target, SeveralTarget):
            loss += float(BinaryCrossEntropy(3)(part, own).sum())
        elif isinstance(target, TokenTarget):
            loss += float(NextTokenLoss()(part, own).sum())
            nats -= float(part.double().sum())
        elif isinstance(target, NumberTarget):
            predicted, truth = interpret_outputs(part.double(), target)[:, 0], label_units(own, target)
            loss += float((predicted - truth).square().sum())
            absolute += float((predicted - truth).abs().sum())
    if not isinstance(target, CountTarget):
        assert score.loss == loss / 23
    if isinstance(target, ClassTarget):
        assert score.accuracy == right / 23
    if isinstance(target, NumberTarget):
        assert score.mean_absolute_error == absolute / 23
    if isinstance(target, TokenTarget):
        assert score.full["tokens"] == labels.sum()
        assert score.full["perplexity"] == math.exp(nats / labels.sum())


def test_records_are_carried_to_the_device_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[torch.device] = []
    monkeypatch.setattr(
        "dprecipe.training.program.evaluate.carry_to_device", lambda tensor, device: carried.append(device) or tensor
    )
    records = Records(FEATURES, GENERATOR.integers(3, size=23))
    HeldOut(torch.nn.Identity(), records, CPU, 10, ClassTarget(3)).score({})
    assert carried == [CPU] * 6


@pytest.mark.parametrize("batch", [1, 4, 23])
@pytest.mark.parametrize("target", [ClassTarget(4), NumberTarget(0.0, 9.0)], ids=str)
def test_records_without_a_label_are_not_scored(batch: int, target: Target) -> None:
    labels = np.arange(23) % 4 if isinstance(target, ClassTarget) else np.linspace(-1, 1, 23).astype(np.float32)
    gaps = np.arange(23) % 3 == 0
    marked = labels.copy()
    marked[gaps] = -1 if isinstance(target, ClassTarget) else math.nan
    module = build(Linear(kind="linear"), (3,), target.outputs, 0)
    state = state_of(module)
    score = HeldOut(module, Records(FEATURES, marked), CPU, batch, target).score(state, full=True)
    expected = HeldOut(module, Records(FEATURES[~gaps], labels[~gaps]), CPU, 23, target).score(state, full=True)
    assert (score.records, score.loss) == (15, pytest.approx(expected.loss))
    assert score.metrics == pytest.approx(expected.metrics)
    nothing = np.full_like(marked, marked[0])
    assert HeldOut(module, Records(FEATURES, nothing), CPU, batch, target).score(state, full=True).records == 0
