"""`dprecipe predict`: what a released model says of the records of files."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import numpy as np
import typer
from numpy.typing import NDArray

from dprecipe import screen
from dprecipe.cli.arguments import NoVerify, PublicKey, ReleasePath
from dprecipe.cli.files import verify_release
from dprecipe.cli.formulas import GUARD_HELP, describe_formulas
from dprecipe.cli.new_files import NewFiles, check_given, open_new_records, read_training_data
from dprecipe.cli.prediction_files import Columns, Writer, check_out, open_writer
from dprecipe.data.new_arrays import NewArrays
from dprecipe.data.new_records import NewRecords
from dprecipe.data.problems import NotedPlaces, Place, Problems
from dprecipe.data.targets import SeveralTarget, name_classes
from dprecipe.data.values import Values, as_list
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.file import find_model_folder
from dprecipe.models.prepare import ROWS, Preparation
from dprecipe.progress import LateProgress

if TYPE_CHECKING:
    from dprecipe.data.schema import Data
    from dprecipe.models.load import Predicted, Released

PREDICTION = "prediction"
UNPROTECTED = (
    "the certificate protects the records of training, not those of {file}: what is predicted of them is about them"
)
ALLOW = "--allow-unreadable leaves the prediction of such a record empty, and so shows which they are"


def predict(
    release: ReleasePath,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Records: CSV, JSON lines, Parquet, .npz, IDX, folders of images; or TABLE=FILE, for its query.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="A new .csv, .jsonl or .parquet; by default CSV on standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for each class, with its probability.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Copy this column. Repeatable. [the unit's; an image's file]", show_default=False
        ),
    ] = None,
    allow_unreadable: Annotated[
        bool, typer.Option("--allow-unreadable", help="Leave the prediction of a record that can't be read empty.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(help="A CSV file that lists the images of a folder.", show_default=False)
    ] = None,
    image_column: Annotated[
        str | None,
        typer.Option(help="Image column of a Parquet file, or path column of --table.", show_default=False),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file; by default found in its header.", show_default=False)
    ] = None,
    guard_formulas: Annotated[bool, typer.Option("--guard-formulas", help=GUARD_HELP)] = False,
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Verifies the release, then writes a line for each record of the files, in their order.

    `out`: CSV, JSON lines or Parquet by its name; CSV on the standard output when None. It appears whole or not at all.
    `keep`: columns of `files`, or of `table`, that are copied to it; when None, the column of the unit of training,
    where the files have it, and of images their files.

    Raises:
        UsageFault: `out` exists or has another ending, a file is not there, or torch is not installed.
        CertificateInvalid: the release does not verify; nothing of it was loaded.
        DataFault: a file does not match the recipe, or the model has no probabilities.
    """
    check_out(out)
    release = find_model_folder(release)
    named = NewFiles(files, table, image_column, delimiter)
    check_given(named)
    check_libraries("predicting", "torch")  # before seconds of verifying
    verified = None if no_verify else verify_release(release, public_key)
    with importing_libraries("predicting"):
        from dprecipe.models.load import load

    model = load(release)
    if probabilities:
        try:
            model.check_probabilities()
        except DataFault as fault:
            raise DataFault(fault.message, "leave out --probabilities") from None
    data = read_training_data(release, verified)
    records = open_new_records(named, model.file, data)
    kept = tuple(_choose_kept(records, data) if keep is None else keep)
    screen.write_note(UNPROTECTED.format(file=files[0].name if len(files) == 1 else "these files"))
    with open_writer(out, guard_formulas) as writer:
        is_shown = out is not None or not screen.is_output_watched()
        answers = Answers(model, writer, kept, probabilities, allow_unreadable, is_shown)
        records.read(answers)
        answers.finish()
    if writer.formulas:
        screen.write_note(describe_formulas(writer.formulas if screen.is_watched() else None, guard_formulas))
    _report(answers, out, records.others if isinstance(records, NewArrays) else ())


def _choose_kept(records: NewRecords, data: Data | None) -> list[str]:
    """Chooses the columns that say which record a line is about: of those that the files have."""
    wanted = [records.path_column] if isinstance(records, NewArrays) else []
    if data is not None and data.unit != "record":
        wanted.append(data.unit.column)
    wanted = [name for name in dict.fromkeys(wanted) if name != PREDICTION and not name.startswith(f"{PROBABILITY}_")]
    present = records.list_columns() if wanted else ()
    return [name for name in wanted if name in present]


def _report(answers: Answers, out: Path | None, others: Sequence[str]) -> None:
    """Says what was written, and what was not read. Counts are about the files' records: they are for a terminal."""
    is_watched = screen.is_watched()
    if others:
        count = f" ({len(others):,})" if is_watched else ""
        screen.write_note(
            f"files of the folder that are no PNG, JPEG or WebP image, by their names, are left out{count}"
        )
    if answers.unreadable.found:
        lines = [
            f"  {fault.message}" + (f" ({fault.private})" if is_watched and fault.private else "")
            for fault in answers.unreadable.list_faults()
        ]
        count = f" ({answers.empty:,})" if is_watched else ""
        screen.write_note(f"records that can't be read have an empty prediction{count}:", *lines)
    written = "" if out is None else f"wrote {out}"
    if is_watched:
        found = answers.preparation.describe_undeclared(missing=True)
        notes = [f"as training would count them: {'; '.join(found)}"] if found else []
        screen.write_note(*([f"{written}: {answers.preparation.counts.records:,} records"] if written else []), *notes)
    elif written:
        screen.write_note(written)


@final
class Answers:
    """Takes the records of files, a chunk at a time, and writes what the model says of them.

    Memory: one chunk. A record that can't be read is a problem, after which records are only checked, so that all
    problems are reported at once; if such records are allowed, their predictions are empty.
    """

    def __init__(
        self,
        model: Released,
        writer: Writer,
        keep: tuple[str, ...],
        probabilities: bool,
        allow_unreadable: bool = False,
        is_shown: bool = True,
    ) -> None:
        """`is_shown`: progress may be shown, which predictions in the same terminal would cut."""
        self.preparation = Preparation(model.file, private=True, tokens=model.tokens, lenient=allow_unreadable)
        self.unreadable = self.preparation.problems
        self.problems = Problems(private=True, finished=True) if allow_unreadable else self.unreadable
        self.kept = keep
        self.names = tuple(dict.fromkeys((*self.preparation.names, *keep)))
        self.numeric = self.preparation.numeric - set(keep)  # as the file spells them
        self.empty = 0
        """Number of records that can't be read."""
        self._model, self._writer, self._probabilities, self._lenient = model, writer, probabilities, allow_unreadable
        self._columns = _name_columns(model, keep, probabilities)
        self._progress = LateProgress("predicting", "record", None, private=True) if is_shown else None

    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None:
        """Predicts rows of a table."""
        noted = NotedPlaces(place)
        features = self.preparation.prepare_columns(columns, rows, noted)
        self.empty += len(noted.rows)
        if features is not None:
            self._write(features, columns, noted.rows)

    def add_arrays(
        self, arrays: NDArray[np.generic], columns: Mapping[str, Values], unreadable: Collection[int]
    ) -> None:
        """Predicts images or arrays; those in the places `unreadable` stand for none."""
        self.empty += len(unreadable)
        if self._lenient or not self.problems.found:
            self._write(self.preparation.prepare_array(arrays), columns, unreadable)

    def finish(self) -> None:
        """End.

        Raises:
            DataFault: there were problems, or no record that can be read.
        """
        count = self.preparation.counts.records
        if self._progress is not None:
            self._progress.end(count)
        try:
            self.problems.check()
        except DataFault as fault:
            if not self.empty:
                raise
            remedy = f"{fault.remedy}; or allow it: {ALLOW}" if fault.remedy else f"or allow them: {ALLOW}"
            raise DataFault(fault.message, remedy, fault.private) from None
        if count == 0:
            raise DataFault("the file has no record", "name another file")
        if self.empty == count:
            self.unreadable.check()

    def _write(self, features: NDArray[np.float32], columns: Mapping[str, Values], unreadable: Collection[int]) -> None:
        parts = [self._model.outputs(features[first : first + ROWS]) for first in range(0, len(features), ROWS)]
        if not parts:
            return
        outputs = np.concatenate(parts)
        if not np.isfinite(outputs).all():
            raise DataFault(
                "what the model computes is no number: its weights are damaged, or were when training ended",
                "ask for another release",
            )
        answers: list[NDArray[Any]] = [_join_names(self._model.decide(outputs), self._model)]
        if self._probabilities:
            answers += list(self._model.probabilities(outputs).T)
        if unreadable:
            mask = np.isin(np.arange(len(features)), list(unreadable))
            answers = [np.ma.MaskedArray(answer, mask) for answer in answers]
        copied = [as_list(columns[name]) for name in self.kept]
        written: Columns = dict(zip(self._columns, [*copied, *answers], strict=True))
        self._writer.write(written)
        if self._progress is not None:
            self._progress.show(self.preparation.counts.records)


PROBABILITY = "probability"


def _join_names(predicted: Predicted, model: Released) -> NDArray[Any]:
    """Predictions as a column: where any of several names may apply, those that do, with the separator between them."""
    target = model.file.facts.target
    if not isinstance(target, SeveralTarget):
        return predicted
    joined = [target.separator.join(itertools.compress(name_classes(target), row)) for row in predicted.tolist()]
    return np.array(joined, np.object_)


def _name_columns(model: Released, keep: tuple[str, ...], probabilities: bool) -> list[str]:
    """Returns the columns that are written.

    Raises:
        UsageFault: two have one name.
    """
    classes = model.class_names or tuple(map(str, range(model.file.facts.outputs)))
    names = [*keep, PREDICTION, *(f"{PROBABILITY}_{name}" for name in classes if probabilities)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageFault(f"two columns would be called {twice[0]!r}", "leave it out of --keep")
    return names
