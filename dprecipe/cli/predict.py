"""`dprecipe predict`: what a released model says of the records of a file."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, final

import numpy as np
import typer
from numpy.typing import NDArray

from dprecipe import screen
from dprecipe.cli.arguments import NoVerify, PublicKey, ReleasePath
from dprecipe.cli.files import check_absent, verify_release, writing_new
from dprecipe.data.files import DataFile
from dprecipe.data.images import ImageForm
from dprecipe.data.new_records import ImageFiles, add_images, add_table
from dprecipe.data.problems import Place
from dprecipe.data.targets import SeveralTarget, name_classes
from dprecipe.data.values import Values, as_list
from dprecipe.faults import DataFault, UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.file import ModelFile, find_model_folder
from dprecipe.models.prepare import ROWS, Preparation

if TYPE_CHECKING:
    from dprecipe.models.load import Predicted, Released

PREDICTION = "prediction"
UNPROTECTED = (
    "the certificate protects the records of training, not those of {file}: what is predicted of them is about them"
)


def predict(
    release: ReleasePath,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Records, as CSV or Parquet with a header; or a folder of images.", show_default=False
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="A new .csv or .parquet; by default CSV on standard output.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add a column for each class, with its probability.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="Copy this column of FILE. Repeatable.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="A CSV file that lists the images of a folder.", show_default=False)
    ] = None,
    image_column: Annotated[
        str | None,
        typer.Option(
            help="Image column of a Parquet file [image], or path column of --table [file].", show_default=False
        ),
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV file; by default found in its header.", show_default=False)
    ] = None,
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Verifies the release, then writes a line for each record of a CSV or Parquet file, in its order.

    `out`: CSV or Parquet by its name; CSV on the standard output when None. It appears whole or not at all. `keep`:
    columns of `file`, or of `table`, that are copied to it.

    Raises:
        UsageFault: `out` exists or has another ending, `file` is not there, or torch is not installed.
        CertificateInvalid: the release does not verify; nothing of it was loaded.
        DataFault: the file does not match the recipe, or the model has no probabilities.
    """
    if out is not None:
        check_absent(out)
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageFault(f"{out}: predictions are written as .csv or .parquet", "choose one of them with --out")
    release = find_model_folder(release)
    for path in (file, table):
        if path is not None and not path.exists():
            raise UsageFault(f"{path}: there is no such file", "check the spelling of the path")
    source = DataFile.of(file)
    images = ImageFiles(source, None if table is None else DataFile.of(table), image_column, delimiter)
    check_libraries("predicting", "torch")  # before seconds of verifying
    if not no_verify:
        verify_release(release, public_key)
    with importing_libraries("predicting"):
        from dprecipe.models.load import load

    model = load(release)
    if table is not None and model.file.columns is not None:
        raise UsageFault("--table lists the images of a folder, and the model reads columns", "leave it out")
    if probabilities:
        model.check_probabilities()
    screen.write_note(UNPROTECTED.format(file=source.name))
    with _open_writer(out) as writer:
        answers = Answers(model, writer, tuple(keep or ()), probabilities)
        if model.file.columns is not None:
            add_table(source, answers, answers.preparation.problems, delimiter)
        else:
            form, problems = _image_form(model.file, source), answers.preparation.problems
            add_images(images, form, answers.kept, answers.add_arrays, problems)
        answers.finish()
    _report(answers, out, images.others)


def _image_form(model: ModelFile, file: DataFile) -> ImageForm:
    shape = model.source_shape or ()
    if len(shape) not in (2, 3):
        raise file.fault(
            f"the model takes arrays of shape {list(shape)}, and a file's columns have no order of their own",
            "pass arrays in Python: dprecipe.load_model(release).predict(array)",
        )
    return ImageForm(shape if len(shape) == 3 else (*shape, 1), model.resize)


def _report(answers: Answers, out: Path | None, others: Sequence[str]) -> None:
    """Says what was written, and what was not read. Counts are about the file's records: they are for a terminal."""
    if others:
        count = f" ({len(others):,})" if screen.is_watched() else ""
        screen.write_note(
            f"files of the folder that are no PNG, JPEG or WebP image, by their names, are left out{count}"
        )
    written = "" if out is None else f"wrote {out}"
    if screen.is_watched():
        found = answers.preparation.describe_undeclared(missing=True)
        notes = [f"as training would count them: {'; '.join(found)}"] if found else []
        screen.write_note(*([f"{written}: {answers.preparation.counts.records:,} records"] if written else []), *notes)
    elif written:
        screen.write_note(written)


class Writer(Protocol):
    """A writer of predictions, a chunk of columns at a time; the first call says which columns there are."""

    def write(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None: ...
    def close(self) -> None: ...


@final
class Answers:
    """Takes the rows of a file, a chunk at a time, and writes what the model says of them.

    Memory: one chunk. After a problem rows are only checked, so that all problems are reported at once.
    """

    def __init__(self, model: Released, writer: Writer, keep: tuple[str, ...], probabilities: bool) -> None:
        self.preparation = Preparation(model.file, private=True, tokens=model.tokens)
        self.kept = keep
        self.names = tuple(dict.fromkeys((*self.preparation.names, *keep)))
        self.numeric = self.preparation.numeric - set(keep)  # as the file spells them
        self._model, self._writer, self._probabilities = model, writer, probabilities
        self._columns = _name_columns(model, keep, probabilities)

    def add(self, columns: Mapping[str, Values], rows: int, place: Place) -> None:
        """Predicts rows of a table."""
        features = self.preparation.prepare_columns(columns, rows, place)
        if features is not None:
            self._write(features, columns)

    def add_arrays(self, arrays: NDArray[np.generic], columns: Mapping[str, Values], rows: int) -> None:
        """Predicts images."""
        if not self.preparation.problems.found:
            self._write(self.preparation.prepare_array(arrays), columns)

    def finish(self) -> None:
        """End.

        Raises:
            DataFault: there were problems.
        """
        self.preparation.problems.check()
        if self.preparation.counts.records == 0:
            raise DataFault("the file has no record", "name another file")

    def _write(self, features: NDArray[np.float32], columns: Mapping[str, Values]) -> None:
        parts = [self._model.outputs(features[first : first + ROWS]) for first in range(0, len(features), ROWS)]
        if not parts:
            return
        outputs = np.concatenate(parts)
        values: list[Sequence[Any] | NDArray[Any]] = [as_list(columns[name]) for name in self.kept]
        values.append(_join_names(self._model.decide(outputs), self._model))
        if self._probabilities:
            values += list(self._model.probabilities(outputs).T)
        self._writer.write(dict(zip(self._columns, values, strict=True)))


def _join_names(predicted: Predicted, model: Released) -> Sequence[Any] | NDArray[Any]:
    """Predictions as a column: where any of several names may apply, those that do, with the separator between them."""
    target = model.file.facts.target
    if not isinstance(target, SeveralTarget):
        return predicted
    return [target.separator.join(itertools.compress(name_classes(target), row)) for row in predicted.tolist()]


def _name_columns(model: Released, keep: tuple[str, ...], probabilities: bool) -> list[str]:
    """Returns the columns that are written.

    Raises:
        UsageFault: two have one name.
    """
    classes = model.class_names or tuple(map(str, range(model.file.facts.outputs)))
    names = [*keep, PREDICTION, *(f"probability_{name}" for name in classes if probabilities)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageFault(f"two columns would be called {twice[0]!r}", "leave it out of --keep")
    return names


@final
class CsvWriter:
    """CSV into a stream of text."""

    def __init__(self, stream: io.TextIOBase | None) -> None:
        """`stream`: None is the standard output."""
        self._stream = stream
        self._begun = False

    def write(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Appends rows; before the first, the names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if not self._begun:
            writer.writerow(columns)
            self._begun = True
        lists = [values.tolist() if isinstance(values, np.ndarray) else values for values in columns.values()]
        writer.writerows(zip(*lists, strict=True))
        if self._stream is None:
            screen.show_document(text.getvalue())
        else:
            self._stream.write(text.getvalue())

    def close(self) -> None:
        """Does nothing: the stream is another's."""


@final
class ParquetWriter:
    """Parquet into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> None:
        """Appends rows; a type that a first chunk leaves open (all missing) is text."""
        with importing_libraries("a .parquet file"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        table = pa.table({name: _arrow(pa, values) for name, values in columns.items()})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Writes the footer."""
        if self._writer is not None:
            self._writer.close()


def _arrow(pa: Any, values: Sequence[Any] | NDArray[Any]) -> Any:
    """Predictions and probabilities with their own types; copied columns, whose chunks may differ in type, as text."""
    if isinstance(values, np.ndarray):
        return pa.array(values.tolist() if values.dtype.kind == "U" else values)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


@contextmanager
def _open_writer(out: Path | None) -> Iterator[Writer]:
    """Yields a writer whose file gets its name when the block succeeds."""
    if out is None:
        yield CsvWriter(None)
        return
    with writing_new(out) as draft:
        if out.suffix == ".parquet":
            writer: Writer = ParquetWriter(draft)
            try:
                yield writer
            finally:
                writer.close()
        else:
            with draft.open("x", encoding="utf-8", newline="") as stream:
                yield CsvWriter(stream)
