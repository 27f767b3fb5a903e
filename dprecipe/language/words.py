"""Joining words in findings."""

from __future__ import annotations

from collections.abc import Sequence


def join_with_or(parts: Sequence[str]) -> str:
    """Returns "a, b or c"; nothing for nothing."""
    return ", ".join(parts[:-1]) + " or " + parts[-1] if len(parts) > 1 else "".join(parts)
