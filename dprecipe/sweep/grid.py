"""The grid of a sweep: values of keys of a recipe, and a cell for each combination of them and each seed."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dprecipe.faults import UsageFault

SEED = "runtime.seed"
MAX_CELLS = 2000
MAX_NAME = 80
"""Most characters of a cell's name before its digest; a longer one is cut."""
EXAMPLE = "write it like --over training.optimizer.lr=0.5,1,2"


@dataclass(frozen=True, slots=True)
class SweptKey:
    """A key of a recipe and the values that it takes, as they are written."""

    key: str
    values: tuple[str, ...]

    @property
    def short(self) -> str:
        """The last word of the key."""
        return self.key.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One run of a sweep: a value of each key, and a seed."""

    keys: tuple[str, ...]
    values: tuple[str, ...]
    seed: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """The cell as `--set` has it."""
        return (*map("=".join, zip(self.keys, self.values, strict=True)), f"{SEED}={self.seed}")

    @property
    def name(self) -> str:
        """A name for its folder; cells of one grid have different names."""
        parts = [f"{key.rpartition('.')[2]}-{value}" for key, value in zip(self.keys, self.values, strict=True)]
        plain = "_".join([*parts, f"seed-{self.seed}"])
        safe = re.sub(r"[^A-Za-z0-9.+_-]", "_", plain)[:MAX_NAME]
        return plain if safe == plain else f"{safe}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"

    def __str__(self) -> str:
        return ", ".join(self.overrides)


@dataclass(frozen=True, slots=True)
class Grid:
    """All cells of a sweep."""

    over: tuple[SweptKey, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The swept keys, in the order in which they were given."""
        return tuple(each.key for each in self.over)

    def list_points(self) -> list[tuple[str, ...]]:
        """Lists the combinations of values; the last key changes first."""
        return list(itertools.product(*(each.values for each in self.over)))

    def list_cells(self) -> list[SweepCell]:
        """Lists the cells, all seeds of a combination together."""
        return [SweepCell(self.keys, point, seed) for point in self.list_points() for seed in self.seeds]


def read_grid(over: Sequence[str], seeds: int, first_seed: int) -> Grid:
    """Reads `--over` and `--seeds`.

    Raises:
        UsageFault: an argument is no list of values, a key or a value is there twice, or there are too many cells.
    """
    keys = tuple(map(_read_key, over))
    names = [each.key for each in keys]
    if not keys:
        raise UsageFault("a sweep needs a key and its values", EXAMPLE)
    if len(set(names)) < len(names):
        raise UsageFault("--over names a key twice", "write all values of a key in one --over")
    if SEED in names:
        raise UsageFault(f"{SEED} is set by --seeds", "leave it out of --over; --seeds 3 takes three seeds")
    grid = Grid(keys, tuple(range(first_seed, first_seed + seeds)))
    count = len(grid.seeds)
    for each in keys:
        count *= len(each.values)
    if count > MAX_CELLS:
        raise UsageFault(f"{count:,} runs are too many for one sweep", f"ask for at most {MAX_CELLS:,}")
    return grid


def _read_key(argument: str) -> SweptKey:
    key, equals, text = argument.partition("=")
    values = tuple(_split_values(text))
    if not equals or not key or key != key.strip() or not all(values):
        raise UsageFault(f"--over {argument[:80]}: no key with values", EXAMPLE)
    if len(set(values)) < len(values):
        raise UsageFault(f"--over {argument[:80]}: a value is there twice", "write each value once")
    return SweptKey(key, values)


def _split_values(text: str) -> Iterator[str]:
    """Splits at commas that are in no brackets and no quotes; the recipe's own rules read the parts."""
    depth, quote, start = 0, "", 0
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()
