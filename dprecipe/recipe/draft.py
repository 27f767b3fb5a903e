"""The `data` block of a recipe, drafted from a file: in full from a public sample, and with blanks from a private one.

A blank is `FILL_IN`, which `validate` refuses at its place (R103). Which column is the label, and which one names the
units, is asked for and never guessed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from dprecipe.data.sample import MAX_ROWS, PRIVATE_ROWS, Arrays, Drafted, Table, draft_column, draft_label
from dprecipe.data.words import Header
from dprecipe.faults import UsageFault
from dprecipe.recipe.mismatch import BLANK
from dprecipe.text.dump import dump_inline

MAX_LISTED = 30
HELD_OUT = 0.2
SHARE_OF_UNITS = 0.95
"""Share of the units whose records are all used."""
PUBLIC = (
    "  # Drafted from a public sample{rows}. Ranges (rounded outward), categories and values for missing fields",
    "  # were read off it. Check each: for the private file they are declarations, and it may hold what the sample",
    "  # does not.",
)
PRIVATE = (
    "  # Drafted from a private file: its names{kinds}. Nothing else was read off it.",
    "  # The recipe is published with the certificate: keep no kind that can't be said without the file.",
    "  # Fill in each FILL_IN from what is known of the subject: ranges, categories and numbers of records are",
    "  # declared, and never measured on the private records.",
)
SIZE = "                # number of training {what}; declared, and treated as public"


LABEL_KINDS = "    # or classes: for integers from 0, range: for a number, several: names of which any may apply"


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """Statements of the user about a file: if it is a public sample, its path in the recipe, its label, its units."""

    public: bool
    path: str
    label: str | None
    unit: str | None


def draft_data(sample: Table | Arrays, asked: Asked) -> str:
    """Returns the text of a `data` block.

    Raises:
        UsageFault: the label or the unit is not named, or not in the file.
    """
    return _draft_arrays(sample, asked) if isinstance(sample, Arrays) else _draft_table(sample, asked)


def _draft_table(table: Table, asked: Asked) -> str:
    label = _find(asked.label, list(table.columns), asked, "label")
    unit = None if asked.unit is None else _find(asked.unit, list(table.columns), asked, "unit")
    if label == unit:
        raise UsageFault(f"column {label!r} can't be both the label and the unit", "name two columns")
    lines: list[str] = []
    kinds: dict[str, str] = {}
    for name, texts in table.columns.items():
        if name in (label, unit):
            continue
        made = draft_column(texts)
        if made.kind in ("name", "empty") and asked.public:
            lines.append(f"      # {dump_inline(name)}: left out, {made.remark}")
            continue
        kinds[name] = "text" if made.kind in ("name", "empty") else made.kind
        lines.append(f"      {dump_inline(name)}: {_write_column(made, asked.public)}")
    if not kinds:
        raise UsageFault("no column is left for the features", "name a file with more columns")
    lines += [
        f"      # {dump_inline(name)}: left out, its values are no numbers, dates or texts" for name in table.left_out
    ]
    declared = draft_label(table.columns[label]) if asked.public else {"values": BLANK}
    what = "records" if unit is None else f"units (values of {unit})"
    units = table.columns[unit] if unit is not None else []
    size: object = len(set(units)) if unit is not None else table.rows
    delimiter = [] if table.delimiter == "," else [f"    delimiter: {dump_inline(table.delimiter)}"]
    sample = "    # the sample; the private file takes its place" if asked.public else ""
    return "\n".join(
        [
            "data:",
            *_remarks(table, asked),
            "  train:",
            f"    source: {table.source}",
            f"    path: {dump_inline(asked.path)}{sample}",
            *delimiter,
            "    columns:",
            *lines,
            f"    label: {dump_inline({'column': label, **declared})}" + ("" if asked.public else LABEL_KINDS),
            *([f"  test: {{split: {{by: unit, share: {HELD_OUT}}}}}"] if unit is not None else []),
            f"  size: {size if asked.public else BLANK}{SIZE.format(what=what)}",
            _write_unit(unit, units, asked.public),
            *_write_steps(kinds),
            "",
        ]
    )


def _remarks(table: Table, asked: Asked) -> Sequence[str]:
    if asked.public:
        rows = f" (its first {MAX_ROWS:,} rows)" if table.cut else ""
        return [line.format(rows=rows) for line in PUBLIC]
    return [line.format(kinds=f", and the kinds of its first {PRIVATE_ROWS} rows") for line in PRIVATE]


def _write_column(made: Drafted, public: bool) -> str:
    kind = "text" if made.kind in ("name", "empty") else made.kind
    if public:
        remark = f"    # {made.remark}" if made.remark else ""
        return dump_inline({"kind": kind, **made.declared}) + remark
    blanks = {"numeric": ("min", "max"), "integer": ("min", "max"), "date": ("min", "max"), "category": ("values",)}
    declared = dict.fromkeys(blanks.get(kind, ()), BLANK)
    incomplete = kind in ("numeric", "integer", "date", "boolean")
    # How dates are written, single records would decide: one of them has a day after the 12th.
    form = "format: how dates are written, unless in ISO 8601; " if "format" in made.declared else ""
    return dump_inline({"kind": kind, **declared}) + (
        f"    # {form}missing: what an empty field counts as" if incomplete else ""
    )


def _write_unit(unit: str | None, names: Sequence[str], public: bool) -> str:
    if unit is None:
        return "  unit: record               # or {column: …, max_records: 8}: all records of a person"
    sizes = sorted(Counter(names).values())
    most: object = sizes[math.ceil(SHARE_OF_UNITS * len(sizes)) - 1] if public else BLANK
    return f"  unit: {dump_inline({'column': unit, 'max_records': most})}    # the first records of each are used"


def _write_steps(kinds: Mapping[str, str]) -> list[str]:
    hashed = [name for name, kind in kinds.items() if kind == "text"]
    steps = (
        ["    - one_hot: {}            # every category column to indicators"] if "category" in kinds.values() else []
    )
    steps += [f"    - hash: {dump_inline({'columns': hashed, 'buckets': 256, 'tokens': 'words'})}"] if hashed else []
    return ["  preprocess:", *steps] if steps else []


def _draft_arrays(arrays: Arrays, asked: Asked) -> str:
    names = list(arrays.shapes)
    label = _find(asked.label, names, asked, "label")
    unit = None if asked.unit is None else _find(asked.unit, names, asked, "unit")
    features = [name for name, shape in arrays.shapes.items() if shape and name not in (label, unit)]
    if len(features) != 1:
        raise UsageFault(
            f"the archive has {len(features) or 'no'} arrays that could be features: {', '.join(features)}",
            "save one array of features, (records, …), beside labels and names",
        )
    labels, units = arrays.values.get(label, []), arrays.values.get(unit or "", [])
    declared = draft_label(labels) if asked.public else {"classes": BLANK}
    if "values" in declared:
        raise UsageFault(f"array {label!r} holds texts", "save labels as integers from 0, or as numbers")
    train = {
        "source": "npz", "path": asked.path, "features": features[0], "labels": label,
        "shape": list(arrays.shapes[features[0]]), **declared,
    }  # fmt: skip
    size: object = (len(set(units)) if unit is not None else len(labels)) if asked.public else BLANK
    what = "records" if unit is None else f"units (values of {unit})"
    remarks = (
        [line.format(rows="") for line in PUBLIC]
        if asked.public
        else [line.format(kinds=" and shapes") for line in PRIVATE]
    )
    return "\n".join(
        [
            "data:",
            *remarks,
            f"  train: {dump_inline(train)}",
            *([f"  test: {{split: {{by: unit, share: {HELD_OUT}}}}}"] if unit is not None else []),
            f"  size: {size}{SIZE.format(what=what)}",
            _write_unit(unit, units, asked.public),
            "",
        ]
    )


def _find(name: str | None, present: Sequence[str], asked: Asked, what: str) -> str:
    """Returns a column that the user names. For a private file, a message quotes only a nearly equal name: the
    first line may be a record.
    """
    if name in present:
        return str(name)
    listed = f"; its columns are {', '.join(map(repr, present[:MAX_LISTED]))}" if asked.public else ""
    if name is None:
        raise UsageFault(f"which column is the {what} is not guessed{listed}", f"name it: --{what} COLUMN")
    nearest = Header(present).nearest(name)
    raise UsageFault(
        f"there is no column {name!r}" + (f"; the file has {nearest!r}" if nearest is not None else listed),
        f"name the {what} as the file does: --{what} COLUMN",
    )
