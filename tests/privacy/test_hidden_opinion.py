"""The second opinion on hidden runs: minorants by brute force, published figures, and the first opinion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprecipe.privacy import accountants, hidden, hidden_opinion, second_opinion
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Gaussian, ProjectedDescent

Stages = tuple[tuple[int, float, float, float], ...]


def descent(
    stages: Stages, size: int, lot: int = 1, order: str = "permuted", stop: str = "last", family: str = "gaussian"
) -> ProjectedDescent:
    return ProjectedDescent("replace_one", family, size, lot, order, stop, stages)


def brute_force(stages: Stages, lots: int, first: int) -> float:
    """μ by the definition of a minorant's slope at a point: the largest, over what is before, of the least after."""
    rows = [row for row in stages for _ in range(row[0])]
    contraction, noise = np.array([row[2] for row in rows]), np.array([1 / row[3] for row in rows])
    used = np.array([t >= first and (t - first) % lots == 0 for t in range(1, len(rows) + 1)])
    shift = np.where(used, noise / np.array([row[1] for row in rows]), 0.0)
    best = math.inf
    for start in range(-1, len(rows) - 1):
        left = np.cumprod(contraction[start + 1 :])
        w = np.append(0, np.cumsum((noise[start + 1 :] / left) ** 2))
        s = np.append(0, (start >= 0) + np.cumsum(shift[start + 1 :] / left))
        slopes = [
            max(min((s[v] - s[u]) / (w[v] - w[u]) for v in range(t, len(w))) for u in range(t))
            for t in range(1, len(w))
        ]
        best = min(best, float(np.square(slopes) @ np.diff(w)))
    return math.sqrt(best)


def test_isotonic_regression_gives_the_minorant() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        stages = tuple(
            (int(rng.integers(1, 6)), *(float(rng.uniform(*r)) for r in ((0.3, 3), (0.3, 1), (0.3, 8))))
            for _ in range(rng.integers(1, 4))
        )
        steps, lots = sum(row[0] for row in stages), int(rng.integers(1, 5))
        first = int(rng.integers(1, min(lots, steps) + 1))
        run = hidden_opinion._Run(descent(stages, lots, order="sequential"))  # type: ignore[arg-type]
        cell = hidden_opinion._Cell(1.0, first, 0, steps)
        assert run._mu(cell, steps) == pytest.approx(brute_force(stages, lots, first), rel=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize(("position", "expected"), [(39, 4.98e-4), (40, 0.1269)])
def test_a_figure_of_the_paper_s_setting(position: int, expected: float) -> None:
    """σ = 2, L = 1, β = η = 0.5, ρ = 0, D = 1, 40 records, ε = 1."""
    run = hidden_opinion._Run(descent(((40, 1.0, 1.0, 1.0),), 40, order="sequential"))
    run.__dict__["cells"] = [hidden_opinion._Cell(1.0, position, 0, 40)]
    assert run.total(np.array([1.0]))[0] == pytest.approx(expected, rel=5e-3)


@pytest.mark.parametrize(
    "event",
    [
        descent(((225, 1.59, 0.995, 100.0),), 1437, 32),
        descent(((225, 2.0, 0.995, 77.0),), 1437, 32, order="sequential"),
        descent(((200, 1.0, 1.0, 60.0),), 100, stop="random"),
        descent(((90, 1.5, 0.99, 30.0), (90, 1.2, 1.0, 45.0)), 60),
        descent(((40, 1.0, 1.0, 1.0),), 40),
        descent(((74, 3.0, 1.0, 3.0),), 74, order="sequential"),
        descent(((24, 0.8, 0.95, 2.0),), 12, family="laplace"),
        descent(((300, 1.9, 1.0, 11.0),), 300, family="laplace"),
    ],
)
def test_it_agrees_with_the_first_opinion(event: ProjectedDescent) -> None:
    first, second = hidden.epsilon(event, 1e-5).value, hidden_opinion.epsilon(event, 1e-5)
    assert second == pytest.approx(first, rel=2e-2, abs=2e-3)  # what `verify` allows


def test_several_runs_other_company_and_another_relation() -> None:
    charge = Charge(descent(((40, 1.0, 1.0, 20.0),), 40), 1)
    relation, other = Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE
    twice = [charge, charge]
    for accountant in ("pld", "rdp", "rdp_classic"):
        half = accountants.epsilon([charge], 5e-6, relation, accountant)
        assert accountants.epsilon(twice, 1e-5, relation, accountant) == pytest.approx(2 * half)
        assert accountants.delta(twice, 3.0, relation, accountant) == pytest.approx(
            2 * accountants.delta([charge], 1.5, relation, accountant)
        )
    assert second_opinion.epsilon(twice, 1e-5, relation) == pytest.approx(
        accountants.epsilon(twice, 1e-5, relation, "pld"), rel=1e-2
    )
    for charges, asked in (
        ([charge], other),
        ([charge], Neighbouring.ADD_OR_REMOVE_ONE),
        ([charge, Charge(Gaussian(5.0), 1)], relation),
        ([Charge(Gaussian(5.0), 1)], other),
    ):
        for accountant in accountants.ACCOUNTANTS:
            assert accountants.epsilon(charges, 1e-5, asked, accountant) == math.inf
            assert accountants.delta(charges, 1.0, asked, accountant) == 1.0
        assert second_opinion.epsilon(charges, 1e-5, asked) == math.inf
