"""Kinds of labels, declared and never measured: one of several classes, a number, a count, any of several names, or
the next token of a text.

Each kind determines how many outputs its model has. A label is one value a record, whatever its kind, so that all
records are sampled, grouped and clipped alike. No numpy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

MAX_COUNT = 1 << 24
"""Counts up to here are exact in single precision."""
SEPARATOR = ";"
"""Between the names in a field, where the recipe says no other."""
MAX_NAMES = 62
"""Most names of a label where any may apply: each is a bit of a signed integer of 64 bits."""


@final
@dataclass(frozen=True, slots=True)
class ClassTarget:
    """One of several classes. Labels (N,) are int64, 0 … classes - 1."""

    classes: int
    names: tuple[str, ...] | None = None
    is_choice: ClassVar[bool] = True
    """True if the model gives probabilities of answers, and a record's answer is right or wrong."""

    @property
    def outputs(self) -> int:
        """One for each class: its logit."""
        return self.classes

    def describe(self) -> str:
        """Describes the target in words."""
        return f"{self.classes} classes"

    def describe_labels(self) -> str:
        """Describes the labels that Python passes."""
        return f"integers from 0 to {self.classes - 1}"


@final
@dataclass(frozen=True, slots=True)
class NumberTarget:
    """A number in a declared range, in its own units. Labels (N,) are float32: the range is mapped to [-1, 1]."""

    lowest: float
    highest: float
    is_choice: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """One: the number, mapped like the labels."""
        return 1

    @property
    def range(self) -> tuple[float, float]:
        """The declared range."""
        return self.lowest, self.highest

    def describe(self) -> str:
        """Describes the target in words."""
        return "a number"

    def describe_labels(self) -> str:
        """Describes the labels that Python passes."""
        return "numbers from -1 to 1, the ends of the declared range"


@final
@dataclass(frozen=True, slots=True)
class CountTarget:
    """Count, a whole number from 0 to `max`. Labels (N,) are float32."""

    max: int
    is_choice: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """One: the logarithm of the expected count."""
        return 1

    def describe(self) -> str:
        """Describes the target in words."""
        return "a count"

    def describe_labels(self) -> str:
        """Describes the labels that Python passes."""
        return f"whole numbers from 0 to {self.max}"


@final
@dataclass(frozen=True, slots=True)
class SeveralTarget:
    """Any of several names, none or all of them: a yes or a no for each. Labels (N,) are int64: bit k is the answer for
    the k-th name (`data.several`)."""

    names: tuple[str, ...]
    separator: str = field(default=SEPARATOR, compare=False)
    """Between names, where those that apply are written as one text."""
    is_choice: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        """One for each name: the logit of its yes."""
        return len(self.names)

    def describe(self) -> str:
        """Describes the target in words."""
        return f"any of {len(self.names)} names"

    def describe_labels(self) -> str:
        """Describes the labels that Python passes."""
        return f"an array (N, {len(self.names)}) of 0 and 1"


@final
@dataclass(frozen=True, slots=True)
class TokenTarget:
    """The next token of a sequence, at each of its places. Labels (N,) are int64: how many tokens of a record are
    learned. Which ones, its features say: (N, 2, L), input tokens and labels (`data.sequences`)."""

    vocabulary: int
    is_choice: ClassVar[bool] = False

    @property
    def outputs(self) -> int:
        """One for each token: its logit."""
        return self.vocabulary

    def describe(self) -> str:
        """Describes the target in words."""
        return "the next token"

    def describe_labels(self) -> str:
        """Describes the labels that Python passes."""
        return "the number of learned tokens of each record, from 1 on"


NEXT_TOKEN = TokenTarget(0)
"""Target of a source with `label: next_token`; the step `sequences` states the number of tokens."""


def name_classes(target: ClassTarget | SeveralTarget) -> tuple[str, ...]:
    """Returns the names of the classes, or of what may apply; numbers where classes have none."""
    if target.names is None:
        return tuple(map(str, range(target.outputs)))
    return target.names


LabelTarget = ClassTarget | NumberTarget | CountTarget | SeveralTarget
"""Targets that columns or arrays of labels can hold."""
Target = LabelTarget | TokenTarget
