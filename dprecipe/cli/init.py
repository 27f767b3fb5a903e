"""`dprecipe init`: a commented starter recipe that validates, with example columns or with those of a file.

What follows the data is each mechanism's own.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.contract import table
from dprecipe.faults import DataFault, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.screen import write_output

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


def make_starter(mechanism: str, source: str, name: str, data: str | None = None, file: str | None = None) -> str:
    """Returns a recipe for a mechanism of `MECHANISMS` and a source of `SOURCES`. `data`: a block instead of the
    source's own. `file`: the name of its file, which its first comment repeats; by default that of the recipe.
    """
    file = file or f"{name}.yaml"
    shown = shlex.quote(file) if file.isprintable() else "RECIPE"  # a comment is one line
    data = data or DATA[source].replace(" &TRAIN", TABLE.format(source=source, suffix=SUFFIXES.get(source, source)))
    return HEAD.format(name=name, file=shown) + STARTERS[mechanism].starter_text(source, data)


BATCHES = 8
"""Steps of a pass over a small sample."""


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("recipe.yaml"),
    mechanism: Annotated[str, typer.Option(help=join_with_or(MECHANISMS))] = MECHANISMS[0],
    data: Annotated[str, typer.Option(help="digits, idx, csv, parquet, json_lines or npz")] = "digits",
    sample: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Draft the data block from a CSV, JSON lines, Parquet or NumPy file."
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="FILE is a public sample: also draft ranges and categories.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="FILE is private: draft names and kinds, with blanks to fill in.")
    ] = False,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column of FILE.")] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of FILE that names who is protected.")
    ] = None,
) -> None:
    """Writes a starter recipe, or with `sample` one whose data block is drafted from that file; never overwrites.

    Raises:
        UsageFault: the mechanism or the source is unknown, the path exists or can't be written, or an option about a
            file is given without one; see `init_from`.
        DataFault, PlanRefused: see `init_from`.
    """
    if sample is not None:
        init_from(path, mechanism, sample, public, private, label, unit)
        return
    if public or private or label or unit:
        raise UsageFault("--public, --private, --label and --unit are about a file", "name it: --from FILE")
    for value, known, noun in ((mechanism, MECHANISMS, "mechanism"), (data, SOURCES, "data source")):
        if value not in known:
            raise UsageFault(f"there is no starter for the {noun} {value}", f"choose one of {', '.join(known)}")
    _write(path, make_starter(mechanism, data, make_name(path), file=path.name))
    write_output([f"wrote {path}; next: dprecipe validate {shlex.quote(str(path))}"])


def init_from(
    path: Path,
    mechanism: str,
    file: Path,
    public: bool,
    private: bool,
    label: str | None = None,
    unit: str | None = None,
) -> None:
    """Writes a recipe whose data block is drafted from a file; never overwrites.

    Raises:
        UsageFault: it is not said whether the file is public; the label is not named; see `init`.
        DataFault: the file can't be read.
        PlanRefused: a policy above the recipe names the file that is called public.
    """
    from dprecipe.data.files import data_root
    from dprecipe.data.sample_files import MAX_ROWS, PRIVATE_ROWS, Arrays, read_sample
    from dprecipe.policy.apply import enforce_on_sample
    from dprecipe.recipe.draft import Asked, draft_data

    if public == private:
        raise UsageFault(
            "ranges and categories that are read off private records are a release that nobody accounts for",
            "say what the file is: --public, a sample that may be published; or --private, and the draft has names and "
            "kinds alone, with blanks to be filled in by hand",
        )
    known = table.MECHANISMS
    drafted = [kind for kind in MECHANISMS if known[kind].can_split and not known[kind].has_student]
    if mechanism not in drafted:
        raise UsageFault(f"there is no draft for the mechanism {mechanism}", f"choose one of {', '.join(drafted)}")
    root = data_root(None, path)
    if public:
        enforce_on_sample(file.absolute(), root, path)
    try:
        sample = read_sample(file, MAX_ROWS if public else PRIVATE_ROWS)
    except DataFault as fault:
        raise UsageFault(fault.message, fault.remedy) from None
    source = "npz" if isinstance(sample, Arrays) else sample.source
    declared = Path(os.path.relpath(file, root)).as_posix()
    data = draft_data(sample, Asked(public, declared, label, unit))
    _write(path, _fit_batches(make_starter(mechanism, source, make_name(path), data, path.name), data))
    if private:
        kinds = "" if isinstance(sample, Arrays) else f", and the kind of each by its first {PRIVATE_ROWS} rows"
        names = "names and shapes of its arrays" if isinstance(sample, Arrays) else "names of its columns"
        write_output([f"read off the private file: {names}{kinds}; check that these may be published, as a recipe is"])
    first = "" if public else "fill in each FILL_IN, then "
    write_output([f"wrote {path}; next: {first}dprecipe validate {shlex.quote(str(path))}"])


def _fit_batches(text: str, data: str) -> str:
    """Returns the starter with batches that are smaller than a small sample."""
    size = re.search(r"^  size: (\d+)", data, re.MULTILINE)
    if size is None:
        return text
    largest = max(1, int(size[1]) // BATCHES)
    return re.sub(r"batch_size: (\d+)", lambda found: f"batch_size: {min(int(found[1]), largest)}", text)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageFault(f"{path} already exists", "name another path") from None
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another path") from None


def make_name(path: Path) -> str:
    """Returns a recipe's name from its file's name: characters that a name can't have become `-`."""
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem)
    return cleaned.lstrip("._-")[:100] or "recipe"
