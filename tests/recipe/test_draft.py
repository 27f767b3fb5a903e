"""`dprecipe init --from`, as its user runs it: what is drafted of a public sample fits it, and what is drafted of a
private file holds none of its values."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from dprecipe.cli.main import app
from dprecipe.cli.validate import check
from dprecipe.contract.starter import Task
from dprecipe.contract.table import mechanism_of
from dprecipe.data import sample_files
from dprecipe.data.files import DataFile, locate_files
from dprecipe.data.sample_files import Table, read_sample, read_samples
from dprecipe.faults import DataFault
from dprecipe.planning import rules
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import MECHANISMS, make_starter
from tests.sweeps import sweep

HEADER = ["patient", "age", "lactate", "ward", "admitted", "emergency", "note", "id", "outcome"]
FILLED = {
    "min": "0",
    "max": "120",
    "values": "[a, b]",
    "size": "400",
    "max_records": "4",
    "classes": "2",
    "format": "'%d.%m.%Y'",
}


def make_rows(count: int = 160) -> list[list[str]]:
    draw = random.Random(5)
    return [
        [
            f"P{number // 3}",
            str(draw.randint(18, 97)),
            draw.choice(["1.25", "7.5", "3.75", "<0.5", ""]),
            draw.choice(["surgery", "icu", "Größe: 3, links"]),
            f"{draw.randint(1, 28):02d}.{draw.randint(1, 12):02d}.2021",
            draw.choice(["yes", "no"]),
            " ".join(draw.choices(["fever", "cough", "pain", "fine"], k=4)),
            f"x{number:05d}",
            draw.choice(["home", "died"]),
        ]
        for number in range(count)
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    return tmp_path


def write(kind: str, folder: Path) -> Path:
    rows, file = make_rows(), folder / f"sample.{kind}"
    if kind == "csv":
        file.write_text("\n".join(";".join(row) for row in [HEADER, *rows]) + "\n", encoding="utf-8")
    elif kind == "json_lines":
        lines = [json.dumps({**dict(zip(HEADER, row, strict=True)), "scans": [1, 2]}) for row in rows]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    elif kind == "parquet":
        columns: dict[str, object] = {name: [row[place] for row in rows] for place, name in enumerate(HEADER)}
        columns["age"] = [int(row[1]) for row in rows]
        columns["lactate"] = [None if row[2] in ("", "<0.5") else float(row[2]) for row in rows]
        columns["emergency"] = [row[5] == "yes" for row in rows]
        columns["admitted"] = pa.array([f"2021-{row[4][3:5]}-{row[4][:2]}" for row in rows]).cast(pa.date32())
        columns["scans"] = [[1, 2]] * len(rows)
        pq.write_table(pa.table(columns), file)
    else:
        ids = np.array([int(row[0][1:]) for row in rows])
        values = np.random.default_rng(0).normal(size=(len(rows), 6)).astype(np.float32)
        np.savez(file, signal=values, outcome=(values[:, 0] > 0).astype(int), patient=ids)
    return file


def init(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["init", str(folder / "draft.yaml"), *arguments])


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet", "npz"])
@pytest.mark.parametrize("unit", [(), ("--unit", "patient")])
@pytest.mark.parametrize("mechanism", sweep(["dpsgd", "encoded"], (0,)))
def test_a_public_draft_validates_and_fits_its_sample(
    kind: str, unit: tuple[str, ...], mechanism: str, folder: Path
) -> None:
    file = write(kind, folder)
    made = init(folder, "--from", str(file), "--public", "--label", "outcome", "--mechanism", mechanism, *unit)
    assert made.exit_code == 0, made.output
    findings, *_ = check(folder / "draft.yaml")
    assert [finding for finding in findings if finding.is_error] == []
    result = CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml"), "--print-private"])
    assert result.exit_code == 0, result.output
    assert "clamped" not in result.stdout.replace("nothing missing, clamped or undeclared", "")
    assert " other" not in result.stdout
    text = (folder / "draft.yaml").read_text("utf-8")
    assert "Drafted from a public sample" in text
    by = "unit" if unit else None if kind == "npz" else "patient"
    assert ("no records are held out" in text) if by is None else (f"by: {by}" in text)
    assert ("--unit patient" in made.output) == (by == "patient")
    if kind != "npz":
        for line in (
            "age: {kind: numeric, min: 0, max: 100}",
            'ward: {kind: category, values: ["Größe: 3, links", icu, surgery]}',
            "note: {kind: text}",
            "# id: left out, its name says that it names someone or something",
            "emergency: {kind: boolean}",
            'admitted: {kind: date, min: "2021-01-01", max: "2021-12-31"',
        ):
            assert line in text
        assert ('marks: ["<0.5"]' in text) == (kind in ("csv", "json_lines"))


@pytest.mark.parametrize(
    ("labels", "declared"),
    [
        (["home", "", "home", "died", "NA"] * 4, "values: [died, home], missing: omit"),
        (["home", "?", "home", "none", "NA"] * 4, 'values: ["?", home, none], missing: omit'),
        ([*(f"{row}.5" for row in range(1, 20)), "NA"], "range: [0, 20], missing: omit"),
        (["0", "", "1", "2", "2"] * 8, "classes: 3, missing: omit"),
    ],
)
def test_a_label_with_gaps_is_drafted_as_omitted(labels: list[str], declared: str, folder: Path) -> None:
    rows = [f"{row / 10},{label}" for row, label in enumerate(labels)]
    (folder / "gaps.csv").write_text("\n".join(["a,b", *rows]) + "\n", encoding="utf-8")
    made = init(folder, "--from", str(folder / "gaps.csv"), "--public", "--label", "b")
    assert made.exit_code == 0, made.output
    assert f"label: {{column: b, {declared}}}" in (folder / "draft.yaml").read_text("utf-8")
    assert [finding for finding in check(folder / "draft.yaml")[0] if finding.is_error] == []
    assert CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml")]).exit_code == 0


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet", "npz"])
def test_a_private_draft_has_no_value_of_its_file_and_names_each_blank(kind: str, folder: Path) -> None:
    file = write(kind, folder)
    made = init(folder, "--from", str(file), "--private", "--label", "outcome", "--unit", "patient")
    assert made.exit_code == 0, made.output
    assert made.output.startswith("read off the private file: names ")
    assert ("its first 100 rows" in made.output) == (kind != "npz")
    assert "%" not in (folder / "draft.yaml").read_text("utf-8")  # no format of dates
    assert ("several: names of which any may apply" in (folder / "draft.yaml").read_text("utf-8")) == (kind != "npz")
    path = folder / "draft.yaml"
    text = path.read_text("utf-8")
    words = {
        word for row in make_rows() for field in row for word in field.split() if not word.isdigit() and len(word) > 2
    }
    assert words & set(re.findall(r"[^\s,{}\[\]\"]+", text)) == set()
    findings, *_ = check(path)
    lines = text.splitlines()
    blanks = [(n, m.start() + 1) for n, line in enumerate(lines, 1) for m in re.finditer(r"(?<!each )FILL_IN", line)]
    places = [(f.place.line, f.place.column) for f in findings if f.place is not None]
    assert sorted(places) == sorted(blanks)
    assert {f.code for f in findings} == {"R103"}
    assert all(f.message.startswith("left open: expected ") for f in findings)
    filled = re.sub(r"(\w+): FILL_IN", lambda found: f"{found[1]}: {FILLED[found[1]]}", text)
    filled = re.sub(r"(kind: date, min: )0(, max: )120", r"\g<1>2020-01-01\g<2>2024-12-31", filled)
    path.write_text(filled, encoding="utf-8")
    assert [f for f in check(path)[0] if f.is_error] == []


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet"])
def test_a_pattern_is_drafted_as_its_path(kind: str, folder: Path) -> None:
    """A private draft is that of the first file; a public one has read all, and fits all."""
    (folder / "parts").mkdir()
    first = write(kind, folder).rename(folder / "parts" / f"a.{kind}")
    text, more = first.read_bytes(), folder / "parts" / f"b.{kind}"
    more.write_bytes(text.replace(b"1.25", b"9e3 "))
    pattern = ("--from", str(folder / "parts" / f"*.{kind}"), "--label", "outcome")
    assert init(folder, *pattern, "--private").exit_code == 0
    private = (folder / "draft.yaml").read_text("utf-8")
    (folder / "draft.yaml").unlink()
    assert init(folder, "--from", str(first), "--label", "outcome", "--private").exit_code == 0
    assert private == (folder / "draft.yaml").read_text("utf-8").replace(f"parts/a.{kind}", f'"parts/*.{kind}"')
    (folder / "draft.yaml").unlink()
    made = init(folder, *pattern, "--public")
    assert made.exit_code == 0, made.output
    assert "size: 320 " in (folder / "draft.yaml").read_text("utf-8")
    result = CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml")])
    assert result.exit_code == 0, result.output


def test_files_of_a_pattern_are_read_up_to_a_limit_and_counted(folder: Path) -> None:
    for name, rows in (("a", 90), ("b", 80), ("c", 70)):
        (folder / f"{name}.csv").write_text("x,y\n" + "".join(f"{row},{row}\n" for row in range(rows)))
    files = locate_files(["*.csv"], folder)
    for limit, taken in ((101, 101), (200, 200), (240, 240)):
        sample = read_samples(files, limit)
        assert isinstance(sample, Table)
        assert (len(sample.columns["x"]), sample.rows, sample.cut) == (taken, 240, taken < 240)
    (folder / "d.csv").write_text("x;y\n1;2\n")
    with pytest.raises(DataFault, match="another format or other columns"):
        read_samples(locate_files(["*.csv"], folder))


def test_a_pattern_that_no_recipe_can_have_says_where_to_write_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tx").mkdir()
    (folder / "tx" / "a.csv").write_text("x,y\n1,a\n2,b\n")
    (folder / "other").mkdir()
    monkeypatch.chdir(folder)
    command = ["--from", "tx/*.csv", "--private", "--label", "y"]
    made = CliRunner().invoke(app, ["init", "other/r.yaml", *command])
    assert made.exit_code == 2
    assert made.stderr.endswith("write the recipe there: dprecipe init tx/r.yaml\n")
    assert CliRunner().invoke(app, ["init", "tx/r.yaml", *command]).exit_code == 0
    assert 'path: "*.csv"' in (folder / "tx" / "r.yaml").read_text("utf-8")
    monkeypatch.setenv("DPRECIPE_DATA", str(folder / "other"))
    made = CliRunner().invoke(app, ["init", "other/r.yaml", *command])
    assert f"set $DPRECIPE_DATA to {folder / 'tx'}" in made.stderr
    assert (
        CliRunner()
        .invoke(app, ["init", "r.yaml", "--from", "tx", *command[2:]])
        .stderr.startswith("error: tx: is a folder\n  = name its files by a pattern")
    )


def test_types_of_parquet_say_what_a_private_draft_need_not_ask(folder: Path) -> None:
    columns = {"day": pa.array([None] * 9, pa.timestamp("ns")), "here": pa.array([None] * 9, pa.bool_())}
    pq.write_table(pa.table({**columns, "fraud": [True, False, True] * 3}), folder / "f.parquet")
    made = init(folder, "--from", str(folder / "f.parquet"), "--private", "--label", "fraud")
    assert made.exit_code == 0, made.output
    text = (folder / "draft.yaml").read_text("utf-8")
    for line in (
        "day: {kind: date, min: FILL_IN, max: FILL_IN}\n",
        "here: {kind: boolean}\n",
        'label: {column: fraud, values: ["False", "True"]}\n',
    ):
        assert line in text


@pytest.mark.parametrize(("yes", "weighed"), [(9, '{"no": 0.3}'), (10, "")])
@pytest.mark.parametrize("mechanism", ["dpsgd", "encoded"])
def test_a_rare_class_of_a_public_sample_is_named_and_weighed(
    yes: int, weighed: str, mechanism: str, folder: Path
) -> None:
    rows = [f"{row / 7},{'yes' if row < yes else 'no'}" for row in range(100)]
    (folder / "f.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    public = ("--from", str(folder / "f.csv"), "--label", "y", "--public", "--mechanism", mechanism)
    made = init(folder, *public)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith('"yes" is 0.09 of the sample') == bool(weighed)
    text = (folder / "draft.yaml").read_text("utf-8")
    assert (f"  # class_weights: {weighed}    # " in text) == bool(weighed)
    text = text.replace("  # class_weights:", "  class_weights:")
    assert [f for f in rules.check(read_text(text).recipe) if f.is_error] == []


def test_of_a_private_file_no_class_is_counted_and_the_statement_is_named(folder: Path) -> None:
    drafts = []
    for classes in ("ab", "ba"):
        rows = [f"{row / 7},{classes[row == 0]}" for row in range(100)]
        (folder / "f.csv").write_text("\n".join(["a,y", *rows]) + "\n")
        made = init(folder, "--from", str(folder / "f.csv"), "--label", "y", "--private")
        assert "release.statement, with which the report begins: curators, contact, intended_use\n" in made.stdout
        drafts.append((folder / "draft.yaml").read_text("utf-8"))
        (folder / "draft.yaml").unlink()
    assert drafts[0] == drafts[1]
    assert "# class_weights: {CLASS: 0.2}    # of a common class where another is rare" in drafts[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet", "npz"])
def test_a_public_draft_runs_to_a_release_that_verifies(kind: str, folder: Path) -> None:
    file = write(kind, folder)
    assert init(folder, "--from", str(file), "--public", "--label", "outcome", "--unit", "patient").exit_code == 0
    made = CliRunner().invoke(app, ["run", str(folder / "draft.yaml"), "--out", str(folder / "run")])
    assert made.exit_code == 0, made.output
    assert CliRunner().invoke(app, ["verify", str(folder / "run" / "release")]).exit_code == 0


def test_it_has_to_be_said_what_the_file_is(folder: Path) -> None:
    file = write("csv", folder)
    for flags in ((), ("--public", "--private")):
        made = init(folder, "--from", str(file), "--label", "outcome", *flags)
        assert made.exit_code == 2
        assert "a release that nobody accounts for" in made.stderr
    assert not (folder / "draft.yaml").exists()
    assert init(folder, "--label", "outcome").exit_code == 2


def test_the_label_is_asked_for(folder: Path) -> None:
    file = write("csv", folder)
    public, private = (init(folder, "--from", str(file), flag) for flag in ("--public", "--private"))
    assert (public.exit_code, private.exit_code) == (2, 2)
    assert "'outcome'" in public.stderr
    assert "outcome" not in private.stderr  # the first line of a private file may be a record
    meant = init(folder, "--from", str(file), "--private", "--label", "Outcome")
    assert "the file has 'outcome'" in meant.stderr


@pytest.mark.parametrize("mechanism", ["pate", "pnsgd"])
def test_other_mechanisms_have_no_draft(mechanism: str, folder: Path) -> None:
    made = init(folder, "--from", str(write("csv", folder)), "--public", "--label", "outcome", "--mechanism", mechanism)
    assert made.exit_code == 2
    assert "choose one of dpsgd, encoded" in made.stderr


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b'[{"a": 1, "b": 2}]', "JSON array"),
        (b'[\n  {"a": 1}]', "JSON array"),
        (b"[x],y\n1,2\n", "its columns are '[x]', 'y'"),
        (b"\x93NUMPY\x01\x00", "a single NumPy array"),
        (b'a,b\n"1"2,3\n', "not well-formed CSV"),
        (b"a,b,b\n1,2,3\n", "'b' can't be read: its name stands twice"),
        (b"a,b\n1\n", "fewer fields than the header line (line 2)"),
        (b"a,b\n", "has a header line and no record"),
        (b"BZh91AY", "compressed by bzip2"),
        (b"a,b\r1,2\r", "lines end in a carriage return alone"),
        (b"a b c\n1 2 3\n", "separated by blanks"),
        (b"1.5,2\n3,4\n", "its first line holds numbers"),
        (b"a,b\n1,x\n2,x\n", "holds 1 different texts in 2 rows"),
        (b"a,b\n\xff,2\n", "a line is not UTF-8 (line 2)"),
        (b"PAR1 and no more", "can't be read"),
    ],
)
def test_files_that_are_no_sample(content: bytes, problem: str, folder: Path) -> None:
    (folder / "f").write_bytes(content)
    made = init(folder, "--from", str(folder / "f"), "--public", "--label", "b")
    assert made.exit_code == 2, made.output
    assert problem in made.stderr
    assert init(folder, "--from", str(folder / "none"), "--public", "--label", "b").exit_code == 2
    assert "is a folder" in init(folder, "--from", str(folder), "--public", "--label", "b").stderr


@pytest.mark.parametrize(
    "content",
    [
        ",".join(f"c{number}" for number in range(3000)) + "\n" + "1," * 2999 + "2\n",
        "".join(json.dumps({f"c{number}": 1, "y": 2}) + "\n" for number in range(3000)),
    ],
    ids=["csv", "json_lines"],
)
def test_very_many_columns_are_refused_at_once(content: str, folder: Path) -> None:
    (folder / "f").write_text(content)
    made = init(folder, "--from", str(folder / "f"), "--public", "--label", "y")
    assert made.exit_code == 2
    assert "has more than 2,000 " in made.stderr


def test_a_private_draft_does_not_tell_how_dates_are_written(folder: Path) -> None:
    drafts = []
    for day in ("2024-01-02", "02.01.2024"):
        (folder / "f.csv").write_text(f"day,y\n{day},a\n{day.replace('2', '3', 1)},b\n")
        assert init(folder, "--from", str(folder / "f.csv"), "--private", "--label", "y").exit_code == 0
        drafts.append((folder / "draft.yaml").read_text("utf-8"))
        (folder / "draft.yaml").unlink()
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("kind", ["csv", "json_lines", "parquet"])
def test_a_sample_ends_at_its_bytes_and_its_rows_are_counted_on(
    kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = DataFile.of(write(kind, folder))
    whole = read_sample(file)
    assert isinstance(whole, Table)
    assert (whole.rows, whole.cut) == (160, False)
    some = read_sample(file, 120)
    assert isinstance(some, Table)
    assert (some.rows, some.cut, len(some.columns["age"])) == (160, True, 120)
    monkeypatch.setattr(sample_files, "MAX_BYTES", 1000)
    short = read_sample(file, 150)
    assert isinstance(short, Table)
    assert (short.rows, short.cut) == (160, True)
    if kind != "parquet":  # which is read by batches
        assert len(short.columns["age"]) < 40


def test_invisible_letters_beside_a_number_change_nothing(folder: Path) -> None:
    (folder / "f.csv").write_text("a,y\n1\u200b,x\n2.5,z\n\u00a03,x\n4,z\n", encoding="utf-8")
    assert init(folder, "--from", str(folder / "f.csv"), "--public", "--label", "y").exit_code == 0
    assert "a: {kind: numeric, min: 0, max: 4}" in (folder / "draft.yaml").read_text("utf-8")


@pytest.mark.parametrize(("rows", "gap", "splits"), [(30, False, True), (30, True, False), (12, False, False)])
def test_records_are_held_out_by_names_that_each_row_has(rows: int, gap: bool, splits: bool, folder: Path) -> None:
    names = [f"n{number}" for number in range(rows - gap)] + [""] * gap
    lines = [f"{name},{number * 7 % 5},{'uv'[number % 2]}" for number, name in enumerate(names)]
    (folder / "f.csv").write_text("\n".join(["visit_id,a,y", *lines]) + "\n", encoding="utf-8")
    assert init(folder, "--from", str(folder / "f.csv"), "--public", "--label", "y").exit_code == 0
    assert ("by: visit_id" in (folder / "draft.yaml").read_text("utf-8")) == splits
    assert CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml")]).exit_code == 0


def test_records_are_not_held_out_by_a_name_that_no_claim_can_have(folder: Path) -> None:
    lines = [f"n{number},{number * 7 % 5},{'uv'[number % 2]}" for number in range(30)]
    (folder / "f.csv").write_text("\n".join(["visit id.,a,y", *lines]) + "\n", encoding="utf-8")
    assert init(folder, "--from", str(folder / "f.csv"), "--public", "--label", "y").exit_code == 0
    assert "by:" not in (folder / "draft.yaml").read_text("utf-8")
    assert CliRunner().invoke(app, ["validate", str(folder / "draft.yaml")]).exit_code == 0


@pytest.mark.parametrize(("present", "kept"), [(1, False), (2, False), (3, True)])
def test_a_column_with_hardly_a_value_is_left_out(present: int, kept: bool, folder: Path) -> None:
    """From 3 values in 600 rows on it is declared, and a part of the file in which none is present passes the check."""
    rows = [f"n{n},{'rash' if 20 <= n < 20 + present else ''},{n % 7},{'uv'[n % 2]}" for n in range(600)]
    (folder / "f.csv").write_text("\n".join(["visit_id,event,a,y", *rows]) + "\n", encoding="utf-8")
    assert init(folder, "--from", str(folder / "f.csv"), "--public", "--label", "y").exit_code == 0
    text = (folder / "draft.yaml").read_text("utf-8")
    assert ("event: {" in text) == kept
    assert ("event: left out, hardly a field has a value" in text) != kept
    (folder / "f.csv").write_text("\n".join(["visit_id,event,a,y", *rows[::-1]]) + "\n", encoding="utf-8")
    done = CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml")])
    assert done.exit_code == 0, done.output


def test_what_no_recipe_can_list_is_named(folder: Path) -> None:
    file, made = folder / "f.csv", ("--from", str(folder / "f.csv"), "--public", "--label", "y")
    for content, place in (
        ("a,y\n1,u\n2,v\n3,u\n6.2\x1a,v\n", "column 'a': row 4"),
        ("a,y\nb\x07,u\nc,v\nb\x07,u\nc,v\n", "column 'a': row 1"),
        ("a,y\n1,v\n7,v\n3,u\x1b\n4,v\n5,u\x1b\n9,v\n2,v\n", "column 'y': row 3"),
    ):
        file.write_text(content, encoding="utf-8")
        result = init(folder, *made)
        assert result.exit_code == 2
        assert f"{place} holds a control character" in " ".join(result.output.split())
    file.write_text("a\x01,b,y\n1,1,u\n2,2,v\n3,4,u\n4,3,v\n", encoding="utf-8")
    assert init(folder, *made).exit_code == 0
    assert "left out, its name holds a control character" in (folder / "draft.yaml").read_text("utf-8")
    assert [finding for finding in check(folder / "draft.yaml")[0] if finding.is_error] == []


@pytest.mark.parametrize("size", [1, 9_999, 10_000, 3_000_000, None])
@pytest.mark.parametrize("label", [("values",), ("range",), ("count",), ()])
@pytest.mark.parametrize("columns", [0, 3, 400])
def test_what_a_draft_chooses_is_a_recipe_at_every_size(size: int | None, label: tuple[str, ...], columns: int) -> None:
    written = {"range": "range: [0, 9]", "count": "count: {max: 9}"}.get("".join(label), 'values: ["no", "yes"]')
    data = (
        "data:\n  train: {source: csv, path: a.csv, columns: {x: {kind: boolean}}, label: {column: y, "
        f"{written}}}}}\n  size: {size or 500}\n"
    )
    text = make_starter("dpsgd", "csv", "s", data, task=Task(label, columns, size))
    assert [finding for finding in rules.check(read_text(text).recipe) if finding.is_error] == []
    assert ("full_batch" in text) == (bool(columns) and (size is None or size < 10_000))
    assert ("of 10,000 and more, faster: {scheme: poisson" in text) == (bool(columns) and size is None)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("size", "delta"), [(None, 1e-6), (99_999, 1e-6), (100_000, 1e-7), (3_000_000, 1e-8)])
def test_delta_and_the_statement_are_set_and_no_text_is_replaced(
    mechanism: str, size: int | None, delta: float
) -> None:
    quoted = "delta: 1e-6, batch_size: 256\nrelease: {report: true}\n"
    usual = make_starter(mechanism, "digits", "s")
    data = usual[usual.index("data:") : usual.index("model:")]
    text = make_starter(mechanism, "digits", "s", data, task=Task(size=size), statement={"intended_use": quoted})
    recipe = read_text(text).recipe
    assert recipe.budget.delta == delta
    if not mechanism_of(mechanism).has_student:  # whose starter no draft takes
        assert recipe.release.statement is not None
        assert recipe.release.statement.intended_use == quoted
    assert read_text(usual).recipe.budget.delta == 1e-6


def test_arrays_whose_labels_have_gaps_are_drafted_so_that_they_are_read(folder: Path) -> None:
    labels = np.random.default_rng(0).normal(size=300)
    labels[::7] = np.nan
    np.savez(folder / "a.npz", features=np.zeros((300, 3), np.float32), labels=labels)
    made = init(folder, "--from", str(folder / "a.npz"), "--public", "--label", "labels")
    assert made.exit_code == 0, made.output
    assert "missing: omit" in (folder / "draft.yaml").read_text("utf-8")
    assert CliRunner().invoke(app, ["data", "check", str(folder / "draft.yaml")]).exit_code == 0
