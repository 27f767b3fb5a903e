"""Items of units: distinct values of columns, or words of a text, for `dp_categories` and `dp_vocabulary`.

A unit contributes weight 1 to at most k distinct items. Which ones, where it has more, is decided by a keyed hash of
the item and of the unit's own set of items: a function of that unit and of a secret key drawn before anything is read,
so that no unit moves what another contributes. Counts of the items that occur get Gaussian noise, and those of at
least the threshold are released, in the order of their text. An item that no unit has is no candidate.

Let two neighbours differ in a unit of j items that no other unit has: those are released with probability
1 − p^j, p = Φ((τ − 1)/σ), and on the rest counts move by √(k − j) at most. What that costs is decided in
`dprecipe.privacy` over all j. As it may be, the counts' L2 distance is at most √k, and √(2k) under replace-one.

What isn't covered: how long a release takes, which grows with the number of items that occur.

Source: Korolova et al. 2009; Gopi et al. 2020. The threshold is 1 + σ Φ⁻¹((1 − leak)^(1/k)).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from dprecipe.data.paid.rows import UnitRows
from dprecipe.data.paid.schema import MAX_CHARACTERS
from dprecipe.data.values import WORD

KEY_BYTES = 32
COUNT_BITS = 24
Item = tuple[int, str]
"""The number of a step's column, and a value of it."""


def items_of_value(text: str) -> tuple[str, ...]:
    """Returns a category's value as an item; an empty one, and one that is too long or no Unicode text, is none."""
    return (text,) if text and _can_be_released(text) else ()


def items_of_words(text: str) -> tuple[str, ...]:
    """Returns the lower-cased words of a text, in order, each as often as it occurs."""
    return tuple(word for word in WORD.findall(text.lower()) if _can_be_released(word))


def _can_be_released(text: str) -> bool:
    return len(text) <= MAX_CHARACTERS and not any("\ud800" <= character <= "\udfff" for character in text)


def count_items(
    columns: Sequence[Sequence[Iterable[str]]], rows: UnitRows, max_items: int, key: bytes
) -> dict[Item, int]:
    """Counts the units that contribute each item, in the order of columns and texts: every count is at least 1.

    `columns`: for each column the items of each row, (N,). `max_items`: the most for a unit in a column, over all its
    rows.

    Guarantees: a unit adds 1 to at most k = `max_items` · columns counts, and the choice of these depends on its own
    rows and the key alone.
    """
    counts: Counter[Item] = Counter()
    for column, items in enumerate(columns):
        for unit in range(rows.count):
            numbers = rows.order[rows.starts[unit] : rows.starts[unit + 1]]
            own = {(column, text) for number in numbers.tolist() for text in items[number]}
            counts.update(choose_items(own, max_items, key))
    return dict(sorted(counts.items(), key=lambda pair: _text(pair[0])))


def choose_items(own: set[Item], max_items: int, key: bytes) -> list[Item]:
    """Returns at most `max_items` of one unit's items, evenly by a keyed hash; all of them where they are no more."""
    if len(own) <= max_items:
        return list(own)
    texts = sorted(_text(item) for item in own)
    unit = hashlib.blake2b(b"".join(len(t).to_bytes(4, "big") + t for t in texts), key=key, digest_size=32).digest()
    return sorted(own, key=lambda item: hashlib.blake2b(unit + _text(item), key=key, digest_size=16).digest())[
        :max_items
    ]


def _text(item: Item) -> bytes:
    column, text = item
    return column.to_bytes(4, "big") + text.encode("utf-8", "surrogatepass")


def whole_counts(counts: dict[Item, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the counts in units of 2^-24, int64 (V,), in their order."""
    return np.fromiter((count << COUNT_BITS for count in counts.values()), np.int64, len(counts))
