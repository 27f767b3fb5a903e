"""The interface between the program of a run and its canaries, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from dprecipe.noisy_sum.batches import UnitNumbers
from dprecipe.privacy.events import Event
from dprecipe.training.canaries.coins import Coins
from dprecipe.training.canaries.placement import Floats, Numbers
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.clipping import Clipping


class RunCanaries(Protocol):
    """The canaries of a run. Their numbers as units follow those of the records."""

    @property
    def coins(self) -> Coins:
        """Coins that say which of them are in."""

    @property
    def units(self) -> int:
        """Number of units that batches are drawn from: records and canaries."""

    def split(self, units: UnitNumbers) -> tuple[UnitNumbers, Numbers | None]:
        """Returns the units of a batch whose records are read; and the canaries among the others, by number, where they
        are to be added to the sum."""

    def add(
        self, clipped: ClippedSum, model: nn.Module, clipping: Clipping | None, step: int, sampled: Numbers
    ) -> ClippedSum:
        """Returns the sum with those canaries; it may be overwritten."""

    def score(self, noisy: Tensor, event: Event) -> None:
        """Takes the noisy sum that was released of what `add` returned last."""

    def end_event(self) -> None:
        """Notes that all sums of an event were released."""

    def rank(self, released: Mapping[str, Tensor]) -> Floats:
        """Returns (M,): the larger, the likelier a canary was in. It is made of noisy sums and public numbers alone.

        `released`: the weights that are released.
        """

    def state(self) -> dict[str, Any]:
        """Returns what a later attempt needs; called between events. Tensors, numbers and text only."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            KeyError, TypeError, ValueError: it is not of these canaries.
        """
