"""The box of a codebook: the envelope of its codewords, which is all that accounting needs.

Boxes have the same limits as codebooks, because their summaries are read from files too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dprecipe.privacy.events import MAX_ROWS
from dprecipe.privacy.rounding import round_up

LEVELS = 256
MAX_WORDS = 100_000
MAX_DIMENSION = 10**9
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
Shifts = tuple[tuple[float, int], ...]
"""(bound of a magnitude, number of coordinates with it), bounds increasing."""


@dataclass(frozen=True)
class GradientBox:
    """The envelope of a codebook, which bounds every codeword and is all that accounting needs.

    `groups`: for each group its size and its envelope, in units of the codeword norm.
    Source: divergences grow with each |coordinate| (docs/explanation/encoding.md, the box).
    """

    digest: str
    words: int
    groups: tuple[tuple[int, Shifts], ...]

    @property
    def dimension(self) -> int:
        return sum(size for size, _ in self.groups)

    @property
    def length(self) -> float:
        """The L2 norm of the envelope, rounded up; a codeword has norm 1."""
        return round_up(
            math.sqrt(math.fsum(count * bound * bound for _, table in self.groups for bound, count in table))
        )

    def shifts(self, scales: Sequence[float] | None = None) -> tuple[float, Shifts]:
        """Returns the L2 norm of a codeword, and the envelope divided by it; both rounded up.

        `scales`: (G,), relative scale of the noise in each group. The bound is then on the code divided by them,
        coordinate by coordinate, and its norm is that of the envelope.

        *Guarantees*: at most `MAX_ROWS` bounds; if many layers have more, neighbouring bounds are rounded up to one.
        """
        scales = [1.0] * len(self.groups) if scales is None else scales
        counted: dict[float, int] = {}
        for (_, table), scale in zip(self.groups, scales, strict=True):
            for bound, count in table:
                counted[bound / scale] = counted.get(bound / scale, 0) + count
        norm = 1.0
        if any(scale != 1 for scale in scales):
            norm = round_up(math.sqrt(math.fsum(count * bound * bound for bound, count in counted.items())))
        rounded: dict[float, int] = {}
        for digits in range(7, 0, -1):
            rounded = {}
            for bound, count in counted.items():
                key = round_up(bound / norm, digits)
                rounded[key] = rounded.get(key, 0) + count
            if len(rounded) <= MAX_ROWS:
                break
        return norm, tuple(sorted(rounded.items()))

    def to_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "words": self.words,
            "groups": [{"size": size, "bounds": [list(pair) for pair in table]} for size, table in self.groups],
        }

    @staticmethod
    def from_json(content: Any) -> GradientBox:
        """Reads the result of `to_json`; the input is untrusted.

        Raises:
            ValueError: the content is not the summary of a codebook.
        """
        try:
            groups = tuple(
                (
                    _read_count(group["size"]),
                    tuple((float(bound), _read_count(count)) for bound, count in group["bounds"]),
                )
                for group in content["groups"]
            )
            box = GradientBox(str(content["digest"]), _read_count(content["words"]), groups)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not the summary of a codebook: {error}") from None
        if not _DIGEST.fullmatch(box.digest):
            raise ValueError("not the summary of a codebook: it has no digest")
        if box.words > MAX_WORDS:
            raise ValueError("not the summary of a codebook: too many codewords")
        squares = 0.0
        for size, table in groups:
            bounds = [bound for bound, _ in table]
            if not (
                0 < size == sum(count for _, count in table)
                and size <= MAX_DIMENSION
                and len(table) <= LEVELS + 1
                and all(count > 0 for _, count in table)
                and all(0 <= bound <= 1 for bound in bounds)
                and bounds == sorted(set(bounds))
            ):
                raise ValueError("the summary of a codebook is inconsistent")
            squares += math.fsum(count * bound * bound for bound, count in table)
        if not 1 - 1e-5 <= squares <= MAX_WORDS:  # no envelope is shorter than its codewords
            raise ValueError("the summary of a codebook is inconsistent")
        return box


def _read_count(value: Any) -> int:
    """Reads a count from JSON: a positive integer, and no other type that converts to one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError(f"expected a count, got {value!r}")
    return value
