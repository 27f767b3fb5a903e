"""Numbers as people write them: what they are, what is none, and that every source reads them alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprecipe.data.load import read
from dprecipe.data.records import Records
from dprecipe.data.schema import Data
from dprecipe.data.values import CodedTexts, NumberText, parse_numbers
from dprecipe.data.writing import Writing
from dprecipe.faults import DataFault

COMMA, POINT = Writing("comma", ("€", "kg", "kg/m2")), Writing("point", ("€", "kg", "kg/m2"))
BESIDE = Writing(None, ("%", "m", "m2"))
NUMBERS = [
    (COMMA, "13,5", 13.5),
    (COMMA, "1.234,5", 1234.5),
    (COMMA, "1 234,5", 1234.5),
    (COMMA, "1\u00a0234\u00a0567,25", 1234567.25),
    (COMMA, "1'234,5", 1234.5),
    (COMMA, "1.234.567", 1234567),
    (COMMA, "1.234", 1234),
    (COMMA, "1234,5", 1234.5),
    (COMMA, "-,5", -0.5),
    (COMMA, "\u22125", -5),
    (COMMA, "1,5E+03", 1500),
    (COMMA, "€ 12", 12),
    (COMMA, "12 €", 12),
    (COMMA, "-€ 1.234,50", -1234.5),
    (COMMA, "€-12", -12),
    (COMMA, "23,5kg/m2", 23.5),
    (POINT, "1,000", 1000),
    (POINT, "1,234.5", 1234.5),
    (POINT, "1\u202f234.5", 1234.5),
    (POINT, "1.234", 1.234),
    (POINT, "€1,234.50", 1234.5),
    (POINT, "+7", 7),
    (BESIDE, "45%", 45),
    (BESIDE, "12.5 m2", 12.5),
    (BESIDE, "12 m", 12),
    (BESIDE, "1e3", 1000),
]
NONE = [
    (COMMA, "13.5"),
    (COMMA, "1.23.456"),
    (COMMA, "1.2345,6"),
    (COMMA, "1.234 567,8"),
    (COMMA, "0.123"),
    (COMMA, "1,5,5"),
    (COMMA, "12 lb"),
    (COMMA, "-€-12"),
    (COMMA, "€"),
    (COMMA, ","),
    (COMMA, ""),
    (POINT, "13,5"),
    (POINT, "1,23,456"),
    (POINT, "0,123"),
    (POINT, "1.234.5"),
    (POINT, "1e999"),
    (POINT, "nan"),
    (BESIDE, "1,000"),
    (BESIDE, "1 000"),
    (BESIDE, "1_0"),
]


@pytest.mark.parametrize(("writing", "text", "number"), NUMBERS)
def test_numbers(writing: Writing, text: str, number: float) -> None:
    assert writing.parse(text) == number


@pytest.mark.parametrize(("writing", "text"), NONE)
def test_texts_that_are_no_such_number(writing: Writing, text: str) -> None:
    assert writing.parse(text) is None


@pytest.mark.parametrize("text", ["€" + " " * 100_000 + "x", "1 " * 50_000, "1.234" * 20_000, "9" * 100_000])
def test_a_long_text_is_no_number_and_takes_no_time(text: str) -> None:
    assert COMMA.parse(text) is None


@pytest.mark.parametrize("writing", [COMMA, POINT, BESIDE])
def test_a_chunk_is_parsed_like_its_texts(writing: Writing) -> None:
    texts = [text for _, text, _ in NUMBERS] + [text for _, text in NONE]
    expected = [np.nan if number is None else number for number in map(writing.parse, texts)]
    np.testing.assert_array_equal(parse_numbers(texts, writing), expected)
    coded = CodedTexts(texts, np.array([*range(len(texts)), -1]))
    np.testing.assert_array_equal(parse_numbers(coded, writing), [*expected, np.nan])


def test_what_is_a_number_already_stays_one() -> None:
    """A library's decimal is one, though a text of the same letters is another number."""
    values = [1.5, 7, True, None, "1.234", NumberText("1.234"), " 2,5 "]
    np.testing.assert_array_equal(parse_numbers(values, COMMA), [1.5, 7, 1, np.nan, 1234, 1.234, 2.5])
    masked = np.ma.MaskedArray([1.5, 2.5], [False, True])
    np.testing.assert_array_equal(parse_numbers(masked, COMMA), [1.5, np.nan])


ROWS = [("13,5", "45 %", "1.234,50 €"), ("1 234,5", "7%", "€ -12"), ("", "100", "3")]
COLUMNS = {
    "temp": {"kind": "numeric", "min": 0, "max": 2000, "decimal": "comma", "missing": {"fill": 500, "indicator": True}},
    "share": {"kind": "integer", "min": 0, "max": 100, "affixes": ["%"]},
}
LABEL = {"column": "cost", "range": [-1500, 1500], "decimal": "comma", "affixes": ["€"]}
FEATURES = [[13.5 / 2000, 0, 0.45], [1234.5 / 2000, 0, 0.07], [0.25, 1, 1]]
LABELS = [1234.5 / 1500, -12 / 1500, 3 / 1500]


def write_source(kind: str, folder: Path, times: int) -> tuple[dict[str, Any], Any]:
    names, rows = ("temp", "share", "cost"), ROWS * times
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    block: dict[str, Any] = {"source": kind, "path": f"t.{kind}"}
    match kind:
        case "csv":
            lines = [";".join(row) for row in (names, *rows)]
            (folder / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
            block["delimiter"] = ";"
        case "json_lines":
            lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
            (folder / "t.json_lines").write_text("\n".join(lines) + "\n")
        case "parquet":
            pq = pytest.importorskip("pyarrow.parquet")
            pq.write_table(pytest.importorskip("pyarrow").table(columns), folder / "t.parquet")
        case "pandas":
            return {**block, "source": "csv"}, Records.from_pandas(pytest.importorskip("pandas").DataFrame(columns))
    return block, None


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet", "pandas"])
def test_every_source_reads_them(kind: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprecipe.data.sources.read_csv.BLOCK_BYTES", 64)  # blocks of lines, where pyarrow is there
    monkeypatch.setattr("dprecipe.data.sources.csv_blocks.BLOCK_BYTES", 64)
    source, held = write_source(kind, tmp_path, times)
    block = {"train": {**source, "columns": COLUMNS, "label": LABEL}, "size": 3 * times}
    data = Data.model_validate_json(json.dumps(block))
    records, counts = read(data.train, data, tmp_path, "train", held=held)
    np.testing.assert_allclose(records.features, np.array(FEATURES * times), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(records.labels), np.array(LABELS * times), rtol=1e-6)
    assert counts.columns["temp"].missing == times


SAID = {
    "13,5": ("a number with a comma", "decimal: comma"),
    "1,000": ("a number with a comma", "decimal: point; or decimal: comma where"),
    "45%": ("a number with a unit or a currency sign", "affixes: ['kg'], with the text of the file"),
    "€ 1.234,5": ("a number with a unit or a currency sign", "decimal: comma, affixes:"),
    "1 234": ("a number with digits in groups", "decimal: point"),
}


@pytest.mark.parametrize("text", SAID)
def test_a_label_that_is_written_otherwise(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"age;y\n1;1\n2;{text}\n", encoding="utf-8")
    columns = {"age": {"kind": "numeric", "min": 0, "max": 9}}
    train = {"source": "csv", "path": "t.csv", "delimiter": ";", "columns": columns}
    data = {"train": {**train, "label": {"column": "y", "range": [0, 9]}}, "size": 2}
    block = Data.model_validate_json(json.dumps(data))
    with pytest.raises(DataFault) as caught:
        read(block.train, block, tmp_path, "train")
    problem, remedy = SAID[text]
    assert f"a label is {problem}" in caught.value.message
    assert remedy in caught.value.remedy
    assert text not in caught.value.message
