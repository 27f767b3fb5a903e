from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_poisson_deviance

from dprecipe.data.facts import DataFacts
from dprecipe.data.omitted import OMITTED
from dprecipe.data.python_records import check_records
from dprecipe.data.records import Records
from dprecipe.data.targets import MAX_NAMES, ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target
from dprecipe.language.training import HuberLoss, Training
from dprecipe.models.outputs import label_type
from dprecipe.training.engine.clipped_sum import clipped_sum, per_record_gradients
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.engine.unit_rows import MeanLoss, RowwiseModel
from dprecipe.training.probe.program import examine_module
from dprecipe.training.probe.sums import clipping_tests
from dprecipe.training.program.losses import (
    BinaryCrossEntropy,
    HuberError,
    LabelledLoss,
    Loss,
    PoissonLoss,
    SquaredError,
    WeightedCrossEntropy,
    choose_loss,
    cross_entropy,
    generalised_cross_entropy,
    synthetic_labels,
)
from dprecipe.training.program.records import Store, UnitRowsBatch

OUTPUTS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 30.0, 0.0], [40.0, 0.0, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2])


def probabilities(outputs: torch.Tensor) -> torch.Tensor:
    return torch.softmax(outputs, 1)[torch.arange(3), LABELS]


@pytest.mark.parametrize("q", [0.1, 0.7, 0.99])
def test_generalised_cross_entropy_is_its_formula(q: float) -> None:
    expected = (1 - probabilities(OUTPUTS) ** q) / q
    assert torch.allclose(generalised_cross_entropy(OUTPUTS, LABELS, q), expected)


def test_cross_entropy_is_its_limit() -> None:
    exact = cross_entropy(OUTPUTS, LABELS)
    assert torch.equal(generalised_cross_entropy(OUTPUTS, LABELS, 0), exact)
    assert torch.allclose(generalised_cross_entropy(OUTPUTS, LABELS, 1e-9), exact, rtol=1e-6)


def test_its_gradient_is_that_of_cross_entropy_times_a_power_of_the_label_s_probability() -> None:
    outputs = OUTPUTS.clone().requires_grad_()
    (plain,) = torch.autograd.grad(cross_entropy(outputs, LABELS).sum(), outputs)
    (robust,) = torch.autograd.grad(generalised_cross_entropy(outputs, LABELS, 0.7).sum(), outputs)
    assert torch.allclose(robust, plain * probabilities(OUTPUTS)[:, None] ** 0.7)


def test_half_the_squared_error_by_hand() -> None:
    outputs, labels = torch.tensor([[0.5], [-1.0], [3.0]]), torch.tensor([0.25, 1.0, 1.0])
    assert SquaredError()(outputs, labels).tolist() == [0.03125, 2.0, 2.0]


def test_hubers_loss_by_hand() -> None:
    outputs, labels = torch.tensor([[0.5], [0.0], [3.0], [-1.0]]), torch.tensor([0.25, 0.5, 1.0, 1.0])
    assert HuberError(0.5)(outputs, labels).tolist() == [0.03125, 0.125, 0.5 * 2 - 0.125, 0.5 * 2 - 0.125]


def test_poisson_loss_is_half_the_deviance() -> None:
    generator = np.random.default_rng(0)
    z, y = generator.uniform(-3, 4, 50), generator.integers(0, 60, 50).astype(float)
    losses = PoissonLoss(100)(torch.from_numpy(z)[:, None], torch.from_numpy(y).float())
    assert float(losses.mean()) == pytest.approx(mean_poisson_deviance(y, np.exp(z)) / 2, rel=1e-12)
    assert PoissonLoss(100)(torch.tensor([[0.0], [math.log(4.0)]]), torch.tensor([0.0, 4.0])).tolist() == (
        pytest.approx([1.0, 0.0], abs=1e-6)
    )


@pytest.mark.parametrize("largest", [1, 7, 1 << 24])
def test_poisson_loss_is_convex_and_no_output_overflows_it(largest: int) -> None:
    z = torch.cat([torch.linspace(-50, 50, 2001, dtype=torch.float64), torch.tensor([1e30], dtype=torch.float64)])
    for label in (0.0, 1.0, float(largest)):
        outputs = z[:, None].clone().requires_grad_()
        losses = PoissonLoss(largest)(outputs, torch.full_like(z, label))
        (slopes,) = torch.autograd.grad(losses.sum(), outputs)
        assert torch.isfinite(losses).all()
        assert (slopes.abs() <= largest * (1 + 1e-9)).all()
        assert (slopes[1:] >= slopes[:-1] - 1e-9 * largest).all()


def test_the_loss_follows_from_the_label_and_equal_losses_are_one() -> None:
    plain, robust = Training(), Training(loss=HuberLoss(kind="huber", delta=0.1))
    assert choose_loss(ClassTarget(3), plain) is cross_entropy
    assert choose_loss(NumberTarget(0, 9), plain) == SquaredError()
    assert choose_loss(NumberTarget(0, 9), robust) == HuberError(0.1)
    assert choose_loss(CountTarget(9), plain) == PoissonLoss(9)
    assert hash(choose_loss(CountTarget(9), plain)) == hash(PoissonLoss(9))
    assert choose_loss(SEVERAL, plain) == BinaryCrossEntropy(3)
    assert choose_loss(SEVERAL, Training(class_weights={"b": 4.0})) == BinaryCrossEntropy(3, (1.0, 4.0, 1.0))


@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 30.0)])
def test_the_loss_of_names_is_torchs(weights: tuple[float, ...] | None) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, answers = 9 * torch.randn(40, 3, generator=generator), torch.randint(2, (40, 3), generator=generator)
    labels = (answers * torch.tensor([1, 2, 4])).sum(1)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        outputs, answers.float(), reduction="none", pos_weight=None if weights is None else torch.tensor(weights)
    ).mean(1)
    torch.testing.assert_close(BinaryCrossEntropy(3, weights)(outputs, labels), expected)
    far = BinaryCrossEntropy(2)(torch.tensor([[1e4, -1e4], [-1e4, 1e4]]), torch.tensor([1, 1]))
    torch.testing.assert_close(far, torch.tensor([0.0, 1e4]))


SEVERAL = SeveralTarget(("a", "b", "c"))
MANY = SeveralTarget(tuple(map(str, range(MAX_NAMES))))
TARGETS = [ClassTarget(3), NumberTarget(-5.0, 9.0), CountTarget(1), CountTarget(100), SEVERAL, MANY]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_synthetic_labels_are_labels_and_neighbours_differ(target: Target) -> None:
    labels = synthetic_labels(torch.arange(50), target)
    assert labels.dtype == label_type(target)
    assert labels.shape == (50,)
    assert (labels[1:] != labels[:-1]).all()
    facts = DataFacts((2,), target, (2,))
    assert check_records(Records(np.zeros((50, 2), np.float32), labels.numpy()), facts, "train").labels is not None


LOSSES = [
    (NumberTarget(0.0, 9.0), SquaredError()),
    (NumberTarget(0.0, 9.0), HuberError(0.2)),
    (CountTarget(50), PoissonLoss(50)),
    (SEVERAL, BinaryCrossEntropy(3)),
    (SEVERAL, BinaryCrossEntropy(3, (1.0, 20.0, 0.1))),
]


@pytest.mark.parametrize(("target", "loss"), LOSSES, ids=lambda value: str(value))
@pytest.mark.parametrize("of_units", [False, True], ids=["records", "units"])
def test_clipped_sums_are_those_of_a_loop_over_single_records(target: Target, loss: Loss, of_units: bool) -> None:
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, target.outputs))
    features, labels = torch.randn(9, 4), synthetic_labels(torch.arange(9), target)
    units = np.array([0, 0, 0, 1, 1, 2, 3, 4, 4]) if of_units else None
    grads = []
    for x, y in zip(features, labels, strict=True):
        value = loss(net(x[None]), y[None]).sum()
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(value, list(net.parameters()))]).double())
    rows = torch.stack(grads)
    if units is not None:
        rows = torch.stack([rows[units == unit].mean(0) for unit in range(5)])
    norm = float(rows.norm(dim=1).median())
    expected = (rows * (norm / rows.norm(dim=1)).clamp(max=1)[:, None]).sum(0)
    store = Store(Records(features.numpy(), labels.numpy(), units), torch.device("cpu"))
    batch = store.batch(np.arange(len(rows)), 0)
    if units is None:
        result = clipped_sum(net, loss, batch, Clipping.flat(norm), 4)
    else:
        result = clipped_sum(RowwiseModel(net), MeanLoss(loss), UnitRowsBatch(batch), Clipping.flat(norm), 4)
    torch.testing.assert_close(result.value, expected, rtol=1e-5, atol=1e-6 * norm)


@pytest.mark.parametrize(("target", "loss"), LOSSES, ids=lambda value: str(value))
@pytest.mark.parametrize("rows", [None, 2])
def test_the_probe_passes_and_refuses_a_module_of_another_number_of_outputs(
    target: Target, loss: Loss, rows: int | None
) -> None:
    torch.manual_seed(0)
    tests = clipping_tests(clipped_sum, None, rows)
    good = examine_module(torch.nn.Linear(4, target.outputs), loss, (4,), target, per_record_gradients, tests)
    assert [check.measured for check in good if not check.passed] == []
    bad = examine_module(torch.nn.Linear(4, target.outputs + 1), loss, (4,), target, per_record_gradients, tests)
    assert (bad[0].passed, bad[0].measured) == (
        False,
        f"shape [6, {target.outputs + 1}], expected [6, {target.outputs}]",
    )


def test_weights_by_hand_and_by_name() -> None:
    target, outputs = ClassTarget(3, ("a", "b", "c")), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 2, 0])
    for declared in ({"c": 5.0, "a": 0.5}, (0.5, 1.0, 5.0)):
        loss = choose_loss(target, Training(class_weights=declared))
        assert loss == WeightedCrossEntropy((0.5, 1.0, 5.0))
        expected = cross_entropy(outputs, labels) * torch.tensor([0.5, 1, 5, 5, 0.5])
        assert torch.equal(loss(outputs, labels), expected)
    numbered = choose_loss(ClassTarget(3), Training(class_weights={"2": 5.0}))
    assert numbered == WeightedCrossEntropy((1.0, 1.0, 5.0))


def test_a_spread_label_is_its_formula_and_takes_weights() -> None:
    target, outputs, labels = ClassTarget(3), torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 2, 0])
    spread = torch.nn.functional.one_hot(labels, 3) * 0.9 + 0.1 / 3
    expected = -(spread * torch.log_softmax(outputs, 1)).sum(1)
    loss = choose_loss(target, Training(label_smoothing=0.1))
    torch.testing.assert_close(loss(outputs, labels), expected)
    weighted = choose_loss(target, Training(label_smoothing=0.1, class_weights=(1.0, 2.0, 3.0)))
    torch.testing.assert_close(weighted(outputs, labels), expected * torch.tensor([1.0, 2, 3, 3, 1]))


@pytest.mark.parametrize("of_units", [False, True], ids=["records", "units"])
def test_a_weight_is_applied_before_clipping_and_never_moves_a_sum_further(of_units: bool) -> None:
    torch.manual_seed(0)
    net, norm = torch.nn.Linear(4, 3), 0.3
    features, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    loss = WeightedCrossEntropy((1.0, 1e6, 1e-3), 0.1)
    units = np.repeat(np.arange(6), 1) if of_units else None
    store = Store(Records(features.numpy(), labels.numpy(), units), torch.device("cpu"))

    def summed(numbers: list[int]) -> torch.Tensor:
        batch = store.batch(np.array(numbers), 0)
        if of_units:
            return clipped_sum(RowwiseModel(net), MeanLoss(loss), UnitRowsBatch(batch), Clipping.flat(norm), 6).value
        return clipped_sum(net, loss, batch, Clipping.flat(norm), 6).value

    for record in range(6):
        alone = summed([record])
        assert float(alone.norm()) <= norm * (1 + 1e-6)
        difference = summed([*range(6)]) - summed([each for each in range(6) if each != record])
        torch.testing.assert_close(difference, alone, rtol=1e-4, atol=1e-6)
    assert float(summed([1]).norm()) > 0.99 * norm  # of the weight 1e6: clipped, and no longer
    assert float(summed([2]).norm()) < 0.02 * norm  # of the weight 1e-3: as small as its gradient


def test_the_probe_passes_with_weights() -> None:
    loss = WeightedCrossEntropy((1.0, 20.0, 0.1))
    for rows in (None, 2):
        checks = examine_module(
            torch.nn.Linear(4, 3), loss, (4,), 3, per_record_gradients, clipping_tests(clipped_sum, None, rows)
        )
        assert [check.measured for check in checks if not check.passed] == []


@pytest.mark.parametrize("target", [ClassTarget(3), NumberTarget(0.0, 9.0), CountTarget(50)], ids=str)
@pytest.mark.parametrize("clipping", [Clipping.flat(0.3), Clipping.flat(0.3, norm="l1")], ids=["l2", "l1"])
@pytest.mark.parametrize("of_units", [False, True], ids=["records", "units"])
def test_the_sum_is_that_of_the_records_with_a_label(target: Target, clipping: Clipping, of_units: bool) -> None:
    """A record without a label adds nothing; of a unit, the mean is over its records with one."""
    torch.manual_seed(0)
    net, loss = torch.nn.Linear(4, target.outputs), choose_loss(target, Training(), omits=True)
    assert loss == LabelledLoss(choose_loss(target, Training()))
    features, labels = torch.randn(9, 4), synthetic_labels(torch.arange(9), target)
    units = np.array([0, 0, 0, 1, 1, 2, 3, 4, 4]) if of_units else None
    gaps = np.array([False, True, False, True, True, False, True, False, False])
    labels[gaps] = math.nan if labels.is_floating_point() else OMITTED

    def summed(kept: np.ndarray) -> torch.Tensor:
        own = None if units is None else np.unique(units[kept], return_inverse=True)[1]
        store = Store(Records(features.numpy()[kept], labels.numpy()[kept], own), torch.device("cpu"))
        batch = store.batch(np.arange(kept.sum() if own is None else own.max() + 1), 0)
        if own is None:
            return clipped_sum(net, loss, batch, clipping, 4).value
        return clipped_sum(RowwiseModel(net), MeanLoss(loss), UnitRowsBatch(batch), clipping, 4).value

    torch.testing.assert_close(summed(np.ones(9, bool)), summed(~gaps), rtol=1e-6, atol=1e-7)
    assert float(summed(~gaps).norm()) > 0.1
    if units is None:
        assert not summed(gaps).any()
    else:
        assert not summed(np.isin(units, [1, 3])).any()


def test_the_probe_passes_where_labels_may_be_missing() -> None:
    for rows in (None, 2):
        checks = examine_module(
            torch.nn.Linear(4, 3),
            LabelledLoss(cross_entropy),
            (4,),
            3,
            per_record_gradients,
            clipping_tests(clipped_sum, None, rows),
        )
        assert [check.measured for check in checks if not check.passed] == []
