"""Warnings about a linear model that can't learn: its gradients drown in noise, or its steps overshoot.

Both are judged from public constants alone, and neither concerns privacy. No numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.data.facts import describe_data, feature_norm
from dprecipe.data.targets import ClassTarget, NumberTarget
from dprecipe.faults import Finding, Severity
from dprecipe.language.base import Schedule
from dprecipe.language.training import HuberLoss, OneCycle, Sgd, StepSchedule
from dprecipe.mechanisms.dpsgd.phases import DpsgdRun
from dprecipe.models.schema import Linear, LogisticRegression
from dprecipe.noise.schema import phases
from dprecipe.noisy_sum.clip import FlatClip
from dprecipe.noisy_sum.sampling import noise_multiplier
from dprecipe.privacy.rounding import round_down, round_up

MAX_EPSILON = 100.0


def check_signal(run: DpsgdRun) -> Iterator[Finding]:
    """Warns if a whole run's noise is long beside the longest signal that its gradients can add up to (R266).

    In T steps with B units each, clipped gradients add up to a vector of at most T B C, and noise to one of p
    coordinates with a deviation of √T σ C each, so about √(p T) σ C long. The ratio √p σ / (√T B) depends on neither
    the data, the learning rate, momentum nor averages. A budget allows the most signal with all N units in each step:
    √T / σ is then μ of the Gaussian that (ε, δ) allows, and the ratio √p / (N μ); sampling only raises it (tested, not
    proved). It is a warning where the noise is longer than the longest signal. Of the coordinates of K classes, one
    of K carries none.
    """
    facts = run.facts
    if run.family != "gaussian" or run.weights is not None or not isinstance(facts.model, Linear | LogisticRegression):
        return
    described = describe_data(facts.data)
    answers = max(1, described.outputs - isinstance(described.target, ClassTarget))
    coordinates = answers * (described.width + facts.model.bias)
    needed = math.sqrt(coordinates)
    budgeted, planned = _budgeted_signal(facts), _planned_signal(run)
    signal = min(budgeted, planned)
    if signal >= needed:
        return
    remedies = _raise_noise_limit(run, needed, planned) if budgeted >= needed else _relax_budget(facts, needed)
    if budgeted < needed and answers * (1 + facts.model.bias) <= (fits := budgeted**2):
        remedies.append(f"learn from at most {int(fits / answers) - facts.model.bias} features")
    if planned < needed and budgeted < needed:
        remedies = [f"set {run.problem.path} to auto, and {' or '.join(remedies)}"]
    yield Finding(
        "R266",
        f"noise drowns the gradients: over the whole run, noise on {coordinates:,} coordinates is "
        f"{needed / signal:.2g} times as long as the longest signal of {facts.size:,} units; a linear model then "
        "rarely beats a constant",
        ", or ".join(remedies),
        "mechanism.noise",
        severity=Severity.WARNING,
    )


def _budgeted_signal(facts: Facts) -> float:
    """Returns N μ, the most that the budget allows; infinite without a budget."""
    if facts.cap is None:
        return math.inf
    return facts.size * solve_gaussian(facts.cap, facts.budget.delta) / _moves(facts)


def _planned_signal(run: DpsgdRun) -> float:
    """Returns √(Σ (B/σ)²) over the steps; infinite where noise or length are not known yet."""
    problem = run.problem
    if problem.multiplier is None or problem.events is None:
        return math.inf
    steps = run.phases(problem.multiplier, problem.events)
    return math.sqrt(sum(one.steps * (one.divisor / noise_multiplier(one.charge.event)) ** 2 for one in steps))


def _moves(facts: Facts) -> int:
    """Returns how many clip norms one unit moves a sum by."""
    return 2 if facts.budget.neighbouring == "replace_one" else 1


def _relax_budget(facts: Facts, needed: float) -> list[str]:
    """Returns the smallest changes by which the budget leaves enough of the signal."""
    remedies = [f"gather {math.ceil(round_up(needed / _budgeted_signal(facts) * facts.size)):,} units"]
    low, high = facts.cap or 0.0, MAX_EPSILON
    mu = needed * _moves(facts) / facts.size
    if gaussian_delta(high, mu) <= facts.budget.delta:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if gaussian_delta(middle, mu) <= facts.budget.delta else (middle, high)
        remedies.append(f"raise budget.epsilon to {round_up(high, 2):g}")
    return remedies


def _raise_noise_limit(run: DpsgdRun, needed: float, planned: float) -> list[str]:
    """Returns changes of noise that the budget may allow."""
    noise = phases(run.spec.noise)
    if len(noise) > 1 or isinstance(noise[0][1].multiplier, Schedule):
        return [f"multiply the noise by {round_down(planned / needed, 2):g}, as far as the budget allows"]
    lower = round_down(float(run.problem.multiplier or 0) * planned / needed, 3)
    auto = "" if run.facts.cap is None else f"set {run.problem.path} to auto, or "
    return [f"{auto}lower {run.problem.path} to {lower:g}"]


def check_rate(run: DpsgdRun) -> Iterator[Finding]:
    """Warns of a learning rate at which plain steps on the squared error overshoot their aim farther each time (R267).

    The bias's curvature is 1 whatever the data, and a step of length η with momentum m is stable up to a curvature of
    2 (1 + m) / η, with Nesterov's momentum up to 2 (1 + m) / (η (1 + 2m)). Beyond, the prediction swings around its aim
    until clipping stops it: at half a step, where clipped gradients move the bias by η C / √(1 + R²) over 1 + m, with R
    the norm of the features. It is a warning where that is half of the distance from the middle to an end of the
    label's range. The loss of classes and of counts flattens out, so there it is none.
    """
    facts, spec = run.facts, run.spec
    training, optimizer, norm = facts.training, facts.training.optimizer, feature_norm(facts.data)
    if (
        not (isinstance(facts.model, Linear) and facts.model.bias)
        or not isinstance(describe_data(facts.data).target, NumberTarget)
        or not isinstance(optimizer, Sgd)
        or not (isinstance(spec.clip, FlatClip) and isinstance(spec.clip.norm, float))
        or isinstance(training.loss, HuberLoss)
        or training.average is not None
        or norm is None
    ):
        return
    if isinstance(optimizer.lr, StepSchedule | OneCycle):
        return
    rate = optimizer.lr.to if isinstance(optimizer.lr, Schedule) else optimizer.lr
    stable = 2 * (1 + optimizer.momentum) / (1 + (2 * optimizer.momentum if optimizer.nesterov else 0))
    swing = rate / stable * spec.clip.norm / math.hypot(1, norm)
    if rate > stable and swing >= 0.5:
        moving = ".to" if isinstance(optimizer.lr, Schedule) else ""
        yield Finding(
            "R267",
            f"steps overshoot: above a learning rate of {stable:.3g} predictions swing around the labels, here by "
            f"about {swing:.2g} times half of the label's range",
            f"lower training.optimizer.lr{moving} to {round_down(stable / (1 + norm**2), 2):g} or less",
            f"training.optimizer.lr{moving}",
            severity=Severity.WARNING,
        )


def solve_gaussian(epsilon: float, delta: float) -> float:
    """Returns the largest μ, sensitivity over deviation, of a Gaussian that is (ε, δ)-DP, rounded up a little."""
    low, high = 0.0, 2 * math.sqrt(2 * epsilon) + 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) <= delta else (low, middle)
    return high


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Returns the δ(ε) of a Gaussian. Source: Balle and Wang 2018, Theorem 8."""
    if mu == 0:
        return 0.0
    lower, upper = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return _normal(lower) - math.exp(min(epsilon, 700.0)) * _normal(upper)  # beyond 700 e^ε overflows


def _normal(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2
