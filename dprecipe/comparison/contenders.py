"""The contenders: releases that verify and plans of recipes, each with its claim, score and time in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dprecipe.contract.plan import Plan, digest_of
from dprecipe.data.names import name_unit
from dprecipe.data.schema import Data
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, charge_from_json
from dprecipe.recipe.read import read_source
from dprecipe.recipe.root import Recipe
from dprecipe.release.rebuild import stated_source
from dprecipe.release.scores import BASELINE, list_leading, read_numbers
from dprecipe.release.verify import Verified

WORDS = {"name", "description", "meta", "accept", "runtime", "release"}
"""Keys of a recipe that make it no other method."""


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """Terms that give an ε its meaning. Claims of different terms are different claims."""

    neighbouring: Neighbouring
    unit: str
    max_records: int

    def __str__(self) -> str:
        records = "" if self.max_records == 1 else f", at most {self.max_records:,} records each"
        return f"{self.neighbouring.words.format(unit=self.unit)}{records}"


@dataclass(frozen=True, slots=True)
class Contender:
    """One release, or one recipe that was planned and not run.

    `method`: a digest of the recipe without its names and `runtime`: runs that differ in their seed alone share it.
    `tested_on`: a digest of what the score was measured on, as far as the recipe says; None without a score.
    `baselines`: what takes no model, by score. `seconds`: None where it is not known or secret.
    """

    name: str
    place: str
    planned: bool
    mechanism: str
    terms: ClaimTerms
    epsilon: float
    delta: float
    accountant: str
    charges: tuple[Charge, ...]
    method: str
    seed: int
    scores: dict[str, float]
    tested_on: str | None
    released: tuple[str, ...]
    seconds: float | None
    run: str | None = None
    """A digest of what its certificate says: one release in two folders is one run. None of a recipe."""
    baselines: Mapping[str, float] = field(default_factory=dict)

    def epsilon_at(self, delta: float) -> float:
        """Returns ε at another δ, from the events: an upper bound, infinite where there is none. At its own δ it is the
        claim, and at a larger one never more."""
        if delta == self.delta:
            return self.epsilon
        value = accountants.epsilon(self.charges, delta, self.terms.neighbouring, self.accountant)
        converted = rounding.round_up(value)
        return min(converted, self.epsilon) if delta > self.delta else converted


def contend_release(verified: Verified, path: Path) -> Contender:
    """Returns a release as a contender, by its verified certificate."""
    predicate = verified.statement.predicate
    claim, provenance = verified.claim, predicate.provenance
    recipe = read_source(stated_source(predicate)).recipe
    released = predicate.data_access.evaluation.released
    numbers = {} if released is None else read_numbers(released)
    started, finished = (datetime.fromisoformat(text) for text in (provenance.started, provenance.finished))
    seconds = (finished - started).total_seconds()
    from_python = [provenance.model, provenance.data]
    chosen = None if predicate.tuning is None else predicate.tuning.model_dump(mode="json")["chosen"]
    return Contender(
        name=provenance.recipe.name,
        place=str(path),
        planned=False,
        mechanism=predicate.mechanism.kind,
        terms=ClaimTerms(Neighbouring(claim.neighbouring), name_unit(claim.unit.column), claim.unit.max_records),
        epsilon=claim.epsilon,
        delta=claim.delta,
        accountant=recipe.budget.accountant,
        charges=tuple(charge_from_json(run.model_dump()) for run in predicate.events.run_length),
        method=digest_of([_method(recipe), from_python, chosen]),
        seed=recipe.runtime.seed,
        scores={key: float(value) for key, value in numbers.items() if not key.endswith(BASELINE)},
        tested_on=None if released is None else digest_of([_tested(recipe.data), provenance.data, released.records]),
        released=claim.released,
        seconds=seconds if seconds > 0 else None,
        run=digest_of(predicate.model_dump(mode="json")),
        baselines={key.removesuffix(BASELINE): value for key, value in numbers.items() if key.endswith(BASELINE)},
    )


def contend_recipe(plan: Plan, path: Path) -> Contender:
    """Returns a planned recipe as a contender: its ε is to be spent, and there is no score."""
    recipe, guarantee = read_source(plan.source).recipe, plan.guarantee
    unit = recipe.data.unit
    return Contender(
        name=plan.name,
        place=str(path),
        planned=True,
        mechanism=plan.mechanism,
        terms=ClaimTerms(
            guarantee.neighbouring, name_unit(recipe.data.unit_column), 1 if unit == "record" else unit.max_records
        ),
        epsilon=rounding.round_up(guarantee.epsilon),
        delta=guarantee.delta,
        accountant=plan.budget.accountant,
        charges=plan.events,
        method=digest_of([_method(recipe), ["recipe", "recipe"], None]),
        seed=recipe.runtime.seed,
        scores={},
        tested_on=None,
        released=plan.released,
        seconds=None,
    )


def list_common_metrics(contenders: Sequence[Contender]) -> list[str]:
    """Returns the scores that all contenders with a score have, those first that say most of the first."""
    scored = [each for each in contenders if each.scores]
    if not scored:
        return []
    first = scored[0]
    leading = list_leading({**first.scores, **{key + BASELINE: value for key, value in first.baselines.items()}})
    keys = dict.fromkeys([*leading, *first.scores])
    return [key for key in keys if all(key in each.scores for each in scored)]


def _method(recipe: Recipe) -> object:
    return recipe.model_dump(mode="json", by_alias=True, exclude=WORDS)


def _tested(data: Data) -> object:
    """Returns what names the held-out records: their source, and the training source that a split is cut from."""
    content = data.model_dump(mode="json", by_alias=True, include={"test", "train"})
    return content if data.split is not None else content["test"]
