"""Slots: what a group costs, what may take from it, and that no order of taking gains anything."""

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.filters.cost import NotInAccount
from dprecipe.privacy.filters.slots import SlotGroup
from dprecipe.privacy.noisy_sums import FixedSizeGaussian, Gaussian, PoissonGaussian, PoissonLaplace
from dprecipe.privacy.stages.events import NoisyCount, NoisyQuantile, PartitionSelection

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "account.json").read_text())["records"]
ADD, REPLACE = Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.REPLACE_ONE


def group(*charges, relation=ADD):
    return SlotGroup(tuple(Charge(event, count) for event, count in charges), relation)


@pytest.mark.parametrize(
    "record", [r for r in GOLDEN if r["group"] == "account_slots_pld"], ids=lambda record: record["id"]
)
def test_groups_cost_what_their_loss_distributions_compose_to(record):
    given = record["inputs"]
    slots = group((PoissonGaussian(given["q"], given["sigma"]), given["steps"] * given["runs"]))
    assert slots.epsilon(given["delta"]) == pytest.approx(record["value"], rel=record["tol"])


def test_no_order_of_taking_gains_anything():
    """The best adversary by dynamic programming, who chooses the next pair by the loss so far, or stops."""
    rng = random.Random(5)
    for _ in range(60):
        pairs = []
        for _ in range(3):
            p, q = ([rng.random() ** 3 + 1e-3 for _ in range(3)] for _ in range(2))
            pairs.append([(a / sum(p), math.log(a / sum(p)) - math.log(b / sum(q))) for a, b in zip(p, q, strict=True)])
        epsilon = rng.choice([0.2, 1.0, 3.0])

        def best(left: tuple[int, ...], loss: float, epsilon=epsilon, pairs=pairs) -> float:
            stop = max(0.0, -math.expm1(epsilon - loss))
            values = [
                math.fsum(m * best(tuple(j for j in left if j != i), loss + step) for m, step in pairs[i]) for i in left
            ]
            return max([stop, *values])

        product = math.fsum(
            math.prod(m for m, _ in path) * max(0.0, -math.expm1(epsilon - sum(step for _, step in path)))
            for path in itertools.product(*pairs)
        )
        assert best((0, 1, 2), 0.0) <= product * (1 + 1e-12) + 1e-15


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_less_sampling_and_more_noise_is_dominated_at_every_epsilon(relation):
    epsilons = np.linspace(0, 4, 30).tolist()

    def deltas(q, sigma):
        points = accountants.profile([Charge(PoissonGaussian(q, sigma), 1)], relation, "pld", epsilons)
        return np.array([d for _, d in points])

    slot = deltas(0.3, 1.1)
    for q, sigma in ((0.3, 1.5), (0.2, 1.1), (0.05, 4.0)):
        assert np.all(deltas(q, sigma) <= slot * (1 + 1e-3) + 1e-12)  # both are bounds, on grids of their own


def test_runs_take_what_dominates_them():
    slots = group((PoissonGaussian(0.02, 1.0), 100), (Gaussian(10.0), 2))
    left = slots.take([Charge(PoissonGaussian(0.01, 1.5), 60)])
    assert set(left.charges) == {Charge(PoissonGaussian(0.02, 1.0), 40), Charge(Gaussian(10.0), 2)}
    left = left.take([Charge(PoissonGaussian(0.02, 1.0), 40), Charge(NoisyCount(10.0), 2)])
    assert left.charges == ()
    assert left.epsilon(1e-5) == 0
    for more in (
        [Charge(PoissonGaussian(0.01, 1.5), 101)],
        [Charge(PoissonGaussian(0.03, 2.0), 1)],
        [Charge(PoissonGaussian(0.01, 0.9), 1)],
        [Charge(Gaussian(7.0), 1)],
        [Charge(PoissonLaplace(0.01, 5.0), 1)],
    ):
        with pytest.raises(NotInAccount, match="do not dominate"):
            slots.take(more)


def test_what_is_left_of_a_gaussian_stays():
    left = group((Gaussian(2.0), 1)).take([Charge(Gaussian(4.0), 3)])
    (charge,) = left.charges
    assert charge.count == 1
    assert charge.event.squared_mu(1, ADD) == pytest.approx(1 / 4 - 3 / 16, rel=1e-9)
    assert charge.event.squared_mu(1, ADD) <= 1 / 4 - 3 / 16
    assert left.take([Charge(Gaussian(4.001), 1)]).charges
    with pytest.raises(NotInAccount, match="do not dominate"):
        left.take([Charge(Gaussian(3.999), 1)])
    replaced = group((Gaussian(2.0), 1), relation=REPLACE).take([Charge(Gaussian(4.0), 1)])
    assert replaced.charges[0].event.squared_mu(1, REPLACE) == pytest.approx(1 - 1 / 4, rel=1e-9)


def test_the_least_useful_slots_are_taken_so_that_what_fits_is_found():
    """Against all assignments of three events of a run to four slots."""
    rng = random.Random(2)
    fitted = 0
    for _ in range(200):
        slots = [(rng.choice([0.1, 0.2, 0.3]), rng.choice([1.0, 2.0, 3.0])) for _ in range(4)]
        run = [(rng.choice([0.1, 0.2, 0.3]), rng.choice([1.0, 2.0, 3.0])) for _ in range(3)]
        possible = any(
            all(slots[s][0] >= q and slots[s][1] <= sigma for s, (q, sigma) in zip(chosen, run, strict=True))
            for chosen in itertools.permutations(range(4), 3)
        )
        whole = group(*((PoissonGaussian(*slot), 1) for slot in slots))
        wanted = [Charge(PoissonGaussian(*event), 1) for event in run]
        if possible:
            fitted += 1
            left = whole.take(wanted)
            assert sum(charge.count for charge in left.charges) == 1
        else:
            with pytest.raises(NotInAccount):
                whole.take(wanted)
    assert 20 < fitted < 180


def test_slots_need_a_fixed_pair():
    for event, relation in (
        (PartitionSelection(2, 10.0, 2.0), ADD),
        (FixedSizeGaussian(100, 10, 1.0), ADD),
        (PoissonLaplace(0.1, 5.0), REPLACE),
    ):
        with pytest.raises(NotInAccount, match="no fixed dominating pair"):
            group((event, 1), relation=relation)
    assert group((NoisyQuantile(0.5, 4.0), 1)).take([Charge(NoisyQuantile(0.5, 4.0), 1)]).charges == ()
