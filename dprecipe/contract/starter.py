"""Starter recipes: what a mechanism is asked for, and writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final


@final
@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a public sample as the model sees it.

    `features`: their number; `norm`: the root mean square of a record's length, with the 1 of a bias; `mean` and
    `deviation` of a number's label in the units of its loss (half of its range, or counts), 0 of classes.
    """

    features: int
    norm: float
    mean: float
    deviation: float


@final
@dataclass(frozen=True, slots=True)
class Task:
    """The task of a drafted recipe: the keys that declare its label, its number of columns, and of records or units.

    `label` is empty and `size` None where a draft leaves them open; `columns` is 0 for arrays. `measured`: of a public
    sample whose features are scaled one by one.
    """

    label: tuple[str, ...]
    columns: int
    size: int | None
    measured: Measured | None = None


def choose_batch_size(task: Task | None, usual: int) -> int:
    """Returns the usual number of records of a step, or an eighth of fewer records."""
    return usual if task is None or task.size is None else max(1, min(usual, task.size // 8))


class Starter(Protocol):
    """The recipe that `dprecipe init` writes for a mechanism."""

    def starter_text(self, source: str, data: str, task: Task | None = None) -> str:
        """Returns a valid recipe without its name; `data` is the source's `data` block, as most mechanisms need it.
        `task`: what the block declares, where it was drafted from a file."""
