"""The cross-check on last-iterate releases: minorants by brute force, published figures, and the first opinion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import last_iterate, recheck
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import Gaussian

Stages = tuple[tuple[int, float, float, float], ...]


def descent(
    stages: Stages, size: int, batch: int = 1, order: str = "permuted", stop: str = "last", family: str = "gaussian"
) -> ProjectedDescent:
    return ProjectedDescent("replace_one", family, size, batch, order, stop, stages)


def brute_force(stages: Stages, batches: int, first: int) -> float:
    """μ by the definition of a minorant's slope at a point: the largest, over what is before, of the least after."""
    rows = [row for row in stages for _ in range(row[0])]
    contraction, noise = np.array([row[2] for row in rows]), np.array([1 / row[3] for row in rows])
    used = np.array([t >= first and (t - first) % batches == 0 for t in range(1, len(rows) + 1)])
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


def test_isotonic_regression_and_a_formula_for_like_steps_give_the_minorant() -> None:
    rng = np.random.default_rng(3)
    for round_ in range(30):
        stages = tuple(
            (int(rng.integers(1, 8)), *(float(rng.uniform(*r)) for r in ((0.3, 3), (0.3, 1), (0.3, 8))))
            for _ in range(1 + round_ % 3)
        )
        steps, batches = sum(row[0] for row in stages), int(rng.integers(1, 5))
        first = int(rng.integers(1, min(batches, steps) + 1))
        cell = recheck.Cell(1.0, first, 0, steps)
        run = recheck.RecheckedRun(descent(stages, batches, order="sequential"), [cell])  # type: ignore[arg-type]
        expected = brute_force(stages, batches, first)  # type: ignore[arg-type]
        assert run.mu_C[0] == pytest.approx(expected, rel=1e-9)
        assert run._mu(first, 0, steps) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("position", "expected"), [(39, 4.98e-4), (40, 0.1269)])
def test_a_figure_of_the_paper_s_setting(position: int, expected: float) -> None:
    """σ = 2, L = 1, β = η = 0.5, ρ = 0, D = 1, 40 records, ε = 1."""
    cell = recheck.Cell(1.0, position, 0, 40)
    run = recheck.RecheckedRun(descent(((40, 1.0, 1.0, 1.0),), 40, order="sequential"), [cell])
    assert run.total(1.0) == pytest.approx(expected, rel=5e-3)


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
        descent(((325610, 2.0, 0.9999, 50.0),), 32561),
        descent(((325610, 2.0, 0.9999, 200.0),), 32561, stop="random"),
        descent(tuple((40, 2.0, 0.9999, 100.0 / math.cos(i / 80 * math.pi)) for i in range(40)), 160),
        descent(((24, 1e-3, 1.0, 60.0),), 12, order="sequential"),
        descent(((24, 1e-3, 1.0, 60.0),), 12, family="laplace"),
        descent(tuple((40, 20 + i % 5, 0.99, 20.0 + i) for i in range(40)), 200, family="laplace"),
    ],
)
def test_it_agrees_with_the_first_opinion_and_finds_a_claim_that_is_too_small(event: ProjectedDescent) -> None:
    first, second = last_iterate.epsilon(event, 1e-5).value, recheck.epsilon(event, 1e-5)
    part, much = event.cross_check_tolerance
    assert second == pytest.approx(first, rel=part, abs=much)
    assert second > 0.95 * first * (1 + part) + min(much, 0.01 * first)


def unlike_phases(count: int) -> tuple[tuple[int, float, int, float], ...]:
    return tuple((10**15 - i, 1e-3 * (1 + i % 7), 1 - i % 2, 0.1 * (1 + i % 11)) for i in range(count))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(descent(((10**15, 2e6, 1.0, 3.0),), 3, stop="random"), marks=pytest.mark.slow),
        descent(((10**15, 2.0, 0.0, 3.0),), 10**15),
        *(pytest.param(descent(unlike_phases(count), 10**15), marks=pytest.mark.slow) for count in (60, 300)),
        descent(((10**15, 1e6, 1.0, 3.0),), 3, family="laplace"),
        descent(((5, 1e-15, 1.0, 1e15),), 5, family="laplace"),
        descent(((1, 1e-15, 1.0, 1e15),), 1),
    ],
)
def test_events_out_of_all_proportion_have_some_opinion_and_end(event: ProjectedDescent) -> None:
    assert recheck.epsilon(event, 1e-5) >= 0


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
    assert cross_check.ask_library(twice, 1e-5, relation).epsilon == pytest.approx(
        accountants.epsilon(twice, 1e-5, relation, "pld"), rel=1e-2
    )
    for charges, asked in (
        ([charge], other),
        ([charge], Neighbouring.ADD_OR_REMOVE_ONE),
        ([charge, Charge(Gaussian(5.0), 1)], other),
    ):
        for accountant in accountants.ACCOUNTANTS:
            assert accountants.epsilon(charges, 1e-5, asked, accountant) == math.inf
            assert accountants.delta(charges, 1.0, asked, accountant) == 1.0
        assert cross_check.ask_library(charges, 1e-5, asked).epsilon == math.inf
