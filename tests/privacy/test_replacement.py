"""The best split of ε over removing a unit and adding another, against Gaussian chains, for which it is exact."""

from __future__ import annotations

import pytest

from dprecipe.privacy import gdp, replacement
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.dealt_sums import PermutedGaussian
from dprecipe.privacy.events import Charge
from dprecipe.privacy.profile import Answer
from dprecipe.privacy.replacement import Directions, refine_epsilon, split_delta, split_epsilon


def of(mu: float) -> Directions:
    return (lambda epsilon: gdp.delta(mu, epsilon), lambda epsilon: gdp.delta(mu, epsilon))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0, 12.0])
@pytest.mark.parametrize(("removed", "added"), [(0.5, 2.0), (2.0, 0.5), (1.0, 1.0), (0.01, 1.5)])
def test_a_chain_of_gaussians_costs_what_their_distances_together_cost(
    removed: float, added: float, epsilon: float
) -> None:
    """At small ε the best split of one of both is below 0, and follows from the reverse of its own step."""
    exact = gdp.delta(removed + added, epsilon)
    found = split_delta(of(removed), of(added), epsilon)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize("delta", [0.1, 1e-5, 1e-12])
def test_epsilon_at_a_delta_is_that_of_the_chain(delta: float) -> None:
    exact = gdp.epsilon(2.5, delta)
    assert exact * (1 - 1e-9) <= split_epsilon(of(0.5), of(2.0), delta, 3 * exact) <= exact * (1 + 1e-4)
    assert split_epsilon(of(0.5), of(2.0), delta, 0.9 * exact) == 0.9 * exact  # a smaller bound is known


@pytest.mark.parametrize(("relation", "orders"), [(Neighbouring.ZERO_OUT_ONE, 2), (Neighbouring.REPLACE_ONE, 1)])
def test_a_unit_and_one_that_contributes_nothing_give_way_in_either_order(
    relation: Neighbouring, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger of both counts, whichever it is."""
    asked: list[tuple[Directions, Directions]] = []
    costs = iter([2.0, 3.0])

    def split(one: Directions, other: Directions, delta: float, most: float) -> float:
        asked.append((one, other))
        return next(costs)

    monkeypatch.setattr(replacement, "split_epsilon", split)
    charges = [Charge(PermutedGaussian(1438, 128, 11, 3.0), 2)]
    found = refine_epsilon(charges, relation, 1e-5, Answer(9.0, "pld"))
    assert (len(asked), found.value) == (orders, 1.0 + orders)
    assert asked[-1] == asked[0][::-1]
