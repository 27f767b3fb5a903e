"""The noise of many releases, by two attempts of a run: its scale, its distribution, and that no draw tells of another.

Noise of any family is turned into standard normal scores, Φ⁻¹(F(x)): if F is its distribution function, they are
exactly normal and independent, and every test is one of normal numbers.

Legend: R releases, P numbers of a release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe.noise.distributions import Distribution
from dprecipe.privacy.audit.results import Correlation, Distance, Equality, Excess, Variance
from dprecipe.privacy.correlation.whiten import Whitener
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import UNBOUNDED, Seen

Scores = NDArray[np.float64]
MAX_SAMPLE = 200_000
"""Largest sample whose distance from a distribution is taken."""
MAX_SERIES = 1 << 19
"""Numbers whose correlations are taken at every distance."""
LARGEST_SCORE = 38.0
"""A score beyond is one of these: the normal distribution function is 0 or 1 there."""
SINGLE = 2.0**-22
"""A share of the largest term: what single precision rounds where the optimiser is given a gradient."""


def normal_scores(noise: Scores, distribution: Distribution) -> Scores:
    """Returns standard normal numbers, if the noise, in scales, is of the distribution; Gaussian noise is its own
    score."""
    if distribution.family == "gaussian":
        return noise
    from scipy import special

    lower = distribution.cdf(-np.abs(noise))  # with full precision in the tail
    scores: Scores = special.ndtri(np.clip(lower, 1e-300, 0.5)) * -np.sign(noise)
    return np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE)


def examine_noise(attempts: Sequence[Sequence[Seen]]) -> Iterator[AuditFinding]:
    """Yields the tests of noise; each attempt has the same number of releases, of sums of one size."""
    scores_RP = np.concatenate([_score(attempt, [seen.noise for seen in attempt]) for attempt in attempts])
    yield from _examine(scores_RP, [len(attempt) for attempt in attempts], "noise", "the noise of the gate")
    given = _noise_given(attempts)
    if given is not None:
        yield _variance("given_scale", "what the optimiser gets has noise of the claimed scale", given)


def _score(attempt: Sequence[Seen], noises: Iterable[torch.Tensor]) -> Scores:
    """Returns the scores of an attempt's noise, (R, P), in scales; of noise that is correlated over steps, only what is
    fresh."""
    scores: list[Scores] = []
    whitener: Whitener[Scores] = Whitener(attempt[0].event.strategy)
    for seen, noise in zip(attempt, noises, strict=True):
        values = np.clip(whitener.take(_finite(noise)), -UNBOUNDED, UNBOUNDED)
        scores.append(normal_scores(values, seen.distribution))
    return np.stack(scores)


def examine_divisor(seen: Sequence[Seen]) -> Iterator[AuditFinding]:
    """Checks that the optimiser gets the noisy sum over one constant, the same for batches of every size.

    `seen`: at least two, the first two of empty batches.
    """
    divisor = _constant_divisor(seen)
    if divisor is None:
        return
    differing, compared = 0, 0
    for each in seen:
        expected = each.noisy[: len(each.gradient)] / divisor
        tolerance = SINGLE * expected.abs() + 1e-300
        differing += int((~((each.gradient - expected).abs() <= tolerance)).sum())
        compared += len(expected)
    text = "the optimiser gets the noisy sum over a constant, for batches of every size"
    yield AuditFinding("program", "divisor", text, Equality(differing=differing, compared=compared))


def examine_blind(one: Seen, other: Seen) -> AuditFinding:
    """Returns two sums of different units got noise from one stream: what was released differs as the sums do."""
    from dprecipe.noise.lattice import lattice_spacing

    scales = torch.as_tensor(one.scale, dtype=torch.float64).expand(len(one.noisy))
    spacing = torch.empty_like(scales)
    for scale in torch.unique(scales).tolist():
        spacing[scales == scale] = lattice_spacing(scale)
    off = float((((one.noisy - other.noisy) - (one.summed - other.summed)) / spacing).abs().max())
    text = "with the same draws, what is released differs as the sums do: noise depends on nobody, to its lattice"
    largest = min(off, UNBOUNDED) if math.isfinite(off) else UNBOUNDED
    return AuditFinding("program", "noise_blind", text, Excess(largest=largest, allowed=1.0 + SINGLE))


def examine_lattice(seen: Sequence[Seen]) -> Iterator[AuditFinding]:
    """Checks that every released number is a multiple of its spacing, whatever the sum (floating point gives nothing
    away)."""
    from dprecipe.noise.lattice import lattice_spacing

    differing, compared = 0, 0
    for each in seen:
        scales = torch.as_tensor(each.scale, dtype=torch.float64).expand(len(each.noisy))
        for scale in torch.unique(scales).tolist():
            counts = each.noisy[scales == scale] / lattice_spacing(scale)
            differing += int((counts != counts.round()).sum())
            compared += len(counts)
    text = "released numbers are on a lattice that does not depend on the sum"
    yield AuditFinding("program", "lattice", text, Equality(differing=differing, compared=compared))


def _examine(scores_RP: Scores, lengths: Sequence[int], name: str, what: str) -> Iterator[AuditFinding]:
    yield _variance(f"{name}_scale", f"{what} has the claimed scale", scores_RP)
    yield _distance(f"{name}_distribution", f"{what} has the claimed distribution", scores_RP)
    first, second = scores_RP[: lengths[0]], scores_RP[lengths[0] :]
    pairs = {
        "steps": (scores_RP[:-1], scores_RP[1:], "of two steps"),
        "neighbours": (scores_RP[:, :-1], scores_RP[:, 1:], "of two coordinates"),
        "attempts": (first[: len(second)], second[: len(first)], "of two attempts, after a resume,"),
    }
    for key, (one, other, of) in pairs.items():
        if one.size and other.size:
            sum_products = float(np.clip(np.vdot(one, other), -UNBOUNDED, UNBOUNDED))
            evidence = Correlation(sum_products=sum_products, pairs=one.size)
            yield AuditFinding("program", f"{name}_{key}", f"noise {of} is independent", evidence)
    yield from _at_any_distance(scores_RP.ravel()[:MAX_SERIES], name)
    for key, axis, which in (("present", 1, "release"), ("everywhere", 0, "number of a sum")):
        heard: NDArray[np.bool_] = np.asarray(scores_RP.any(axis=axis))
        silent = Equality(differing=int((~heard).sum()), compared=len(heard))
        yield AuditFinding("program", f"{name}_{key}", f"no {which} is without noise", silent)


def _at_any_distance(series: Scores, name: str) -> Iterator[AuditFinding]:
    """Tests the largest correlation of numbers at any distance, which finds noise that is used twice."""
    count = len(series)
    if count < 64:
        return
    spectrum = np.fft.rfft(series, 2 * count)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[1 : count // 2 + 1]
    pairs = count - np.arange(1, count // 2 + 1)
    worst = int(np.argmax(np.abs(products) / np.sqrt(pairs)))
    evidence = Correlation(sum_products=float(products[worst]), pairs=int(pairs[worst]))
    text = "no draw of noise is used twice, at any distance"
    yield AuditFinding("program", f"{name}_reuse", text, evidence, len(products))


def _variance(name: str, text: str, scores: Scores) -> AuditFinding:
    total = min(float(np.square(scores).sum()), UNBOUNDED)
    return AuditFinding("program", name, text, Variance(sum_squares=total, degrees=scores.size))


def _distance(name: str, text: str, scores: Scores) -> AuditFinding:
    from scipy import special

    flat = scores.ravel()
    sample = np.sort(flat[:: max(1, flat.size // MAX_SAMPLE)][:MAX_SAMPLE])
    expected, ranks = special.ndtr(sample), np.arange(len(sample))
    statistic = max(float((expected - ranks / len(sample)).max()), float(((ranks + 1) / len(sample) - expected).max()))
    return AuditFinding("program", name, text, Distance(statistic=min(1.0, statistic), sample=len(sample)))


def _noise_given(attempts: Sequence[Sequence[Seen]]) -> Scores | None:
    """Scores of what the optimiser got, without the sum of the units; None where its divisor is no constant."""
    divisor = _constant_divisor([seen for attempt in attempts for seen in attempt])
    if divisor is None:
        return None
    return np.concatenate([_score(attempt, [_take_out(seen, divisor) for seen in attempt]) for attempt in attempts])


def _take_out(seen: Seen, divisor: float) -> torch.Tensor:
    """Returns the noise in what the optimiser got, in scales."""
    size = len(seen.gradient)
    scale = seen.scale[:size] if isinstance(seen.scale, torch.Tensor) else seen.scale
    return (seen.gradient * divisor - seen.summed[:size]) / scale


def _constant_divisor(seen: Sequence[Seen]) -> float | None:
    """Returns what noisy sums are divided by; None where two empty batches differ in it: gradients are then scaled by
    what noisy sums say, and `dprecipe.training.audit.program` covers them."""
    first, second = divisor_of(seen[0]), divisor_of(seen[1])
    same = first is not None and second is not None and math.isclose(first, second, rel_tol=SINGLE)
    return first if same else None


def divisor_of(seen: Seen) -> float | None:
    """Returns what a noisy sum was divided by; None where its numbers were not all divided by one number."""
    noisy = seen.noisy[: len(seen.gradient)]
    largest = int(noisy.abs().argmax())
    divisor = float(noisy[largest] / seen.gradient[largest])
    expected = noisy / divisor
    same = (seen.gradient - expected).abs() <= SINGLE * expected.abs() + 1e-300
    return divisor if math.isfinite(divisor) and bool(same.all()) else None


def _finite(noise: torch.Tensor) -> Scores:
    values: Any = noise.nan_to_num(UNBOUNDED**0.25, UNBOUNDED**0.25, -(UNBOUNDED**0.25)).numpy()
    result: Scores = values
    return result
