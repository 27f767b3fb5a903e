"""Starter recipes: commented, and valid as they are. What follows the data is each mechanism's own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dprecipe.contract import table
from dprecipe.contract.starter import Task
from dprecipe.text.dump import dump_inline

HEAD = """\
# yaml-language-server: $schema=schemas/recipe.schema.json
# (`dprecipe schema` writes that folder; editors then check and complete this file)
#
#   dprecipe validate {file}    check it; reads no data
#   dprecipe plan {file}        what it will spend
#   dprecipe run {file}         train, and write the model with its certificate

recipe: dprecipe/v1          # the version of the language
name: {name}

"""

LABELS = ("values", "classes", "range", "count", "several")
"""Kinds of a label, by the key that declares it."""
STATEMENT = {
    "curators": (["…"], "who answers for the data and the release"),
    "contact": ("…", "whom to ask about it: an address that may be published"),
    "intended_use": ("…", "what the model is for, and what not"),
}
"""Keys of `release.statement` that a draft names, each with an example and its meaning."""

TABLE = """\
  # Ranges and categories are declared, never measured.
  train: &TRAIN
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # or {column: user_id, max_records: 8}: all records of a user
  preprocess:
    - one_hot: {}            # every category column to indicators
"""
"""Lines that follow the first comment of a table."""

DATA = {
    "digits": """\
data:
  # 1,797 real handwritten digits that come with dprecipe; every fifth is held out as `test`.
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}    # public: its accuracy may be published
  size: 1438                 # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
""",
    "idx": """\
data:
  # Images and labels in the format of MNIST, plain or gzipped; paths are relative to --data-root.
  train: {source: idx, images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}
  test: {source: idx, images: t10k-images-idx3-ubyte.gz, labels: t10k-labels-idx1-ubyte.gz, access: public}
  size: 60000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - scale: {mean: 0.1307, std: 0.3081}     # constants that are public knowledge, never measured
""",
    "csv": f"""\
data:
  # A table with a header line; paths are relative to --data-root.
{TABLE}""",
    "parquet": f"""\
data:
  # A Parquet table; paths are relative to --data-root.
{TABLE}""",
    "json_lines": f"""\
data:
  # A table of one JSON object a line; paths are relative to --data-root.
{TABLE}""",
    "npz": """\
data:
  # Arrays in a NumPy archive; the path is relative to --data-root.
  train: {source: npz, path: train.npz, shape: [20], classes: 2}
  test: {source: npz, path: test.npz, shape: [20], classes: 2, access: public}
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - clip_features: {norm: 1.0}    # shrink each record to at most this length
""",
}

TABLE = """\

    source: {source}
    path: train.{suffix}
    columns:
      age: {{kind: numeric, min: 0, max: 120}}
      colour: {{kind: category, values: [red, green, blue]}}
    label: {{column: outcome, values: ["no", "yes"]}}"""

SUFFIXES = {"json_lines": "jsonl"}
"""File suffixes that differ from the name of their source."""
SOURCES = tuple(DATA)
STARTERS = {kind: starter for kind, mechanism in table.MECHANISMS.items() if (starter := mechanism.starter) is not None}
MECHANISMS = tuple(STARTERS)


def make_starter(
    mechanism: str,
    source: str,
    name: str,
    data: str | None = None,
    file: str | None = None,
    task: Task | None = None,
    statement: Mapping[str, Any] | None = None,
) -> str:
    """Returns a recipe for a mechanism of `MECHANISMS` and a source of `SOURCES`. `data`: a block instead of the
    source's own, and its `task`. `file`: the name of its file, which its first comment repeats; by default that of the
    recipe. `statement`: what the report of a draft says in its author's words, as far as it is known.
    """
    task = task or Task()
    if data is not None:
        task = replace(task, release=_write_release(statement or {}))
    data = data or DATA[source].replace(" &TRAIN", TABLE.format(source=source, suffix=SUFFIXES.get(source, source)))
    return make_head(name, file or f"{name}.yaml") + STARTERS[mechanism].starter_text(source, data, task)


def make_head(name: str, file: str) -> str:
    """Returns the beginning of a recipe: what to do with its `file`, and its name."""
    shown = shlex.quote(file) if file.isprintable() else "RECIPE"  # a comment is one line
    return HEAD.format(name=dump_inline(name), file=shown)


def _write_release(statement: Mapping[str, Any]) -> str:
    """Returns the block `release` with a statement: what is known of it, and the other keys as comments."""
    rest = "" if statement else "# "
    lines = ["release:", "  report: true", f"  {rest}statement:    # in your words; the report begins with it"]
    for key, (example, meaning) in STATEMENT.items():
        known = key in statement
        value = dump_inline(statement[key] if known else example)
        lines.append(f"  {'' if known else '# '}  {key}: {value}" + ("" if known else f"    # {meaning}"))
    return "\n".join(lines)
