"""`dprecipe synthesize`: a file of synthetic records that a released language model writes, under its certificate."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TextIO, final

import typer

from dprecipe.cli.arguments import (
    Base,
    Device,
    MaxTokens,
    NoVerify,
    PublicKey,
    ReleasePath,
    Seed,
    Temperature,
    TopP,
)
from dprecipe.cli.files import check_absent, writing_new
from dprecipe.cli.formulas import GUARD_HELP, count_formulas, describe_formulas, guard
from dprecipe.cli.generate import open_language_model
from dprecipe.data.columns import Columns
from dprecipe.faults import UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.file import find_model_folder
from dprecipe.progress import Progress
from dprecipe.release.folder import CERTIFICATE, ENVELOPE
from dprecipe.release.synthetic import describe_synthetic
from dprecipe.release.untrusted import to_bytes
from dprecipe.screen import write_note

if TYPE_CHECKING:
    from dprecipe.models.synthetic import Record, RecordWriter

CHUNK = 256
STATEMENT = ".synthetic.json"
"""The ending of the file that says what the records are."""


def synthesize(
    release: ReleasePath,
    out: Annotated[Path, typer.Option(help="A new .csv, .jsonl or .parquet.", show_default=False)],
    rows: Annotated[int | None, typer.Option(help="Number of records to write.", show_default=False)] = None,
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--count", metavar="VALUE=N", help="Write N records whose first column has this value. Repeatable."
        ),
    ] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 1.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    guard_formulas: Annotated[bool, typer.Option("--guard-formulas", help=GUARD_HELP)] = False,
    compare: Annotated[
        Path | None,
        typer.Option(metavar="PUBLIC", help="Print a comparison with these public records.", show_default=False),
    ] = None,
    base: Base = None,
    device: Device = "auto",
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
) -> None:
    """Verifies the release, then writes `rows` records, or for each `VALUE=COUNT` of `counts` that many whose first
    column has this value. Beside `out`: a copy of the certificate, and a statement that binds the two.

    Raises:
        UsageFault: a number is out of its range, a file exists, the model writes no records, or the device is not
            there.
        CertificateInvalid: the release does not verify; nothing of it was loaded.
        RunFailed: too few of the texts are records, or the disk refuses; nothing is written then.
    """
    wanted = parse_counts(rows, counts or ())
    if out.suffix not in ENDINGS:
        raise UsageFault(f"{out}: records are written as {', '.join(ENDINGS)}", "choose one of them with --out")
    folder = find_model_folder(release)
    proof = next((name for name in (ENVELOPE, CERTIFICATE) if (folder / name).is_file()), CERTIFICATE)
    copy, statement = out.with_name(f"{out.name}.{proof}"), out.with_name(out.name + STATEMENT)
    for path in (out, copy, statement):
        check_absent(path)
    if compare is not None:
        check_libraries("--compare", "sklearn")
    model, verified = open_language_model(release, base, device, check=not no_verify, public_key=public_key)
    with importing_libraries("writing records"):
        from dprecipe.models.synthetic import RecordWriter
    writer = RecordWriter(model)
    total = sum(count for _, count in wanted)
    progress = Progress("synthesize", "record", total)
    columns = model.file.columns or {}
    texts = list_texts(writer.names, columns)
    formulas = count_formulas(writer.names)
    with writing_new(out) as draft:
        with open_records(draft, writer.names, columns, guard_formulas=guard_formulas) as file:
            records = _draw(writer, wanted, (max_tokens, temperature, top_p), seed, progress)
            while chunk := list(itertools.islice(records, CHUNK)):
                formulas += count_formulas(str(record[name]) for record in chunk for name in texts)
                file.write(chunk)
        progress.end(total, writer.tally.describe)
        said = describe_synthetic(folder, verified, draft, out.name, writer, wanted, (temperature, top_p, seed))
        with writing_new(statement) as draft_statement:
            draft_statement.write_bytes(to_bytes(said))
            if verified is not None:
                with writing_new(copy) as draft_copy:
                    draft_copy.write_bytes((folder / proof).read_bytes())
    _report(out, statement, copy if verified is not None else None, writer, formulas, guarded=guard_formulas)
    if compare is not None:
        with importing_libraries("--compare"):
            from dprecipe.cli.resemblance import report_resemblance

        report_resemblance(out, compare, writer.names, writer.values is not None)


def parse_counts(rows: int | None, counts: Sequence[str]) -> list[tuple[str | None, int]]:
    """Reads how many records to write of which value of the first column; None: of any.

    Raises:
        UsageFault: neither or both are given, or a count is no positive number.
    """
    if (rows is None) == (not counts):
        raise UsageFault("say how many records to write", "give --rows N, or --count VALUE=N for each value")
    if rows is not None:
        if rows < 1:
            raise UsageFault(f"{rows} records can't be written", "choose 1 or more with --rows")
        return [(None, rows)]
    wanted: list[tuple[str | None, int]] = []
    for text in counts:
        value, found, number = text.rpartition("=")
        if not found or not (number.isascii() and number.isdigit() and 1 <= len(number) <= 9 and int(number) > 0):
            raise UsageFault(f"--count {text!r} is no VALUE=N with N of 1 or more", "write, say, --count spam=500")
        if value in [other for other, _ in wanted]:
            raise UsageFault(f"--count has {value!r} twice", "write one count for each value")
        wanted.append((value, int(number)))
    return wanted


def _draw(
    writer: RecordWriter,
    wanted: Sequence[tuple[str | None, int]],
    sampling: tuple[int | None, float, float],
    seed: int,
    progress: Progress,
) -> Iterator[Record]:
    with importing_libraries("writing records"):
        import torch

        from dprecipe.models.language_model import check_seed

    generator = torch.Generator().manual_seed(check_seed(seed))
    before = 0
    for value, count in wanted:
        yield from writer.write(count, sampling, generator, value, partial(_show, progress, before, writer))
        before += count


def _show(progress: Progress, before: int, writer: RecordWriter, done: int) -> None:
    progress.show(before + done, writer.tally.describe)


def _report(
    out: Path, statement: Path, copy: Path | None, writer: RecordWriter, formulas: int, *, guarded: bool
) -> None:
    lines = [f"wrote {out}: {writer.tally.describe()}"]
    if copy is None:
        lines.append(f"wrote {statement}: no certificate was checked, so nothing is claimed of these records")
    else:
        lines.append(f"wrote {statement} and {copy}: the records cost nothing beyond the release's own ε")
    if formulas and out.suffix == ".csv":
        lines.append(describe_formulas(formulas, guarded))
    write_note(*lines)


ENDINGS = (".csv", ".jsonl", ".parquet")


class RecordFile(Protocol):
    """Takes records, a chunk at a time."""

    def write(self, records: Sequence[Record]) -> None: ...


@contextmanager
def open_records(
    path: Path, names: Sequence[str], columns: Columns, *, guard_formulas: bool = False
) -> Iterator[RecordFile]:
    """Yields a file of these columns, its form by the ending of `path`. Raises `OSError`."""
    texts = list_texts(names, columns)
    if path.suffix == ".parquet":
        with importing_libraries("a .parquet file"):
            import pyarrow as pa
            import pyarrow.parquet as pq

        types = {"double": pa.float64(), "integer": pa.int64(), "string": pa.string()}
        schema = pa.schema([(name, types[_type_of(columns, name)]) for name in names])
        with pq.ParquetWriter(path, schema) as writer:
            yield _ParquetRecords(writer, schema, texts)
        return
    with path.open("x", encoding="utf-8", newline="") as stream:
        if path.suffix == ".jsonl":
            yield _LineRecords(stream)
            return
        yield _CsvRecords(stream, names, texts if guard_formulas else ())


def list_texts(names: Sequence[str], columns: Columns) -> list[str]:
    """Returns the columns that hold texts; declared values among them, which the recipe's author has chosen."""
    return [name for name in names if _type_of(columns, name) == "string"]


def _type_of(columns: Columns, name: str) -> str:
    kind = getattr(columns.get(name), "kind", "text")
    return {"numeric": "double", "integer": "integer"}.get(kind, "string")


@final
class _CsvRecords:
    """Fields with separators, quotes or line breaks stand in quotes, as RFC 4180 has it."""

    def __init__(self, stream: TextIO, names: Sequence[str], guarded: Collection[str]) -> None:
        self._names, self._guarded = list(names), set(guarded)
        self._writer = csv.writer(stream, lineterminator="\n")
        self._writer.writerow([guard(name) if guarded else name for name in self._names])

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        self._writer.writerows([self._field(record, name) for name in self._names] for record in records)

    def _field(self, record: Mapping[str, Any], name: str) -> Any:
        value = record[name]
        return guard(value) if name in self._guarded else value


@final
class _LineRecords:
    """One object a line, in ASCII."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        self._stream.writelines(json.dumps(dict(record), allow_nan=False) + "\n" for record in records)


@final
class _ParquetRecords:
    """Numbers as numbers, all else as text."""

    def __init__(self, writer: Any, schema: Any, texts: Collection[str]) -> None:
        self._writer, self._schema, self._texts = writer, schema, set(texts)

    def write(self, records: Sequence[Record]) -> None:
        """See `RecordFile`."""
        with importing_libraries("a .parquet file"):
            import pyarrow as pa

        rows = [{k: str(v) if k in self._texts else v for k, v in record.items()} for record in records]
        self._writer.write_table(pa.Table.from_pylist(rows, schema=self._schema))
