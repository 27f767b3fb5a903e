"""DP-SGD's accounting: from a recipe's constants to the events of a run, with the free variable solved.

Guarantees: the events returned by `plan` spend at most the budget, by the accountant the budget names.
Source: Abadi et al. 2016, Algorithm 1; the accountants cite theirs in `dprecipe.privacy`.

The accountants are imported inside the functions that ask them: a recipe whose noise is `auto` validates without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.mechanisms.contract import Facts, MechanismPlan
from dprecipe.mechanisms.dpsgd.schema import Dpsgd, FullBatchSampling, PoissonSampling, ShuffleSampling
from dprecipe.planning.model import Assumption, Length
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, Event, Gaussian, PartitionedGaussian, PoissonGaussian
from dprecipe.privacy.screen import surely_within

MOST_STEPS = 10_000_000
LEAST_NOISE = 0.2

WHY_NO_BOUND = {
    "laplace": "L2-clipped gradients have no useful L1 bound",
    "student_t": "there is no bound for L2-clipped gradients",
    "cauchy": "there is no bound for L2-clipped gradients",
    "variance_gamma": "there is no bound for L2-clipped gradients",
    "sech": "there is no bound for L2-clipped gradients",
}


@dataclass(frozen=True, slots=True)
class _Shape:
    """The sampling scheme as arithmetic: what one event is, and how many steps it covers."""

    event: Callable[[float], Event]
    steps_per_event: int
    epoch: Fraction
    """Steps in one pass over the data; need not be whole."""
    expected_lot: float
    sampling_rate: float | None

    def events_for(self, epochs: float | None, steps: int | None) -> int:
        """Whole events that cover the asked length; a part of one counts as one."""
        if steps is None:
            # Exact decimals: 0.1 epochs of 60,000 records are 6,000 records, whatever binary makes of 0.1.
            steps = math.ceil(Fraction(str(epochs)) * self.epoch)
        return math.ceil(Fraction(steps, self.steps_per_event))

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.epoch)


def _shape(spec: Dpsgd, facts: Facts) -> _Shape:
    match spec.sampling:
        case PoissonSampling(batch_size=batch_size):
            q = batch_size / facts.size
            return _Shape(
                event=lambda multiplier: PoissonGaussian(q, multiplier),
                steps_per_event=1,
                epoch=Fraction(facts.size, batch_size),
                expected_lot=float(batch_size),
                sampling_rate=q,
            )
        case FullBatchSampling():
            return _Shape(Gaussian, 1, Fraction(1), float(facts.size), None)
        case ShuffleSampling(batch_size=batch_size):
            lots = math.ceil(Fraction(facts.size, batch_size))
            return _Shape(
                event=lambda multiplier: PartitionedGaussian(multiplier, lots),
                steps_per_event=lots,
                epoch=Fraction(lots),
                expected_lot=facts.size / lots,
                sampling_rate=None,
            )
        case other:
            assert_never(other)


def check(spec: Dpsgd, facts: Facts) -> list[Finding]:
    """What makes this block impossible or unaccountable. Rényi first; the tighter accountant only where it decides."""
    findings = _structure(spec, facts)
    if any(finding.is_error for finding in findings):
        return findings
    shape, multiplier, events = _given(spec, facts)
    budget, cap = facts.budget, facts.cap
    if cap is None or multiplier is None:
        return findings
    if events is None:
        events = 1
    charges = [Charge(shape.event(multiplier), events)]
    if surely_within(charges, cap, budget.delta, Neighbouring(budget.neighbouring)):
        return findings
    for accountant in dict.fromkeys(("rdp", budget.accountant)):
        if _epsilon(charges, facts, accountant) <= cap:
            return findings
    return [*findings, _overspent(facts, shape, multiplier, events)]


def plan(spec: Dpsgd, facts: Facts) -> MechanismPlan:
    """Solve the free variable.

    Raises:
        PlanRefused: the budget can't hold the plan (P102, P106), or holds so much that it means nothing (P107).
    """
    from dprecipe.privacy import calibrate

    shape, multiplier, events = _given(spec, facts)
    budget, epsilon = facts.budget, facts.cap
    relation = Neighbouring(budget.neighbouring)
    solved: dict[str, float | int] = {}
    if multiplier is None and events is not None and epsilon is not None:
        count = events
        terms = (epsilon, budget.delta, relation, budget.accountant)
        try:
            multiplier = calibrate.noise_multiplier(lambda sigma: [Charge(shape.event(sigma), count)], *terms)
        except calibrate.CalibrationError as error:
            if error.reason == "too_tight":
                raise PlanRefused([_too_tight(error.tried)]) from None
            raise PlanRefused([_too_loose("is met without noise")]) from None
        solved["mechanism.noise.multiplier"] = multiplier
        if not multiplier >= LEAST_NOISE:
            raise PlanRefused([_too_loose(f"is met with a noise multiplier of {multiplier:g}, hardly any noise")])
    elif events is None and multiplier is not None and epsilon is not None:
        most = math.ceil(MOST_STEPS / shape.steps_per_event)
        if _epsilon([Charge(shape.event(multiplier), most)], facts, "rdp") <= epsilon:
            raise PlanRefused([_too_loose(f"holds more than {MOST_STEPS:,} steps at this noise")])
        events = calibrate.count(shape.event(multiplier), epsilon, budget.delta, relation, budget.accountant)
        if events == 0:
            raise PlanRefused([_overspent(facts, shape, multiplier, 1)])
        path = "training.steps" if facts.training.steps is not None else "training.epochs"
        steps = events * shape.steps_per_event
        solved[path] = steps if path.endswith("steps") else float(Fraction(steps) / shape.epoch)
    elif multiplier is None or events is None:
        raise PlanRefused([two_free_variables()])
    event = shape.event(multiplier)
    charges = (Charge(event, events),)
    if epsilon is not None and _epsilon(charges, facts, budget.accountant) > epsilon:
        raise PlanRefused([_overspent(facts, shape, multiplier, events)])
    return MechanismPlan(
        events=charges,
        settings={
            "clip_norm": spec.clip.norm,
            "noise_family": spec.noise.family,
            "noise_multiplier": multiplier,
            "noise_std": multiplier * spec.clip.norm,
            "scheme": spec.sampling.scheme,
            "sampling_rate": shape.sampling_rate,
            "expected_lot": shape.expected_lot,
        },
        solved=solved,
        length=Length(events * shape.steps_per_event, shape.steps_per_epoch, shape.expected_lot),
        sampling_rate=shape.sampling_rate,
        released=("final weights",),
        assumptions=_assumptions(spec, facts),
    )


def two_free_variables() -> Finding:
    """The finding for a recipe with more than one `auto`."""
    return Finding(
        "R302",
        "noise, length and budget are three faces of one equation: at most one of them can be `auto`",
        "give a number to all but one of mechanism.noise.multiplier, training.epochs (or steps) and budget.epsilon",
        "mechanism.noise.multiplier",
    )


def _given(spec: Dpsgd, facts: Facts) -> tuple[_Shape, float | None, int | None]:
    shape = _shape(spec, facts)
    multiplier = None if spec.noise.multiplier == "auto" else spec.noise.multiplier
    epochs, steps = facts.training.epochs, facts.training.steps
    if epochs == "auto" or steps == "auto":
        return shape, multiplier, None
    return shape, multiplier, shape.events_for(epochs, steps)


def _structure(spec: Dpsgd, facts: Facts) -> list[Finding]:
    findings = []
    family = spec.noise.family
    if family != "gaussian":
        findings.append(
            Finding(
                "P101",
                f"{family} noise can't be accounted for in dpsgd: {WHY_NO_BOUND[family]}",
                "set mechanism.noise.family to gaussian",
                "mechanism.noise.family",
            )
        )
    batch_size = getattr(spec.sampling, "batch_size", None)
    if batch_size is not None and batch_size > facts.size:
        findings.append(
            Finding(
                "P105",
                f"batch_size {batch_size:,} is larger than data.size {facts.size:,}",
                f"set batch_size to at most {facts.size}, or use scheme: full_batch",
                "mechanism.sampling.batch_size",
            )
        )
    shape_ok = batch_size is None or batch_size <= facts.size
    if shape_ok:
        shape, _, events = _given(spec, facts)
        if events is not None and events * shape.steps_per_event > MOST_STEPS:
            field = "steps" if facts.training.steps is not None else "epochs"
            findings.append(
                Finding(
                    "P109",
                    f"the run would be {events * shape.steps_per_event:,} steps long; the most is {MOST_STEPS:,}",
                    f"lower training.{field} or raise mechanism.sampling.batch_size",
                    f"training.{field}",
                )
            )
        if spec.sampling.scheme == "shuffle":
            findings.append(
                Finding(
                    "P104",
                    "shuffled lots are accounted without amplification by sampling: they need far more noise",
                    "use scheme: poisson unless something else forces the order of the records",
                    "mechanism.sampling.scheme",
                    severity=Severity.WARNING,
                )
            )
    return findings


def _epsilon(charges: Sequence[Charge], facts: Facts, accountant: str) -> float:
    from dprecipe.privacy import accountants

    return accountants.epsilon(charges, facts.budget.delta, Neighbouring(facts.budget.neighbouring), accountant)


def _overspent(facts: Facts, shape: _Shape, multiplier: float, events: int) -> Finding:
    """Say by how much, and which single change would mend it."""
    from dprecipe.privacy import calibrate

    budget = facts.budget
    relation = Neighbouring(budget.neighbouring)
    cap = float(budget.epsilon) if facts.cap is None else facts.cap
    event = shape.event(multiplier)
    spent = _epsilon([Charge(event, events)], facts, budget.accountant)
    fitting = calibrate.count(event, cap, budget.delta, relation, budget.accountant)
    try:
        sigma = calibrate.noise_multiplier(
            lambda value: [Charge(shape.event(value), events)], cap, budget.delta, relation, budget.accountant
        )
    except calibrate.CalibrationError as error:
        return _too_tight(error.tried)
    remedies = [f"set mechanism.noise.multiplier to {sigma:.6g}"]
    if fitting:
        steps = fitting * shape.steps_per_event
        if facts.training.steps is not None:
            remedies.insert(0, f"lower training.steps to {steps}")
        else:
            epochs = Fraction(steps) / shape.epoch
            shown = math.floor(epochs) if epochs >= 1 else math.floor(epochs * 10_000) / 10_000
            if shown > 0:
                remedies.insert(0, f"lower training.epochs to {shown}")
    code, start = ("P102", "") if fitting else ("P106", "not even one step fits: one ")
    return Finding(
        code,
        f"{start}spends ε = {spent:.4g} of {cap:g} at δ = {budget.delta:g}",
        ", or ".join(remedies),
        "budget.epsilon",
    )


def _too_tight(tried: float) -> Finding:
    return Finding(
        "P106",
        f"no noise keeps this budget: even a multiplier of {tried:g} spends more",
        "raise budget.epsilon or budget.delta, or shorten the run",
        "budget.epsilon",
    )


def _too_loose(what: str) -> Finding:
    return Finding(
        "P107",
        f"the budget {what}: it protects next to nothing",
        "lower budget.epsilon or budget.delta",
        "budget.epsilon",
    )


def _assumptions(spec: Dpsgd, facts: Facts) -> tuple[Assumption, ...]:
    sampling = {
        "poisson": "each unit joins each lot independently with the sampling rate, and who joined stays secret",
        "full_batch": "every unit takes part in every step",
        "shuffle": "each epoch deals every unit to exactly one lot, independently of the data",
    }[spec.sampling.scheme]
    return (
        Assumption("sampling", sampling, "code"),
        Assumption(
            "clipping",
            f"one {facts.unit} moves a sum of gradients by at most {spec.clip.norm:g} in L2 norm",
            "code",
        ),
        Assumption("noise", "Gaussian noise is added to the sum before anything is computed from it", "code"),
        Assumption("independence", "no record influences the gradient of another", "code"),
        Assumption("divisor", "noisy sums are divided by the public expected lot size", "code"),
        Assumption("size", f"the number of units, {facts.size}, is public", "declaration"),
        Assumption(
            "choices",
            "the recipe's constants were chosen without looking at the private records",
            "declaration",
        ),
        Assumption(
            "floating_point",
            "float64 noise on a float64 copy of the sum is treated as real-valued; timing is not protected",
            "declaration",
        ),
    )
