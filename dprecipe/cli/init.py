"""`dprecipe init`: a commented starter recipe that validates, with example columns or with those of a file."""

from __future__ import annotations

import itertools
import math
import os
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dprecipe.cli.completion import complete_gallery, complete_words
from dprecipe.contract.starter import Task
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import DataFault, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.recipe.starters import LABELS, MECHANISMS, SOURCES, STATEMENT, make_head, make_starter
from dprecipe.screen import ask_line, can_ask, write_output

if TYPE_CHECKING:
    from dprecipe.data.files import DataFile


def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("recipe.yaml"),
    mechanism: Annotated[
        str, typer.Option(help=join_with_or(MECHANISMS), autocompletion=complete_words(*MECHANISMS))
    ] = MECHANISMS[0],
    data: Annotated[
        str, typer.Option(help="digits, idx, csv, parquet, json_lines or npz", autocompletion=complete_words(*SOURCES))
    ] = "digits",
    sample: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Draft the data block from a CSV, JSON lines, Parquet or NumPy file, or a 'pattern' of files.",
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="FILE is a public sample: also draft ranges and categories.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="FILE is private: draft names and kinds, with blanks to fill in.")
    ] = False,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column of FILE.")] = None,
    label_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help=f"What the label of a private FILE is: {', '.join(LABELS)}.",
            autocompletion=complete_words(*LABELS),
        ),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of FILE that identifies who is protected.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", help="The budget; a draft's steps follow from it. (a mechanism's usual one)"),
    ] = None,
    no_input: Annotated[
        bool, typer.Option("--no-input", help="Do not ask questions, even in a terminal; with --private, leave blanks.")
    ] = False,
    listed: Annotated[bool, typer.Option("--list", help="List recipes to begin from.")] = False,
    like: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Start from this recipe (--list shows the names).",
            show_default=False,
            autocompletion=complete_gallery,
        ),
    ] = None,
) -> None:
    """Writes a starter recipe, or with `sample` one whose data block is drafted from that file, or with `like` a recipe
    of the gallery, which `listed` prints; never overwrites.

    Raises:
        UsageFault: the mechanism or the source is unknown, the path exists or can't be written, an option about a file
            is given without one, or ε is no positive number; see `init_from`.
        DataFault, PlanRefused: see `init_from`.
    """
    if epsilon is not None and not 0 < epsilon < math.inf:
        raise UsageFault(f"--epsilon is {epsilon:g}, and no budget", "name a number above 0")
    if listed or like is not None:
        if sample is not None or (listed and like is not None):
            raise UsageFault("--list, --like and --from are three ways to begin", "choose one")
        if epsilon is not None:
            raise UsageFault("--epsilon is about a new recipe", "leave it out, and change budget.epsilon in the copy")
        from dprecipe.cli.gallery import copy_recipe, show_gallery

        if like is None:
            write_output(show_gallery())
            return
        _write(path, copy_recipe(like, make_name(path)))
        write_output([f"wrote {path}; next: dprecipe validate {shlex.quote(str(path))}"])
        return
    if sample is not None:
        asks = can_ask() and not no_input
        init_from(path, mechanism, sample, public, private, label, unit, epsilon, label_kind=label_kind, asks=asks)
        return
    if public or private or label or unit or label_kind:
        raise UsageFault(
            "--public, --private, --label, --label-kind and --unit are about a file", "name it: --from FILE"
        )
    for value, known, noun in ((mechanism, MECHANISMS, "mechanism"), (data, SOURCES, "data source")):
        if value not in known:
            raise UsageFault(f"there is no starter for the {noun} {value}", f"choose one of {', '.join(known)}")
    _write(path, make_starter(mechanism, data, make_name(path), file=path.name, task=Task(epsilon=epsilon)))
    write_output([f"wrote {path}; next: dprecipe validate {shlex.quote(str(path))}"])


def init_from(
    path: Path,
    mechanism: str,
    file: Path,
    public: bool,
    private: bool,
    label: str | None = None,
    unit: str | None = None,
    epsilon: float | None = None,
    *,
    label_kind: str | None = None,
    asks: bool = False,
) -> None:
    """Writes a recipe whose data block is drafted from a file; never overwrites. If it `asks`, a person declares what
    the draft of a private file would leave open. `epsilon`: of the budget; None for the usual one. `label_kind`: one of
    `LABELS`, for a private file.

    Raises:
        UsageFault: it is not said whether the file is public; the label is not named, or its kind is unknown or that of
            a public file; ε is named for a file of votes; see `init`.
        DataFault: the file can't be read.
        PlanRefused: a policy above the recipe names the file that is called public.
    """
    from dprecipe.data.files import data_root
    from dprecipe.data.sample_files import MAX_ROWS, PRIVATE_ROWS, Arrays, read_samples
    from dprecipe.policy.apply import enforce_on_sample
    from dprecipe.recipe.draft import Asked, Declarations, draft_data, find_names
    from dprecipe.recipe.mismatch import BLANK

    if public == private:
        raise UsageFault(
            "ranges and categories that are read off private records are a release that nobody accounts for",
            "say what the file is: --public, a sample that may be published; or --private, and the draft has names and "
            "kinds alone, with blanks to be filled in by hand",
        )
    if label_kind is not None and (public or label_kind not in LABELS):
        why = "is read off a public file" if public else f"can't be {label_kind!r}"
        remedy = "leave out --label-kind" if public else f"choose one of {', '.join(LABELS)}"
        raise UsageFault(f"the kind of the label {why}", remedy)
    if private and _draft_votes(path, mechanism, file, epsilon):
        return
    drafted = [kind for kind in MECHANISMS if mechanism_of(kind).can_split and not mechanism_of(kind).has_student]
    if mechanism not in drafted:
        raise UsageFault(f"there is no draft for the mechanism {mechanism}", f"choose one of {', '.join(drafted)}")
    root = data_root(None, path)
    declared = Path(os.path.relpath(file, root)).as_posix()
    try:
        files = _locate(file, declared, root, path)
        for each in files if public else ():
            enforce_on_sample(each.path.absolute(), root, path)
        sample = read_samples(files, MAX_ROWS if public else PRIVATE_ROWS)
    except DataFault as fault:
        raise UsageFault(fault.message, fault.remedy) from None
    source = "npz" if isinstance(sample, Arrays) else sample.source
    answers = Declarations(label={} if label_kind is None else {label_kind: None})
    if private and asks:
        from dprecipe.cli.ask import ask_answers

        if path.exists():
            raise _taken(path)
        label = label or ask_line("label, the column that is learned: ") or None
        unit = unit or ask_line("column that names who is protected (Enter: each record is one): ") or None
        found, unit = find_names(sample, Asked(public, declared, label, unit))
        answers = ask_answers(sample, found, unit, ask_line, label_kind)
    data = draft_data(sample, Asked(public, declared, label, unit, answers))
    task = replace(data.task, epsilon=epsilon)
    _write(path, make_starter(mechanism, source, make_name(path), data.text, path.name, task, answers.statement))
    if private:
        kinds = "" if isinstance(sample, Arrays) else f", and the kind of each by its first {PRIVATE_ROWS} rows"
        names = "names and shapes of its arrays" if isinstance(sample, Arrays) else "names of its columns"
        write_output([f"read off the private file: {names}{kinds}; a recipe is published, so check that these may be"])
        if unsaid := [key for key in STATEMENT if key not in answers.statement]:
            write_output([_remind(unsaid)])
    first = f"fill in each {BLANK}, then " if f": {BLANK}" in data.text else ""
    write_output([*data.remarks, f"wrote {path}; next: {first}dprecipe validate {shlex.quote(str(path))}"])


def _locate(file: Path, declared: str, root: Path, recipe: Path) -> list[DataFile]:
    """Returns the files that a path or a pattern names, which the recipe writes as `declared`.

    Raises:
        UsageFault: the recipe can't use the pattern, because its files don't lie below the data root.
        DataFault: it matches no file.
    """
    from dprecipe.data.files import DataFile, is_pattern, leaves_root, locate_files

    if file.exists() or not is_pattern(declared):
        return [DataFile.of(file)]
    if leaves_root(declared):
        above = Path(*itertools.takewhile(lambda part: not is_pattern(part), file.parts))
        remedy = f"write the recipe there: dprecipe init {shlex.quote(str(above / recipe.name))}"
        if os.environ.get("DPRECIPE_DATA"):
            remedy = f"set $DPRECIPE_DATA to {above.resolve()}, or to a folder above it"
        raise UsageFault(f"{file}: a pattern matches files below the data root alone, {root}", remedy)
    return locate_files([declared], root)


def _draft_votes(path: Path, mechanism: str, file: Path, epsilon: float | None) -> bool:
    """Writes a recipe for a private file of votes; returns False for a mechanism that has none.

    Raises:
        UsageFault: the file can't be read, or ε is named; see `init`.
    """
    from dprecipe.data.files import data_root
    from dprecipe.recipe.mismatch import BLANK

    declared = Path(os.path.relpath(file, data_root(None, path))).as_posix()
    try:
        draft = mechanism_of(mechanism).draft_votes(file, declared, BLANK) if mechanism in MECHANISMS else None
    except DataFault as fault:
        raise UsageFault(fault.message, fault.remedy) from None
    if draft is None:
        return False
    if epsilon is not None:
        raise UsageFault("nothing of a recipe for votes follows from ε", "leave out --epsilon, and edit budget.epsilon")
    _write(path, make_head(make_name(path), path.name) + draft)
    write_output(
        [
            "read off the private file: names of its columns, or their number; check that they may be published",
            "a row is taken for a query, a column for a class; the draft says what to write if one is a teacher",
            _remind(STATEMENT),
            f"wrote {path}; next: fill in each {BLANK}, then dprecipe validate {shlex.quote(str(path))}",
        ]
    )
    return True


def _remind(unsaid: Iterable[str]) -> str:
    return f"still to be said in release.statement, with which the report begins: {', '.join(unsaid)}"


def _taken(path: Path) -> UsageFault:
    return UsageFault(f"{path} already exists", "name another path")


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise UsageFault(f"{path} can't be written: {error.strerror}", "name another path") from None


def make_name(path: Path) -> str:
    """Returns a recipe's name from its file's name: characters that a name can't have become `-`."""
    cleaned = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in path.stem)
    return cleaned.lstrip("._-")[:100] or "recipe"
