"""The accountant of a hidden descent against reference values, and against chains small enough to compute."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import special, stats

from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.theory import contraction, iteration, last_iterate, paper
from dprecipe.privacy import gdp

RECORDS = json.loads((Path(__file__).parents[3] / "golden" / "pnsgd.json").read_text())


def descent(stages, size, order="sequential", stop="last", family="gaussian", batch=1):
    return ProjectedDescent("replace_one", family, size, batch, order, stop, tuple(stages))


def of(inputs, sigma=None, order="sequential"):
    """The event of a reference value."""
    i, sigma = inputs, sigma or inputs["sigma"]
    stage = (i["n"], sigma / (2 * i["L"]), i["M"], i["D"] / (i["eta"] * sigma))
    return descent([stage], i["n"], order)


def records(kind):
    actual = [(record["inputs"], record["value"]) for record in RECORDS if record["kind"] == kind]
    assert actual
    return actual


@pytest.mark.parametrize(
    ("kind", "bound"),
    [("thm4_delta", "contraction"), ("gdp_pabi_delta", "iteration"), ("thm4_nonlinear_delta", "nonlinear")],
)
def test_reference_values_by_position(kind, bound):
    sharper = 0
    for inputs, value in records(kind):
        if value > 1e-200:
            got = last_iterate.delta_at(of(inputs), inputs["i"], inputs["eps"], bound).value
            assert got <= value * (1 + 1e-8), inputs
            if got < value * (1 - 1e-8):  # a start from the diameter, which the reference leaves out
                assert bound == "iteration"
                assert inputs["D"] < 2 * inputs["eta"] * inputs["L"]
                sharper += 1
    assert sharper == (6 if bound == "iteration" else 0)


def test_reference_values_of_laplace_noise():
    for i, value in records("thm3_laplace_delta"):
        stage = (i["n"], i["v"] / (2 * i["L"]), i["M"], i["D"] / (i["eta"] * i["v"]))
        event = descent([stage], i["n"], family="laplace")
        assert last_iterate.delta_at(event, i["i"], i["eps"], "contraction").value == pytest.approx(value, rel=1e-8)


def test_reference_values_of_random_orders_and_stops():
    for inputs, value in records("thm5_exact_finite_sum_delta"):
        event = of(inputs, order="permuted")
        rel = 1e-8 if inputs["n"] <= 4096 else 1e-3  # beyond, places count in blocks
        got = last_iterate.delta(event, inputs["eps"], "contraction").value
        assert value * (1 - 1e-9) <= got <= value * (1 + rel)
        stopped = descent(event.stages, event.size, stop="random")
        assert last_iterate.delta(stopped, inputs["eps"], "contraction").value == pytest.approx(got, rel=1e-8)
    for inputs, value in records("permutation_min_delta"):
        event = of(inputs, order="permuted")
        assert last_iterate.delta(event, inputs["eps"]).value <= value * (1 + 1e-9)
        named = [last_iterate.delta(event, inputs["eps"], name).value for name in ("contraction", "iteration")]
        assert min(named) >= value * (1 - 1e-9)  # the mean of the less of both


def test_reference_values_of_inversions():
    for bound, kind in [("contraction", "thm4"), ("iteration", "gdp_pabi")]:
        for i, value in records(f"eps_for_delta_{kind}"):
            got = last_iterate.epsilon_at(of(i), i["i"], i["delta"], bound).value
            assert value * (1 - 1e-9) <= got <= value * (1 + 1e-6)
        for i, sigma in records(f"sigma_for_eps_delta_{kind}"):
            assert last_iterate.delta_at(of(i, sigma), i["i"], i["eps"], bound).value == pytest.approx(
                i["delta"], rel=1e-8
            )
            more, less = (
                last_iterate.delta_at(of(i, sigma * f), i["i"], i["eps"], bound).value for f in (1.001, 0.999)
            )
            assert more < i["delta"] < less


FIGURE_2 = descent([(40, 1.0, 1.0, 1.0)], 40)
FIGURE_2_ROWS = [  # position, ε, theorem 4, proposition 1, no amplification, iteration, nonlinear
    (1, 0.5, 1.24e-25, 9.77e-3, 0.2384, 4.31e-5, 0.0),
    (1, 1.0, 1.39e-36, 5.58e-9, 0.1269, 4.99e-12, 0.0),
    (20, 0.5, 8.40e-14, 1.05e-1, 0.2384, 1.05e-3, 0.0),
    (20, 1.0, 1.50e-19, 7.44e-5, 0.1269, 1.65e-7, 0.0),
    (39, 0.5, 5.68e-2, 1.0, 0.2384, 1.24e-1, 1.86e-2),
    (39, 1.0, 1.61e-2, 8.82e-1, 0.1269, 3.96e-2, 4.98e-4),
    (39, 2.0, 4.38e-4, 3.25e-1, 0.0209, 1.26e-3, 2.79e-10),
]


@pytest.mark.parametrize("row", FIGURE_2_ROWS)
def test_figure_2(row):
    position, epsilon, theorem_4, proposition_1, *rest = row
    compared = paper.comparison_at(FIGURE_2, position, epsilon, paper.paper_contraction(0.5, 0.0, 0.5))
    assert compared["theorem_4"] == pytest.approx(theorem_4, rel=4e-3)
    assert compared["proposition_1"] == pytest.approx(proposition_1, rel=6e-3)
    for name, value in zip(("no_amplification", "iteration", "nonlinear"), rest, strict=True):
        got = last_iterate.delta_at(FIGURE_2, position, epsilon, name).value
        assert got == pytest.approx(value, rel=4e-3, abs=1e-299)


FIGURE_3 = descent([(40, 0.5, 0.8717797887081348, 1 / 0.7)], 40)  # as printed: no function has ρ > β


@pytest.mark.parametrize(
    "row",
    [
        (20, 3.35e-14, 6.99e-20, 0.510, 4.5e-59),
        (30, 1.31e-7, 5.71e-3, 0.510, 4.13e-6),
        (39, 0.1118, 1.0, 0.510, 0.2464),
    ],
)
def test_figure_3(row):
    position, theorem_4, proposition_1, none, iterated = row
    compared = paper.comparison_at(FIGURE_3, position, 1.0, FIGURE_3.stages[0][2])
    assert compared["theorem_4"] == pytest.approx(theorem_4, rel=5e-3)
    assert compared["proposition_1"] == pytest.approx(proposition_1, rel=5e-3)
    assert last_iterate.delta_at(FIGURE_3, position, 1.0, "no_amplification").value == pytest.approx(none, rel=2e-3)
    far = descent([(*FIGURE_3.stages[0][:3], 1e6)], 40)  # a step moves farther than the diameter, which counts too
    assert last_iterate.delta_at(far, position, 1.0, "iteration").value == pytest.approx(iterated, rel=8e-3)
    assert last_iterate.delta_at(FIGURE_3, position, 1.0, "iteration").value < iterated
    if position == 39:
        assert last_iterate.delta_at(FIGURE_3, position, 1.0, "nonlinear").value == pytest.approx(0.0676, rel=1e-3)


# Chains small enough to compute


class Chain:
    """A projected noisy descent on an interval, as a Markov chain on points of it and its two ends.

    Gaussian noise: Gauss-Legendre nodes; the density of an iterate is analytic, and the error below 1e-10 (checked by
    fewer nodes). Laplace noise: the iterate is rounded to a grid, which is one more map of what is released; the bounds
    for Laplace noise hold for it exactly, since they ask of the maps only how far apart they take two points. What is
    compared are the masses of cells, a map of the iterate: the chain's δ is no less.
    """

    def __init__(self, family, low, high, many):
        self.family, self.low, self.high = family, low, high
        self.edges = np.linspace(low, high, 121)
        if family == "gaussian":
            nodes, weights = np.polynomial.legendre.leggauss(many)
            self.inner, self.weights = (low + high) / 2 + (high - low) / 2 * nodes, (high - low) / 2 * weights
        else:
            self.inner = (self.edges[1:] + self.edges[:-1]) / 2
        self.points = np.concatenate([[low], self.inner, [high]])

    def masses(self, mapped, scale):
        """Of the lower end, the cells and the upper end, from each point."""
        z = (self.edges - mapped[:, None]) / scale
        half = np.exp(-np.abs(z)) / 2
        cdf = special.ndtr(z) if self.family == "gaussian" else np.where(z < 0, half, 1 - half)
        return np.concatenate([cdf[:, :1], np.diff(cdf, axis=1), 1 - cdf[:, -1:]], axis=1)

    def kernel(self, mapped, scale):
        """From each point to each."""
        masses = self.masses(mapped, scale)
        if self.family == "laplace":
            return masses
        z = (self.inner - mapped[:, None]) / scale
        inner = np.exp(-z * z / 2) / (scale * math.sqrt(2 * math.pi)) * self.weights
        return np.concatenate([masses[:, :1], inner, masses[:, -1:]], axis=1)


def stick(p, q, epsilon):
    return max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum())


class Setting:
    """A random problem: an interval, a family, steps, and how two data sets move them."""

    def __init__(self, seed, many=90):
        rng = self.rng = np.random.default_rng(seed)
        self.family = ("gaussian", "laplace")[seed % 2]
        low, high = [(-1.0, 1.0), (-0.5, 0.5), (3.0, 4.5)][seed // 2 % 3]
        self.chain = Chain(self.family, low, high, many)
        self.batches = int(rng.integers(1, 6))
        self.stop = ("last", "random")[int(rng.random() < 0.25)]
        self.order = ("sequential", "permuted")[int(rng.random() < 0.35)]
        steps, pieces = int(rng.integers(1, 13)), 1 if self.stop == "random" else int(rng.integers(1, 4))
        cuts = np.sort(rng.integers(1, steps + 1, pieces - 1)) if steps > 1 else []
        self.lengths = [int(n) for n in np.diff([0, *cuts, steps]) if n > 0]
        width = high - low
        self.curved = rng.random() < 0.4
        self.stages, self.scales, self.moved, self.slopes = [], [], [], []
        for length in self.lengths:
            scale, slope = width * rng.uniform(0.15, 1.2), float(rng.choice([1.0, rng.uniform(0, 1)]))
            moved = scale * rng.uniform(0.2, 2.5)
            m = 1.0 if self.curved else slope
            self.stages.append((length, scale / moved, m, width / scale))
            for _ in range(length):
                self.scales.append(scale), self.moved.append(moved), self.slopes.append(slope)
        self.middle = rng.uniform(low, high)
        self.drift = rng.uniform(-0.3, 0.3, steps) * width
        self.sign = rng.choice([-1, 1])
        self.start = int(rng.integers(len(self.chain.points)))
        self.event = descent(self.stages, self.batches, self.order, self.stop, self.family)

    @property
    def steps(self):
        return len(self.scales)

    def mapped(self, t, moved):
        """The map of step t, with the record's share in it or not: 1-Lipschitz, or linear of slope M."""
        x = self.chain.points - self.middle
        # a gradient step on a loss whose second derivative is between 0 and (1 - slope)
        pulled = x - (1 - self.slopes[t]) * np.tanh(x) if self.curved else self.slopes[t] * x
        return self.middle + pulled + self.drift[t] + (self.sign * self.moved[t] if moved else 0.0)

    @functools.cache  # noqa: B019
    def pairs(self, place):
        """The masses of each iterate's cells on the two data sets, the record standing at `place`."""
        distributions, pairs = [np.eye(len(self.chain.points))[self.start]] * 2, []
        for t in range(self.steps):
            used, scale = t % self.batches == place - 1, self.scales[t]
            maps = [self.mapped(t, used and side) for side in (0, 1)]
            pairs.append(tuple(distributions[side] @ self.chain.masses(maps[side], scale) for side in (0, 1)))
            distributions = [distributions[side] @ self.chain.kernel(maps[side], scale) for side in (0, 1)]
        return pairs

    def exact(self, place, epsilon):
        """δ of a record at `place`: of the last iterate, or on average over the stop, which may be known."""
        pairs = self.pairs(place)
        if self.stop == "last":
            return stick(*pairs[-1], epsilon)
        return sum(stick(*pair, epsilon) for pair in pairs) / self.steps

    def violations(self):
        """How far each claim is below what is true, where it is; and how many were compared."""
        compared, worst = 0, 0.0
        epsilons = (0.0, 0.05, 0.3, 1.0, 2.0, 4.0)
        for epsilon in epsilons:
            truths = [self.exact(place, epsilon) for place in range(1, self.batches + 1)]
            whole = max(truths) if self.order == "sequential" else sum(truths) / self.batches
            claims = [
                (last_iterate.delta(self.event, epsilon, name).value, whole) for name in last_iterate.bounds(self.event)
            ]
            claims.append((last_iterate.delta(self.event, epsilon).value, whole))
            claims.append((last_iterate.renyi_delta(self.event, epsilon), whole))
            if self.order == "sequential":
                for place, truth in enumerate(truths, 1):
                    claims += [
                        (last_iterate.delta_at(self.event, place, epsilon, name).value, truth)
                        for name in last_iterate.bounds(self.event)
                    ]
            compared += len(claims)
            worst = max([worst, *(truth - claim for claim, truth in claims)])
        return worst, compared


def hold(seeds):
    for seed in seeds:
        setting = Setting(seed)
        worst, compared = setting.violations()
        assert compared >= 30
        assert worst < 1e-9, (seed, setting.event)


def test_every_bound_holds_for_chains_that_can_be_computed():
    hold(range(9))


@pytest.mark.slow
def test_every_bound_holds_for_200_chains_that_can_be_computed():
    hold(range(200))


def test_the_chains_are_computed_well_enough():
    for seed in range(0, 16, 2):
        fine, coarse = Setting(seed, 90), Setting(seed, 70)
        fine.start = coarse.start = 0
        for epsilon in (0.0, 1.0):
            assert fine.exact(1, epsilon) == pytest.approx(coarse.exact(1, epsilon), abs=1e-10)


# An audit: two data sets that differ in one record, many runs, and what an adversary can tell


RUNS = 10_000
CERTAINTY = 1e-6
"""Chance that one of the intervals below misses, per test: 5e-5 in all."""


def simulated(event, moved, rng):
    """Last iterates (runs,) of a record that pulls by `moved`/0 at its uses, on [0, 1], started at the low end."""
    ends = np.cumsum([steps for steps, *_ in event.stages])
    y = np.zeros(RUNS)
    place = rng.permuted(np.tile(np.arange(event.batches), (RUNS, 1)), axis=1)[:, 0] if event.order == "permuted" else 0
    stops = rng.integers(1, event.steps + 1, RUNS) if event.stop == "random" else np.full(RUNS, event.steps)
    for t in range(event.steps):
        _, multiplier, m, diameter = event.stages[int(np.searchsorted(ends, t, side="right"))]
        scale = 1 / diameter
        draw = rng.normal if event.family == "gaussian" else rng.laplace
        pull = np.where(t % event.batches == place, moved * scale / multiplier, 0.0)
        y = np.where(t < stops, np.clip(m * y + pull + draw(0.0, scale, RUNS), 0.0, 1.0), y)
    return y


AUDITED = [
    descent([(1, 1.0, 1.0, 8.0)], 1),
    descent([(4, 0.6, 1.0, 2.0)], 4),
    descent([(6, 0.5, 0.9, 1.5)], 2),
    descent([(6, 0.5, 0.9, 1.5)], 3, order="permuted"),
    descent([(4, 0.4, 1.0, 2.0)], 4, stop="random"),
    descent([(3, 0.6, 0.8, 2.0), (3, 0.4, 0.95, 3.0)], 2),
    descent([(4, 0.5, 1.0, 1.5)], 2, family="laplace"),
]


@pytest.mark.parametrize("event", AUDITED)
def test_an_audit_finds_no_more_than_is_claimed(event):
    """ε >= log((p - δ)/q) for any set, p and q its chances on the two data sets: a lower bound on p by Clopper-Pearson
    and an upper one on q, each wrong with chance 1e-6, over 9 sets chosen beforehand; both directions."""
    rng = np.random.default_rng(7)
    without, with_ = simulated(event, 0.0, rng), simulated(event, 1.0, rng)
    delta, actual = 0.01, 0.0
    for threshold in np.linspace(0.1, 0.9, 9):
        for first, second, above in ((with_, without, True), (without, with_, False)):
            hits, misses = (int(((y >= threshold) == above).sum()) for y in (first, second))
            p = stats.beta.ppf(CERTAINTY, hits, RUNS - hits + 1) if hits else 0.0
            q = stats.beta.ppf(1 - CERTAINTY, misses + 1, RUNS - misses) if misses < RUNS else 1.0
            actual = max(actual, math.log(max(p - delta, 1e-12) / q))
    for name in (*last_iterate.bounds(event), None):
        assert actual <= last_iterate.epsilon(event, delta, name).value
    if event.steps == 1:
        assert (
            actual > 0.6 * last_iterate.epsilon(event, delta).value
        )  # it finds what there is, where the bound is exact


# Properties


MANY = 10**6


def alike(passes, reach, multiplier=1.0, contraction_=1.0, size=MANY, **more):
    return descent([(int(passes * size), multiplier, contraction_, reach)], size, **more)


EVENTS = [
    descent([(40, 1.0, 1.0, 1.0)], 40),
    descent([(100, 1.5, 0.95, 4.0)], 40, order="permuted"),
    descent([(100, 1.5, 0.95, 4.0)], 90, order="permuted", batch=4),
    descent([(90, 1.5, 1.0, 3.0)], 40, stop="random"),
    descent([(90, 1.5, 1.0, 3.0)], 40, order="permuted", stop="random"),
    descent([(30, 1.0, 1.0, 3.0), (25, 0.7, 0.9, 6.0), (40, 2.0, 0.98, 2.0)], 40),
    descent([(30, 1.0, 1.0, 3.0), (25, 0.7, 0.9, 6.0), (40, 2.0, 0.98, 2.0)], 40, order="permuted"),
    descent([(90, 2.5, 1.0, 3.0)], 40, order="permuted", family="laplace"),
    descent([(5, 1.0, 1.0, 3.0)], 40, order="permuted"),
]


@pytest.mark.parametrize("event", EVENTS)
def test_epsilon_inverts_delta_outward_for_every_bound(event):
    for name in (None, *last_iterate.bounds(event)):
        for delta in (1e-7, 1e-3, 0.3):
            epsilon = last_iterate.epsilon(event, delta, name).value
            assert last_iterate.delta(event, epsilon, name).value <= delta * (1 + 1e-12)
            if epsilon > 0:
                assert last_iterate.delta(event, epsilon * (1 - 1e-6), name).value > delta
    assert last_iterate.renyi_delta(event, last_iterate.renyi_epsilon(event, 1e-5)) <= 1e-5 * (1 + 1e-12)


@pytest.mark.parametrize("event", EVENTS)
def test_the_bounds_stand_in_order_and_fall_with_epsilon_and_with_noise(event):
    last = dict.fromkeys((*last_iterate.bounds(event), "renyi"), 1.0)
    noisier = descent(
        [(n, multiplier * 1.2, m, reach / 1.2) for n, multiplier, m, reach in event.stages],
        event.size, event.order, event.stop, event.family, event.batch,
    )  # fmt: skip
    for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
        now = {name: last_iterate.delta(event, epsilon, name).value for name in last_iterate.bounds(event)}
        assert now["nonlinear"] <= now["contraction"] * (1 + 1e-9) <= now["no_amplification"] * (1 + 2e-9)
        assert now.get("hybrid", 0) <= min(now["nonlinear"], now.get("iteration", 1)) * (1 + 1e-9)
        best = last_iterate.delta(event, epsilon)
        assert best.value == min(now.values())
        assert now[best.name] <= best.value * (1 + 1e-9)
        now["renyi"] = last_iterate.renyi_delta(event, epsilon)
        assert now["renyi"] >= best.value
        for name, value in now.items():
            assert value <= last[name] * (1 + 1e-9)
            if name != "renyi":
                assert last_iterate.delta(noisier, epsilon, name).value <= value * (1 + 1e-9)
        last = now


def test_the_worst_place_and_the_mean_of_all_places():
    for event in EVENTS:
        if event.order != "sequential" or event.stop != "last":
            continue
        for name in (*last_iterate.bounds(event), None):
            at = [last_iterate.delta_at(event, p, 0.5, name).value for p in range(1, event.size + 1)]
            assert last_iterate.delta(event, 0.5, name).value == pytest.approx(max(at), rel=1e-9)
            permuted = descent(event.stages, event.size, "permuted")
            got = last_iterate.delta(permuted, 0.5, name).value
            if name != "iteration" or len(event.stages) == 1:  # the least per place, then the mean
                assert got == pytest.approx(sum(at) / event.size, rel=1e-3)
            assert got >= sum(at) / event.size * (1 - 1e-9)


IN_ORDER = [
    descent([(40, 1.0, 1.0, 1.0)], 40),
    descent([(100, 1.5, 0.95, 4.0)], 90, batch=4),
    descent([(60, 2.5, 1.0, 3.0)], 40, family="laplace"),
    descent([(5, 1.0, 1.0, 3.0)], 8),
    descent([(30, 1.0, 1.0, 3.0), (25, 0.7, 0.9, 6.0), (40, 2.0, 0.98, 2.0)], 40),
    descent([(30, 4.0, 1.0, 3.0), (35, 5.0, 0.9, 6.0)], 25, family="laplace"),
]


@pytest.mark.parametrize("event", IN_ORDER)
def test_many_places_at_once_have_what_each_has_alone(event):
    places = tuple(range(1, event.size + 1))
    deltas, epsilons = last_iterate.deltas_at(event, places, 0.5), last_iterate.epsilons_at(event, places, 1e-3)
    for place in range(1, event.size + 1, 7):
        delta, epsilon = deltas[place - 1], epsilons[place - 1]
        one, least = last_iterate.delta_at(event, place, 0.5).value, last_iterate.epsilon_at(event, place, 1e-3).value
        # knots stand elsewhere for one place than for all, and grids of composed losses depend on where they are asked
        rel = 1e-2 if event.family == "laplace" else 1e-9 if len(event.stages) == 1 else 1e-3
        assert delta == pytest.approx(one, rel=rel, abs=1e-290)
        assert epsilon == pytest.approx(least, rel=max(rel, 1e-6))
        assert last_iterate.deltas_at(event, [place], epsilon)[0] <= 1e-3 * (1 + max(rel, 1e-9))
    assert epsilons.max() == pytest.approx(last_iterate.epsilon(event, 1e-3).value, rel=1e-6)
    assert deltas.max() == pytest.approx(last_iterate.delta(event, 0.5).value, rel=1e-4)


def test_many_places_in_blocks_are_bounded_by_the_worst_of_their_block():
    event = descent([(10, 1.5, 1.0, 6.0 + i / 10) for i in range(150)], 900)
    places = tuple(range(1, 901))
    together = last_iterate.epsilons_at(event, places, 1e-3)
    assert len(set(together.tolist())) < 700
    for place in (1, 2, 300, 599, 600, 601, 900):
        alone = last_iterate.epsilon_at(event, place, 1e-3).value
        assert alone * (1 - 1e-3) <= together[place - 1] <= alone * 1.05


def test_of_laplace_noise_no_bound_is_above_the_renyi_curve_near_the_largest_loss():
    event = descent([(64, 8.0, 1.0, 20.0)], 1, family="laplace")
    assert last_iterate.epsilon(event, 1e-5).value <= last_iterate.renyi_epsilon(event, 1e-5) * (1 + 1e-6) < 8.0
    assert last_iterate.delta(event, 7.99, "no_amplification").value <= last_iterate.renyi_delta(event, 7.99) * (
        1 + 1e-12
    )


def test_a_short_last_batch_counts_as_its_share():
    event = descent([(3, 1.0, 1.0, 50.0)], 7, "permuted", batch=3)
    by_batch = [last_iterate.delta_at(descent(event.stages, 7, batch=3), p, 1.0, "iteration").value for p in (1, 4, 7)]
    mean = (3 * by_batch[0] + 3 * by_batch[1] + by_batch[2]) / 7
    assert last_iterate.delta(event, 1.0, "iteration").value == pytest.approx(mean, rel=1e-10)


def test_a_random_stop_in_a_random_order_is_the_mean_over_both():
    event = descent([(11, 1.0, 0.98, 4.0)], 9, "permuted", "random", batch=2)
    want = 0.0
    for stop in range(1, 12):
        for batch in range(1, min(stop, 5) + 1):
            first = descent([(stop, *event.stages[0][1:])], 9, batch=2)
            share = 1 if batch == 5 else 2
            want += share / 9 * last_iterate.delta_at(first, 2 * batch - 1, 0.7).value / 11
    assert last_iterate.delta(event, 0.7).value == pytest.approx(want, rel=1e-9)


def test_places_in_blocks_cost_little():
    """10^6 places: the mean of "iteration" over all of them, one by one."""
    event = alike(1, 50.0, order="permuted")
    mu = iteration_mus(event)
    exact = np.exp(contraction.log_gaussian(0.4, mu)).mean()
    assert exact * (1 - 1e-9) <= last_iterate.delta(event, 0.4, "iteration").value <= exact * 1.002


def iteration_mus(event):
    ((steps, multiplier, m, reach),) = event.stages
    stages = iteration.Stages(*(np.array([v]) for v in (steps, 1 / (multiplier * reach), m, 1 / reach)))
    places = np.arange(1, event.size + 1)
    return iteration.iteration_mu(stages, event.batches, places, np.full_like(places, steps))


def test_gaussian_mu_bounds_every_epsilon_and_is_of_the_last_place():
    event = descent([(90, 1.5, 0.97, 30.0)], 30)
    mu = last_iterate.gaussian_mu(event)
    for epsilon in (0.0, 0.5, 2.0):
        assert last_iterate.delta(event, epsilon, "iteration").value == pytest.approx(gdp.delta(mu, epsilon), rel=1e-9)
    assert last_iterate.gaussian_mu(descent(event.stages, 30, "permuted")) is None
    assert last_iterate.gaussian_mu(descent(event.stages, 30, stop="random")) is None
    assert last_iterate.gaussian_mu(descent(event.stages, 30, family="laplace")) is None


def test_records_that_no_step_reads_cost_nothing():
    event = descent([(5, 1.0, 1.0, 3.0)], 40)
    assert last_iterate.delta_at(event, 6, 0.0) == last_iterate.NamedBound(0.0, "no_amplification")
    assert last_iterate.epsilon_at(event, 6, 1e-6) == last_iterate.NamedBound(0.0, "no_amplification")
    assert last_iterate.delta_at(event, 5, 0.0).value > 0


def test_what_is_refused():
    event, shuffled = EVENTS[0], EVENTS[1]
    laplace = descent(event.stages, 40, family="laplace")
    for call in (
        lambda: last_iterate.delta(event, -1.0),
        lambda: last_iterate.delta(event, math.nan),
        lambda: last_iterate.epsilon(event, 0.0),
        lambda: last_iterate.epsilon(event, 1.0),
        lambda: last_iterate.delta(event, 1.0, "best"),
        lambda: last_iterate.delta(laplace, 1.0, "iteration"),
        lambda: last_iterate.delta_at(shuffled, 1, 1.0),
        lambda: last_iterate.delta_at(event, 0, 1.0),
        lambda: last_iterate.epsilon_at(event, 41, 1e-3),
        lambda: last_iterate.epsilons_at(event, [1, 41], 1e-3),
        lambda: last_iterate.deltas_at(shuffled, [1], 1.0),
        lambda: last_iterate.deltas_at(descent(event.stages, 40, stop="random"), [1], 1.0),
        lambda: last_iterate.delta(descent(EVENTS[5].stages, 40, stop="random"), 1.0),
    ):
        with pytest.raises(ValueError, match=r"expected|unknown|no position|random stop|last step"):
            call()
    assert paper.comparison_at(laplace, 1, 1.0, 1.0) == {}
    assert paper.comparison_at(EVENTS[5], 1, 1.0, 1.0) == {}


def test_without_amplification_all_uses_are_composed():
    gaussian = descent([(5, 1.0, 1.0, 3.0), (3, 0.5, 0.9, 6.0), (7, 2.0, 0.9, 6.0)], 2)
    # the record at 1 is used at steps 1, 3, 5, at 7, and at 9, 11, 13, 15; that at 2 at 2, 4, at 6, 8, and thrice
    for position, squared in ((1, 3 * 1 + 1 * 4 + 4 / 4), (2, 2 * 1 + 2 * 4 + 3 / 4)):
        got = last_iterate.delta_at(gaussian, position, 3.0, "no_amplification").value
        assert got == pytest.approx(gdp.delta(math.sqrt(squared), 3.0), rel=1e-9)
    laplace = descent([(2, 2.0, 1.0, 3.0)], 1, family="laplace")
    # the sum of two losses of unit Laplace noise at distance 1/2, by its masses: atoms at ±1/2 and a density between
    x = np.linspace(-0.5, 0.5, 4001)[:-1] + 1 / 8000
    masses = np.concatenate([[0.5], np.exp(-0.25 + x / 2) / 4 / 4000, [math.exp(-0.5) / 2]])
    loss = np.concatenate([[0.5], x, [-0.5]])
    both = (masses[:, None] * masses * np.maximum(-np.expm1(0.3 - loss[:, None] - loss), 0)).sum()
    assert last_iterate.delta(laplace, 0.3, "no_amplification").value == pytest.approx(both, rel=1e-3)
    assert last_iterate.delta(laplace, 0.3, "no_amplification").value >= both * (1 - 1e-5)
    assert last_iterate.delta(laplace, 1.01).value == 0.0  # the largest loss of two is 1
