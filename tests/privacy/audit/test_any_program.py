"""The chance of as many right names over all programs: reference values, programs that attain much of it, bad solvers.

The programs have randomised response or Gaussian scores for each canary; nothing of them is in the linear programme.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dprecipe.privacy import gdp
from dprecipe.privacy.audit import any_program
from dprecipe.privacy.audit.any_program import (
    chance_on_curve,
    gaussian_curve,
    lower_epsilon_of_guesses,
    lower_mu_of_guesses,
)
from dprecipe.privacy.audit.results import Guesses

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "one_run.json").read_text(encoding="utf-8"))["records"]


def records(group: str) -> list[Any]:
    found = [record for record in GOLDEN if record["group"] == group]
    assert len(found) > 5
    return found


def guess(m: int, r: int, v: int) -> Guesses:
    return Guesses(canaries=m, named_in=r // 2, named_out=r - r // 2, correct=v)


def bare_curve(epsilon: float, delta: float = 0.0) -> tuple[tuple[float, float], ...]:
    """The curve of randomised response that tells everything with probability delta: the largest of (ε, δ)-DP."""
    grid = np.linspace(0, epsilon, 13)
    return tuple((float(e), float(1 - (1 - delta) * (1 + math.exp(e)) / (1 + math.exp(epsilon)))) for e in grid)


@pytest.mark.parametrize("record", records("audit_pvalue"), ids=lambda record: str(record["inputs"])[:60])
def test_golden_chances(record: Any) -> None:
    x = record["inputs"]
    chance = chance_on_curve(guess(x["m"], x["r"], x["v"]), gaussian_curve(x["mu"]))
    assert chance == pytest.approx(record["value"], rel=1e-4)


@pytest.mark.parametrize("record", records("audit_lower_mu"), ids=lambda record: str(record["inputs"])[:60])
def test_golden_lower_mu(record: Any) -> None:
    x = record["inputs"]
    mu = lower_mu_of_guesses(guess(x["m"], x["r"], x["v"]), 1 - x["beta"])
    assert 0.99 * record["value"] <= mu <= 1.001 * record["value"]
    rough = lower_mu_of_guesses(guess(x["m"], x["r"], x["v"]), 1 - x["beta"], roughly=True)
    assert 0.93 * mu <= rough <= mu


@pytest.mark.parametrize(("beta", "known"), [(0.05, 1.72), (0.005, 1.23)])
def test_a_thousand_canaries_in_the_median_run_at_epsilon_3(beta: float, known: float) -> None:
    epsilon = lower_epsilon_of_guesses(guess(1000, 150, 121), 1 - beta, 1e-5)
    assert 0.985 * known <= epsilon <= 1.005 * known


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (2.0, 0.0), (1.0, 1e-3)])
def test_no_program_of_randomised_response_beats_the_chance(epsilon: float, delta: float) -> None:
    """Exactly: each canary is answered right with e^ε/(1 + e^ε), or all are revealed with probability delta."""
    m = 40
    right = 1 / (1 + math.exp(-epsilon))
    for v in (20, 26, 30, 34, 38, 40):
        attained = (1 - delta) * stats.binom.sf(v - 1, m, right) + delta
        chance = chance_on_curve(guess(m, m, v), bare_curve(epsilon, delta))
        assert attained <= chance <= 1
    assert chance_on_curve(guess(m, m, 40), bare_curve(0.5)) < 0.2  # it is no trivial bound


def test_a_program_that_tells_all_canaries_at_once_is_within_the_chance() -> None:
    """All levels are equal, and so all names are right together: independence is presumed nowhere."""
    mu, m, r = 0.8, 50, 50
    levels = np.linspace(0, 9, 20_001)
    masses = stats.norm.pdf(levels, mu / 2) + stats.norm.pdf(levels, -mu / 2)
    masses /= masses.sum()
    for v in (30, 38, 45, 50):
        attained = float(np.sum(masses * stats.binom.sf(v - 1, r, special.expit(mu * levels))))
        assert attained <= chance_on_curve(guess(m, r, v), gaussian_curve(mu))


@pytest.mark.parametrize("seed", range(20))
def test_any_multipliers_bound_the_chance(seed: int) -> None:
    """Weak duality: of random multipliers, negative and infinite ones among them, none gives less than is attained."""
    rng = np.random.default_rng(seed)
    m, v, epsilon = 30, 25, 1.0
    epsilons_E, deltas_E = np.array(bare_curve(epsilon)).T
    y = rng.standard_normal((2, len(epsilons_E), m)) * 10.0 ** rng.uniform(-6, 0)
    y[rng.random(y.shape) < 0.01] = np.inf
    y[rng.random(y.shape) < 0.01] = np.nan
    bound, _ = any_program._evaluate(m, m, v, epsilons_E, deltas_E, y)
    assert bound >= stats.binom.sf(v - 1, m, 1 / (1 + math.exp(-epsilon)))


@pytest.mark.parametrize("factor", [None, 0.0, 0.9, 1.1, -1.0])
def test_a_solver_that_errs_weakens_the_chance_and_never_breaks_it(
    monkeypatch: pytest.MonkeyPatch, factor: float | None
) -> None:
    case, curve = guess(300, 60, 48), gaussian_curve(0.3)
    true = chance_on_curve(case, curve)
    solve = optimize.linprog

    def err(*arguments: Any, **options: Any) -> Any:
        return SimpleNamespace(x=None if factor is None else solve(*arguments, **options).x * factor)

    monkeypatch.setattr(optimize, "linprog", err)
    any_program._chance.cache_clear()
    assert true <= chance_on_curve(case, curve) <= 1
    any_program._chance.cache_clear()


def test_a_larger_run_and_fewer_points_are_looser_and_sound() -> None:
    """Beyond 200 names multipliers lie on a grid, which costs a little."""
    case = guess(10_000, 460, 395)
    many = chance_on_curve(case, gaussian_curve(0.6))
    attained = stats.binom.sf(394, 460, 0.85)
    assert 0 < many < chance_on_curve(case, gaussian_curve(0.66))
    assert chance_on_curve(case, gaussian_curve(0.6)[::4]) >= many
    assert attained > many / 50


@pytest.mark.slow
def test_extremes() -> None:
    assert chance_on_curve(guess(10, 2, 0), gaussian_curve(1.0)) == 1
    assert chance_on_curve(guess(10, 2, 2), ((0.0, 1.0),)) == 1
    assert chance_on_curve(guess(1000, 100, 100), ((0.0, 0.0),)) == pytest.approx(2.0**-100, abs=1e-6)
    assert lower_mu_of_guesses(guess(100, 20, 10), 0.95) == 0
    assert lower_epsilon_of_guesses(guess(100, 20, 10), 0.95, 1e-5) == 0
    assert chance_on_curve(guess(100_000, 100_000, 50_100), gaussian_curve(0.01)) <= 1


MU, CANARIES, NAMED, RUNS = 0.4, 1000, 150, 4000

LEVELS = np.linspace(0, 9, 100_001)
SURVIVAL = stats.norm.sf(LEVELS - MU / 2) + stats.norm.sf(LEVELS + MU / 2)
"""The probability that a score N(±μ/2, 1) has a larger absolute value."""


def simulate(program: str, level: float, seed: int) -> NDArray[np.int64]:
    """Returns the numbers of right names of `RUNS` runs, in each of which every canary's score is N(±μ/2, 1)."""
    rng = np.random.default_rng(seed)
    right = np.empty(RUNS, dtype=np.int64)
    for run in range(RUNS):
        inside = rng.random(CANARIES) < 0.5
        if program == "gaussian":
            scores = np.where(inside, MU / 2, -MU / 2) + rng.standard_normal(CANARIES)
        else:
            sizes = np.full(CANARIES, abs(MU / 2 + rng.standard_normal()))
            if program == "planted":  # the largest levels come together, so that each canary has them as seldom
                tail = level * NAMED / CANARIES
                above_M = np.full(CANARIES, tail) + (1 - tail) * rng.random(CANARIES)
                if rng.random() < level:
                    above_M[rng.choice(CANARIES, NAMED, replace=False)] = tail * rng.random(NAMED)
                sizes = np.interp(above_M, SURVIVAL[::-1], LEVELS[::-1])
            truth = rng.random(CANARIES) < special.expit(MU * sizes)
            scores = np.where(inside == truth, sizes, -sizes)
        order = np.argsort(scores + 1e-12 * rng.standard_normal(CANARIES))
        half = NAMED // 2
        right[run] = inside[order[-half:]].sum() + (~inside[order[:half]]).sum()
    return right


@pytest.mark.slow
@pytest.mark.parametrize("level", [0.05, 0.005])
@pytest.mark.parametrize("program", ["gaussian", "shared", "planted"])
def test_sound_programs_are_seldom_accused(program: str, level: float) -> None:
    """4,000 runs of programs with exactly the claimed curve for each canary. A program that is accused with
    probability `level` fails this with probability 1e-4: stats.binom.isf."""
    curve = gaussian_curve(MU)
    needed = next(v for v in range(NAMED + 1) if chance_on_curve(guess(CANARIES, NAMED, v), curve) < level)
    accused = int(np.count_nonzero(simulate(program, level, 11) >= needed))
    assert accused <= stats.binom.isf(1e-4, RUNS, level)
    assert gdp.epsilon(MU, 1e-5) > 1
