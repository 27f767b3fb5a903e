"""`dprecipe synthesize`: a release in, a file of records out, with what says where it is from."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from dprecipe.cli.main import app  # noqa: E402
from dprecipe.cli.synthesize import list_texts, open_records  # noqa: E402
from dprecipe.data.columns import Columns  # noqa: E402
from dprecipe.models.language_model import LanguageModel, WrittenText  # noqa: E402
from dprecipe.release.untrusted import sha256_of  # noqa: E402
from tests.languages import SPAM, write_release  # noqa: E402

TEXTS = ['ham\ntext: ok, "then"', "spam\ntext: =1+1\\nnow", "eggs\ntext: x", "spam\ntext: free"]


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["synthesize", *map(str, arguments), "--no-verify"])


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release whose model writes `TEXTS` again and again."""
    write_release(tmp_path / "release", **SPAM)

    def write(self: LanguageModel, start: Any, count: int, *_: Any) -> list[WrittenText]:
        prompt = self.tokens.decode(start)
        given = prompt.removeprefix("label: ").removesuffix("\ntext:") if "text:" in prompt else None
        texts = (
            f" {text}" if given is None else f" {text.partition('text: ')[2]}"
            for text in TEXTS
            if given is None or text.startswith(given)
        )
        return [WrittenText(text, 5, True) for text in (list(texts) * count)[:count]]

    monkeypatch.setattr(LanguageModel, "write", write)
    return tmp_path / "release"


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def read_parquet(path: Path) -> list[dict[str, str]]:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    rows: list[dict[str, str]] = parquet.read_table(path).to_pylist()
    return rows


def read_lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("ending", "read"), [("csv", read_csv), ("jsonl", read_lines), ("parquet", read_parquet)])
def test_every_form_holds_the_same_records(
    release: Path, tmp_path: Path, ending: str, read: Callable[[Path], list[dict[str, str]]]
) -> None:
    out = tmp_path / f"made.{ending}"
    done = call(release, "--rows", 4, "--out", out)
    assert done.exit_code == 0, done.output
    assert read(out) == [
        {"label": "ham", "text": 'ok, "then"'},
        {"label": "spam", "text": "=1+1\nnow"},
        {"label": "spam", "text": "free"},
        {"label": "ham", "text": 'ok, "then"'},
    ]
    assert "48 of 64 texts accepted (75.0%)" in done.stderr
    assert ("would take for formulas: 1 " in done.stderr) == (ending == "csv")


def test_the_statement_binds_file_and_release(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.csv"
    assert call(release, "--count", "spam=3", "--count", "ham=1", "--out", out, "--seed", 9).exit_code == 0
    assert [row["label"] for row in read_csv(out)] == ["spam"] * 3 + ["ham"]
    said = json.loads((tmp_path / "made.csv.synthetic.json").read_text())
    assert said["file"] == {"name": "made.csv", "digest": sha256_of(out), "records": 4, "columns": ["label", "text"]}
    assert said["generation"]["by_value"] == {"spam": 3, "ham": 1}
    assert said["generation"]["seed"] == 9
    assert said["release"]["weights"] == {"model.safetensors": sha256_of(release / "model.safetensors")}
    assert said["claim"] is None
    assert "nothing is claimed" in said["cost"]
    assert sorted(path.name for path in tmp_path.glob("made*")) == ["made.csv", "made.csv.synthetic.json"]


def test_formulas_can_be_guarded(release: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.csv"
    assert call(release, "--rows", 2, "--out", out, "--guard-formulas").exit_code == 0
    assert read_csv(out)[1]["text"] == "'=1+1\nnow"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "say how many"),
        (("--rows", 1, "--count", "ham=1"), "say how many"),
        (("--rows", 0), "0 records"),
        (("--count", "ham"), "no VALUE=N"),
        (("--count", "ham=0"), "no VALUE=N"),
        (("--count", "ham=1", "--count", "ham=2"), "twice"),
        (("--count", "eggs=1"), "no column of ham, spam that can be 'eggs'"),
        (("--rows", 1, "--temperature", "nan"), "the temperature"),
        (("--rows", 1, "--device", "tpu"), "'tpu' is none of auto"),
    ],
)
def test_wrong_use_is_told_and_leaves_nothing(
    release: Path, tmp_path: Path, flags: tuple[object, ...], message: str
) -> None:
    done = call(release, "--out", tmp_path / "made.csv", *flags)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not list(tmp_path.glob("*made*"))


def test_nothing_is_overwritten_and_other_endings_are_refused(release: Path, tmp_path: Path) -> None:
    (tmp_path / "made.csv.synthetic.json").write_text("kept")
    assert "exists" in call(release, "--rows", 1, "--out", tmp_path / "made.csv").stderr
    assert "choose one of them" in call(release, "--rows", 1, "--out", tmp_path / "made.xlsx").stderr
    assert (tmp_path / "made.csv.synthetic.json").read_text() == "kept"


def test_records_are_compared_with_public_ones_alone(release: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    public = tmp_path / "public.csv"
    with public.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["label", "text"])
        writer.writerows(
            [["spam", f"free prize {n}"] for n in range(6)] + [["ham", f"ok see you {n}"] for n in range(9)]
        )
    done = call(release, "--rows", 9, "--out", tmp_path / "made.csv", "--compare", public)
    assert done.exit_code == 0, done.output
    assert "beside 15 public records" in done.stderr
    assert "the most frequent value is 60.0%" in done.stderr
    assert "trained on public ones 100.0%" in done.stderr


def test_declared_words_that_are_formulas_are_counted_and_guarded(tmp_path: Path) -> None:
    """Whoever made a release has chosen its columns and their values."""
    columns = TypeAdapter(Columns).validate_python({"=a": {"kind": "category", "values": ("-1", "-x")}})
    assert list_texts(["=a"], columns) == ["=a"]
    with open_records(tmp_path / "made.csv", ["=a"], columns, guard_formulas=True) as file:
        file.write([{"=a": "-1"}, {"=a": "-x"}])
    assert (tmp_path / "made.csv").read_text() == "'=a\n-1\n'-x\n"


def test_nothing_is_written_into_a_release(release: Path) -> None:
    (release / "certificate.json").write_text("{}")
    before = sorted(release.iterdir())
    done = call(release, "--rows", 1, "--out", release / "made.csv")
    assert done.exit_code == 2
    assert "is a release" in done.stderr
    assert sorted(release.iterdir()) == before
