"""Checks of the data block: what its parts say about one another."""

from __future__ import annotations

from dprecipe.data.schema import Data
from dprecipe.faults import Finding


def check(data: Data) -> list[Finding]:
    """What contradicts itself in the data block (R2xx); paths are set, places are not."""
    return []
