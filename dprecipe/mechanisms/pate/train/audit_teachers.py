"""Audit of teachers on synthetic records: the teachers that read each unit, and the votes that a changed unit moves.

The records are dealt, and the teachers trained and asked, as in a run, but with few teachers and few steps.

Axes: R records, Q queries, T teachers.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe.data.facts import count_vocabulary
from dprecipe.data.units import Identities
from dprecipe.mechanisms.pate.train.learn import Lesson
from dprecipe.mechanisms.pate.train.partition import KEY_BYTES, deal_parts
from dprecipe.mechanisms.pate.train.program import Trained
from dprecipe.models.schema import Trees
from dprecipe.privacy.audit.results import Equality, Excess, Frequency, TestEvidence

TEACHERS, UNITS, QUERIES = 5, 20, 48
STEPS, TREES = 8, 4
"""Largest number of steps, or trees, of a synthetic teacher."""
KEYS = 6_000
"""Number of keys with which names are dealt."""

Found = tuple[str, str, TestEvidence]


@final
@dataclass(slots=True, eq=False)
class WatchedRecords:
    """Synthetic records that remember which of them each call has read."""

    features: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    """Name of each record's unit."""
    reads: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def units(self) -> NDArray[np.int64] | None:
        return None

    @property
    def unit_count(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: NDArray[np.int64] | slice) -> tuple[NDArray[np.float32], NDArray[Any]]:
        self.reads.append(np.arange(len(self))[indices])
        return self.features[indices], self.labels[indices]

    def change(self, features: Sequence[Any], labels: Sequence[int], name: str) -> WatchedRecords:
        """Returns a copy in which the unit `name` has these records instead of its own."""
        kept = np.array([other != name for other in self.names])
        shape = (0, *self.features.shape[1:])
        new = np.array(features, np.float32).reshape(len(labels), *shape[1:])
        return WatchedRecords(
            np.concatenate([self.features[kept], new]),
            np.concatenate([self.labels[kept], np.array(labels, np.int64)]),
            (*(n for n, keep in zip(self.names, kept, strict=True) if keep), *[name] * len(labels)),
        )


def examine_teachers(lesson: Lesson, device: torch.device) -> Iterator[Found]:
    """Tests that one teacher reads all of a unit, and that a changed unit moves the votes of one teacher."""
    lesson = _shorten(lesson)
    generator = np.random.default_rng(0)
    names = tuple(f"unit {number}" for number in np.sort(generator.integers(UNITS, size=2 * UNITS)))
    base = WatchedRecords(
        generator.random((len(names), *lesson.shape), dtype=np.float32),
        generator.integers(lesson.classes, size=len(names)),
        names,
    )
    asked = generator.random((QUERIES, *lesson.shape), dtype=np.float32)
    key = secrets.token_bytes(KEY_BYTES)
    before = _vote(lesson, base, asked, key, device)
    readers = _count_readers(base)
    yield (
        "parts_read",
        "a unit's records, however many, are read by one teacher and no other",
        Excess(largest=float(max(readers.values())), allowed=1.0),
    )
    yield (
        "records_unread",
        "each record is read by a teacher",
        Equality(differing=len(set(names) - set(readers)), compared=len(set(names))),
    )
    votes, counts, wrong = before[0], before[1], 0
    wrong += int((counts.sum(axis=1) != TEACHERS).sum() + (counts < 0).any(axis=1).sum())
    moved = voters = 0.0
    for changed in _neighbours(base, names[0], lesson):
        other_votes, other = _vote(lesson, changed, asked, key, device)
        wrong += int((other.sum(axis=1) != TEACHERS).sum())
        moved = max(moved, float(np.abs(counts - other).sum(axis=1).max()))
        voters = max(voters, float((votes != other_votes).any(axis=1).sum()))
    yield (
        "votes_cast",
        "each teacher votes once on every query",
        Equality(differing=wrong, compared=5 * QUERIES),
    )
    yield (
        "votes_moved",
        "a unit that is added, removed, replaced or blanked moves at most one vote of a query: two counts by one each",
        Excess(largest=moved, allowed=2.0),
    )
    yield "voters_moved", "a changed unit changes the votes of one teacher", Excess(largest=voters, allowed=1.0)


def examine_dealing(teachers: int) -> Iterator[Found]:
    """Tests that units are dealt to teachers by their own name and a secret key."""
    names = [f"unit {number}" for number in range(200)]
    changed = ["added", *names[:50], "renamed", *names[52:]]
    differing = compared = first = together = 0
    for number in range(KEYS):
        key = secrets.token_bytes(KEY_BYTES)
        pair = deal_parts(names[:2], key, teachers).tolist()
        first += pair[0] == 0
        together += pair[0] == pair[1]
        if number % 300 == 0:
            before = dict(zip(names, deal_parts(names, key, teachers).tolist(), strict=True))
            after = dict(zip(changed, deal_parts(changed, key, teachers).tolist(), strict=True))
            differing += sum(after[name] != part for name, part in before.items() if name in after)
            compared += sum(name in after for name in before)
    yield (
        "parts_unmoved",
        "a unit that is added, removed or renamed leaves every other with its teacher",
        Equality(differing=differing, compared=compared),
    )
    for name, text, hits in (
        ("parts_uniform", "a unit goes to the first teacher as often as to any other", first),
        ("parts_independent", "two units go to one teacher as often as independent ones", together),
    ):
        yield name, text, Frequency(successes=hits, trials=KEYS, expected=1 / teachers)


def _shorten(lesson: Lesson) -> Lesson:
    update: dict[str, Any] = {"steps": min(lesson.steps, STEPS)}
    if isinstance(lesson.model, Trees) and lesson.model.trees > TREES:
        update["model"] = lesson.model.model_copy(update={"trees": TREES})
    return lesson.model_copy(update=update)


def _neighbours(base: WatchedRecords, name: str, lesson: Lesson) -> Iterator[WatchedRecords]:
    """Yields the records with one unit removed, blanked, replaced by extreme values, or added."""
    shape, last = lesson.shape, lesson.classes - 1
    yield base.change([], [], name)  # removed
    yield base.change([np.zeros(shape)], [0], name)  # blanked
    extremes = (1e6, -1e6, np.nan) if count_vocabulary(lesson.preprocess) is None else (0.0, 1.0, 0.0)
    yield base.change([np.full(shape, value) for value in extremes], [last, 0, last], name)
    many = [np.ones(shape), *(base.features[row] for row in range(6))]
    yield base.change(many, [last] * len(many), "a unit that was added")


def _vote(
    lesson: Lesson, records: WatchedRecords, asked: NDArray[np.float32], key: bytes, device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the votes of each teacher, (T, Q), and the counts, (Q, classes), as a run takes them."""
    trained = Trained(lesson, TEACHERS, records, Identities.named(records.names))
    with tempfile.TemporaryDirectory(prefix="dprecipe-audit-") as scratch:
        folder = Path(scratch) / "teachers"
        counts = trained.counts(key, asked, folder, device, lambda: False)
        if counts is None:
            raise RuntimeError("internal fault: synthetic teachers were stopped")
        votes = np.stack([np.load(folder / f"{number}.npy") for number in range(TEACHERS)])
    return votes.astype(np.int64), counts.astype(np.int64)


def _count_readers(records: WatchedRecords) -> dict[str, int]:
    """Counts the teachers that have read each unit.

    Each call reads for another teacher: teachers read one after the other, each its whole part at once.
    """
    readers: dict[str, int] = {}
    for read in records.reads:
        for name in {records.names[number] for number in read}:
            readers[name] = readers.get(name, 0) + 1
    return readers
