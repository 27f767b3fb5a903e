"""Columns that say nothing: blank, constant, of one text. They train, no number leaves its range, and nothing that is
said depends on them."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

import dprecipe
from dprecipe.cli.run import run as run_command

RECIPE = """\
recipe: dprecipe/v1
name: degenerate
data:
  train:
    source: csv
    path: t.csv
    columns:
      age: {{kind: numeric, min: 0, max: 100, missing: 50}}
      dose: {{kind: integer, min: 0, max: 9}}
      ward: {{kind: category, values: [icu]}}
      note: {{kind: text}}
    label: {{column: y, classes: 2}}
  size: 60
  preprocess:
{steps}
model: {{kind: logistic_regression}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: full_batch}}
budget: {{epsilon: 3.0, delta: 1e-5}}
training: {{steps: 3, optimizer: {{kind: sgd, lr: 1.0}}}}
"""
ENCODE = ["one_hot: {}", "hash: {columns: [note], buckets: 4}"]
STEPS = {
    "clip_features": [*ENCODE, "clip_features: {norm: 1.0}"],
    "dp_standardize": [*ENCODE, "dp_standardize: {columns: [age, dose], share: 0.2}"],
    "dp_pca": [*ENCODE, "dp_pca: {components: 2, row_norm: 1.0, share: 0.2}"],
    "dp_categories": ["one_hot: {}", "dp_categories: {columns: [note], width: 3, share: 0.2}"],
}
COLUMNS = {
    "any": None,
    "blank": ("", "3", "icu", "x"),
    "constant": ("50", "0", "icu", "x"),
    "ends": ("100", "9", "other", "x"),
    "empty": ("7", "1", "icu", ""),
}


def write(path: Path, values: tuple[str, str, str, str] | None) -> None:
    """All rows but the first: a column whose fields are all missing or undeclared is refused before a run."""
    draw = random.Random(0)
    rows = ["age,dose,ward,note,y"]
    for number in range(60):
        drawn = (str(draw.randint(0, 100)), str(draw.randint(0, 9)), draw.choice(["icu", "er"]), draw.choice("ab"))
        some = drawn if values is None or number == 0 else values
        rows.append(",".join([*some, str(number % 2)]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_a_table_that_says_nothing_trains(
    steps: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    listed = "\n".join(f"    - {step}" for step in steps)
    (tmp_path / "r.yaml").write_text(RECIPE.format(steps=listed), encoding="utf-8")
    said = set()
    for name, values in COLUMNS.items():
        write(tmp_path / "t.csv", values)
        out = tmp_path / name
        assert run_command(tmp_path / "r.yaml", out=out) == 0
        printed = capsys.readouterr()
        said.add(re.sub(r"in \d+ s|\S*/" + re.escape(name), "", printed.out + printed.err))
        model = dprecipe.load_model(out / "release")
        new = {"age": [None, 0, 100], "dose": [0, 5, 9], "ward": ["icu"] * 3, "note": ["", "a", "x"]}
        assert np.isfinite(model.predict_proba(new)).all()
    assert len(said) == 1
