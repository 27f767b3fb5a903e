"""The contradictions within what a source says of its labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dprecipe.data.columns import Columns, find_repeated
from dprecipe.data.sources.base import Label
from dprecipe.data.targets import SEPARATOR
from dprecipe.data.writing import find_wrong_affixes
from dprecipe.faults import Finding


def label_contradictions(label: Label | None, columns: Columns | None, path: str) -> Iterator[Finding]:
    """Yields the contradictions within the label of a table or of images; `path` is the source's."""
    if label is None:
        return
    where = f"{path}.label"
    if (label.column is None) == (label.columns is None):
        yield Finding(
            "R330",
            "the label has no column" if label.column is None else "the label has both `column` and `columns`",
            "write column: name, or columns: [name, name] where several columns hold a yes or a no each",
            where,
        )
        return
    if label.columns is None:
        kinds = {key: getattr(label, key) for key in _KINDS}
        yield from not_one_kind(kinds, where)
    yield from _misused_keys(label, where)
    yield from _misused_writing(label, where)
    yield from empty_range(label.range, f"{where}.range")
    for key in ("values", "several", "columns"):
        if getattr(label, key) is not None:
            yield from find_repeated(getattr(label, key), f"{where}.{key}")
    separator = label.separator or SEPARATOR
    for name in label.several or label.columns or ():
        if separator in name:
            yield Finding(
                "R331",
                f"{name!r} contains {separator!r}, which stands between two names",
                "write another label.separator" if label.several else "rename the column in the file, and here",
                f"{where}.{'several' if label.several else 'columns'}",
            )
    for name in label.read_columns:
        if name in (columns or {}):
            yield Finding(
                "R216",
                f"column {name!r} is the label and a feature: the model would read the answer",
                f"remove {name!r} from `columns`",
                f"{path}.columns.{name}",
            )


def _misused_keys(label: Label, path: str) -> Iterator[Finding]:
    """Keys that have no meaning beside the others."""
    if label.columns is not None:
        reason = "`columns` hold a yes or a no each"
        keys = ["classes", "range", "count", "several", "separator", "empty"]
        if label.values is not None and len(label.values) != 2:
            yield Finding(
                "R331",
                f"{reason}, and {len(label.values)} `values` are named",
                "write two texts, the one for no first: values: ['no', 'yes']; or remove `values`",
                f"{path}.values",
            )
    else:
        reason = "the column holds one value a record"
        keys = [] if label.several is not None else ["separator", "empty"]
    for key in keys:
        if getattr(label, key) is not None:
            instead = "" if label.columns is not None else ", or name in `several` what the fields may hold"
            yield Finding("R331", f"{reason}: `{key}` says nothing of them", f"remove it{instead}", f"{path}.{key}")


def _misused_writing(label: Label, path: str) -> Iterator[Finding]:
    """Keys that say how numbers are written, beside a label that is no number; and what is wrong with them."""
    if label.range is None and label.count is None:
        for key in ("decimal", "affixes"):
            if getattr(label, key) is not None:
                reason = f"`{key}` says how numbers are written, and the label is none"
                remedy = "remove it, or declare the number as a `range` or a `count`"
                yield Finding("R331", reason, remedy, f"{path}.{key}")
    yield from find_repeated(label.affixes or (), f"{path}.affixes")
    yield from find_wrong_affixes(label.affixes, f"{path}.affixes")


_KINDS = {
    "values": "`values` (class names, in order)",
    "classes": "`classes` (for integers 0 … classes-1)",
    "range": "`range` (for a number to be predicted)",
    "count": "`count` (for how many there are)",
    "several": "`several` (names of which any may apply)",
}
"""The kinds of label, by the key that declares each."""


def not_one_kind(declared: Mapping[str, object], path: str) -> Iterator[Finding]:
    """Yields the finding for labels that are declared as several kinds, or as none."""
    declared_keys = [key for key, value in declared.items() if value is not None]
    if len(declared_keys) != 1:
        *others, last = (_KINDS[key] for key in declared)
        yield Finding(
            "R201",
            f"labels need exactly one of {', '.join(others)} and {last}",
            f"keep one of {' and '.join(declared_keys)}" if declared_keys else f"add {' or '.join(declared)}",
            path,
        )


def empty_range(declared: Sequence[float] | None, path: str) -> Iterator[Finding]:
    """Yields the finding for a range that contains no number."""
    if declared is not None and not declared[0] / 2 < declared[1] / 2:  # halves, as the labels are mapped with
        yield Finding(
            "R203",
            f"{declared[0]:g} is not below {declared[1]:g}",
            "write [lowest, highest] of the values that can occur: from domain knowledge, not measured on private data",
            path,
        )
