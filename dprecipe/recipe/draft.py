"""The `data` block of a recipe, drafted from a file: in full from a public sample, and with blanks from a private one.

A blank is `FILL_IN`, which `validate` refuses at its place (R103). Which column is the label, and which one names the
units, is asked for and never guessed.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from dprecipe.contract.starter import Task
from dprecipe.data.names import is_name
from dprecipe.data.sample import LEFT_OUT, Drafted, draft_column, draft_label, is_missing
from dprecipe.data.sample_files import MAX_ROWS, PRIVATE_ROWS, Arrays, Table
from dprecipe.data.words import MARKS, NULLS, Header
from dprecipe.faults import UsageFault
from dprecipe.recipe.draft_scale import Scaling, measure_scaling, read_label, weigh_classes
from dprecipe.recipe.mismatch import BLANK
from dprecipe.text.dump import dump_inline
from dprecipe.text.load import FORBIDDEN

MAX_LISTED = 30
FEW = 2000
"""Fewer records than this learn from fewer features."""
HELD_OUT = 0.2
FEWEST_NAMES = 20
"""Names by which records are held out: of fewer, one side may have none."""
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
GAPS = "      # A missing number, date or truth is an error, unless its column says what it counts as: missing: VALUE."
SIZE = "                # number of {what}, with those held out; declared, and treated as public"
NO_TEST = "  # no records are held out, so a run has no score: write test: {source: …, path: …}, a file of its own"

TRUTHS = ["False", "True"]
"""Classes of a column of truth values."""
LABEL_KINDS = (
    "    # or classes: for integers from 0, range: for a number, several: names of which any may apply; missing: omit "
    "if some have none"
)


@final
@dataclass(slots=True)
class Declarations:
    """Declarations of the user about a private file; what is not answered stays open.

    `columns`: the declaration of each column, None where it is left out; `label`: the key of its kind with its value,
    None where that is open; `statement`: keys of `release.statement`.
    """

    columns: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    label: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    max_records: int | None = None
    statement: dict[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class DraftedData:
    """A `data` block: its text, what is to be learned of it, and remarks for who drafts it."""

    text: str
    task: Task
    remarks: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Asked:
    """Statements of the user about a file: if it is a public sample, its path in the recipe, its label, its units."""

    public: bool
    path: str
    label: str | None
    unit: str | None
    answers: Declarations = field(default_factory=Declarations)


def draft_data(sample: Table | Arrays, asked: Asked) -> DraftedData:
    """Drafts the `data` block of a recipe.

    Raises:
        UsageFault: the label or the unit is not named, or not in the file; nothing can be learned of that label.
    """
    return _draft_arrays(sample, asked) if isinstance(sample, Arrays) else _draft_table(sample, asked)


def find_names(sample: Table | Arrays, asked: Asked) -> tuple[str, str | None]:
    """Returns the label and the unit that the user names.

    Raises:
        UsageFault: one is not named, is not in the file, or can't be read; both are the same.
    """
    if isinstance(sample, Arrays):
        names = list(sample.shapes)
    else:
        names = [name for name in (*sample.columns, *sample.left_out) if name]
    label = _find(asked.label, names, asked, "label")
    unit = None if asked.unit is None else _find(asked.unit, names, asked, "unit")
    for name in (label, unit):
        if isinstance(sample, Table) and name in sample.left_out:
            raise UsageFault(f"column {name!r} can't be read: {sample.left_out[name]}", "name another column")
        if name is not None and FORBIDDEN.search(name):
            raise UsageFault(f"the name {name!r} holds a control character", "rename the column")
    if label == unit:
        raise UsageFault(f"column {label!r} can't be both the label and the unit", "name two columns")
    return label, unit


def _check_characters(name: str, listed: Mapping[str, Any], texts: Sequence[str]) -> None:
    """Refuses values that no recipe can list.

    Raises:
        UsageFault: a category, a mark or a class holds a control character.
    """
    values = [value for key in ("values", "marks", "several") for value in listed.get(key, ())]
    wrong = next((value for value in values if isinstance(value, str) and FORBIDDEN.search(value)), None)
    if wrong is not None:
        raise UsageFault(
            f"column {name!r}: row {texts.index(wrong) + 1} holds a control character: {wrong!r}",
            "remove it from the file",
        )


def _draft_table(table: Table, asked: Asked) -> DraftedData:
    label, unit = find_names(table, asked)
    lines: list[str] = []
    names: list[str] = []
    kinds: dict[str, str] = {}
    public: dict[str, dict[str, Any]] = {}
    for name, texts in table.columns.items():
        if name in (label, unit):
            continue
        if not name or FORBIDDEN.search(name):
            why = "its name holds a control character" if name else "it has no name"
            lines.append(f"      # {dump_inline(name)}: left out, {why}")
            continue
        made = draft_column(texts, name)
        if asked.public:
            _check_characters(name, made.declared, texts)
        if made.kind == "name":
            names.append(name)
        answer = asked.answers.columns.get(name, {})
        if answer is None:
            lines.append(f"      # {dump_inline(name)}: left out")
            continue
        if answer:
            kinds[name] = answer["kind"]
            lines.append(f"      {dump_inline(name)}: {_write_blanks(answer, table.typed.get(name))}")
            continue
        if made.kind in LEFT_OUT and (asked.public or made.kind != "empty"):
            remark = made.remark if asked.public else "it seems to name someone or something"
            lines.append(f"      # {dump_inline(name)}: left out, {remark}")
            continue
        kinds[name] = choose_kind(made, table.typed.get(name))
        public[name] = {"kind": made.kind, **made.declared}
        written = _write_column(made) if asked.public else _write_blanks({"kind": kinds[name]}, table.typed.get(name))
        lines.append(f"      {dump_inline(name)}: {written}")
    if not kinds:
        raise UsageFault(
            "no column is left for the features: " + "; ".join(line.strip(" #") for line in lines or ["there is none"]),
            "name a file with more columns",
        )
    lines += [
        f"      # {dump_inline(name) if name else 'a column'}: left out, {why}" for name, why in table.left_out.items()
    ]
    if asked.public:
        declared = _draft_label(label, table.columns[label])
    else:
        declared = _declare_label("values", asked, TRUTHS if table.typed.get(label) == "boolean" else BLANK)
    what = "records" if unit is None else f"units (values of {dump_inline(unit)})"
    units = table.columns[unit] if unit is not None else []
    size: object = table.rows if unit is None else len(set(units))
    if not asked.public:
        size = asked.answers.size or BLANK
    elif table.cut and (unit is not None or table.rows <= MAX_ROWS + 1):
        size = BLANK
    counted = size if isinstance(size, int) else None
    scaling = None
    if asked.public and "text" not in kinds.values():
        scaling = measure_scaling(public, table.columns, read_label(table.columns[label], declared))
    delimiter = [] if table.delimiter == "," else [f"    delimiter: {dump_inline(table.delimiter)}"]
    sample = "    # the sample; the private file takes its place" if asked.public else ""
    text = "\n".join(
        [
            "data:",
            *_remarks(table, asked),
            "  train:",
            f"    source: {table.source}",
            f"    path: {dump_inline(asked.path)}{sample}",
            *delimiter,
            "    columns:",
            *([] if asked.public else [GAPS]),
            *lines,
            f"    label: {dump_inline({'column': label, **declared})}"
            + (LABEL_KINDS if declared == {"values": BLANK} else ""),
            _write_test(
                "unit" if unit is not None else next((name for name in names if _can_split(table, name)), None)
            ),
            f"  size: {size}{SIZE.format(what=what)}",
            _write_unit(unit, units, asked),
            *_write_steps(kinds, counted, scaling),
            "",
        ]
    )
    weights, rare = weigh_classes(declared, table.columns[label], asked.public)
    measured = None if scaling is None else scaling.measured
    return DraftedData(
        text,
        Task(_list_known(declared), len(kinds), counted, measured, weights=weights),
        (*_list_remarks(table, names if unit is None else (), asked), *rare),
    )


def _can_split(table: Table, name: str) -> bool:
    """Returns True if records can be held out by the names in a column: each row has one, there are many, and its own
    name may stand in a claim."""
    texts = table.columns[name]
    return is_name(name) and len(set(texts)) >= FEWEST_NAMES and not any(map(is_missing, texts))


def _write_test(by: str | None) -> str:
    return NO_TEST if by is None else f"  test: {{split: {{by: {dump_inline(by)}, share: {HELD_OUT}}}}}"


def _list_remarks(table: Table, names: Sequence[str], asked: Asked) -> tuple[str, ...]:
    """Returns a remark on each column that may name whom to protect: in a public sample, one with repeated values."""
    return tuple(
        f"single rows are protected: if rows of one {name!r} belong to one person, draft again with --unit "
        f"{shlex.quote(name)}"
        for name in names
        if not asked.public or len(set(table.columns[name])) < len(table.columns[name])
    )


def _declare_label(usual: str, asked: Asked, value: object = BLANK) -> dict[str, Any]:
    """Returns the label of a private file as it was answered, with blanks for what was not."""
    return {key: BLANK if said is None else said for key, said in asked.answers.label.items()} or {usual: value}


def _list_known(declared: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the keys of a label, none where its kind is still to be chosen."""
    known = tuple(key for key in declared if key != "missing")
    return () if declared in ({"values": BLANK}, {"classes": BLANK}) else known


def _draft_label(name: str, texts: Sequence[str]) -> dict[str, Any]:
    """Drafts a label; one that some rows lack is omitted there. A mark such as `?` may be the name of a class, and is
    missing where nothing can be learned otherwise."""
    declared = draft_label(texts)
    marks = NULLS if declared else MARKS
    present = [text for text in texts if text and text.casefold() not in marks]
    gaps = len(present) < len(texts) and "several" not in declared
    declared = draft_label(present) if gaps else declared
    if not declared:
        different = len(set(texts) - {""})
        raise UsageFault(
            f"column {name!r} holds {different} different texts in {len(texts)} rows: it is no label to learn",
            "name another column: --label COLUMN",
        )
    _check_characters(name, declared, texts)
    return {**declared, **({"missing": "omit"} if gaps else {})}


def _remarks(table: Table, asked: Asked) -> Sequence[str]:
    if asked.public:
        rows = f" (its first {MAX_ROWS:,} rows)" if table.cut else ""
        return [line.format(rows=rows) for line in PUBLIC]
    return [line.format(kinds=f", and the kinds of its first {PRIVATE_ROWS} rows") for line in PRIVATE]


def choose_kind(made: Drafted, typed: str | None) -> str:
    """Returns the kind that a draft declares, or proposes; `typed`: what the column's own type says."""
    return made.kind if made.kind not in LEFT_OUT else typed or "text"


def _write_column(made: Drafted) -> str:
    return dump_inline({"kind": made.kind, **made.declared}) + (f"    # {made.remark}" if made.remark else "")


def _write_blanks(declared: Mapping[str, Any], typed: str | None) -> str:
    """Returns the declaration of a column of a private file: what is declared, and blanks for what it has to say."""
    kind = declared["kind"]
    ranges, values = ("numeric", "integer", "date"), ("category", "ordinal")
    needed = ("min", "max") if kind in ranges else ("values",) if kind in values else ()
    # How dates are written as texts, or that no format is needed, single records would tell: one has a day above 12.
    form = ("format",) if kind == "date" and typed != "date" else ()
    blanks = {key: BLANK for key in (*needed, *form) if key not in declared}
    return dump_inline({"kind": kind, **blanks, **declared})


def _write_unit(unit: str | None, names: Sequence[str], asked: Asked) -> str:
    if unit is None:
        return "  unit: record               # or {column: …, max_records: 8}: all records of a person"
    sizes = sorted(Counter(names).values())
    most: object = (
        sizes[math.ceil(SHARE_OF_UNITS * len(sizes)) - 1] if asked.public else asked.answers.max_records or BLANK
    )
    return f"  unit: {dump_inline({'column': unit, 'max_records': most})}    # the first records of each are used"


def _write_steps(kinds: Mapping[str, str], size: int | None, scaling: Scaling | None) -> list[str]:
    hashed = [name for name, kind in kinds.items() if kind == "text"]
    buckets = 256 if size is None or size >= FEW else 64
    steps = (
        ["    - one_hot: {}            # every category column to indicators"] if "category" in kinds.values() else []
    )
    if hashed:
        steps.append(f"    - hash: {dump_inline({'columns': hashed, 'buckets': buckets, 'tokens': 'words'})}")
    elif scaling is None:
        steps.append("    - scale: {mean: 0.5, std: 0.5}    # from 0 … 1 to -1 … 1: fewer steps reach the optimum")
    else:
        means, deviations = (dump_inline(list(one)) for one in (scaling.means, scaling.deviations))
        steps += [
            "    - scale:                 # (feature - mean) / std, measured on the sample, in the columns' order",
            f"        mean: {means}",
            f"        std: {deviations}",
        ]
    return ["  preprocess:", *steps]


def _draft_arrays(arrays: Arrays, asked: Asked) -> DraftedData:
    label, unit = find_names(arrays, asked)
    features = [name for name, shape in arrays.shapes.items() if shape and name not in (label, unit)]
    if len(features) != 1:
        raise UsageFault(
            f"the archive has {len(features) or 'no'} arrays that could be features: {', '.join(features)}",
            "save one array of features, (records, …), beside labels and names",
        )
    labels, units = arrays.values.get(label, []), arrays.values.get(unit or "", [])
    declared = _draft_label(label, labels) if asked.public else _declare_label("classes", asked)
    if "values" in declared:
        raise UsageFault(f"array {label!r} holds no integers from 0", "save labels as integers from 0, or as numbers")
    train = {
        "source": "npz", "path": asked.path, "features": features[0], "labels": label,
        "shape": list(arrays.shapes[features[0]]), **declared,
    }  # fmt: skip
    size: object = (
        (len(set(units)) if unit is not None else len(labels)) if asked.public else asked.answers.size or BLANK
    )
    what = "records" if unit is None else f"units (values of {dump_inline(unit)})"
    remarks = (
        [line.format(rows="") for line in PUBLIC]
        if asked.public
        else [line.format(kinds=" and shapes") for line in PRIVATE]
    )
    text = "\n".join(
        [
            "data:",
            *remarks,
            f"  train: {dump_inline(train)}",
            _write_test("unit" if unit is not None else None),
            f"  size: {size}{SIZE.format(what=what)}",
            _write_unit(unit, units, asked),
            "",
        ]
    )
    weights, rare = weigh_classes(declared, labels, asked.public)
    known = size if isinstance(size, int) else None
    return DraftedData(text, Task(_list_known(declared), 0, known, weights=weights), tuple(rare))


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
