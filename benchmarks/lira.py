"""Membership inference on many models of one pool of records, and what it attains: `attack.py` trains the models.

Each record of the pool is in the training set of each model by a fair coin of its own. So "this record was in" and "it
was not" differ by nothing else, and what a claim says of one record holds for the shares over all of them: the largest
true-positive rate is a concave function of the false-positive rate.

The models have two parts. The attacker knows everything about the first: likelihood ratios are fitted to it, and
thresholds chosen on it. Only models of the second part are counted.

Source: Carlini et al. 2022, "Membership inference attacks from first principles" (LiRA, online). Intervals: Clopper &
Pearson 1934 with the effective number of trials of Korn & Graubard 1998, because records of one model are not
independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtrit

Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]
CONFIDENCE = 0.95
PRIOR_DEGREES = 8.0
"""Weight of all records' variance in that of one, as if so many more models had been seen: a few dozen models tell
little of one record's."""
CURVE = tuple(float(x) for x in np.geomspace(1e-3, 1, 61))
"""False-positive rates that the thresholds of a curve aim at."""


@dataclass(frozen=True, slots=True, eq=False)
class Queried:
    """Of M models and N records, the margins of the records' labels and who was in, both (M, N)."""

    margins: Floats
    coins: Coins

    def __len__(self) -> int:
        return len(self.margins)

    def take(self, models: slice | Sequence[int]) -> Queried:
        return Queried(self.margins[models], self.coins[models])


class Rate(NamedTuple):
    """An estimate and its two-sided interval."""

    value: float
    low: float
    high: float


class Attained(NamedTuple):
    """By a threshold that aims at a false-positive rate."""

    aimed: float
    false_positives: Rate
    true_positives: Rate


@dataclass(frozen=True, slots=True)
class Attack:
    """What the scores of some records attain against models that chose nothing."""

    attained: tuple[Attained, ...]
    curve: tuple[tuple[float, float], ...]
    auc: Rate
    advantage: Rate


def draw_coins(models: int, records: int, seed: int) -> Coins:
    """Who is in, (M, N)."""
    return np.random.default_rng(seed).random((models, records)) < 0.5


def margins_of(logits: Floats, labels: NDArray[np.int64]) -> Floats:
    """log p/(1 - p) of each record's label, (N,), from logits (N, classes): nearly normal over models."""
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    result: Floats = logits[rows, labels] - np.logaddexp.reduce(others, axis=1)
    return result


def score(margins: Floats, shadows: Queried) -> Floats:
    """The log-likelihood ratio of "in" for records of other models, (..., N), by normal distributions fitted to the
    shadow models.

    Raises:
        ValueError: a record is in fewer than two shadow models, or out of fewer than two.
    """
    inside, outside = (_fit(shadows.margins, side) for side in (shadows.coins, ~shadows.coins))
    return _log_density(margins, *inside) - _log_density(margins, *outside)


def score_each(shadows: Queried) -> Floats:
    """The same for each shadow model by the others, (M, N)."""
    every = list(range(len(shadows)))
    parts = [score(shadows.margins[one], shadows.take(every[:one] + every[one + 1 :])) for one in every]
    return np.stack(parts)


def assess(queried: Queried, shadows: int, chosen: Coins, aims: Sequence[float]) -> Attack:
    """What LiRA attains on the `chosen` records (N,), with the first models as its shadows."""
    first, second = queried.take(slice(shadows)), queried.take(slice(shadows, None))
    known, coins = score_each(first)[:, chosen], first.coins[:, chosen]
    scores, truth = score(second.margins, first)[:, chosen], second.coins[:, chosen]
    attained = tuple(Attained(aim, *_count(scores, truth, choose_threshold(known, coins, aim))) for aim in aims)
    best = max(CURVE, key=lambda aim: _gap(known, coins, choose_threshold(known, coins, aim)))
    threshold = choose_threshold(known, coins, best)
    pairs = [_count(scores, truth, choose_threshold(known, coins, aim)) for aim in CURVE]
    return Attack(
        attained,
        tuple((false.value, true.value) for false, true in pairs),
        _mean([_auc(row, inside) for row, inside in zip(scores, truth, strict=True)]),
        _mean([_gap(row, inside, threshold) for row, inside in zip(scores, truth, strict=True)]),
    )


def choose_threshold(scores: Floats, coins: Coins, aim: float) -> float:
    """The least score above which at most a share `aim` of those lie that were out."""
    outside = np.sort(scores[~coins])
    above = int(aim * len(outside))
    return -np.inf if above >= len(outside) else float(outside[len(outside) - 1 - above])


def rate(hits: Sequence[int] | NDArray[np.int64], trials: Sequence[int] | NDArray[np.int64]) -> Rate:
    """The share of hits among trials, both by model, and its interval.

    Where hits differ more from model to model than independent ones would, trials count for fewer.
    """
    counted, of = np.asarray(hits, np.float64), np.asarray(trials, np.float64)
    total, share = of.sum(), counted.sum() / of.sum()
    plain = share * (1 - share) / total
    if plain > 0 and len(of) > 1:
        clustered = ((counted - share * of) ** 2).sum() / total**2 * len(of) / (len(of) - 1)
        total /= max(1.0, clustered / plain)
    successes, tail = share * total, (1 - CONFIDENCE) / 2
    low = 0.0 if share == 0 else float(betaincinv(successes, total - successes + 1, tail))
    high = 1.0 if share == 1 else float(betaincinv(successes + 1, total - successes, 1 - tail))
    return Rate(float(share), low, high)


def _fit(margins: Floats, side: Coins) -> tuple[Floats, Floats]:
    """Mean and variance of each record over the models of one side."""
    count = side.sum(axis=0)
    if count.min() < 2:
        raise ValueError("a record is in fewer than two shadow models, or out of fewer than two: train more")
    mean = np.where(side, margins, 0).sum(axis=0) / count
    squares = np.where(side, (margins - mean) ** 2, 0).sum(axis=0)
    common = squares.sum() / (count - 1).sum()
    return mean, np.maximum((squares + PRIOR_DEGREES * common) / (count - 1 + PRIOR_DEGREES), 1e-12)


def _log_density(values: Floats, mean: Floats, variance: Floats) -> Floats:
    result: Floats = -0.5 * ((values - mean) ** 2 / variance + np.log(variance))
    return result


def _count(scores: Floats, coins: Coins, threshold: float) -> Iterator[Rate]:
    """The false-positive rate, then the true-positive rate, over models (M, N)."""
    named = scores > threshold
    for side in (~coins, coins):
        yield rate((named & side).sum(axis=1), side.sum(axis=1))


def _gap(scores: Floats, coins: Coins, threshold: float) -> float:
    named = scores > threshold
    return float(named[coins].mean() - named[~coins].mean())


def _auc(scores: Floats, coins: Coins) -> float:
    """The chance that one who was in has a higher score than one who was not; ties count half."""
    outside = np.sort(scores[~coins])
    below = sum(np.searchsorted(outside, scores[coins], side=side).mean() for side in ("left", "right"))
    return float(below) / (2 * len(outside))


def _mean(values: Sequence[float]) -> Rate:
    """Of independent models, with Student's interval."""
    mean, count = float(np.mean(values)), len(values)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(count))
    return Rate(mean, mean - half, mean + half)
