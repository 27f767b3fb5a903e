"""Labels that are numbers or counts, from a file to a model that predicts in its units, with a certificate."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import dprecipe
from dprecipe.api import run
from dprecipe.models.load import load
from dprecipe.nonprivate.plan import make_plan
from dprecipe.planning.make import plan as plan_of
from dprecipe.recipe.read import LoadedPublic, read_any, read_text
from dprecipe.training.run.nonprivate import train
from dprecipe.training.run.start import rehearse

ROWS = 60
NUMBER, COUNT = "{column: days, range: [-10, 30]}", "{column: visits, count: {max: 40}}"
RECIPE = """\
recipe: dprecipe/v1
name: labels
data:
  train:
    source: csv
    path: train.csv
    columns: {{age: {{kind: numeric, min: 0, max: 1}}}}
    label: {label}
  test: {{source: csv, path: test.csv, access: public}}
  size: {size}
  unit: {unit}
model: {model}
mechanism: {mechanism}
budget: {{epsilon: auto, delta: 1e-3}}
training: {{steps: 60, {training} optimizer: {{kind: sgd, lr: {lr}}}}}
release: {{report: false}}
"""
DPSGD = (
    "{kind: dpsgd, clip: {norm: 1.0}, noise: {family: gaussian, multiplier: 0.8}, "
    "sampling: {scheme: poisson, batch_size: 30}}"
)
ENCODED = (
    "{kind: encoded, codebook: {source: gaussian, size: 20}, noise: {family: gaussian, multiplier: 0.8}, "
    "sampling: {scheme: poisson, batch_size: 30}}"
)
LINEAR, MLP = "{kind: linear}", "{kind: mlp, hidden: [4]}"


def write_rows(folder: Path) -> None:
    """Days fall from 20 to -5 with age, visits grow from 2 to 20."""
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        ages = generator.uniform(size=ROWS)
        days = 20 - 25 * ages + generator.normal(size=ROWS)
        visits = generator.poisson(2 * np.exp(2.3 * ages))
        lines = [
            f"{age:.4f},{day:.3f},{count},p{row // 2}"
            for row, (age, day, count) in enumerate(zip(ages, days, visits, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join(["age,days,visits,person", *lines]) + "\n", encoding="utf-8")


def recipe(
    label: str, model: str, mechanism: str = DPSGD, training: str = "", unit: str = "record", lr: float = 0.5
) -> str:
    size = ROWS if unit == "record" else ROWS // 2
    return RECIPE.format(label=label, model=model, mechanism=mechanism, training=training, unit=unit, size=size, lr=lr)


CASES = {
    "number": recipe(NUMBER, MLP),
    "huber": recipe(NUMBER, LINEAR, training="loss: {kind: huber, delta: 0.2},"),
    "count": recipe(COUNT, LINEAR),
    "units": recipe(NUMBER, LINEAR, unit="{column: person, max_records: 2}"),
    "encoded": recipe(COUNT, LINEAR, ENCODED),
}


QUICK = {"number", "encoded"}


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
def test_from_a_file_to_predictions_in_its_units(name: str, tmp_path: Path) -> None:
    write_rows(tmp_path)
    finished = run(plan_of(read_text(CASES[name], "recipe.yaml")), tmp_path / "run", data_root=tmp_path)
    dprecipe.verify(finished.release)
    score = finished.score
    assert score is not None
    table = np.genfromtxt(tmp_path / "test.csv", delimiter=",", names=True, dtype=None, encoding="utf-8")
    labels = table["visits" if "count: {max" in CASES[name] else "days"]
    model = load(finished.release)
    predicted = model.predict([{"age": float(age)} for age in table["age"]])
    assert predicted.dtype == np.float64
    assert score.mean_absolute_error == pytest.approx(np.abs(predicted - labels).mean(), rel=1e-4)
    assert score.mean_absolute_error < 0.75 * np.abs(labels - np.median(labels)).mean()
    released = json.loads((finished.release / "certificate.json").read_text())["predicate"]["data_access"]
    assert released["evaluation"]["released"]["mean_absolute_error"] == score.mean_absolute_error


GAPS = 6
"""Each sixth record has no label."""
OMITTED = "{column: days, range: [-10, 30], missing: omit}"


@pytest.mark.parametrize(
    ("mechanism", "unit"),
    [
        (DPSGD, "record"),
        pytest.param(ENCODED, "record", marks=pytest.mark.slow),
        pytest.param(DPSGD, "{column: person, max_records: 2}", marks=pytest.mark.slow),
    ],
    ids=["dpsgd", "encoded", "units"],
)
def test_labels_with_gaps_from_a_file_to_a_release_that_shows_none(
    mechanism: str, unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path)
    for name in ("train", "test"):
        header, *rows = (tmp_path / f"{name}.csv").read_text("utf-8").splitlines()
        for row in range(0, len(rows), GAPS):
            age, _, *rest = rows[row].split(",")
            rows[row] = ",".join([age, "NA" if row % 4 else "", *rest])
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    plan = plan_of(read_text(recipe(OMITTED, LINEAR, mechanism, unit=unit), "recipe.yaml"))
    assert "omitted_records" in {assumption.id for assumption in plan.assumptions}
    finished = run(plan, tmp_path / "run", data_root=tmp_path)
    dprecipe.verify(finished.release)
    assert finished.score is not None
    labelled = ROWS - ROWS // GAPS
    assert finished.score.records == labelled  # of the public test records
    assert finished.score.mean_absolute_error < 10
    shown = "".join(file.read_text("utf-8", "ignore") for file in finished.release.iterdir()) + capsys.readouterr().out
    assert "training_sample" not in shown
    certificate = json.loads((finished.release / "certificate.json").read_text())
    assert certificate["predicate"]["sampling"]["size"] == plan.data.max_units
    assert load(finished.release).predict([{"age": 0.5}]).shape == (1,)
    rehearsal = rehearse(plan)
    assert all(check.passed for check in rehearsal.checks)


def test_a_frame_of_pandas_with_gaps(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    write_rows(tmp_path)
    frame = pandas.read_csv(tmp_path / "train.csv")
    frame.loc[::GAPS, "days"] = float("nan")
    plan = plan_of(read_text(recipe(OMITTED, LINEAR), "recipe.yaml"))
    frames = dprecipe.Records.from_pandas(frame)
    finished = run(plan, tmp_path / "run", data_root=tmp_path, train=frames)
    dprecipe.verify(finished.release)


@pytest.mark.parametrize("from_python", [False, True])
def test_arrays_with_gaps(tmp_path: Path, from_python: bool) -> None:
    write_rows(tmp_path)
    header, *rows = (tmp_path / "train.csv").read_text("utf-8").splitlines()
    columns = dict(zip(header.split(","), zip(*(row.split(",") for row in rows), strict=True), strict=True))
    features, days = np.array(columns["age"], np.float32)[:, None], np.array(columns["days"], np.float64)
    days[::GAPS] = np.nan
    np.savez(tmp_path / "train.npz", features=features, labels=days)
    text = recipe(OMITTED, LINEAR)
    begin, end = text.index("data:"), text.index("model:")
    data = "data:\n  train: {source: npz, path: train.npz, shape: [1], range: [-10, 30], missing: omit}\n"
    plan = plan_of(read_text(f"{text[:begin]}{data}  size: {len(days)}\n{text[end:]}", "recipe.yaml"))
    assert "omitted_records" in {assumption.id for assumption in plan.assumptions}
    given = dprecipe.Records.from_torch(torch.from_numpy(features), torch.from_numpy(days)) if from_python else None
    finished = run(plan, tmp_path / "run", data_root=tmp_path, train=given)
    dprecipe.verify(finished.release)
    assert np.isfinite(load(finished.release).predict(features[:9])).all()


def test_without_privacy(tmp_path: Path) -> None:
    write_rows(tmp_path)
    text = recipe(COUNT, MLP, "{kind: none}", "batch_size: 20,", lr=0.02).replace(
        "path: train.csv", "path: train.csv\n    access: public"
    )
    lines = [line for line in text.splitlines() if not line.startswith(("budget", "release"))]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    loaded = read_any(tmp_path / "recipe.yaml")
    assert isinstance(loaded, LoadedPublic)
    done = train(make_plan(loaded), tmp_path, tmp_path / "out")
    assert done.score is not None
    assert load(done.weights).predict([{"age": 0.1}, {"age": 0.9}]).tolist() == sorted(
        load(done.weights).predict([{"age": 0.1}, {"age": 0.9}]).tolist()
    )
    assert done.score.mean_absolute_error < 3.5


@pytest.mark.slow
def test_a_module_from_python_predicts_in_the_units_of_the_file(tmp_path: Path) -> None:
    write_rows(tmp_path)
    torch.manual_seed(0)
    own = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    plan = plan_of(read_text(recipe(NUMBER, MLP), "recipe.yaml"))
    finished = run(plan, tmp_path / "run", model=own, data_root=tmp_path)
    dprecipe.verify(finished.release)
    module = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    predicted = load(finished.release, module).predict([{"age": 0.0}, {"age": 1.0}])
    assert 5 < predicted[0] < 30
    assert predicted[1] < predicted[0] - 5


def test_it_is_rehearsed_on_synthetic_labels() -> None:
    rehearsal = rehearse(plan_of(read_text(CASES["count"], "recipe.yaml")))
    assert all(check.passed for check in rehearsal.checks)
