"""Choice of the held-out records of the training source: by a keyed hash of each one's unit, and nothing else.

*Guarantees*, for `Split` with its share s and its seed as the key:

1. **A record's side depends on its own name alone** (its unit's, or its text in the column `by`), on s and on the
   seed, all three constants of the neighbouring data sets: never on another record, on the order of records or on
   their number. Records of one name are on one side.
2. **Neighbours stay neighbours.** Let T(D) be the training records of a data set D, S(D) those held out, and D' be D
   without the unit u. By 1, every other unit is on the same side in both. If u is a training unit, T(D') is T(D)
   without u, and S(D') = S(D); if not, T(D') = T(D), and S(D') is S(D) without u. So whatever is (ε, δ)-private for T
   under `add_or_remove_one` is (ε, δ)-private for D, and so is what is composed of a release from T and a later one
   from S: each unit is in one of the two, and both are charged. (That the two could be charged in parallel is true and
   not used.) Under `zero_out_one` a unit is blanked in its place and keeps its name: the same holds.
3. **Not under `replace_one`**, where names decide: who comes may have another side than who goes. Then T loses a unit
   or gains one, which that relation does not count; `planning.split` refuses it. Where the number of a record decides
   (`unit: record`), removing one would renumber later ones, which change sides: only relations under which every
   record keeps its number are sound (`zero_out_one`, `replace_one`), as for a range of records (P119).
4. **The number of training units is not public**: the names decide it. A plan uses `Data.planned_units`, from constants
   alone, and so no mechanism runs whose account needs the number that there is. Only the number of *all* units is
   compared with `data.size`.

Without knowledge of the names the sides of distinct names are as good as independent, a name held out with
probability s (to within 2^-64). Anyone who knows a name and the recipe knows its side; the side is no secret.

| edge case | side |
|---|---|
| how a name is written: 7, "7", 7.0, blanks around it | the same name, unless `unit.spelling: exact` names the column |
| a name that is missing | a fault: it could be anybody's |
| no record on one of the sides | a fault, when records are read |

Source: BLAKE2b with a key, RFC 7693. No numpy: what validates a recipe asks this module for words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from dprecipe.data.names import quote_name
from dprecipe.data.schema import Data, Split

PERSON = b"dprecipe split"
"""Sets these hashes apart from any others with the same key."""
BITS = 64


def find_held_out(names: Iterable[str], split: Split) -> list[bool]:
    """Finds the held-out records, given the names of all; each different name is hashed once.

    Records of a name are held out if the first 64 bits of its keyed hash are below share · 2^64.
    """
    key, end = str(split.seed).encode(), int(split.share * 2.0**BITS)  # exact: a product with a power of two
    known: dict[str, bool] = {}
    sides = []
    for name in names:
        side = known.get(name)
        if side is None:
            side = known[name] = _hash_name(name, key) < end
        sides.append(side)
    return sides


def split_column(data: Data) -> str | None:
    """Returns the column whose texts decide the sides; None where the numbers of records do, or there is no split."""
    split = data.split
    if split is None:
        return None
    if split.by != "unit":
        return split.by
    return data.unit_column


def describe_split(data: Data) -> str | None:
    """Describes how held-out records were chosen; None where no split did."""
    split = data.split
    if split is None:
        return None
    column = split_column(data)
    by = "of each record's number in its source" if column is None else f"of each record's {quote_name(column)}"
    return (
        f"cut out of the training source by a keyed hash {by} (BLAKE2b, seed {split.seed}): an expected share of "
        f"{split.share:g}, chosen without regard to any other record; all records of one value are on one side"
    )


def _hash_name(name: str, key: bytes) -> int:
    content = name.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(content, digest_size=BITS // 8, key=key, person=PERSON).digest()
    return int.from_bytes(digest, "big")


def number_names(first: int, count: int) -> Sequence[str]:
    """Returns the names of `count` records that only their numbers in the source tell apart, from `first` on."""
    return [str(number) for number in range(first, first + count)]
