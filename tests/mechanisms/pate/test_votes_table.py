"""Votes in CSV and Parquet: the counts of the same votes in NumPy, and an answer to every way they can be wrong."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.sources import read_csv
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate.schema import VotesFile
from dprecipe.mechanisms.pate.votes_file import Expected, read, read_columns

COUNTS = [[5, 0, 0], [0, 4, 1], [1, 2, 2], [0, 0, 5]]
LABELS = [[0, 0, 0, 0, 0], [1, 1, 2, 1, 1], [0, 1, 2, 1, 2], [2, 2, 2, 2, 2]]
NAMES = ("cat", "dog", "bird")
TEACHERS = [f"t{number}" for number in range(5)]
Rows = Sequence[Sequence[object]]


def write(folder: Path, form: str, header: Sequence[str], rows: Rows) -> Path:
    path = folder / f"votes.{form}"
    if form == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = list(zip(*rows, strict=True)) or [()] * len(header)
        pq.write_table(pa.Table.from_arrays([pa.array(list(c)) for c in columns], names=list(header)), path)
        return folder
    lines = [",".join(map(str, row)) for row in (header, *rows)]
    content = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(content) if form == "csv.gz" else content)
    return folder


def votes(folder: Path, form: str, names: tuple[str, ...] | None = None, rows: int = 4, **fields: Any) -> Any:
    of_public = fields.pop("of_public", True)
    return read(VotesFile(path=f"votes.{form}", **fields), folder, Expected(rows, 5, 3, names, of_public)).tolist()


FORMS = pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet"])


@FORMS
def test_a_table_of_counts_or_labels_holds_the_same_votes(form: str, tmp_path: Path) -> None:
    assert votes(write(tmp_path, form, "abc", COUNTS), form) == COUNTS
    assert votes(write(tmp_path, form, TEACHERS, LABELS), form) == COUNTS


@FORMS
def test_columns_that_are_named_as_the_classes_may_stand_in_any_order(form: str, tmp_path: Path) -> None:
    turned = [row[::-1] for row in COUNTS]
    assert votes(write(tmp_path, form, NAMES[::-1], turned), form, NAMES) == COUNTS
    assert votes(write(tmp_path, form, ["2", "1", "0"], turned), form) == COUNTS
    from_one = [[row[2], row[0], row[1]] for row in COUNTS]
    assert votes(write(tmp_path, form, ["3", "1", "2"], from_one), form) == COUNTS
    with pytest.raises(DataFault, match="its columns are not named as the classes") as caught:
        votes(write(tmp_path, form, "abc", COUNTS), form, NAMES)
    assert caught.value.private == "its columns are 'a', 'b', 'c'"
    assert "'cat', 'dog', 'bird'" in caught.value.remedy


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        (["4.0", "1", "0"], COUNTS),
        (["4", "1", "x"], COUNTS),
        (["0", "0", "1", "1", "2"], LABELS),
        (["1.0", "0", "0", "1", "1"], LABELS),
        (["cat", "dog", "dog", "cat", "bird"], [[NAMES[label] for label in row] for row in LABELS]),
    ],
)
def test_a_first_row_of_votes_is_no_header_and_is_not_told(header: list[str], rows: Rows, tmp_path: Path) -> None:
    for names in (None, NAMES):
        with pytest.raises(DataFault, match="first line seems to hold votes") as caught:
            votes(write(tmp_path, "csv", header, rows), "csv", names)
        assert "4" not in caught.value.message + caught.value.remedy
    with pytest.raises(DataFault, match="first line seems to hold votes"):
        read_columns(VotesFile(path="votes.csv"), tmp_path / "votes.csv")


@FORMS
def test_labels_may_be_names_of_classes(form: str, tmp_path: Path) -> None:
    named = [[NAMES[label] for label in row] for row in LABELS]
    assert votes(write(tmp_path, form, TEACHERS, named), form, NAMES) == COUNTS


@FORMS
def test_rows_are_selected(form: str, tmp_path: Path) -> None:
    folder = write(tmp_path, form, "abc", [*COUNTS[:1], *COUNTS, *COUNTS[:2]])
    assert votes(folder, form, records=(1, 5)) == COUNTS
    assert votes(folder, form, records=(1, 6), of_public=False) == COUNTS
    assert votes(folder, form, of_public=False) == [*COUNTS[:1], *COUNTS[:3]]
    with pytest.raises(DataFault, match="does not have a row for each of the 4 records"):
        votes(folder, form)
    with pytest.raises(DataFault, match="a row for each of the 8 queries") as caught:
        votes(folder, form, rows=8, of_public=False)
    assert caught.value.private.startswith("7 rows")


@FORMS
@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("abc", [[5, 0, 0], [-1, 3, 3], *COUNTS[2:]], "no count of teachers; .*(line 3|row 1), column 'a' holds"),
        ("abc", [*COUNTS[:3], [0, 6, 0]], "no count of teachers; .*(line 5|row 3), column 'b' holds"),
        ("abc", [*COUNTS[:3], [0, 4, 0]], "votes of 5 teachers; .*(line 5|row 3) has 4; 1 of 4"),
        (
            "abc",
            [[2.5, 2.5, 0.0], *COUNTS[1:]],
            "no count of teachers; .*line 2, column 'a'|'a' holds double, expected",
        ),
        ("abc", [["five", "0", "0"]] * 4, "no count of teachers; .*line 2, column 'a'|'a' holds string, expected"),
        (TEACHERS, [*LABELS[:3], [3, 0, 0, 0, 0]], "no label of a class; .*(line 5|row 3), column 't0' holds"),
        (["id", *"abc"], [[0, *row] for row in COUNTS], r"has 4 columns, expected 3 \(counts of each class\) or 5"),
        (TEACHERS, [*LABELS[:3], [0, 0, -5, 0, 0]], "no label of a class; .*(line 5|row 3), column 't2' holds"),
        (["5", "0", "0"], COUNTS, "first line seems to hold votes|column '0' stands twice|first line"),
        ("abc", [], "does not have a row for each"),
    ],
)
def test_what_is_no_votes_is_refused(form: str, header: Any, rows: Rows, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataFault) as caught:
        votes(write(tmp_path, form, header, rows), form)
    assert re.search(message, f"{caught.value.message}; {caught.value.private}")
    assert caught.value.remedy
    assert not re.search(r"(row|line) [0-9]", caught.value.message)


def test_an_empty_cell_is_no_vote(tmp_path: Path) -> None:
    with pytest.raises(DataFault) as caught:
        votes(write(tmp_path, "csv", "abc", [*COUNTS[:3], ["", 0, 5]]), "csv")
    assert caught.value.private == "line 5, column 'a' holds nothing"


@FORMS
def test_a_damaged_or_missing_file_is_named(form: str, tmp_path: Path) -> None:
    with pytest.raises(DataFault, match="no such data file"):
        votes(tmp_path, form)
    (tmp_path / f"votes.{form}").write_bytes(b"")
    with pytest.raises(DataFault, match="is empty"):
        votes(tmp_path, form)
    (tmp_path / f"votes.{form}").write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(DataFault):
        votes(tmp_path, form)


def test_rows_after_the_selected_ones_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, "csv", "abc", [*COUNTS, ["no", "such", "votes"]])
    assert votes(folder, "csv", records=(0, 4)) == COUNTS
    monkeypatch.setattr(read_csv, "MAX_LINE_BYTES", 4)
    with pytest.raises(DataFault, match="a line or a row is longer"):
        votes(folder, "csv", records=(0, 4))


@FORMS
def test_many_rows(form: str, tmp_path: Path) -> None:
    counts = np.random.default_rng(0).multinomial(5, [0.5, 0.3, 0.2], size=9000).tolist()
    assert votes(write(tmp_path, form, "abc", counts), form, rows=9000) == counts
