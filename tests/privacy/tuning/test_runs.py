"""The number of runs: chances against published formulas, generating functions, draws, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.tuning.runs import (
    FixedRuns,
    NegativeBinomialRuns,
    PoissonRuns,
    RunDistribution,
    chance_of_one,
    draw_runs,
    make_runs,
    runs_quantile,
)

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "tuning.json").read_text(encoding="utf-8"))["records"]
ALL = [
    NegativeBinomialRuns.with_mean(0.0, 10.0),
    NegativeBinomialRuns.with_mean(0.5, 30.0),
    NegativeBinomialRuns(1.0, 0.1),
    NegativeBinomialRuns(3.0, 0.2),
    PoissonRuns(10.0),
    PoissonRuns.with_mean(1.3),
    FixedRuns(7),
]


def runs_of(inputs: dict[str, object]) -> RunDistribution:
    kind, par = inputs["kind"], inputs["par"]
    if kind == "tnb":
        assert isinstance(par, list)
        return NegativeBinomialRuns(*par)
    assert isinstance(par, int | float)
    return PoissonRuns(float(par)) if kind == "poisson" else FixedRuns(int(par))


@pytest.mark.parametrize("record", [r for r in GOLDEN if r["group"] == "tuning_selected_law"], ids=lambda r: r["id"])
def test_the_released_outcome_has_the_distribution_of_the_reference(record) -> None:
    """Pr[A <= y] = f(Q(<= y)): no run is better than y."""
    below = np.append(0.0, np.cumsum(record["inputs"]["base"]))
    chances = np.diff(runs_of(record["inputs"]).generate(np.minimum(below, 1.0)))
    assert chances == pytest.approx(record["value"], rel=1e-9)


@pytest.mark.parametrize("runs", ALL, ids=str)
def test_chances_mean_generating_function_and_density_agree(runs: RunDistribution) -> None:
    chances = np.array(list(itertools.islice(runs.chances(), 3000)))
    k = np.arange(len(chances))
    assert chances.sum() == pytest.approx(1, abs=1e-12)
    assert chances @ k == pytest.approx(runs.mean, rel=1e-9)
    assert chances[1] == pytest.approx(chance_of_one(runs), rel=1e-12)
    for s in (0.0, 0.3, 0.9, 1.0):
        powers = s ** np.maximum(k - 1.0, 0.0)
        assert float(runs.density(np.array(1 - s), np.array(s))) == pytest.approx(chances @ (k * powers), rel=1e-9)
        assert float(runs.generate(np.array(s))) == pytest.approx(chances @ (s**k), rel=1e-9, abs=1e-15)


def test_chances_that_begin_below_all_doubles_rise_again() -> None:
    """At 0 for good, no number would ever be drawn but the largest."""
    runs = NegativeBinomialRuns.with_mean(100.0, 1e6)
    chances = list(itertools.islice(runs.chances(), 3001))
    for k in (2000, 2500, 3000):
        assert math.log(chances[k]) == pytest.approx(float(stats.nbinom.logpmf(k, runs.shape, runs.gamma)), rel=1e-9)


def test_gamma_of_a_mean_is_the_librarys() -> None:
    from dp_accounting.rdp import rdp_privacy_accountant as library

    for shape, mean in ((0.0, 5.0), (0.0, 30.0), (0.5, 10.0), (1.0, 10.0), (2.0, 20.0), (1.0, 1.5)):
        runs = NegativeBinomialRuns.with_mean(shape, mean)
        assert runs.gamma == pytest.approx(library._gamma_truncated_negative_binomial(shape, mean), rel=1e-8)
        assert runs.mean == pytest.approx(mean, rel=1e-12)
    assert NegativeBinomialRuns.with_mean(0.0, 10.0).gamma == pytest.approx(0.026918259600680217, rel=1e-10)
    assert chance_of_one(NegativeBinomialRuns.with_mean(0.0, 10.0)) == pytest.approx(0.27, abs=0.005)


@pytest.mark.parametrize("runs", [ALL[0], ALL[2], ALL[4]], ids=str)
def test_draws_follow_the_chances(runs: RunDistribution) -> None:
    """Each count of 2000 draws lies within 5.5 standard deviations: probability of a failure below 1e-6."""
    secrets = Secrets(insecure_seed=3)
    draws = np.array([draw_runs(runs, secrets.stream("sampling", n)) for n in range(2000)])
    for k, chance in enumerate(itertools.islice(runs.chances(), 12)):
        assert abs((draws == k).sum() - 2000 * chance) <= 5.5 * math.sqrt(2000 * chance * (1 - chance)) + 1e-9
    assert draw_runs(FixedRuns(4), secrets.stream("sampling", 0)) == 4


def test_so_many_runs_are_enough() -> None:
    assert runs_quantile(NegativeBinomialRuns(1.0, 0.1), 0.95) == 29  # 1 - 0.9^29 = 0.953
    assert runs_quantile(FixedRuns(7), 0.5) == 7
    with pytest.raises(ValueError, match="probability"):
        runs_quantile(FixedRuns(7), 1.0)


@pytest.mark.parametrize(
    ("distribution", "mean", "shape", "match"),
    [
        ("negative_binomial", -3.0, 1.0, "mean"),
        ("negative_binomial", 1.0, 1.0, "mean"),
        ("negative_binomial", math.nan, 1.0, "mean"),
        ("negative_binomial", 1e7, 1.0, "mean"),
        ("negative_binomial", 10.0, -0.5, "shape"),
        ("negative_binomial", 10.0, math.nan, "shape"),
        ("negative_binomial", 10.0, 1e6, "shape"),
        ("negative_binomial", 10.0, None, "shape"),
        ("poisson", 10.0, 1.0, "shape"),
        ("poisson", 0.5, None, "mean"),
        ("poisson", 1.0, None, "mean"),
        ("poisson", math.inf, None, "mean"),
        ("fixed", 2.5, None, "whole number"),
        ("fixed", 0.0, None, "whole number"),
        ("geometric", 10.0, None, "unknown distribution"),
    ],
)
def test_what_is_no_number_of_runs_is_refused(distribution, mean, shape, match) -> None:
    with pytest.raises(ValueError, match=match):
        make_runs(distribution, mean, shape)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_gamma_lies_between_0_and_1(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        NegativeBinomialRuns(1.0, gamma)


@pytest.mark.parametrize("mean", [1.01, 1.3, 5.0, 1000.0])
def test_a_poisson_number_is_never_0_and_has_its_mean(mean: float) -> None:
    """With a chance of exp(-λ) there would be no run, the budget spent and nothing to release."""
    runs = make_runs("poisson", mean)
    assert runs.mean == pytest.approx(mean, rel=1e-12)
    assert next(runs.chances()) == 0
    assert runs_quantile(runs, 1e-300) >= 1
