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
    """The task of a starter: the keys that declare its label, its number of columns, and of records or units, and its
    block `release`.

    `label` is empty and `size` None where a draft leaves them open, or there is none; `columns` is 0 for arrays.
    `measured`: of a public sample whose features are scaled one by one. `weights`: a comment of `training` that weighs
    classes; empty where a draft knows of none to weigh. `epsilon`: of the budget; None for a mechanism's usual one.
    """

    label: tuple[str, ...] = ()
    columns: int = 0
    size: int | None = None
    measured: Measured | None = None
    release: str = "release: {report: true}"
    weights: str = ""
    epsilon: float | None = None

    @property
    def delta(self) -> str:
        """1e-6, or at a hundred thousand records and more a tenth of the power of ten below 1 / size (P103)."""
        return f"1e-{6 if self.size is None else max(6, len(str(self.size)) + 1)}"

    def choose_epsilon(self, usual: float) -> float:
        """Returns the ε that was asked for, or a mechanism's usual one."""
        return usual if self.epsilon is None else self.epsilon

    def choose_batch_size(self, usual: int) -> int:
        """Returns the usual number of records of a step, or an eighth of fewer records."""
        return usual if self.size is None else max(1, min(usual, self.size // 8))


class Starter(Protocol):
    """The recipe that `dprecipe init` writes for a mechanism."""

    def starter_text(self, source: str, data: str, task: Task) -> str:
        """Returns a valid recipe without its name; `data` is the source's `data` block, as most mechanisms need it.
        `task`: what the block declares, where it was drafted from a file; a usual one otherwise."""
