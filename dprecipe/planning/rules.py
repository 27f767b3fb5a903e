"""Checks across blocks, each a small function: what pydantic can't see and the mathematics does not cover. Checks of
the training are in `dprecipe.planning.learning`, those of public records in `dprecipe.planning.public`.

`dprecipe validate` runs `check` on a recipe whose structure is valid; it reads no data. Findings have the dotted path;
the language adds the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.table import mechanism_of
from dprecipe.data import checks as data_checks
from dprecipe.data.facts import describe_data as data_facts
from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.language.words import join_with_or
from dprecipe.models import checks as model_checks
from dprecipe.planning import (
    accept,
    accounts,
    audit,
    from_python,
    iterates,
    labels,
    labels_alone,
    learning,
    paid,
    paths,
    public,
    records,
    split,
    tuning,
)
from dprecipe.recipe.root import Recipe

LARGE_EPSILON = 10.0


def check(recipe: Recipe, attachments: Iterable[tuple[str, str]] = ()) -> list[Finding]:
    """Returns all findings of a well-formed recipe, errors and warnings; `attachments` as in
    `contract.plan.RecipeSource`."""
    findings = [finding for rule in RULES for finding in rule(recipe)]
    if any(finding.is_error for finding in findings):
        return accept.mark_accepted(
            recipe, findings
        )  # accounting a recipe that contradicts itself would only add noise
    attached = tuple(attachments)
    findings += tuning.check_candidates(recipe, attached, check)
    if any(finding.is_error for finding in findings):
        return accept.mark_accepted(recipe, findings)
    account = mechanism_of(recipe.mechanism.kind).account
    try:
        findings += account.check(recipe.mechanism, Facts.of(recipe, attached))
    except PlanRefused as refusal:  # by a paid step, whose price is solved on request
        findings += refusal.findings
    if not any(finding.is_error for finding in findings):
        findings += accept.find_unused_acceptances(recipe, findings, accept.WARNINGS.keys() - accept.PLAN_WARNINGS)
    return accept.mark_accepted(recipe, findings)


def check_free_variable(recipe: Recipe) -> Iterator[Finding]:
    """Checks that at most one of noise, length and budget is `auto`."""
    free: dict[str, object] = dict(recipe.mechanism.solvable)
    if not learning.has_student(recipe):
        free |= {"training.epochs": recipe.training.epochs, "training.steps": recipe.training.steps}
    free |= paid.list_free_prices(recipe)
    free["budget.epsilon"] = recipe.budget.epsilon
    autos = [path for path, value in free.items() if value == "auto"]
    if len(autos) > 1:
        yield Finding(
            "R302",
            f"{', '.join(autos)} are `auto`: noise, length and budget are one equation with one unknown",
            f"give a number to {autos[-1]}",
            autos[-1],
        )


def check_relation(recipe: Recipe) -> Iterator[Finding]:
    """Checks that the mechanism's theorems cover the neighbouring relation."""
    kind, relation = recipe.mechanism.kind, recipe.budget.neighbouring
    mechanism = mechanism_of(kind)
    if relation not in mechanism.relations:
        why = mechanism.relations_reason
        yield Finding(
            "P169",
            f"{kind} has no guarantee for {relation}" + (f": {why}" if why else ""),
            f"set budget.neighbouring to {join_with_or(mechanism.relations)}",
            "budget.neighbouring" if "neighbouring" in recipe.budget.model_fields_set else "budget",
        )


def check_delta(recipe: Recipe) -> Iterator[Finding]:
    """Checks that δ is far below 1/size: at 1/size, publishing one whole record is allowed."""
    delta, size = recipe.budget.delta, recipe.data.max_units
    product = delta * size
    exponent = math.floor(math.log10(0.1 / size))
    digit = math.floor(0.1 / size / 10.0**exponent)  # one digit, rounded down
    remedy = f"set budget.delta to at most {digit}e{exponent}"
    if not product < 1:
        yield Finding(
            "P103",
            f"δ = {delta:g} allows {product:.3g} whole records of {size:,} to be published (δ · size ≥ 1)",
            remedy,
            "budget.delta",
        )
    elif product > 0.1:
        yield Finding(
            "P103",
            f"δ = {delta:g} is large for {size:,} records (δ · size = {product:.2g} > 0.1)",
            remedy,
            "budget.delta",
            severity=Severity.WARNING,
        )


def check_epsilon(recipe: Recipe) -> Iterator[Finding]:
    """Warns above ε = 10, which promises little."""
    epsilon = recipe.budget.epsilon
    if epsilon != "auto" and epsilon > LARGE_EPSILON:
        yield Finding(
            "P108",
            f"ε = {epsilon:g} promises little: an outcome may become e^{epsilon:g} times as probable by one unit",
            "prefer ε ≤ 3, and say why where you can't",
            "budget.epsilon",
            severity=Severity.WARNING,
        )


def check_accountant(recipe: Recipe) -> Iterator[Finding]:
    """Warns of the accountant that is there to reproduce papers."""
    if recipe.budget.accountant == "rdp_classic":
        yield Finding(
            "P129",
            "`rdp_classic` is looser than `pld`: a larger ε for the same run, or more noise at the same ε",
            "set budget.accountant to pld, unless a paper's figures are to be reproduced",
            "budget.accountant",
            severity=Severity.WARNING,
        )


def check_metrics(recipe: Recipe) -> Iterator[Finding]:
    """Checks that metrics on private records stay in `private/`, and that training records are not declared public."""
    if recipe.data.train.access == "public":
        yield Finding(
            "P111",
            "data.train can't be public: its records are what the budget protects",
            "remove data.train.access",
            "data.train.access",
        )
    test = recipe.data.test_source  # a split says itself that its records are private
    if test is not None and test.access != "public":
        yield Finding(
            "P112",
            "metrics on data.test stay in private/: its records are not declared public",
            "set data.test.access to public if publishing them harms nobody",
            "data.test",
            severity=Severity.WARNING,
        )


def check_randomness(recipe: Recipe) -> Iterator[Finding]:
    """Warns of fixed noise, which protects no one."""
    if recipe.runtime.insecure is not None:
        yield Finding(
            "P114",
            "runtime.insecure fixes sampling and noise: anyone who knows the seed can remove the noise",
            "remove runtime.insecure; the certificate of this run will not verify as a release",
            "runtime.insecure",
            severity=Severity.WARNING,
        )


def check_data_and_model(recipe: Recipe) -> Iterator[Finding]:
    """Checks that sources, columns and preprocessing fit together, and that the model takes their output."""
    findings = data_checks.check_data(recipe.data)
    yield from findings
    if not any(finding.is_error for finding in findings):
        facts = data_facts(recipe.data)
        yield from model_checks.check_data(recipe.model, facts)
        yield from learning.check_augmentation(recipe, facts)


PRIVATELY = "log with kind tensorboard or csv and values: private, into files under private/"


def check_loggers(recipe: Recipe) -> Iterator[Finding]:
    """Checks that nothing private leaves the run's own files, and that no logger reveals the duration of a run where it
    is protected."""
    for number, logger in enumerate(recipe.runtime.loggers):
        path = f"runtime.loggers.{number}"
        if recipe.tuning is not None:
            yield Finding(
                "P195",
                "how many runs a tuned run makes, and how each of them does, is secret: no logger may show it",
                "remove runtime.loggers; private/trials.csv has the scores of all runs",
                path,
            )
        elif logger.values == "private" and logger.networked:
            yield Finding(
                "P195",
                f"{logger.kind} sends values to another machine, and `values: private` are not covered by the claim",
                "set values to covered, or log private values with kind tensorboard or csv, into files under private/",
                f"{path}.values",
            )
        elif logger.values == "covered" and recipe.data.hides_training_units:
            why = "is protected (data.size: {max: …})" if recipe.data.hides_size else "data.test.split keeps secret"
            yield Finding(
                "P195",
                f"how long a step takes reveals the number of units, which {why}, and a logger notes the time of each "
                "value and of the run's end",
                PRIVATELY,
                path,
            )
        elif logger.values == "covered" and mechanism_of(recipe.mechanism.kind).hides_duration(recipe.mechanism):
            yield Finding(
                "P195",
                "the guarantee is an average over the number of steps, which is secret, and a logger notes the time of "
                "the run's end",
                PRIVATELY,
                path,
            )


RULES: tuple[Callable[[Recipe], Iterator[Finding]], ...] = (
    labels_alone.check_no_model,
    labels_alone.check_elsewhere,
    learning.check_gradients,
    learning.check_convex_models,
    learning.check_training_block,
    learning.check_training_keys,
    from_python.check_own,
    learning.check_runtime_options,
    check_loggers,
    iterates.check_covered,
    iterates.check_kept,
    learning.check_released_labels,
    learning.check_released_weights,
    labels.check_label,
    check_free_variable,
    check_relation,
    records.check_record_range,
    check_delta,
    check_epsilon,
    check_accountant,
    check_metrics,
    public.check_public_records,
    public.check_disjoint_sources,
    public.check_test_records,
    split.check_split,
    records.check_query,
    records.check_unit_column,
    paths.check_data_files,
    check_randomness,
    accounts.check_account,
    check_data_and_model,
    paid.check_paid_steps,
    audit.check_canaries,
    tuning.check_tuning,
    tuning.check_budget,
    audit.check_audit,
    accept.find_invalid_acceptances,
)
