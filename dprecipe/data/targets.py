"""What a label is, as it is declared and never measured: one of several classes, a number, or a count.

Each kind says how many outputs a model of it has. Labels are one value a record, whatever their kind, so that all
records are sampled, grouped and clipped alike. No numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

MAX_COUNT = 1 << 24
"""Counts up to here are exact in single precision."""


@final
@dataclass(frozen=True, slots=True)
class ClassTarget:
    """One of several classes. Labels (N,) are int64, 0 … classes - 1."""

    classes: int
    names: tuple[str, ...] | None = None

    @property
    def outputs(self) -> int:
        """One for each class: its logit."""
        return self.classes

    def describe(self) -> str:
        """In words."""
        return f"{self.classes} classes"

    def describe_labels(self) -> str:
        """What labels from Python are."""
        return f"integers from 0 to {self.classes - 1}"


@final
@dataclass(frozen=True, slots=True)
class NumberTarget:
    """A number in a declared range, in its own units. Labels (N,) are float32: the range is mapped to [-1, 1]."""

    lowest: float
    highest: float

    @property
    def outputs(self) -> int:
        """One: the number, mapped like the labels."""
        return 1

    @property
    def range(self) -> tuple[float, float]:
        """The declared range."""
        return self.lowest, self.highest

    def describe(self) -> str:
        """In words."""
        return "a number"

    def describe_labels(self) -> str:
        """What labels from Python are."""
        return "numbers from -1 to 1, the ends of the declared range"


@final
@dataclass(frozen=True, slots=True)
class CountTarget:
    """How many there are: a whole number from 0 to `max`. Labels (N,) are float32."""

    max: int

    @property
    def outputs(self) -> int:
        """One: the logarithm of the expected count."""
        return 1

    def describe(self) -> str:
        """In words."""
        return "a count"

    def describe_labels(self) -> str:
        """What labels from Python are."""
        return f"whole numbers from 0 to {self.max}"


def name_classes(target: ClassTarget) -> tuple[str, ...]:
    """The names of the classes, without blanks around them; their numbers where they have none."""
    if target.names is None:
        return tuple(map(str, range(target.classes)))
    return tuple(name.strip() for name in target.names)


Target = ClassTarget | NumberTarget | CountTarget
