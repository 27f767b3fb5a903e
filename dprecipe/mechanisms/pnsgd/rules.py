"""Checks of a recipe of projected noisy SGD, one function for each rule: no model without proven constants, no features
without a bound, nothing that would show an iterate before the last one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

from dprecipe.contract.mechanism import Facts
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.data.facts import feature_norm
from dprecipe.faults import Finding, Severity
from dprecipe.language.training import LearningRateSchedule, Sgd
from dprecipe.mechanisms.pnsgd import constants
from dprecipe.mechanisms.pnsgd.constants import Provable, Proven
from dprecipe.mechanisms.pnsgd.schedule import MAX_PHASES, convert_to_steps
from dprecipe.mechanisms.pnsgd.schema import Pnsgd
from dprecipe.mechanisms.pnsgd.set_rules import check_set
from dprecipe.models.schema import Location, LogisticRegression
from dprecipe.noise.schema import phases
from dprecipe.noisy_sum import solve
from dprecipe.privacy import rounding
from dprecipe.privacy.adjacency import Neighbouring

FAMILIES = ("gaussian", "laplace")
_MAGNITUDES = (1e-50, 1e50)
"""Range of constants in which a product of a few of them neither overflows nor underflows."""


def check(spec: Pnsgd, facts: Facts) -> list[Finding]:
    """Returns all findings that need no accountant."""
    findings = [finding for rule in RULES for finding in rule(spec, facts)]
    if any(finding.is_error for finding in findings):
        return findings  # what follows needs the constants
    return [*findings, *(list(check_proportions(spec, facts)) or check_constants(spec, facts))]


def derive_constants(spec: Pnsgd, facts: Facts) -> Proven:
    """Returns the constants of the recipe's loss, before the recipe rounds any. `check_provable` and
    `check_bounded_features` must have passed.

    Raises:
        ValueError: the constants of the model, or of its features, can't be proved.
    """
    described = data_facts(facts.data)
    norm = feature_norm(facts.data)
    if isinstance(facts.model, Location):
        norm = 0.0
    if norm is None or not isinstance(facts.model, Provable):
        raise ValueError("the constants of this model, or of its features, can't be proved")
    relation = Neighbouring(facts.budget.neighbouring)
    last = facts.size - (count_batches(spec, facts) - 1) * spec.batch_size
    fullness = Fraction(last, spec.batch_size)
    return constants.prove_constants(
        facts.model, described.width, described.outputs, norm, spec.constraint, relation, fullness
    )


def count_batches(spec: Pnsgd, facts: Facts) -> int:
    """Counts the steps in a pass over the data."""
    return math.ceil(facts.size / spec.batch_size)


def opening_steps(spec: Pnsgd, facts: Facts) -> int:
    """Counts the steps of all phases of noise but the last."""
    if not isinstance(spec.noise, tuple):
        return 0
    return sum(convert_to_steps(phase.epochs, phase.steps, count_batches(spec, facts)) for phase in spec.noise[:-1])


def count_steps(spec: Pnsgd, facts: Facts) -> int | None:
    """Counts the steps of the run; None: as many as the budget holds."""
    training = facts.training
    if training.epochs == "auto" or training.steps == "auto":
        return None
    return convert_to_steps(training.epochs, training.steps, count_batches(spec, facts))


def check_provable(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that the model is convex and its constants are proved."""
    model, classes = facts.model, data_facts(facts.data).outputs
    if isinstance(model, LogisticRegression) and classes != 2:
        yield Finding(
            "P165",
            f"logistic_regression has proven constants for two classes only, and the data has {classes}",
            "choose model.kind softmax_regression",
            "model.kind",
        )
    elif not isinstance(model, Provable):
        choice = "softmax_regression" if classes > 2 else "logistic_regression"
        yield Finding(
            "P165",
            f"{model.kind} has no convex loss, and pnsgd has no bound for such a model",
            f"choose model.kind {choice}; or mechanism.kind dpsgd, which trains any network",
            "model.kind",
        )


def check_bounded_features(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that the norm of the features is bounded by clipping, and that they don't change from one use of a record
    to the next."""
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
            f"{name} changes a record from step to step, and pnsgd needs the same record at every step",
            "remove this preprocessing step",
            f"data.preprocess.{index}",
        )
    if moving or feature_norm(facts.data) is not None:
        return
    clips = any(step.clip_features is not None for step in facts.data.preprocess)
    yield Finding(
        "P164",
        "the norm of the features has no bound"
        + (": steps after clip_features change it again" if clips else ", so a record can move a step by any amount"),
        (
            "move clip_features to the end of data.preprocess"
            if clips
            else "add clip_features: {norm: 1.0} to the end of data.preprocess"
        ),
        "data.preprocess" if facts.data.preprocess else "data",
    )


def check_unit(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that a unit is one record, with one position in the order."""
    if facts.data.unit != "record":
        yield Finding(
            "P172",
            "a unit of several records has several positions in the order, and pnsgd has no bound for that",
            "use mechanism.kind dpsgd, which protects all records of a unit together",
            "data.unit",
        )


def check_optimizer(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that the steps keep no state but the iterate."""
    optimizer = facts.training.optimizer
    if optimizer is None:
        return
    carries = not isinstance(optimizer, Sgd) or bool(optimizer.momentum)
    what = {"sgd": "momentum", "python": "a module's own optimiser"}.get(optimizer.kind, optimizer.kind)
    yield Finding(
        "P168",
        f"{what} keeps earlier gradients besides the iterate, and no bound of pnsgd covers that"
        if carries
        else "pnsgd takes plain gradient steps and reads no optimiser",
        "remove training.optimizer: mechanism.learning_rate sets the step size, model.l2 the weight decay",
        "training.optimizer",
    )


def check_iterates(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that no iterate before the last one leaves the run."""
    if spec.iterates == "released":
        yield Finding(
            "P166",
            "the guarantee covers the last iterate only, and iterates: released would publish all of them",
            "set mechanism.iterates to hidden; or use mechanism.kind dpsgd, which pays for every step",
            "mechanism.iterates",
        )
    if facts.training.average is not None:
        yield Finding(
            "P166",
            "an average combines many iterates, and the guarantee covers the last one only",
            "remove training.average",
            "training.average",
        )
    if spec.checkpoint == "plain":
        yield Finding(
            "P167",
            "a plain checkpoint shows an iterate to anyone who reads it",
            "set mechanism.checkpoint to encrypted, or to none",
            "mechanism.checkpoint",
        )


def check_noise(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that the noise is Gaussian or Laplace, one family in all phases, and that there are not too many
    phases."""
    noises = phases(spec.noise)
    for path, one in noises:
        if one.family not in FAMILIES:
            yield Finding(
                "P101",
                f"pnsgd has no bound for {one.family} noise: its theorems cover gaussian noise and, for one "
                "parameter, laplace noise",
                f"set {path}.family to gaussian, or use mechanism.kind encoded",
                f"{path}.family",
            )
    families = {one.family for _, one in noises}
    if families == set(FAMILIES):
        yield Finding(
            "P101",
            "no bound covers a run with both gaussian and laplace noise",
            "use one family in all phases",
            "mechanism.noise",
        )
    if len(noises) > MAX_PHASES:
        yield Finding(
            "R282",
            f"there are {len(noises)} phases of noise; the limit is {MAX_PHASES}",
            "write fewer and longer phases",
            "mechanism.noise",
        )


def check_parameters(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that a model with Laplace noise has one parameter."""
    if any(one.family != "laplace" for _, one in phases(spec.noise)) or [
        *check_provable(spec, facts),
        *check_set(spec, facts),
        *check_bounded_features(spec, facts),
    ]:
        return
    parameters = derive_constants(spec, facts).parameters
    if parameters > 1:
        yield Finding(
            "P170",
            f"laplace noise has a bound for one parameter only, and the model has {parameters:,}",
            "set mechanism.noise.family to gaussian",
            "mechanism.noise",
        )


def check_lengths(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that batches fit the data, that the run can be planned, and that the phases fit into it."""
    if spec.batch_size > facts.size:
        yield Finding(
            "P105",
            f"batch_size {spec.batch_size:,} is larger than data.size {facts.size:,}",
            f"set mechanism.batch_size to at most {facts.size}",
            "mechanism.batch_size",
        )
        return
    count = count_steps(spec, facts)
    if count is not None and count > solve.MAX_STEPS:
        field = "steps" if facts.training.steps is not None else "epochs"
        yield Finding(
            "P109",
            f"the run would take {count:,} steps; the limit is {solve.MAX_STEPS:,}",
            f"lower training.{field} or raise mechanism.batch_size",
            f"training.{field}",
        )
        return
    findings = list(solve.check_phase_lengths(spec.noise))
    yield from findings
    if isinstance(spec.noise, tuple) and not findings:
        yield from solve.check_last_phase(opening_steps(spec, facts), count)


def check_learning_rate(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that a schedule of the learning rate does not end at 0."""
    rate = spec.learning_rate
    if isinstance(rate, LearningRateSchedule) and rate.to == 0:
        yield Finding(
            "R281",
            "the schedule ends at a learning rate of 0, where a step does nothing",
            f"set mechanism.learning_rate.to above 0, to {rate.from_ / 100:g} for instance",
            "mechanism.learning_rate.to",
        )


def check_stop(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that all steps are the same if the stop is random."""
    scheduled = isinstance(spec.learning_rate, LearningRateSchedule)
    if spec.stop == "random" and (scheduled or len(phases(spec.noise)) > 1):
        changes = "a learning rate schedule" if scheduled else "noise in phases"
        yield Finding(
            "P171",
            f"a random stop has a bound only if all steps are the same, not with {changes}",
            "set mechanism.stop to last",
            "mechanism.stop",
        )


def check_proportions(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that the constants have magnitudes that can be multiplied."""
    proven, rate = derive_constants(spec, facts), spec.learning_rate
    rates = (rate.from_, rate.to) if isinstance(rate, LearningRateSchedule) else (rate,)
    constants_ = (
        proven.diameter,
        proven.largest_norm,
        proven.lipschitz,
        proven.gradient_sensitivity,
        proven.smoothness,
    )
    low, high = _MAGNITUDES
    if not all(low < number < high for number in (*constants_, *rates)):
        yield Finding(
            "R283",
            f"a constant of the loss, the set or the learning rate is outside {low:g} to {high:g}",
            "use numbers of ordinary size: features of norm 1, a radius from 0.1 to 100, a learning rate near 1",
            "mechanism",
        )


def check_constants(spec: Pnsgd, facts: Facts) -> Iterator[Finding]:
    """Checks that declared constants are possible and no stronger than the proved ones, and that steps do not
    expand."""
    proven = derive_constants(spec, facts)
    errors = [*_check_consistency(spec, proven, facts), *_check_declared(spec, proven)]
    yield from errors[:1] if errors and errors[0].code == "P160" else errors
    if not errors:
        yield from _check_rates(spec, constants.apply_declared(proven, spec.constants))


def _check_consistency(spec: Pnsgd, proven: Proven, facts: Facts) -> Iterator[Finding]:
    used = constants.apply_declared(proven, spec.constants)
    rho, beta = used.strong_convexity, used.smoothness
    if rho > beta:
        yield Finding(
            "P160",
            f"no loss is smooth with β = {beta:g} and strongly convex with ρ = {rho:g}: ρ is at most β",
            f"remove mechanism.constants: the model has β = {proven.smoothness:g} and ρ = {proven.strong_convexity:g}",
            "mechanism.constants",
        )
        return
    steepest = used.lipschitz + getattr(facts.model, "l2", 0.0) * used.largest_norm
    if rho * used.diameter > 2 * steepest * (1 + 1e-12):
        yield Finding(
            "P160",
            f"with ρ = {rho:g} a gradient changes by {rho * used.diameter:g} over a set of diameter {used.diameter:g}, "
            f"but a gradient of at most {steepest:g} can change by at most {2 * steepest:g}",
            f"remove mechanism.constants.strong_convexity: the model has ρ = {proven.strong_convexity:g}",
            "mechanism.constants",
        )


def _check_declared(spec: Pnsgd, proven: Proven) -> Iterator[Finding]:
    for name, symbol, limit, is_upper in (
        ("lipschitz", "L", proven.lipschitz, True),
        ("smoothness", "β", proven.smoothness, True),
        ("strong_convexity", "ρ", proven.strong_convexity, False),
    ):
        value = getattr(spec.constants, name)
        if value is None or value == limit or (value > limit) is is_upper:
            continue
        bound = rounding.round_up(limit) if is_upper else limit
        yield Finding(
            "P161",
            f"{symbol} = {value:g} is stronger than what is proved of the model, {symbol} = {bound:.6g}",
            f"set mechanism.constants.{name} to {'at least' if is_upper else 'at most'} {bound:.6g}, or remove it",
            f"mechanism.constants.{name}",
        )


def _check_rates(spec: Pnsgd, used: Proven) -> Iterator[Finding]:
    rate, path = spec.learning_rate, "mechanism.learning_rate"
    if not isinstance(rate, LearningRateSchedule):
        fastest = float(rate)
    elif rate.to > rate.from_:
        fastest, path = rate.to, f"{path}.to"
    else:
        fastest, path = rate.from_, f"{path}.from"
    max_rate = 2 / used.smoothness
    turn = 2 / (used.smoothness + used.strong_convexity)
    if fastest >= max_rate:
        yield Finding(
            "P162",
            f"at a learning rate of 2/β = {max_rate:.4g} or more a step may expand distances, and no bound holds",
            f"lower {path} to {rounding.round_down(min(turn, 0.9 * max_rate), 3):g} or less",
            path,
        )
    elif fastest > turn * (1 + 1e-9):
        yield Finding(
            "P163",
            f"above 2/(β + ρ) = {turn:.4g} a step contracts less as the learning rate grows",
            f"lower {path} to {rounding.round_down(turn, 3):g} or less",
            path,
            severity=Severity.WARNING,
        )


RULES: tuple[Callable[[Pnsgd, Facts], Iterator[Finding]], ...] = (
    check_provable,
    check_set,
    check_bounded_features,
    check_unit,
    check_optimizer,
    check_iterates,
    check_noise,
    check_parameters,
    check_lengths,
    check_learning_rate,
    check_stop,
)
