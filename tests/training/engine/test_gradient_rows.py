"""Rows of one pass are the gradients of single records, however few at a time, and of every kind of layer."""

from __future__ import annotations

from unittest import mock

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from dprecipe.training.engine import gradient_rows as engine  # noqa: E402
from dprecipe.training.engine.clipped_sum import BatchPart, per_record_gradients, per_unit_gradients  # noqa: E402
from dprecipe.training.engine.gradient_rows import gradient_rows  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Flatten(),
        nn.Linear(36, 5),
    )


class Tied(nn.Module):
    """A layer called twice, one that reaches no loss, and one whose gradient no formula knows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(6, 6)
        self.unused = nn.Linear(3, 3)
        self.odd = nn.PReLU()
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.odd(self.inner(torch.tanh(self.inner(x)))))


MODELS = {"images": (images, (2, 8, 8), 5), "tied": (Tied, (6,), 3)}


def part_of(kind: str, count: int, units: Tensor | None = None) -> tuple[nn.Module, BatchPart]:
    build, shape, classes = MODELS[kind]
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (count,), generator=generator)
    return build(), BatchPart(torch.randn(count, *shape, generator=generator), labels, units)


def joined(model: nn.Module, batch: BatchPart, physical_batch: int, at_once: int) -> Tensor:
    return torch.cat([rows.clone() for rows in gradient_rows(model, cross_entropy, batch, physical_batch, at_once)])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_rows_are_the_gradients_of_single_records(kind: str, at_once: int) -> None:
    model, batch = part_of(kind, 11)
    expected = per_record_gradients(model, cross_entropy, batch.features, batch.labels)
    with mock.patch.object(engine, "per_unit_gradients", side_effect=AssertionError("no plan")):
        for physical_batch in (3, 100):
            rows = list(gradient_rows(model, cross_entropy, batch, physical_batch, at_once))
            assert max(map(len, rows)) <= at_once
            torch.testing.assert_close(joined(model, batch, physical_batch, at_once), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_units_of_several_records_have_the_mean(kind: str) -> None:
    model, batch = part_of(kind, 9, torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4]))
    expected = torch.cat(list(per_unit_gradients(model, cross_entropy, batch, 4)))
    torch.testing.assert_close(joined(model, batch, 4, 2), expected, rtol=1e-4, atol=1e-6)


def test_nothing_passes_between_records() -> None:
    """Not one bit, whatever the others are."""
    model, batch = part_of("images", 20)
    before = joined(model, batch, 20, 6)
    for other in (float("nan"), 1e30):
        batch.features[[3, 11]] = other
        after = joined(model, batch, 20, 6)
        untouched = torch.ones(20, dtype=torch.bool)
        untouched[[3, 11]] = False
        assert torch.equal(before[untouched], after[untouched])
        assert not torch.equal(before[~untouched], after[~untouched])


def test_a_model_without_a_plan_has_rows_too() -> None:
    class Formula(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(12.0).view(4, 3) / 10)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model, generator = Formula(), torch.Generator().manual_seed(0)
    batch = BatchPart(torch.randn(5, 4, generator=generator), torch.tensor([0, 1, 2, 0, 1]))
    expected = per_record_gradients(model, cross_entropy, batch.features, batch.labels)
    torch.testing.assert_close(joined(model, batch, 3, 2), expected)


def test_an_empty_batch_has_no_rows() -> None:
    model, batch = part_of("tied", 4)
    assert list(gradient_rows(model, cross_entropy, BatchPart(batch.features[:0], batch.labels[:0]), 4, 2)) == []
