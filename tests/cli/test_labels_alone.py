"""Votes in, labels out, as a user runs it: from `init` to `verify`, with a file of each format."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dprecipe.cli.files import is_release
from dprecipe.cli.main import app
from dprecipe.release.verify import verify

pytestmark = pytest.mark.usefixtures("here")
COUNTS = np.random.default_rng(0).multinomial(250, [0.9] + [0.1 / 9] * 9, size=60)
SMALL = ("--set", "mechanism.queries.max=60")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def write_votes(form: str, counts: np.ndarray = COUNTS) -> None:
    names = [f"{number}" for number in range(counts.shape[1])]
    if form == "npz":
        np.savez("votes.npz", votes=counts)
    elif form == "csv":
        with open("votes.csv", "w", newline="") as file:
            csv.writer(file).writerows([names, *counts.tolist()])
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({name: counts[:, number] for number, name in enumerate(names)}), "votes.parquet")


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_from_init_to_verify(form: str) -> None:
    write_votes(form)
    options = (*SMALL, "--set", f"mechanism.teachers.votes.path=votes.{form}")
    assert run("init", "mine.yaml", "--like", "pate-votes").exit_code == 0
    assert len([line for line in Path("mine.yaml").read_text("utf-8").splitlines() if not line.startswith("#")]) <= 11
    assert "no findings" in run("validate", "mine.yaml", *options).output
    assert "every source is what the recipe declares" in run("data", "check", "mine.yaml", *options).output
    assert run("run", "mine.yaml", "--out", "out", *options).exit_code == 0
    verified = run("verify", "out/release")
    assert verified.exit_code == 0
    assert "there are no weights" in verified.output
    rows = list(csv.DictReader(Path("out/release/labels.csv").read_text("utf-8").splitlines()))
    assert [row["record"] for row in rows] == [str(number) for number in range(60)]
    assert sum(row["label"] == "0" for row in rows) >= 55
    assert sorted(path.name for path in Path("out/release").iterdir()) == [
        "card.md",
        "certificate.json",
        "labels.csv",
        "metrics.json",
        "report.html",
    ]
    predicate = json.loads(Path("out/release/certificate.json").read_text("utf-8"))["predicate"]
    assert predicate["claim"]["released"] == ["labels of the answered queries"]
    assert (predicate["tensors"], predicate["sampling"]["size"]) == ([], None)
    unprotected = verify(Path("out/release")).claim.not_protected
    assert not [text for text in unprotected if "model" in text or "refused" in text]
    assert "The model stays" not in Path("out/release/report.html").read_text("utf-8")
    assert is_release(Path("out/release"))
    card = Path("out/release/card.md").read_text("utf-8")
    assert "No model was trained" in card
    assert "student" not in card


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_a_draft_reads_names_of_columns_alone(form: str) -> None:
    write_votes(form)
    drafted = run("init", "mine.yaml", "--mechanism", "pate", "--from", f"votes.{form}", "--private")
    assert "names of its columns, or their number" in drafted.output
    assert "2 values are left open" in run("validate", "mine.yaml").output
    text = Path("mine.yaml").read_text("utf-8")
    assert "{source: elsewhere, classes: 10}" in text
    assert "250" not in text
    for number in ("250", "60"):
        text = text.replace("FILL_IN", number, 1)
    Path("mine.yaml").write_text(text, encoding="utf-8")
    assert "no findings" in run("validate", "mine.yaml").output
    assert run("data", "check", "mine.yaml").exit_code == 0


def test_a_draft_declares_the_names_of_classes() -> None:
    Path("votes.csv").write_text('cat,"a, dog"\n1,2\n', encoding="utf-8")
    run("init", "mine.yaml", "--mechanism", "pate", "--from", "votes.csv", "--private")
    assert 'values: [cat, "a, dog"]' in Path("mine.yaml").read_text("utf-8")
    assert run("init", "other.yaml", "--mechanism", "pate", "--from", "no.csv", "--private").exit_code == 2
    assert run("init", "other.yaml", "--mechanism", "pate", "--from", "votes.csv", "--public").exit_code == 2


@pytest.mark.parametrize("form", ["csv", "parquet", "npz"])
def test_wrong_votes_are_found_before_anything_is_spent(form: str) -> None:
    counts = COUNTS.copy()
    counts[3, 0] += 1
    write_votes(form, counts)
    options = (*SMALL, "--set", f"mechanism.teachers.votes.path=votes.{form}")
    run("init", "mine.yaml", "--like", "pate-votes")
    checked = run("data", "check", "mine.yaml", "--print-private", *options)
    assert checked.exit_code == 1
    assert "a row does not have the votes of 250 teachers" in checked.output
    assert f"{'line 5' if form == 'csv' else 'row 3'} has more than 250; 1 of 60 rows" in checked.output
    assert "1 of 60" not in run("data", "check", "mine.yaml", *options).output
    assert run("run", "mine.yaml", "--out", "out", *options).exit_code == 4
    assert not Path("out").exists()


def test_labels_have_the_numbers_of_the_rows_that_were_asked() -> None:
    write_votes("csv")
    run("init", "mine.yaml", "--like", "pate-votes")
    options = ("--set", "mechanism.queries.max=3", "--set", "mechanism.teachers.votes.records=[20, 40]")
    assert run("run", "mine.yaml", "--out", "out", *options).exit_code == 0
    assert run("verify", "out/release").exit_code == 0
    lines = Path("out/release/labels.csv").read_text("utf-8").splitlines()
    assert [line.partition(",")[0] for line in lines] == ["record", "20", "21", "22"]


def test_a_release_of_labels_is_not_changed_unseen() -> None:
    write_votes("csv")
    run("init", "mine.yaml", "--like", "pate-votes")
    run("run", "mine.yaml", "--out", "out", *SMALL)
    labels = Path("out/release/labels.csv")
    labels.write_text(labels.read_text("utf-8") + "60,0\n", encoding="utf-8")
    assert run("verify", "out/release").exit_code != 0


def test_where_no_query_is_answered_nothing_but_the_claim_is_released() -> None:
    write_votes("csv")
    run("init", "mine.yaml", "--like", "pate-votes")
    aggregator = (
        "{kind: confident_gnmax, noise: {family: gaussian, multiplier: 40}, "
        "selection: {threshold: 900, noise: {family: gaussian, multiplier: 40}}}"
    )
    run("run", "mine.yaml", "--out", "out", *SMALL, "--set", f"mechanism.aggregator={aggregator}")
    assert run("verify", "out/release").exit_code == 0
    assert not Path("out/release/labels.csv").exists()


def test_a_remedy_of_a_budget_auto_is_a_cap_that_holds_the_answers() -> None:
    run("init", "mine.yaml", "--like", "pate-votes")
    aggregator = (
        "{kind: confident_gnmax, noise: {family: gaussian, multiplier: 40}, "
        "selection: {threshold: 150, noise: {family: gaussian, multiplier: 100}}}"
    )
    options = ("--set", f"mechanism.aggregator={aggregator}")
    auto = run("validate", "mine.yaml", *options, "--set", "budget.epsilon=auto").output
    assert "P157" in auto
    cap = auto.partition("set budget.epsilon to ")[2].partition(" ")[0]
    assert "(all checks and 500 answers)" in auto
    held = (*options, "--set", f"budget.epsilon={cap}")
    assert run("validate", "mine.yaml", *held).exit_code == 0
    limited = json.loads(
        run("plan", "mine.yaml", *held, "--set", "mechanism.queries.answers=500", "--format", "json").output
    )
    assert {event["kind"] for event in limited["events"]} == {"noisy_threshold", "noisy_max"}


def test_all_votes_of_an_account_count_together_whatever_their_file() -> None:
    """Two files may hold votes of the same teachers, so no file is another data set."""
    assert run("account", "create", "votes.db", "--epsilon", "8", "--delta", "1e-5", "--unit", "record").exit_code == 0
    run("init", "mine.yaml", "--like", "pate-votes")
    for number in (1, 2):
        write_votes("npz", COUNTS[::-1] if number == 2 else COUNTS)
        shutil.move("votes.npz", f"votes{number}.npz")
        options = ("--set", f"mechanism.teachers.votes.path=votes{number}.npz", "--set", "budget.account=votes.db")
        done = run("run", "mine.yaml", "--out", f"out{number}", *SMALL, *options)
        assert done.exit_code == 0, done.output
    assert "2 runs" in run("account", "show", "votes.db").output
