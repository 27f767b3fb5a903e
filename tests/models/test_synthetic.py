"""Synthetic records: what counts as one, what is told of the others, and when waiting is hopeless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from dprecipe.faults import RunFailed, UsageFault  # noqa: E402
from dprecipe.models.language_model import (  # noqa: E402
    LanguageModel,
    WrittenText,
    load_language_model,
)
from dprecipe.models.synthetic import TRIED, UNFINISHED, RecordWriter  # noqa: E402
from tests.languages import SPAM, write_release  # noqa: E402

USUAL = (None, 1.0, 1.0)


def writer_of(folder: Path, monkeypatch: pytest.MonkeyPatch, texts: Any = None, **keys: Any) -> RecordWriter:
    """A writer of a tiny release; with `texts`, the model writes these again and again."""
    write_release(folder / "release", **keys)
    model = load_language_model(folder / "release")
    if texts is not None:

        def write(self: LanguageModel, start: Any, count: int, *_: Any) -> list[WrittenText]:
            return [WrittenText(text, len(text), True) for text in (texts * count)[:count]]

        monkeypatch.setattr(LanguageModel, "write", write)
    return RecordWriter(model)


def write(writer: RecordWriter, count: int, value: str | None = None) -> list[Any]:
    return list(writer.write(count, USUAL, torch.Generator().manual_seed(0), value))


def test_rows_are_read_back_and_others_rejected_with_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" spam\ntext: win a\\nprize", " eggs\ntext: hi", " ham", " ham\ntext: ok\nmore: x"]
    writer = writer_of(tmp_path, monkeypatch, texts, **SPAM)
    assert write(writer, 3) == [{"label": "spam", "text": "win a\nprize"}] * 3
    assert (writer.tally.accepted, writer.tally.written) == (16, 64)
    assert sum(writer.tally.rejected.values()) == 48
    assert "16 of 64 texts accepted (25.0%)" in writer.tally.describe()


def test_a_value_is_written_before_the_model_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(tmp_path, monkeypatch, [" hello"], **SPAM)
    assert write(writer, 2, "ham") == [{"label": "ham", "text": "hello"}] * 2
    with pytest.raises(UsageFault, match="no column of ham, spam that can be 'eggs'"):
        write(writer, 1, "eggs")


def test_truth_values_are_the_words_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"paid": {"kind": "boolean", "values": ("no", "yes")}, "age": {"kind": "integer", "min": 0, "max": 99}}
    writer = writer_of(tmp_path, monkeypatch, [" yes\nage: 7"], columns=columns, step={"row": ("paid", "age")})
    assert write(writer, 1) == [{"paid": "yes", "age": 7}]
    assert writer.values == ("no", "yes")


def test_it_stops_where_hardly_anything_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(tmp_path, monkeypatch, [" spam"], **SPAM)
    with pytest.raises(RunFailed, match=f"0 of {TRIED + 24:,} texts accepted"):
        write(writer, 1)


def test_free_text_is_one_column_and_a_text_without_its_end_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(tmp_path, monkeypatch)  # random weights end a text with a share near 1/33 a token
    records = write(writer, 5)
    assert [list(record) for record in records] == [["text"]] * 5
    assert set(writer.tally.rejected) <= {UNFINISHED, "empty"}
    assert writer.values is None
    with pytest.raises(UsageFault, match="no column with declared values"):
        write(writer, 1, "spam")


def test_conversations_are_no_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageFault, match="conversations"):
        writer_of(
            tmp_path,
            monkeypatch,
            columns={"chat": {"kind": "chat"}},
            step={"chat": "chat", "roles": {"user": ("<user>", ""), "assistant": ("<bot>", "\n")}},
        )


def progress_of(writer: RecordWriter) -> Iterator[int]:
    seen: list[int] = []
    list(writer.write(70, USUAL, torch.Generator().manual_seed(0), None, seen.append))
    return iter(seen)


def test_progress_counts_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(tmp_path, monkeypatch, [" ham\ntext: ok"], **SPAM)
    assert list(progress_of(writer)) == [64, 70]
