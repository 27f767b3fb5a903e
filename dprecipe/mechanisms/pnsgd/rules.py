"""What a recipe of projected noisy SGD must not say, each a small function: a model without proven constants, features
without a bound, anything that would show an iterate before the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.facts import feature_norm
from dprecipe.faults import Finding, Severity
from dprecipe.language.training import LearningRateSchedule
from dprecipe.mechanisms.contract import Facts
from dprecipe.mechanisms.noisy_sum import phased
from dprecipe.mechanisms.noisy_sum.solve import MAX_STEPS
from dprecipe.mechanisms.pnsgd import constants
from dprecipe.mechanisms.pnsgd.constants import Provable, Proven
from dprecipe.mechanisms.pnsgd.schedule import MAX_PHASES, steps_of
from dprecipe.mechanisms.pnsgd.schema import Pnsgd
from dprecipe.models.schema import Location, LogisticRegression
from dprecipe.noise.schema import phases
from dprecipe.privacy import rounding
from dprecipe.privacy.adjacency import Neighbouring

FAMILIES = ("gaussian", "laplace")
_SANE = (1e-50, 1e50)
"""Between these, products of a few constants are floating-point numbers."""


def check(spec: Pnsgd, facts: Facts) -> list[Finding]:
    """All findings that need no accountant."""
    findings = [finding for rule in RULES for finding in rule(spec, facts)]
    if any(finding.is_error for finding in findings):
        return findings  # what follows needs the constants
    return [*findings, *(list(check_proportions(spec, facts)) or constants_hold(spec, facts))]


def derive_constants(spec: Pnsgd, facts: Facts) -> Proven:
    """The constants of the recipe's loss, none of them rounded by the recipe. Needs `check_provable` and
    `check_bounded_features` to hold.

    Raises:
        ValueError: of a model or features whose constants can't be proved.
    """
    result = data_facts(facts.data)
    norm = feature_norm(facts.data)
    if isinstance(facts.model, Location):
        norm = 0.0
    if norm is None or not isinstance(facts.model, Provable):
        raise ValueError("a model or features whose constants can't be proved")
    relation = Neighbouring(facts.budget.neighbouring)
    last = facts.size - (count_batches(spec, facts) - 1) * spec.batch_size
    fullness = Fraction(last, spec.batch_size)
    return constants.prove_constants(
        facts.model, result.width, result.classes, norm, spec.constraint, relation, fullness
    )


def count_batches(spec: Pnsgd, facts: Facts) -> int:
    """Steps in a pass over the data."""
    return math.ceil(facts.size / spec.batch_size)


def opening_steps(spec: Pnsgd, facts: Facts) -> int:
    """Steps of all phases of noise but the last."""
    if not isinstance(spec.noise, tuple):
        return 0
    return sum(steps_of(phase.epochs, phase.steps, count_batches(spec, facts)) for phase in spec.noise[:-1])


def count_steps(spec: Pnsgd, facts: Facts) -> int | None:
    """Steps of the run; None: as many as the budget holds."""
    training = facts.training
    if training.epochs == "auto" or training.steps == "auto":
        return None
    return steps_of(training.epochs, training.steps, count_batches(spec, facts))


def check_provable(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """A convex model whose constants are proved."""
    model, result = facts.model, data_facts(facts.data)
    if isinstance(model, LogisticRegression) and result.classes != 2:
        yield Finding(
            "P165",
            f"logistic_regression has proven constants for two classes, and there are {result.classes}",
            "choose model.kind softmax_regression",
            "model.kind",
        )
    elif not isinstance(model, Provable):
        choice = "softmax_regression" if result.classes > 2 else "logistic_regression"
        yield Finding(
            "P165",
            f"{model.kind} has no convex loss: nothing is proved of hiding its iterates",
            f"choose model.kind {choice}; or mechanism.kind dpsgd, which trains any network",
            "model.kind",
        )


def check_bounded_features(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Features whose norm is bounded by clipping, and the same at each use of a record."""
    if isinstance(facts.model, Location):
        return
    moving = [
        (index, name)
        for index, step in enumerate(facts.data.preprocess)
        for name in ("crop", "flip")
        if getattr(step, name) is not None
    ]
    for index, name in moving:
        yield Finding(
            "P164",
            f"{name} would change a record from step to step: pnsgd takes each as it is",
            "remove the step",
            f"data.preprocess.{index}",
        )
    if moving or feature_norm(facts.data) is not None:
        return
    clips = any(step.clip_features is not None for step in facts.data.preprocess)
    yield Finding(
        "P164",
        "the norm of the features has no bound"
        + (": steps after clip_features change it again" if clips else ", and so how far a record can move a step"),
        (
            "move clip_features to the end of data.preprocess"
            if clips
            else "add clip_features: {norm: 1.0} to the end of data.preprocess"
        ),
        "data.preprocess" if facts.data.preprocess else "data",
    )


def check_unit(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """One record at one place."""
    if facts.data.unit != "record":
        yield Finding(
            "P172",
            "a unit of several records stands at several places of the order: pnsgd has no bound for it",
            "set data.unit to record, which protects each record by itself; or use mechanism.kind dpsgd",
            "data.unit",
        )


def plain_steps(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """No state beside the iterate."""
    optimizer = facts.training.optimizer
    if optimizer is None:
        return
    carries = optimizer.kind == "adam" or bool(optimizer.momentum)
    what = "adam" if optimizer.kind == "adam" else "momentum"
    yield Finding(
        "P168",
        f"{what} carries earlier gradients on beside the iterate: nothing is proved of hiding iterates then"
        if carries
        else "pnsgd takes plain steps of its own, and would not read an optimiser",
        "remove training.optimizer: mechanism.learning_rate says how far a step goes, model.l2 shrinks the weights",
        "training.optimizer",
    )


def last_iterate(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Nothing of the iterates before the last one leaves the run."""
    if spec.iterates == "released":
        yield Finding(
            "P166",
            "the guarantee is that of the last iterate alone: released iterates would all have to be paid for",
            "set mechanism.iterates to hidden; or use mechanism.kind dpsgd, which pays for every step",
            "mechanism.iterates",
        )
    if facts.training.average is not None:
        yield Finding(
            "P166",
            "an average is made of many iterates, and the guarantee is that of the last one alone",
            "remove training.average",
            "training.average",
        )
    if spec.checkpoint == "plain":
        yield Finding(
            "P167",
            "a checkpoint in plain shows an iterate to whoever reads it",
            "set mechanism.checkpoint to encrypted, or to none",
            "mechanism.checkpoint",
        )


def check_noise(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Gaussian noise, or Laplace noise on one parameter; phases that can be told apart."""
    result = phases(spec.noise)
    for path, one in result:
        if one.family not in FAMILIES:
            yield Finding(
                "P101",
                f"{one.family} noise can't be accounted for in pnsgd: its theorems are about gaussian noise and, for "
                "one parameter, laplace",
                f"set {path}.family to gaussian, or use mechanism.kind encoded",
                f"{path}.family",
            )
    families = {one.family for _, one in result}
    if families == set(FAMILIES):
        yield Finding(
            "P101",
            "gaussian and laplace noise in one run have no bound together",
            "use one family in all phases",
            "mechanism.noise",
        )
    if len(result) > MAX_PHASES:
        yield Finding(
            "R282",
            f"{len(result)} phases of noise; a run is accounted in few stages, and takes at most {MAX_PHASES}",
            "write fewer and longer phases",
            "mechanism.noise",
        )


def one_parameter(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Laplace noise hides a change of one number."""
    if any(one.family != "laplace" for _, one in phases(spec.noise)) or [
        *check_provable(spec, facts),
        *check_bounded_features(spec, facts),
    ]:
        return
    parameters = derive_constants(spec, facts).parameters
    if parameters > 1:
        yield Finding(
            "P170",
            f"laplace noise has a bound for one parameter, and there are {parameters:,}",
            "set mechanism.noise.family to gaussian",
            "mechanism.noise",
        )


def check_lengths(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Batches that fit the data, a run that can be planned, and phases that fit into it."""
    if spec.batch_size > facts.size:
        yield Finding(
            "P105",
            f"batch_size {spec.batch_size:,} is larger than data.size {facts.size:,}",
            f"set mechanism.batch_size to at most {facts.size}",
            "mechanism.batch_size",
        )
        return
    count = count_steps(spec, facts)
    if count is not None and count > MAX_STEPS:
        field = "steps" if facts.training.steps is not None else "epochs"
        yield Finding(
            "P109",
            f"the run would be {count:,} steps long; the most is {MAX_STEPS:,}",
            f"lower training.{field} or raise mechanism.batch_size",
            f"training.{field}",
        )
        return
    wrong = list(phased.check_phase_lengths(spec.noise))
    yield from wrong
    if isinstance(spec.noise, tuple) and not wrong:
        yield from phased.check_last_phase(opening_steps(spec, facts), count)


def moving_rate(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """A schedule that does not come to nothing."""
    rate = spec.learning_rate
    if isinstance(rate, LearningRateSchedule) and rate.to == 0:
        yield Finding(
            "R281",
            "a step with a learning rate of 0 does nothing, and the schedule ends there",
            f"set mechanism.learning_rate.to above 0, to {rate.from_ / 100:g} for instance",
            "mechanism.learning_rate.to",
        )


def random_stop(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Steps that are all alike, where the number of them is drawn."""
    moving = isinstance(spec.learning_rate, LearningRateSchedule)
    if spec.stop == "random" and (moving or len(phases(spec.noise)) > 1):
        changes = "a learning rate that moves" if moving else "noise in phases"
        yield Finding(
            "P171",
            f"a random stop has a bound for steps that are all alike, not for {changes}",
            "set mechanism.stop to last",
            "mechanism.stop",
        )


def check_proportions(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Numbers that can be multiplied."""
    result, rate = derive_constants(spec, facts), spec.learning_rate
    rates = (rate.from_, rate.to) if isinstance(rate, LearningRateSchedule) else (rate,)
    numbers = (result.diameter, result.largest_norm, result.lipschitz, result.moved, result.smoothness, *rates)
    low, high = _SANE
    if not all(low < number < high for number in numbers):
        yield Finding(
            "R283",
            "a constant of the loss, the set or the steps is out of all proportion",
            "write numbers of ordinary size: features of norm 1, a radius between 0.1 and 100, a learning rate near 1",
            "mechanism",
        )


def constants_hold(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Declared constants belong to some loss, and promise no more than the model's; steps do not spread."""
    result = derive_constants(spec, facts)
    errors = [*_contradictions(spec, result, facts), *_promises(spec, result)]
    yield from errors[:1] if errors and errors[0].code == "P160" else errors
    if not errors:
        yield from _rates(spec, constants.list_declared(result, spec.constants))


def _contradictions(spec: Pnsgd, found: Proven, facts: Facts) -> Iterator[Finding]:
    used = constants.list_declared(found, spec.constants)
    rho, beta = used.strong_convexity, used.smoothness
    if rho > beta:
        yield Finding(
            "P160",
            f"no loss is smooth with β = {beta:g} and strongly convex with ρ = {rho:g}: ρ is at most β",
            f"remove mechanism.constants: the model has β = {found.smoothness:g} and ρ = {found.strong_convexity:g}",
            "mechanism.constants",
        )
        return
    steepest = used.lipschitz + getattr(facts.model, "l2", 0.0) * used.largest_norm
    if rho * used.diameter > 2 * steepest * (1 + 1e-12):
        yield Finding(
            "P160",
            f"with ρ = {rho:g} a gradient changes by {rho * used.diameter:g} over a set of diameter {used.diameter:g}, "
            f"and one bounded by {steepest:g} can change by {2 * steepest:g}",
            f"remove mechanism.constants.strong_convexity: the model has ρ = {found.strong_convexity:g}",
            "mechanism.constants",
        )


def _promises(spec: Pnsgd, found: Proven) -> Iterator[Finding]:
    for name, symbol, proven, least in (
        ("lipschitz", "L", found.lipschitz, True),
        ("smoothness", "β", found.smoothness, True),
        ("strong_convexity", "ρ", found.strong_convexity, False),
    ):
        value = getattr(spec.constants, name)
        if value is None or value == proven or (value > proven) is least:
            continue
        bound = rounding.round_up(proven) if least else proven
        yield Finding(
            "P161",
            f"{symbol} = {value:g} promises more than the model keeps: what is proved is {bound:.6g}",
            f"set mechanism.constants.{name} to {'at least' if least else 'at most'} {bound:.6g}, or remove it",
            f"mechanism.constants.{name}",
        )


def _rates(spec: Pnsgd, used: Proven) -> Iterator[Finding]:
    rate, path = spec.learning_rate, "mechanism.learning_rate"
    if not isinstance(rate, LearningRateSchedule):
        fastest = float(rate)
    elif rate.to > rate.from_:
        fastest, path = rate.to, f"{path}.to"
    else:
        fastest, path = rate.from_, f"{path}.from"
    most = 2 / used.smoothness
    turn = 2 / (used.smoothness + used.strong_convexity)
    if fastest >= most:
        yield Finding(
            "P162",
            f"from a learning rate of 2/β = {most:.4g} on a step may spread iterates, and hiding them protects nobody",
            f"lower {path} to {rounding.round_down(min(turn, 0.9 * most), 3):g} or less",
            path,
        )
    elif fastest > turn * (1 + 1e-9):
        yield Finding(
            "P163",
            f"beyond 2/(β + ρ) = {turn:.4g} a larger learning rate contracts less",
            f"lower {path} to {rounding.round_down(turn, 3):g} or less",
            path,
            severity=Severity.WARNING,
        )


RULES: tuple[Callable[[Pnsgd, Facts], Iterator[Finding]], ...] = (
    check_provable,
    check_bounded_features,
    check_unit,
    plain_steps,
    last_iterate,
    check_noise,
    one_parameter,
    check_lengths,
    moving_rate,
    random_stop,
)
