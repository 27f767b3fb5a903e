"""Compares the error of every noise distribution at one budget: the search over noise of Nasr, Shokri and Houmansadr
2020.

Each distribution is compared at the smallest scale that keeps the budget. The scale is solved as a plan solves it, from
the events that the run would be charged for, so the comparison is of runs as they would happen. No data is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.mechanisms.encoded import account
from dprecipe.mechanisms.encoded.phases import box_of
from dprecipe.mechanisms.encoded.plan import EncodedPlan
from dprecipe.mechanisms.encoded.schema import Encoded
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.schema import (
    CauchyNoise,
    GaussianNoise,
    LaplaceNoise,
    Noise,
    SechNoise,
    StudentTNoise,
    VarianceGammaNoise,
    phases,
    shape_of,
)
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.rounding import round_up

GAUSSIAN = Distribution("gaussian")
DISTRIBUTIONS = (
    GAUSSIAN,
    Distribution("laplace"),
    *(Distribution("student_t", df) for df in (3.0, 5.0, 9.0, 18.0, 30.0)),
    Distribution("cauchy"),
    *(Distribution("variance_gamma", shape) for shape in (2.0, 3.0, 4.0)),
    Distribution("sech"),
)
"""The distributions that are always compared, besides the recipe's own."""

MAX_L1_GAIN = 0.0079
"""Largest relative gain in L1 error over Gaussian noise of the same Fisher information, an upper bound.

Source: docs/explanation/noise.md (the density Ai², the ground state of -ψ'' + |x| ψ, has 0.99213 of it).
"""
RESOLUTION = 5e-4
"""Relative differences below this are within the error of the solver, which stops within 1e-4 of the budget."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Constants that all distributions share."""

    epsilon: float
    delta: float
    neighbouring: Neighbouring
    accountant: str
    steps: int
    sampling_rate: float | None
    codes: float
    """Expected number of codes in a sum: its public divisor."""
    dimension: int
    norm: float
    """L2 norm of a codeword."""
    words: int
    envelope: float
    """L2 norm of the codewords' envelope over `norm`; noise other than Gaussian is accounted with it."""
    exchanged: bool
    """True if units share codes in micro-batches, so that a neighbour exchanges a code."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A distribution at the smallest scale that keeps the budget. Errors are those of one coordinate of the noisy
    sum."""

    distribution: Distribution
    chosen: bool
    """True for the recipe's own distribution."""
    multiplier: float
    scale: float
    l1: float
    """E|noise|, averaged over coordinates; infinite for distributions without a mean."""
    l2: float
    """Root mean square of the noise; infinite for distributions without a variance."""
    l1_ratio: float
    l2_ratio: float
    """`l1_ratio` and `l2_ratio`: errors over those of Gaussian noise."""
    equal_fisher_scale: float
    """The standard deviation of Gaussian noise with the same Fisher information."""
    signal_to_noise: float
    """Norm of a sum of parallel codewords over the root mean square norm of its noise; 0 where that is infinite."""
    epsilon: float
    accountant: str
    alternative_epsilon: float
    alternative_accountant: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All distributions at one budget and length, the smallest L2 error first, then the smallest L1 error."""

    terms: Terms
    distributions: tuple[Compared, ...]
    left_out: tuple[tuple[Distribution, str], ...]
    """Distributions that this budget refuses, with the reason."""

    @property
    def min_l1(self) -> Compared:
        return _select_smallest(self.distributions, lambda compared: compared.l1_ratio)

    @property
    def min_l2(self) -> Compared:
        return _select_smallest(self.distributions, lambda compared: compared.l2_ratio)

    @property
    def matters(self) -> bool:
        """True if a distribution beats Gaussian noise by more than Fisher information alone allows."""
        return self.min_l2.l2_ratio < 1 - RESOLUTION or self.min_l1.l1_ratio < 1 - MAX_L1_GAIN - RESOLUTION

    def to_json(self) -> dict[str, Any]:
        """Returns the body of the document `dprecipe.noise/v1`."""
        terms = self.terms
        return {
            "budget": {
                "epsilon": terms.epsilon,
                "delta": terms.delta,
                "neighbouring": terms.neighbouring.value,
                "accountant": terms.accountant,
            },
            "steps": terms.steps,
            "sampling_rate": terms.sampling_rate,
            "codes": terms.codes,
            "dimension": terms.dimension,
            "codebook": {"words": terms.words, "norm": terms.norm, "envelope": terms.envelope},
            "distributions": [_to_json(result) for result in self.distributions],
            "left_out": [
                {"family": distribution.family, "shape": distribution.shape, "reason": reason}
                for distribution, reason in self.left_out
            ],
            "min_l1": {"family": self.min_l1.distribution.family, "shape": self.min_l1.distribution.shape},
            "min_l2": {"family": self.min_l2.distribution.family, "shape": self.min_l2.distribution.shape},
            "matters": self.matters,
        }


def compare_distributions(
    spec: Encoded,
    facts: Facts,
    report: Callable[[int, int, Distribution], None] = lambda done, total, distribution: None,
) -> Comparison:
    """Compares every distribution of `DISTRIBUTIONS` and those of the recipe, at the ε and length of the recipe's run.

    ε is the budget if the recipe's noise is `auto`, and what the run spends if the noise is given. An `auto` length is
    the one that the recipe's noise solves to. Phases are compared as one noise for the whole run.
    `report(done, total, distribution)` is called before each distribution.

    Raises:
        PlanRefused: the recipe can't be planned, or can't be planned with Gaussian noise.
        UsageFault: the run spends nothing, so there is nothing to compare.
    """
    facts = _fix_budget(spec, facts)
    own = [Distribution(noise.family, shape_of(noise)) for _, noise in phases(spec.noise)]
    distributions = list(dict.fromkeys([*DISTRIBUTIONS, *own]))
    results: list[Compared] = []
    left_out: list[tuple[Distribution, str]] = []
    reference: Compared | None = None
    for index, distribution in enumerate(distributions):
        report(index, len(distributions), distribution)
        try:
            plan = account.plan(spec.model_copy(update={"noise": noise_of(distribution)}), facts).plan
        except PlanRefused as refusal:
            if distribution == GAUSSIAN:
                raise
            left_out.append((distribution, refusal.findings[0].message))
            continue
        row = _compare(distribution, distribution in own, plan, facts, reference)
        reference = reference or row
        results.append(row)
    results.sort(key=lambda row: (row.l2, row.l1, row.multiplier))
    return Comparison(_terms(spec, facts, plan), tuple(results), tuple(left_out))


def name_of(distribution: Distribution) -> str:
    """Names a distribution, such as `student_t(9)`."""
    return distribution.family if distribution.shape is None else f"{distribution.family}({distribution.shape:g})"


def noise_of(distribution: Distribution) -> Noise:
    """Returns the noise block of a distribution, with multiplier `auto`."""
    shape = distribution.shape or 1.0
    match distribution.family:
        case "gaussian":
            return GaussianNoise(family="gaussian", multiplier="auto")
        case "laplace":
            return LaplaceNoise(family="laplace", multiplier="auto")
        case "student_t":
            return StudentTNoise(family="student_t", df=shape, multiplier="auto")
        case "cauchy":
            return CauchyNoise(family="cauchy", multiplier="auto", force=True)
        case "variance_gamma":
            return VarianceGammaNoise(family="variance_gamma", shape=shape, multiplier="auto")
        case _:
            return SechNoise(family="sech", multiplier="auto")


def _fix_budget(spec: Encoded, facts: Facts) -> Facts:
    """Returns the same facts, with ε and the length as numbers."""
    if any(noise.multiplier == "auto" for _, noise in phases(spec.noise)):
        return facts
    plan = account.plan(spec, facts).plan
    budget = facts.budget
    relation = Neighbouring(budget.neighbouring)
    charges = (*facts.stage_charges, *plan.events)
    epsilon = round_up(accountants.epsilon(charges, budget.delta, relation, budget.accountant))
    if not 0 < epsilon < math.inf:
        raise UsageFault(
            f"the recipe's run spends ε = {epsilon:g}: there is nothing to compare at",
            "set mechanism.noise.multiplier to auto and budget.epsilon to a number",
        )
    return replace(
        facts,
        budget=budget.model_copy(update={"epsilon": epsilon}),
        training=facts.training.model_copy(update={"epochs": None, "steps": plan.length.steps}),
        stage_noise={stage.step: stage.noise_multiplier for stage in facts.stages},
    )


def _compare(
    distribution: Distribution, chosen: bool, plan: EncodedPlan, facts: Facts, reference: Compared | None
) -> Compared:
    noise, budget = plan.noises[-1], facts.budget
    scale, sizes, dimension = noise.scale, plan.groups, plan.dimension
    relative = plan.group_noise or (1.0,) * len(sizes)
    mean = math.fsum(size * r for size, r in zip(sizes, relative, strict=True)) / dimension
    square = math.fsum(size * r * r for size, r in zip(sizes, relative, strict=True)) / dimension
    l1 = scale * distribution.mean_absolute * mean
    l2 = scale * distribution.standard_deviation * math.sqrt(square)
    relation = Neighbouring(budget.neighbouring)
    second = "rdp" if budget.accountant in ("pld", "gdp") else "pld"
    charges = (*facts.stage_charges, *plan.events)
    answer, check = (
        accountants.epsilon_answer(charges, budget.delta, relation, name) for name in (budget.accountant, second)
    )
    return Compared(
        distribution=distribution,
        chosen=chosen,
        multiplier=noise.multiplier,
        scale=scale,
        l1=l1,
        l2=l2,
        l1_ratio=1.0 if reference is None else l1 / reference.l1,
        l2_ratio=1.0 if reference is None else l2 / reference.l2,
        equal_fisher_scale=scale / math.sqrt(distribution.fisher),
        signal_to_noise=plan.divisor * plan.codebook.norm / (l2 * math.sqrt(dimension)),
        epsilon=round_up(answer.value),
        accountant=answer.accountant,
        alternative_epsilon=round_up(check.value),
        alternative_accountant=check.accountant,
    )


def _terms(spec: Encoded, facts: Facts, plan: EncodedPlan) -> Terms:
    budget, box = facts.budget, box_of(spec, facts)
    return Terms(
        epsilon=float(budget.epsilon),
        delta=budget.delta,
        neighbouring=Neighbouring(budget.neighbouring),
        accountant=budget.accountant,
        steps=plan.length.steps,
        sampling_rate=plan.sampling_rate,
        codes=plan.divisor,
        dimension=box.dimension,
        norm=spec.codebook.norm,
        words=box.words,
        envelope=box.length,
        exchanged=spec.microbatch_size > 1,
    )


def _select_smallest(distributions: tuple[Compared, ...], error: Callable[[Compared], float]) -> Compared:
    """Returns the distribution with the smallest error; Gaussian noise if none is better by more than the solver's
    error."""
    result = min(distributions, key=error)
    gaussian = next(row for row in distributions if row.distribution == GAUSSIAN)
    return result if error(result) < error(gaussian) * (1 - RESOLUTION) else gaussian


def _to_json(compared: Compared) -> dict[str, Any]:
    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "family": compared.distribution.family,
        "shape": compared.distribution.shape,
        "chosen": compared.chosen,
        "multiplier": compared.multiplier,
        "scale": compared.scale,
        "l1": finite(compared.l1),
        "l2": finite(compared.l2),
        "l1_ratio": finite(compared.l1_ratio),
        "l2_ratio": finite(compared.l2_ratio),
        "equal_fisher_scale": compared.equal_fisher_scale,
        "signal_to_noise": compared.signal_to_noise,
        "epsilon": compared.epsilon,
        "accountant": compared.accountant,
        "alternative": {"accountant": compared.alternative_accountant, "epsilon": compared.alternative_epsilon},
    }
