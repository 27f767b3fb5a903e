"""What a policy rules over, of a recipe, a plan, or a certificate: read once, so that the rules know one form."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from dprecipe import __version__
from dprecipe.data.sources.base import SourceBlock
from dprecipe.language.statement import ReleaseStatement
from dprecipe.recipe.root import AnyRecipe, PublicRecipe

Signing = Literal["none", "unknown", "known"]


@dataclass(frozen=True, slots=True)
class GovernedFacts:
    """What the rules look at. What is not known yet is None, and no rule about it fails.

    `data`: the names of the private data sets, as `name_data` writes them. `signing`: `unknown` where something signs,
    and the key is not at hand; `key`: its id. `versions`: of those packages that are known at this stage.
    """

    mechanism: str
    model: str
    sources: tuple[tuple[str, str], ...]
    """(path of the key, kind) of every source."""
    data: tuple[str, ...]
    is_public: bool
    """Whether the recipe has no privacy at all."""
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
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
    """What a recipe says; ε is None where it is `auto`."""
    data = recipe.data
    named = [("data.train", data.train), ("data.test", data.test_source), ("data.public", data.public)]
    sources = tuple((f"{path}.source", source.source) for path, source in named if source is not None)
    if isinstance(recipe, PublicRecipe):
        origins = [name for _, source in named if source is not None for name in name_data(source)]
        return GovernedFacts("none", recipe.model.kind, sources, tuple(dict.fromkeys(origins)), True)
    private = [data.train, *([data.test_source] if data.test_source and data.test_source.access != "public" else [])]
    budget, unit = recipe.budget, data.unit
    return GovernedFacts(
        recipe.mechanism.kind,
        recipe.model.kind,
        sources,
        tuple(dict.fromkeys(name for source in private for name in name_data(source))),
        False,
        epsilon=None if budget.epsilon == "auto" else budget.epsilon,
        delta=budget.delta,
        unit=data.unit_name,
        max_records=1 if unit == "record" else unit.max_records,
        neighbouring=budget.neighbouring,
        accountant=budget.accountant,
        account=budget.account,
        signing="none" if recipe.release.sign is None else "unknown",
        statement=recipe.release.statement,
        accepted=tuple(recipe.accept),
    )


def name_data(source: SourceBlock) -> Iterator[str]:
    """The names of a source's data sets: the path of each file, as the recipe writes it, one of labels or a table too;
    of a database the variable with its address and the table (`postgres:DB_URL/admissions`); of what the program brings
    along its kind (`digits:`)."""
    for path, part in source.origins:
        yield f"{path}/{part}" if path.startswith("postgres:") and part else path
    yield from map(posixpath.normpath, source.files.values())


def matches(name: str, patterns: Sequence[str], *, exact_case: bool) -> bool:
    """Whether one of these globs is that of a data set. One without `/` is of the last part of a path; `*` matches any
    letters, also `/`. `exact_case`: letters of other case are other letters."""
    last = posixpath.basename(name)
    if not exact_case:
        name, last, patterns = name.casefold(), last.casefold(), [pattern.casefold() for pattern in patterns]
    return any(fnmatchcase(name, p) or ("/" not in p and fnmatchcase(last, p)) for p in patterns)
