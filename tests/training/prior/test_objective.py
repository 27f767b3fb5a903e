"""Alignment and uniformity, where they can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dprecipe.training.prior.learn import contrast


def test_views_that_agree_on_opposite_points() -> None:
    points = torch.tensor([[2.0, 0.0], [-3.0, 0.0]])  # lengths do not count
    alignment, spread = contrast(points, points, 1.0)
    assert alignment.item() == pytest.approx(0, abs=1e-6)
    assert spread.item() == pytest.approx(-8)


def test_views_at_right_angles() -> None:
    one, other = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    alignment, spread = contrast(one, other, 0.5)
    assert alignment.item() == pytest.approx(2)
    assert spread.item() == pytest.approx(0.5 * -4)


def test_a_collapsed_network_has_the_worst_uniformity() -> None:
    _, spread = contrast(torch.ones(5, 3), torch.ones(5, 3), 1.0)
    assert spread.item() == pytest.approx(0, abs=1e-5)


def test_uniformity_is_the_mean_over_pairs() -> None:
    points = torch.nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    pairs = [(points[i] - points[j]).square().sum().item() for i in range(6) for j in range(i)]
    expected = math.log(sum(math.exp(-2 * square) for square in pairs) / len(pairs))
    assert contrast(points, points, 1.0)[1].item() == pytest.approx(expected, rel=1e-5)
