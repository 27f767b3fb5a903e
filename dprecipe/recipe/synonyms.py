"""The names other tools and papers use for what a recipe says: `synonyms.toml` here, and those of the mechanisms.

A name leads to an idea; an idea leads to a dotted path (or none) and a remedy, since the number often has to be
converted. The same idea may mean another key in recipes of another mechanism.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dprecipe.contract.table import MECHANISMS

WORDS = "words"
IN_NOISE = "in_a_noise_block"


@dataclass(frozen=True, slots=True)
class Synonym:
    """The path of an idea (empty: none, on purpose), the remedy, and the mechanism whose recipes it is for (empty:
    all)."""

    path: str
    remedy: str
    mechanism: str = ""


@dataclass(frozen=True, slots=True)
class Synonyms:
    """All names, each with what it can mean: those of the mechanisms in the order of their table, then for any."""

    names: Mapping[str, tuple[Synonym, ...]]
    in_noise: Mapping[str, tuple[Synonym, ...]]
    """Names that mean this in a noise block, and elsewhere something else or nothing."""
    words: Mapping[str, tuple[str, ...]]
    """Words other tools use for a value, by our own; of use only where one of ours is possible."""


@cache
def read_synonyms() -> Synonyms:
    """Returns the tables of the language and of every mechanism; read when a recipe is wrong."""
    general = (resources.files("dprecipe.recipe") / "synonyms.toml").read_text("utf-8")
    texts = {**{kind: mechanism.synonyms for kind, mechanism in MECHANISMS.items()}, "": general}
    meanings: dict[str, list[Synonym]] = defaultdict(list)
    ideas: dict[tuple[bool, str], list[str]] = defaultdict(list)
    words: dict[str, list[str]] = defaultdict(list)
    for kind, text in texts.items():
        tables = tomllib.loads(text)
        for word, ours in tables.pop(WORDS, {}).items():
            words[word].append(ours)
        for title, table in tables.items():
            if "remedy" in table:
                for idea in table.get("ideas", [title]):
                    meanings[idea].append(Synonym(table.get("path", ""), table["remedy"], kind))
            for in_noise, name in _names(table):
                ideas[in_noise, name].append(title)
    result = {key: tuple(entry for title in titles for entry in meanings[title]) for key, titles in ideas.items()}
    return Synonyms(
        {name: entries for (in_noise, name), entries in result.items() if not in_noise},
        {name: entries for (in_noise, name), entries in result.items() if in_noise},
        {word: tuple(ours) for word, ours in words.items()},
    )


def _names(table: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    """Yields the names of an idea, and whether they are meant in a noise block alone."""
    for user, names in table.items():
        if isinstance(names, list) and user != "ideas":
            yield from ((user == IN_NOISE, name) for name in names)
