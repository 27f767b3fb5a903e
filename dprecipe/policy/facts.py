"""Facts about a recipe, a plan or a certificate that policies govern: read once, so that rules see a single form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dprecipe import __version__
from dprecipe.contract.table import mechanism_of
from dprecipe.data.schema import Data
from dprecipe.language.statement import ReleaseStatement
from dprecipe.policy.globs import clean, is_within
from dprecipe.policy.names import DataName, name_data, name_file
from dprecipe.recipe.root import AnyRecipe, PublicRecipe, Recipe

Signing = Literal["none", "unknown", "known"]


@dataclass(frozen=True, slots=True)
class GovernedFacts:
    """The facts that the rules look at. A fact that is not known yet is None, and no rule about it fails.

    `data`: the data sets. `is_unit_made`: a query may make the unit's column from others. `signing`: `unknown` if there
    is a signature but the key is not at hand; `key`: its id. `versions`: those of the packages that are known at this
    stage.
    """

    mechanism: str
    model: str
    sources: tuple[tuple[str, str], ...]
    """Pairs (path of the key, kind), one for every source."""
    data: tuple[DataName, ...]
    is_public: bool
    """True if the recipe has no privacy at all."""
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    is_unit_made: bool = False
    max_records: int | None = None
    neighbouring: str | None = None
    accountant: str | None = None
    account: str | None = None
    signing: Signing = "none"
    key: str | None = None
    statement: ReleaseStatement | None = None
    accepted: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=lambda: {"dprecipe": __version__})


def read_facts(recipe: AnyRecipe) -> GovernedFacts:
    """Returns the facts of a recipe; ε is None if it is `auto`."""
    data = recipe.data
    named = [("data.train", data.train), ("data.test", data.test_source), ("data.public", data.public)]
    sources = tuple((f"{path}.source", source.source) for path, source in named if source is not None)
    if isinstance(recipe, PublicRecipe):
        return GovernedFacts("none", recipe.model.kind, sources, tuple(_name_sources(data)), True)
    budget, unit = recipe.budget, data.unit
    return GovernedFacts(
        recipe.mechanism.kind,
        recipe.model.kind,
        sources,
        (*_name_sources(data), *_name_mechanism_files(recipe)),
        False,
        epsilon=None if budget.epsilon == "auto" else budget.epsilon,
        delta=budget.delta,
        unit=data.unit_name,
        is_unit_made=not (unit == "record" or data.train.keeps_column(unit.column)),
        max_records=1 if unit == "record" else unit.max_records,
        neighbouring=budget.neighbouring,
        accountant=budget.accountant,
        account=budget.account,
        signing="none" if recipe.release.sign is None else "unknown",
        statement=recipe.release.statement,
        accepted=tuple(recipe.accept),
    )


def name_sample(file: str) -> GovernedFacts:
    """Returns the facts of a file that is read as public without a recipe."""
    return GovernedFacts("none", "", (), (name_file(file, "file", True),), False)


def _name_sources(data: Data) -> Iterator[DataName]:
    yield from name_data(data.train, "data.train", data.train.access == "public")
    if data.test_source is not None:
        yield from name_data(data.test_source, "data.test", data.test_source.access == "public")
    elif data.test is not None and data.test.access == "public":
        yield from name_data(data.train, "data.train", True)
    if data.public is not None:
        yield from name_data(data.public, "data.public", True)


def _name_mechanism_files(recipe: Recipe) -> Iterator[DataName]:
    for key, file in mechanism_of(recipe.mechanism.kind).private_files(recipe.mechanism).items():
        yield name_file(file, f"mechanism.{key}", False)


def matches_account(name: str, patterns: Sequence[str]) -> bool:
    """Returns True if one of these globs surely matches an account's name. A glob without `/` matches the last part."""
    return any(is_within(name, glob) if "://" in name else is_within(clean(name), clean(glob)) for glob in patterns)
