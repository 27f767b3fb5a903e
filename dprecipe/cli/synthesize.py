"""`dprecipe synthesize`: a file of synthetic records that a released language model writes, under its certificate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from dprecipe.cli.generate import open_language_model
from dprecipe.cli.new_file import check_absent, writing_new
from dprecipe.cli.record_files import ENDINGS, FORMULAS, count_formulas, list_texts, open_records
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
    guard_formulas: Annotated[
        bool, typer.Option("--guard-formulas", help="In CSV, put an apostrophe before what spreadsheets would run.")
    ] = False,
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
    formulas = sum(name.startswith(FORMULAS) for name in writer.names)
    with writing_new(out) as draft:
        with open_records(draft, writer.names, columns, guard_formulas=guard_formulas) as file:
            records = _draw(writer, wanted, (max_tokens, temperature, top_p), seed, progress)
            while chunk := list(itertools.islice(records, CHUNK)):
                formulas += count_formulas(chunk, texts)
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
        done = "an apostrophe stands before each" if guarded else "--guard-formulas puts an apostrophe before each"
        lines.append(f"fields that a spreadsheet would take for formulas: {formulas:,} ({done})")
    write_note(*lines)
