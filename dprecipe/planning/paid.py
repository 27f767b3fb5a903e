"""Paid steps of preprocessing, which read private records: who composes them, what they may cost, and their solved
noise.

Prices are solved in this order: shares of ε, each for its step alone; then, under the joint composition of everything,
the one free variable: noise or length of the mechanism, or the noise of one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Assumption
from dprecipe.contract.stages import (
    MAX_NOISE,
    MIN_NOISE,
    TRAINING,
    CostAlone,
    PaidStage,
    charge_step,
    find_overspent_stages,
    list_paid_steps,
    path_of,
    refuse_price,
)
from dprecipe.contract.table import mechanism_of
from dprecipe.data.paid.schema import DpCategories, DpCount, DpVocabulary, PaidStep
from dprecipe.data.schema import Data
from dprecipe.faults import Finding, PlanRefused
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.rounding import round_up
from dprecipe.recipe.root import Recipe, set_values


def check_paid_steps(recipe: Recipe) -> Iterator[Finding]:
    """Checks that a mechanism composes them with its own releases (P124), that a noisy count is for a number of units
    that the relation hides (P125), and that prices leave something of the budget (P126)."""
    kind, relation = recipe.mechanism.kind, recipe.budget.neighbouring
    for index, step in list_paid_steps(recipe.data):
        path = path_of(index, step)
        if not mechanism_of(kind).composes_paid_steps:
            name = path.rpartition(".")[2]
            yield Finding(
                "P124",
                f"{name} reads private records, and {kind} has no guarantee for its steps and such a release together",
                "remove the step, and declare its constants from domain knowledge (scale, hash, clip_features)",
                path,
            )
        if isinstance(step, DpCount) and relation != "add_or_remove_one" and not recipe.data.hides_size:
            yield Finding(
                "P125",
                f"a noisy number of units costs ε, and under {relation} that number is public",
                "remove dp_count: later steps divide by data.size",
                path,
            )
        yield from _price(recipe, step, path)
    yield from _prices_together(recipe)
    yield from _hidden_size(recipe)


def _hidden_size(recipe: Recipe) -> Iterator[Finding]:
    """Checks a protected number of units (P127): the relation protects it, and a noisy one is released before anything
    divides by it."""
    data, relation = recipe.data, recipe.budget.neighbouring
    if not data.hides_size:
        return
    declare = "write the number of units as data.size, if it may be public"
    first = next(iter(list_paid_steps(data)), None)
    if relation != "add_or_remove_one":
        yield Finding(
            "P127",
            f"under {relation} the number of units is public",
            declare.partition(",")[0] + ", and remove dp_count",
            "data.size",
        )
    elif not mechanism_of(recipe.mechanism.kind).can_hide_size:
        kind = recipe.mechanism.kind
        yield Finding("P127", f"{kind} needs a known number of units", declare, "data.size")
    elif first is None or not isinstance(first[1], DpCount):
        yield Finding(
            "P127",
            "sums are divided by the number of units, and only a bound on it is declared"
            + ("" if first is None else f", and {path_of(*first)} comes before any is released"),
            "make {dp_count: {share: 0.02}} the first paid step of data.preprocess, or " + declare,
            "data.size",
        )


def _price(recipe: Recipe, step: PaidStep, path: str) -> Iterator[Finding]:
    noise, epsilon = step.noise_multiplier, recipe.budget.epsilon
    if step.share is not None and epsilon == "auto":
        yield Finding(
            "P126",
            "a share is a part of budget.epsilon, which is `auto`",
            "write noise_multiplier instead, or give budget.epsilon a number",
            f"{path}.share",
        )
    if isinstance(step, DpCategories | DpVocabulary) and step.min_units != "auto" and not isinstance(noise, float):
        yield Finding(
            "P126",
            "if min_units is a number, more noise releases more of what a single unit has, so the noise can't be "
            "solved",
            "write min_units: auto, or a number for noise_multiplier",
            f"{path}.min_units",
        )


def _prices_together(recipe: Recipe) -> Iterator[Finding]:
    steps, delta = list_paid_steps(recipe.data), recipe.budget.delta
    shares = [step.share for _, step in steps if step.share is not None]
    if not math.fsum(shares) < 1:
        yield Finding(
            "P126",
            f"the shares of ε add up to {math.fsum(shares):g}, and training gets none",
            f"lower them to a sum well below 1, such as {', '.join(['0.1'] * len(shares))}",
            "data.preprocess",
        )
    leaks = [(i, s, s.leak) for i, s in steps if isinstance(s, DpCategories | DpVocabulary) and s.min_units == "auto"]
    if leaks and not math.fsum(leak for *_, leak in leaks) < delta:
        index, step, _ = leaks[-1]
        yield Finding(
            "P126",
            f"items of a single unit are released with probability {math.fsum(leak for *_, leak in leaks):g}, which is "
            f"not below δ = {delta:g}",
            f"write leak: {0.1 * delta / len(leaks):.1g}",
            f"{path_of(index, step)}.leak",
        )


def list_free_prices(recipe: Recipe) -> dict[str, object]:
    """Returns the noise multipliers of paid steps, by path: each may be `auto`."""
    steps = list_paid_steps(recipe.data)
    return {f"{path_of(index, step)}.noise_multiplier": step.noise_multiplier for index, step in steps}


def list_solved_prices(data: Data, stages: Sequence[PaidStage]) -> dict[str, float]:
    """Returns the noise multipliers, by path, of paid steps whose price is a share of ε, or what the others leave."""
    steps = dict(list_paid_steps(data))
    return {
        f"{path_of(stage.step, steps[stage.step])}.noise_multiplier": stage.noise_multiplier
        for stage in stages
        if not isinstance(steps[stage.step].noise_multiplier, float)
    }


def list_shares(recipe: Recipe) -> set[str]:
    """Returns the paths of the noise multipliers whose price is a share of ε."""
    steps = list_paid_steps(recipe.data)
    return {f"{path_of(index, step)}.noise_multiplier" for index, step in steps if step.share is not None}


def drop_shares(recipe: Recipe, solved: Mapping[str, float | int]) -> dict[str, float | int]:
    """Returns solved values without those that follow from a share."""
    shares = list_shares(recipe)
    return {path: value for path, value in solved.items() if path not in shares}


def pin_values(recipe: Recipe, known: Mapping[str, float | int]) -> Recipe:
    """Returns the recipe with known values where it leaves them open. Raises `PointError`."""
    shares = {f"{path.rpartition('.')[0]}.share": None for path in list_shares(recipe)}
    return set_values(recipe, {**known, **shares}) if known or shares else recipe


def pin_prices(recipe: Recipe, stages: Sequence[PaidStage] = ()) -> dict[str, float | None]:
    """Returns values, by path, that fix the noise of every paid step: that of `stages`, or 1 where none are known
    yet."""
    noise = {stage.step: stage.noise_multiplier for stage in stages}
    pins: dict[str, float | None] = {}
    for index, step in list_paid_steps(recipe.data):
        pins[f"{path_of(index, step)}.noise_multiplier"] = noise.get(index, 1.0)
        pins[f"{path_of(index, step)}.share"] = None
    return pins


def solve_prices(recipe: Recipe, facts: Facts) -> tuple[Facts, dict[str, float | int]]:
    """Returns the facts with the noise of every paid step solved, and the one that was `auto`, by its path.

    Guarantees: that step, the others and the mechanism's own events together cost at most the budget's ε.

    Raises:
        PlanRefused: the budget can't hold them (P126), or is so large that hardly any noise is needed; or see
            `Account.plan`.
    """
    noise = {stage.step: stage.noise_multiplier for stage in facts.stages}
    free = [(index, step) for index, step in list_paid_steps(recipe.data) if step.noise_multiplier == "auto"]
    if not free or facts.cap is None:
        return replace(facts, stage_noise=noise), {}
    from dprecipe.privacy import accountants, calibrate

    ((index, step),) = free
    budget, cap = facts.budget, facts.cap
    relation = Neighbouring(budget.neighbouring)
    open_facts = replace(facts, budget=budget.model_copy(update={"epsilon": "auto"}), stage_noise=noise)
    own = mechanism_of(recipe.mechanism.kind).account.plan(recipe.mechanism, open_facts).plan.events
    others = facts.release(own)

    def compose(multiplier: float) -> tuple[Charge, ...]:
        return (*charge_step(recipe.data, index, multiplier, relation), *others)

    path = f"{path_of(index, step)}.noise_multiplier"
    left = f"what training and the other steps leave of ε = {cap:g}"
    if accountants.epsilon(compose(MIN_NOISE), budget.delta, relation, budget.accountant) <= cap:
        raise PlanRefused([refuse_price("never_reached", path, left)])
    try:
        solved = calibrate.noise_multiplier(compose, cap, budget.delta, relation, budget.accountant)
    except calibrate.CalibrationError as error:
        raise PlanRefused([refuse_price(error.reason, path, left)]) from None
    if solved > MAX_NOISE:
        raise PlanRefused([refuse_price("too_tight", path, left)])
    return replace(facts, stage_noise={**noise, index: solved}), {path: solved}


def list_spending(own: Sequence[Charge], facts: Facts) -> tuple[CostAlone, ...]:
    """Returns the cost of each stage alone, and of the mechanism alone (or of the best of several runs), whose charges
    are `own`; empty where there is no stage.

    Raises:
        PlanRefused: the stages alone cost more than the budget.
    """
    if not facts.stages:
        return ()
    if (finding := find_overspent_stages(facts)) is not None:
        raise PlanRefused([finding])
    from dprecipe.privacy import accountants

    budget = facts.budget

    def cost(charges: Sequence[Charge]) -> float:
        epsilon = accountants.epsilon(charges, budget.delta, Neighbouring(budget.neighbouring), budget.accountant)
        return round_up(epsilon)

    parts = [CostAlone(stage.kind, stage.step, cost(stage.charges)) for stage in facts.stages]
    return (*parts, CostAlone(TRAINING, None, cost(facts.select(own))))


def assume_paid_steps(facts: Facts) -> Iterator[Assumption]:
    """Yields the assumptions of the account of paid steps."""
    if facts.stages:
        yield Assumption(
            "preprocessing",
            f"one {facts.unit} contributes to a paid step of preprocessing the mean of its records' values, a weight "
            "of 1, or a bounded number of items, each within declared bounds; noise is added to sums of whole numbers "
            "before anything is computed from them, and what is released is the same for every record",
            "code",
        )
