"""Neighbouring relations: which two data sets a guarantee compares."""

from __future__ import annotations

from enum import StrEnum


class Neighbouring(StrEnum):
    """The relation for which a guarantee is stated."""

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"
    ZERO_OUT_ONE = "zero_out_one"
    """The relation where one unit is replaced by a null unit, which takes part in every draw and adds nothing to any
    sum."""

    @property
    def words(self) -> str:
        """The relation in the words of a claim; `{unit}` stands for the privacy unit."""
        if self is Neighbouring.ADD_OR_REMOVE_ONE:
            return "adding or removing one {unit}"
        if self is Neighbouring.ZERO_OUT_ONE:
            return "blanking out one {unit}"
        return "replacing one {unit} by another"
