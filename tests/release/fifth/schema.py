"""The `mechanism` block."""

from __future__ import annotations

from typing import Literal

from dprecipe.language.base import Auto, Block, PositiveFloat


class Fifth(Block):
    """Noise on the weights, once."""

    kind: Literal["fifth"]
    multiplier: PositiveFloat

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        return {}


BLOCK = Fifth
