"""Score against ε of several runs, claim by claim: `dprecipe compare`. See docs/how-to/compare.md.

The contenders are releases that verify and plans of recipes, each with its claim, score and time in one form. Methods
have their mean over seeds, and paired tests between them. Different claims (another relation, unit, or bound on its
records) are never in one standing. ε is converted to one δ.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dprecipe.contract.drawing import INK, MARK, SOFT, Axes
from dprecipe.contract.plan import Plan, digest_of
from dprecipe.data.names import name_unit
from dprecipe.data.schema import Data
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge, charge_from_json
from dprecipe.recipe.read import read_source
from dprecipe.recipe.root import Recipe, look_up
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
    recipe: Mapping[str, Any] = field(default_factory=dict)
    """The recipe with every default filled in, JSON types only."""
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
        recipe=_resolve(recipe),
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
        recipe=_resolve(recipe),
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


def _resolve(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", by_alias=True)


def _method(recipe: Recipe) -> object:
    return recipe.model_dump(mode="json", by_alias=True, exclude=WORDS)


def _tested(data: Data) -> object:
    """Returns what names the held-out records: their source, and the training source that a split is cut from."""
    content = data.model_dump(mode="json", by_alias=True, include={"test", "train"})
    return content if data.split is not None else content["test"]


MANY = 6
"""Fewest methods whose names leave out the folders that they share, and whose points in a plot have no names."""
WIDE = 50
"""Smallest ratio of the largest to the smallest number that makes an axis logarithmic."""
ROUNDING = 1e-12
"""Relative spread up to which differences are equal but for rounding: they have no variance to test with."""
LEVEL = 0.95
"""Confidence level of the intervals."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and how far the true one may lie from it (Student's t); None of a single value."""

    mean: float
    half_width: float | None


@dataclass(frozen=True, slots=True)
class MethodRow:
    """All runs of one method: they differ in their seed, and in their noise."""

    name: str
    runs: tuple[Contender, ...]
    epsilon: float
    """ε at the standing's δ: the largest of its runs; infinite where there is no bound."""
    score: Interval | None
    seconds: Interval | None
    baseline: float | None = None
    """The score that takes no model; None where the runs have none, or were scored on different records."""


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Two methods on the same seeds: second minus first. `p`: of no difference, two-sided, adjusted by Holm for all
    tests of the standing; None where all differences are equal, or there is no test, and `reason` says why."""

    first: str
    second: str
    seeds: int
    difference: Interval | None
    p: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The contenders of one claim."""

    terms: ClaimTerms
    delta: float
    metric: str | None
    rows: tuple[MethodRow, ...]
    tests: tuple[PairedTest, ...]


def compare_all(
    contenders: Sequence[Contender], metric: str | None = None, delta: float | None = None
) -> list[Standing]:
    """Returns a standing for each claim. Without `delta`, that of a standing is the smallest δ of its contenders, so
    that no claim looks better than it was made. Without `metric`, the first that all share."""
    groups: dict[ClaimTerms, list[Contender]] = {}
    for contender in contenders:
        groups.setdefault(contender.terms, []).append(contender)
    return [_stand(terms, group, metric, delta) for terms, group in groups.items()]


def _stand(terms: ClaimTerms, group: Sequence[Contender], metric: str | None, delta: float | None) -> Standing:
    common = list_common_metrics(group)
    key = metric if metric is not None else (common[0] if common else None)
    at = min(each.delta for each in group) if delta is None else delta
    methods: dict[tuple[str, bool], list[Contender]] = {}
    for each in group:
        methods.setdefault((each.method, each.planned), []).append(each)
    repeated = Counter(runs[0].name for runs in methods.values())
    places = _shorten_places([runs[0].place for runs in methods.values()])
    rows = []
    for runs in methods.values():
        name = runs[0].name if repeated[runs[0].name] == 1 else f"{runs[0].name} ({places[runs[0].place]})"
        values = [run.scores[key] for run in runs if key is not None and key in run.scores]
        times = [run.seconds for run in runs if run.seconds is not None]
        rows.append(
            MethodRow(
                name,
                tuple(runs),
                max(run.epsilon_at(at) for run in runs),
                find_interval(values) if len(values) == len(runs) else None,
                find_interval(times) if len(times) == len(runs) else None,
                _find_baseline(runs, key),
            )
        )
    rows.sort(key=lambda row: row.epsilon)
    return Standing(terms, at, key, tuple(rows), tuple(_test_pairs(rows, key)))


def _shorten_places(places: Sequence[str]) -> dict[str, str]:
    """Returns each path without the folders that all of many share."""
    if len(places) < MANY:
        return {place: place for place in places}
    shared = os.path.commonpath([Path(place).absolute() for place in places])
    return {place: os.path.relpath(place, shared) for place in places}


def _find_baseline(runs: Sequence[Contender], key: str | None) -> float | None:
    found = {run.baselines.get(key or "") for run in runs}
    return found.pop() if len(found) == 1 else None


def find_interval(values: Sequence[float]) -> Interval | None:
    """Returns the mean and half of the width of its interval; None without values.

    Source: Student's t of n - 1 degrees of freedom; exact for values from a normal distribution.
    """
    if not values:
        return None
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Interval(mean, None)
    from scipy import stats

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = float(stats.t.ppf((1 + LEVEL) / 2, count - 1))
    return Interval(mean, quantile * deviation / math.sqrt(count))


def _test_pairs(rows: Sequence[MethodRow], metric: str | None) -> list[PairedTest]:
    """Returns every pair of methods that have scores, adjusted together."""
    if metric is None:
        return []
    scored = [row for row in rows if row.score is not None]
    tests = [_test_pair(first, second, metric) for index, first in enumerate(scored) for second in scored[index + 1 :]]
    return adjust_by_holm(tests)


def _test_pair(first: MethodRow, second: MethodRow, metric: str) -> PairedTest:
    def refuse(reason: str, seeds: int = 0) -> PairedTest:
        return PairedTest(first.name, second.name, seeds, None, None, reason)

    if {run.tested_on for run in (*first.runs, *second.runs)} != {first.runs[0].tested_on}:
        return refuse("their scores were measured on different records")
    by_seed = [{run.seed: run.scores[metric] for run in row.runs} for row in (first, second)]
    if any(len(scores) < len(row.runs) for scores, row in zip(by_seed, (first, second), strict=True)):
        return refuse("several runs of a method have the same seed")
    shared = sorted(by_seed[0].keys() & by_seed[1].keys())
    if len(shared) < 2:
        return refuse("fewer than two seeds in common", len(shared))
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in shared]
    differences = [b - a for a, b in pairs]
    interval = find_interval(differences)
    if max(differences) - min(differences) <= ROUNDING * max(map(abs, differences)):
        return PairedTest(first.name, second.name, len(shared), interval, None, "all differences are equal")
    from scipy import stats

    result = stats.ttest_rel([b for _, b in pairs], [a for a, _ in pairs])
    return PairedTest(first.name, second.name, len(shared), interval, float(result.pvalue), "")


def adjust_by_holm(tests: Sequence[PairedTest]) -> list[PairedTest]:
    """Returns the tests, with p-values that hold for all of them together. Source: Holm 1979."""
    order = sorted((i for i, test in enumerate(tests) if test.p is not None), key=lambda i: tests[i].p or 0.0)
    adjusted: dict[int, float] = {}
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * (tests[index].p or 0.0)))
        adjusted[index] = largest
    return [
        PairedTest(t.first, t.second, t.seeds, t.difference, adjusted.get(i, t.p), t.reason)
        for i, t in enumerate(tests)
    ]


def draw_standing(axes: Axes, standing: Standing, key: str | None = None) -> None:
    """Scores against ε, or against the values of a key of the recipes: a point for each method with a score, with its
    interval; runs as small points.

    Raises:
        PointError: a recipe has no such key.
    """
    metric = standing.metric or "score"
    drawn: list[tuple[float, float]] = []
    rows = [row for row in standing.rows if row.score is not None and math.isfinite(row.epsilon)]
    values: list[Any] = [row.epsilon if key is None else look_up(row.runs[0].recipe, key) for row in rows]
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    names = [] if is_number else list(dict.fromkeys(map(str, values)))
    for row, value in zip(rows, values, strict=True):
        if row.score is None:
            continue
        x = float(value) if is_number else float(names.index(str(value)))
        half = row.score.half_width or 0.0
        ends = [(x, row.score.mean - half), (x, row.score.mean + half)]
        runs = [(x, run.scores[metric]) for run in row.runs] if len(row.runs) > 1 else []
        axes.plot(ends, MARK)
        for point in runs:
            axes.plot([point, point], SOFT, dots=True)
        axes.mark(x, row.score.mean, MARK)
        label = re.sub(r"[^A-Za-z0-9._ ()/-]", "_", row.name)[:30]  # a path may hold anything, also markup
        if len(rows) < MANY:
            axes.write(label, (x, row.score.mean), INK, shift=(8, -6))
        drawn += [*ends, *runs]
    left, right = (pick(x for x, _ in drawn) for pick in (min, max))
    low, high = (pick(y for _, y in drawn) for pick in (min, max))
    margin = 0.15 * (high - low) or 0.1 * abs(high) or 1.0
    wide = left > 0 and right >= WIDE * left
    across = (-0.5, len(names) - 0.5) if names else (left / 1.5, 1.5 * right) if wide else _widen(left, right)
    axes.set(
        f"ε at δ = {standing.delta:g}" if key is None else key,
        metric.replace("_", " "),
        across,
        (low - margin, high + margin),
        log_x=wide,
        x_names=names,
    )


def _widen(left: float, right: float) -> tuple[float, float]:
    """Returns limits with space for names on the right, and that begin at 0 or above for numbers that do."""
    margin = 0.2 * max(abs(left), abs(right))
    return (max(0.0, left - margin) if left >= 0 else left - margin, right + 1.5 * margin or 1.0)
