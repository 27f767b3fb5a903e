"""Noise of its own for each group of coordinates: golden multipliers, another library, a search for a worse unit."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.noisy_sums import PoissonGaussian
from dprecipe.privacy.sampling import EveryUnit, PoissonBatch
from tests.sweeps import sweep

ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


@pytest.mark.parametrize(
    ("multipliers", "joint"), [((2.0, 3.0, 6.0), 1.603567451474546), ((1.0, 1.0), 0.7071067811865475), ((4.0,), 4.0)]
)
def test_the_golden_multiplier_of_all_groups(multipliers: tuple[float, ...], joint: float) -> None:
    event = GroupedGaussian.of(0.01, multipliers)
    assert event.noise_multiplier == pytest.approx(joint, rel=1e-14)
    assert event.group_multipliers == multipliers
    assert math.fsum(share**2 for share in event.shares) == pytest.approx(1, abs=1e-14)


def test_equal_groups_in_a_row_are_written_once() -> None:
    event = GroupedGaussian.of(0.5, [2.0, 2.0, 3.0, 2.0])
    assert event.groups == ((2.0, 2), (3.0, 1), (2.0, 1))
    assert event.group_multipliers == (2.0, 2.0, 3.0, 2.0)


def test_another_library_composes_the_groups_alike() -> None:
    multipliers, q, steps = (2.0, 3.0, 6.0), 0.01, 1000
    groups = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(z) for z in multipliers])
    accountant = rdp.RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(q, groups), steps)
    ours = accountants.epsilon((Charge(GroupedGaussian.of(q, multipliers), steps),), 1e-5, ADD, "rdp")
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("q", "relation"), sweep([(0.02, ADD), (0.02, REPLACE), (1.0, REPLACE), (1.0, ADD)], (0, 2), several=True)
)
def test_it_costs_what_one_gaussian_costs(q: float, relation: Neighbouring) -> None:
    event = GroupedGaussian.of(q, (2.0, 3.0, 6.0))
    one = PoissonGaussian(q, event.noise_multiplier)
    for accountant in accountants.ACCOUNTANTS:
        assert accountants.epsilon((Charge(event, 40),), 1e-5, relation, accountant) == pytest.approx(
            accountants.epsilon((Charge(one, 40),), 1e-5, relation, accountant), rel=1e-12
        )
    assert event.screening_bound(ADD) == one.screening_bound(ADD)
    claim = accountants.epsilon((Charge(event, 40),), 1e-5, relation, "pld")
    checked = cross_check.ask_library((Charge(event, 40),), 1e-5, relation).epsilon
    assert checked == pytest.approx(claim, rel=1e-3)


def test_no_unit_moves_the_sum_further_and_one_moves_it_so_far() -> None:
    rng = np.random.default_rng(0)
    norms, multipliers = np.array([0.5, 2.0, 7.0]), np.array([2.0, 3.0, 6.0])
    joint = GroupedGaussian.of(1.0, multipliers.tolist()).noise_multiplier
    moved = []
    for _ in range(2000):
        units = [rng.normal(size=size) * rng.exponential(3) for size in (1, 4, 30)]
        clipped = [u * min(1, c / np.linalg.norm(u)) for u, c in zip(units, norms, strict=True)]
        whitened = [u / (z * c) for u, z, c in zip(clipped, multipliers, norms, strict=True)]
        moved.append(float(np.linalg.norm(np.concatenate(whitened))))
    assert max(moved) == pytest.approx(1 / joint, rel=1e-9)
    assert max(moved) <= 1 / joint * (1 + 1e-12)


def test_the_batch_is_that_of_its_rate() -> None:
    assert GroupedGaussian.of(0.1, (1.0, 2.0)).sampling() == PoissonBatch(0.1)
    assert GroupedGaussian.of(1.0, (1.0, 2.0)).sampling() == EveryUnit()


@pytest.mark.parametrize(
    ("q", "groups"),
    [
        (0.0, ((1.0, 1),)),
        (1.5, ((1.0, 1),)),
        (0.1, ()),
        (0.1, ((0.0, 1),)),
        (0.1, ((1.0, 0),)),
        (0.1, ((math.nan, 1),)),
    ],
)
def test_an_impossible_event_is_refused(q: float, groups: tuple[tuple[float, int], ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        GroupedGaussian(q, groups)
