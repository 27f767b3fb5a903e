"""Privacy losses of a law of likelihood ratios: nothing that a grid leaves out is forgotten."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprecipe.privacy.dealing.ratio import RatioLaw, mix_laws

RATIOS, Q = np.array([0.0, 0.5, 2.0]), np.array([0.1, 0.6, 0.3])
LAW = RatioLaw(RATIOS, Q, RATIOS * Q, infinity=0.1, lost=1e-3)


def test_what_is_beyond_the_grid_and_what_rounding_may_take_is_charged() -> None:
    pair = LAW.to_losses(0.1, 1e-9)
    assert pair.added is not None
    assert pair.removed.infinity == pytest.approx(0.1 + 1e-3)
    assert pair.removed.missing == pytest.approx(0.1)  # Q has mass where P has none
    assert pair.added.infinity == pytest.approx(0.1 + 1e-3)  # the same mass, of the other side
    assert pair.added.missing == pytest.approx(0.1)


def test_a_mixture_has_the_points_of_all_cases_and_the_rest_is_lost() -> None:
    other = RatioLaw(np.array([1.0, 3.0]), np.array([0.9, 0.1]), np.array([0.8, 0.2]), infinity=0.0, lost=0.0)
    mixed = mix_laws([(0.7, LAW), (0.2, other)], 0.1)
    assert mixed.ratios.tolist() == [0.0, 0.5, 1.0, 2.0, 3.0]
    assert mixed.q_masses.tolist() == pytest.approx([0.07, 0.42, 0.18, 0.21, 0.02])
    assert mixed.p_masses.tolist() == pytest.approx([0.0, 0.21, 0.16, 0.42, 0.04])
    assert (mixed.infinity, mixed.lost) == pytest.approx((0.07, 0.7e-3 + 0.1))


def test_masses_and_losses_of_both_directions() -> None:
    pair = LAW.to_losses(0.1, 1e-9)
    assert pair.added is not None
    assert pair.removed.masses.sum() == pytest.approx(0.9)  # P within the grid
    assert pair.added.masses.sum() == pytest.approx(0.9)  # Q where P has mass
    assert pair.removed.losses[-1] == pytest.approx(math.log(2), abs=0.1)
    assert pair.added.losses[-1] == pytest.approx(math.log(2), abs=0.1)


def test_the_top_points_go_to_infinity_where_they_may_be_rounding_alone() -> None:
    ratios, q = np.array([0.5, 1.0, 1e6]), np.array([0.5, 0.5, 1e-20])
    pair = RatioLaw(ratios, q, ratios * q, 0.0, lost=1e-12).to_losses(0.1, 1e-15)
    assert pair.removed.losses[-1] < 1.0
    assert pair.removed.infinity == pytest.approx(1e-12 + 1e-14)
