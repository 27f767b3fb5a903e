"""The names other tools and papers use for what a recipe says: `synonyms.toml` here, and those of the mechanisms.

A name leads to an idea; an idea leads to a dotted path (or none) and a remedy, since the number often has to be
converted. The same idea may mean another key in recipes of another mechanism, and the same name another idea in one of
the blocks of `PLACES`.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from dprecipe.contract.table import MECHANISMS

WORDS = "words"
Block = tuple[str, ...]


def _in(*names: str) -> Callable[[Block], bool]:
    return lambda block: block[-1:] in [(name,) for name in names]


PLACES: dict[str, Callable[[Block], bool]] = {
    "in_a_noise_block": lambda block: "noise" in block,
    "in_a_clip_block": lambda block: block[:2] == ("mechanism", "clip"),
    "in_sampling": _in("sampling", "sampler"),
    "in_a_column": lambda block: block[-2:-1] == ("columns",),
    "in_a_label": _in("label"),
    "in_a_source": lambda block: block[:1] == ("data",) and block[1:] in [("train",), ("test",), ("public",)],
    "in_a_unit": _in("unit"),
    "in_an_optimizer": lambda block: "optimizer" in block,
    "in_lora": _in("lora", "peft", "adapter", "lora_config", "peft_config", "lora_args"),
    "in_the_model": lambda block: block[:1] == ("model",),
    "in_the_budget": lambda block: block[:1] == ("budget",),
    "in_data": lambda block: block == ("data",),
    "in_training": lambda block: block == ("training",),
    "in_runtime": lambda block: block == ("runtime",),
    "at_the_top": lambda block: not block,
}
"""Blocks in which a name means something else than elsewhere: the narrowest first."""


@dataclass(frozen=True, slots=True)
class Synonym:
    """The path of an idea (empty: none, on purpose), the remedy, and the mechanism whose recipes it is for (empty:
    all).

    A path that begins with a dot is of the block at hand. `scalar` is the path of a single value, where `path` is that
    of a block. `value` says how the value that was written is carried over:

    - `same`: as it is, so that the remedy can name it;
    - `switch`: `false` means that nothing was asked for;
    - `share`: a share of the records to hold out, as a number or inside of a block;
    - `label`: the name of the label's column;
    - `range`: two bounds, which are `min` and `max`;
    - `open`: a block of another tool, each of whose keys has a place of its own.
    """

    path: str
    remedy: str
    mechanism: str = ""
    value: str = ""
    scalar: str = ""


@dataclass(frozen=True, slots=True)
class Synonyms:
    """All names, each with what it can mean: those of the mechanisms in the order of their table, then for any."""

    names: Mapping[str, tuple[Synonym, ...]]
    placed: Mapping[str, Mapping[str, tuple[Synonym, ...]]]
    """By place: names that mean this in such a block, and elsewhere something else or nothing."""
    words: Mapping[str, tuple[str, ...]]
    """Words other tools use for a value, by our own; of use only where one of ours is possible."""


@cache
def read_synonyms() -> Synonyms:
    """Returns the tables of the language and of every mechanism; read when a recipe is wrong."""
    general = (resources.files("dprecipe.recipe") / "synonyms.toml").read_text("utf-8")
    texts = [*((kind, mechanism.synonyms) for kind, mechanism in MECHANISMS.items()), ("", general)]
    meanings: dict[str, list[Synonym]] = defaultdict(list)
    ideas: dict[tuple[str, str], list[str]] = defaultdict(list)
    words: dict[str, list[str]] = defaultdict(list)
    for kind, text in texts:
        tables = tomllib.loads(text)
        for word, ours in tables.pop(WORDS, {}).items():
            words[word].append(ours)
        for title, table in tables.items():
            if "remedy" in table:
                path, value, scalar = (table.get(key, "") for key in ("path", "value", "scalar"))
                for idea in table.get("ideas", [title]):
                    meanings[idea].append(Synonym(path, table["remedy"], kind, value, scalar))
            for place, name in _names(table):
                ideas[place, name].append(title)
    result = {key: tuple(entry for title in titles for entry in meanings[title]) for key, titles in ideas.items()}
    return Synonyms(
        {name: entries for (place, name), entries in result.items() if not place},
        {place: {name: entries for (where, name), entries in result.items() if where == place} for place in PLACES},
        {word: tuple(ours) for word, ours in words.items()},
    )


def _names(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the names of an idea, each with the place that alone it is meant in; empty: any."""
    for user, names in table.items():
        if isinstance(names, list) and user != "ideas":
            yield from ((user if user in PLACES else "", name) for name in names)
