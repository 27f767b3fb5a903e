"""Amplification by iteration against reference values, closed forms and a quadratic programme."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize

from dprecipe.mechanisms.pnsgd.theory import contraction, iteration
from dprecipe.mechanisms.pnsgd.theory.iteration import Stages

RECORDS = json.loads((Path(__file__).parents[3] / "golden" / "pnsgd.json").read_text())
FAR = 1e6
"""A diameter so large that no start from z = D helps."""


def records(kind):
    return [(record["inputs"], record["value"]) for record in RECORDS if record["kind"] == kind]


def ints(*values):
    return np.array(values, dtype=np.int64)


def alike(steps, shift, contraction_, noise):
    return Stages(ints(steps), np.array([shift]), np.array([contraction_]), np.array([noise]))


def each_its_own(shift, contraction_, noise):
    return Stages(
        np.ones(len(shift), dtype=np.int64), *(np.asarray(a, dtype=float) for a in (shift, contraction_, noise))
    )


def one(stages, batches, first, stop):
    return float(iteration.iteration_mu(stages, batches, ints(first), ints(stop))[0])


def single(i):
    stages = alike(i["n"], 2 * i["L"] / FAR, i["M"], i["sigma"] / FAR)
    return one(stages, i["n"], i["i"], i["n"])


def test_reference_values_of_one_use():
    assert len(records("gdp_pabi_mu")) == 13
    for inputs, value in records("gdp_pabi_mu"):
        assert single(inputs) == pytest.approx(value, rel=1e-10)
    for inputs, value in records("gdp_pabi_delta"):
        if value > 1e-200:
            assert math.exp(contraction.log_gaussian(inputs["eps"], single(inputs))) == pytest.approx(value, rel=1e-8)


def test_reference_values_of_schedules():
    assert len(records("gdp_pabi_schedule_mu")) == 3
    for inputs, value in records("gdp_pabi_schedule_mu"):
        shift = np.array(inputs["shift"])
        used = np.flatnonzero(shift)
        stages = each_its_own(shift / FAR, inputs["contraction"], np.array(inputs["noise_std"]) / FAR)
        assert one(stages, int(used[1] - used[0]), int(used[0]) + 1, len(shift)) == pytest.approx(value, rel=1e-10)


def test_reference_value_of_the_best_start():
    ((_, value),) = records("gdp_pabi_schedule_best_start")
    assert one(alike(200, 0.2 / 2, 1.0, 1 / 2), 5, 1, 200) == pytest.approx(value, rel=1e-10)
    assert one(alike(200, 0.2 / FAR, 1.0, 1 / FAR), 5, 1, 200) == pytest.approx(0.5656854249, rel=1e-9)


@pytest.mark.parametrize("c", [0.98, 0.99, 0.995])
def test_the_closed_form_of_cyclic_batches(c):
    """Bok, Su & Altschuler 2024: of a record in the last batch of each of E epochs of l batches."""
    batches, passes, s = 20, 15, 0.3
    x = c ** (batches * (passes - 1))
    squared = 1 + c ** (2 * batches - 2) * (1 - c * c) / (1 - c**batches) ** 2 * (1 - x) / (1 + x)
    stages = alike(batches * passes, s / FAR, c, 1 / FAR)
    mus = [one(stages, batches, position, batches * passes) for position in range(1, batches + 1)]
    assert mus[-1] == pytest.approx(s * math.sqrt(squared), rel=1e-11)
    assert mus == sorted(mus)  # the last place is the worst


def programme(shift, contraction_, noise, diameter):
    """min Σ u², u = a/ν, by SLSQP, over all starts: z_t = start_t + (s - ν u) carried on, linear in u."""

    def least(s, m, nu, start):
        steps = len(s)
        carried = np.array([[np.prod(m[u + 1 : t + 1]) if u <= t else 0.0 for u in range(steps)] for t in range(steps)])
        fixed = carried @ s + start * np.cumprod(m)
        scale = max(fixed[-1] / nu[-1], 1e-9)
        rows = carried * nu
        guess = np.zeros(steps)
        guess[-1] = fixed[-1] / nu[-1] / scale
        actual = optimize.minimize(
            lambda u: u @ u,
            guess,
            jac=lambda u: 2 * u,
            bounds=[(0, None)] * steps,
            constraints=[
                {"type": "ineq", "fun": lambda u: fixed[:-1] / scale - rows[:-1] @ u, "jac": lambda u: -rows[:-1]},
                {"type": "eq", "fun": lambda u: fixed[-1:] / scale - rows[-1:] @ u, "jac": lambda u: -rows[-1:]},
            ],
            options={"ftol": 1e-15, "maxiter": 500},
        )
        return actual.fun * scale**2 if actual.success else math.inf

    starts = [least(shift, contraction_, noise, 0.0)]
    starts += [least(shift[t:], contraction_[t:], noise[t:], diameter) for t in range(1, len(shift))]
    return math.sqrt(min(starts))


def test_a_quadratic_programme_finds_the_same_on_random_schedules():
    rng = np.random.default_rng(0)
    won_by_diameter = 0
    for _ in range(40):
        steps, batches = int(rng.integers(1, 9)), int(rng.integers(1, 5))
        first = int(rng.integers(1, min(batches, steps) + 1))
        m, nu, s = rng.uniform(0.6, 1, steps), rng.uniform(0.3, 1, steps), rng.uniform(0.1, 1, steps)
        diameter = float(rng.choice([0.4, 1.5, 50.0]))
        used = np.zeros(steps)
        used[first - 1 :: batches] = s[first - 1 :: batches]
        got = one(each_its_own(s / diameter, m, nu / diameter), batches, first, steps)
        assert got == pytest.approx(programme(used, m, nu, diameter), rel=1e-6)
        won_by_diameter += got < 0.999 * one(each_its_own(s / FAR, m, nu / FAR), batches, first, steps)
    assert won_by_diameter >= 5


def test_stages_cut_in_two_are_the_same_stage():
    whole = alike(60, 0.02, 0.97, 0.1)
    cut = Stages(ints(13, 7, 40), *(np.full(3, v) for v in (0.02, 0.97, 0.1)))
    for batches in (1, 4, 17, 60):
        first, stop = (grid.reshape(-1) for grid in np.meshgrid(np.arange(1, batches + 1), np.arange(40, 61)))
        kept = first <= stop
        a = iteration.iteration_mu(whole, batches, first[kept], stop[kept])
        assert iteration.iteration_mu(cut, batches, first[kept], stop[kept]) == pytest.approx(a, rel=1e-11)


def test_a_block_of_places_is_no_better_than_any_of_them():
    rng = np.random.default_rng(1)
    for _ in range(20):
        stages = Stages(
            rng.integers(1, 9, 5), rng.uniform(0.01, 0.3, 5), rng.uniform(0.8, 1, 5), rng.uniform(0.05, 0.3, 5)
        )
        steps, batches = int(stages.steps.sum()), 6
        if steps < batches:
            continue
        rest = steps % batches
        low, high = (1, rest) if rest and rng.random() < 0.5 else (rest + 1, batches)
        together = iteration.iteration_mu(stages, batches, ints(high), ints(steps), ints(high - low))[0]
        assert max(one(stages, batches, p, steps) for p in range(low, high + 1)) <= together * (1 + 1e-11)


def test_nothing_underflows_over_a_long_run():
    assert one(alike(10**6, 0.1, 0.5, 0.1), 10**6, 1, 10**6) == iteration.MIN_MU
    assert one(alike(10**6, 0.1, 0.5, 0.1), 10**6, 10**6 - 3, 10**6) == pytest.approx(0.125 / math.sqrt(1.328125))
    assert one(alike(10**6, 0.001, 1.0, 0.1), 1, 1, 10**6) < 0.01 * math.sqrt(10**6)


def test_a_map_that_forgets_leaves_nothing():
    stages = alike(4, 0.2, 0.0, 0.1)
    assert [one(stages, 4, 1, stop) for stop in (1, 2, 3)] == [pytest.approx(2.0), iteration.MIN_MU, iteration.MIN_MU]


def test_rungs():
    assert iteration.geometric_ladder(0, 5, 2.0).tolist() == [0]
    assert iteration.geometric_ladder(20, 2, 1.5).tolist() == [0, 1, 2, 3, 5, 8, 12, 18, 20]


def test_the_largest_of_a_range():
    rng = np.random.default_rng(2)
    for size in (1, 2, 3, 7, 8, 33):
        values, (first, last) = rng.uniform(size=size), np.sort(rng.integers(0, size, (2, 200)), axis=0)
        want = [values[a : b + 1].max() for a, b in zip(first, last, strict=True)]
        assert iteration.largest_over(values, first, last).tolist() == want
