"""The best split of ε over removing a unit and adding another, against Gaussian chains, for which it is exact."""

from __future__ import annotations

import pytest

from dprecipe.privacy import gdp
from dprecipe.privacy.replacement import split_delta, split_epsilon


def of(mu: float):
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
