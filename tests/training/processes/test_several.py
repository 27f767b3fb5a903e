"""Labels of which any of several names may apply, from a file to a certificate and to predictions by name."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

import dprecipe
from dprecipe.api import run
from dprecipe.cli.main import app
from dprecipe.faults import CertificateInvalid, DataFault
from dprecipe.models.load import load
from dprecipe.nonprivate.plan import make_plan
from dprecipe.planning.make import plan as plan_of
from dprecipe.recipe.read import LoadedPublic, read_any, read_text
from dprecipe.release.certificate import to_bytes
from dprecipe.release.distribution import find_task
from dprecipe.training.run.nonprivate import train
from dprecipe.training.run.start import rehearse

NAMES = ("fever", "cough", "rash")
COLUMNS, FOUND = "{columns: [fever, cough, rash]}", "{column: found, several: [fever, cough, rash], empty: none}"
RECIPE = """\
recipe: dprecipe/v1
name: several
data:
  train:
    source: csv
    path: train.csv
    columns: {{heat: {{kind: numeric, min: 0, max: 1}}, dust: {{kind: numeric, min: 0, max: 1}}}}
    label: {label}
  test: {{path: test.csv, access: {access}}}
  size: {size}
  unit: {unit}
model: {model}
mechanism: {mechanism}
budget: {{epsilon: auto, delta: 1e-3}}
training: {{steps: 60, {training} optimizer: {{kind: sgd, lr: 2.0}}}}
release: {{report: true}}
"""
DPSGD = (
    "{kind: dpsgd, clip: {norm: 1.0}, noise: {family: gaussian, multiplier: 0.7}, "
    "sampling: {scheme: poisson, batch_size: 50}}"
)
ENCODED = (
    "{kind: encoded, codebook: {source: gaussian, size: 20}, noise: {family: gaussian, multiplier: 0.7}, "
    "sampling: {scheme: poisson, batch_size: 50}}"
)
ROWS = 120


def write_rows(folder: Path) -> np.ndarray:
    """Fever follows heat, cough follows dust, a tenth has a rash; the answers of the test records."""
    generator = np.random.default_rng(0)
    for name in ("train", "test"):
        heat, dust = generator.uniform(size=(2, ROWS))
        answers = np.stack([heat > 0.6, dust > 0.4, generator.random(ROWS) < 0.1], axis=1)
        lines = []
        for row in range(ROWS):
            said = ["yes" if each else "no" for each in answers[row]]
            found = ";".join(np.array(NAMES)[answers[row]])
            lines.append(",".join([f"{heat[row]:.4f},{dust[row]:.4f},p{row // 2}", *said, found]))
        text = "\n".join(["heat,dust,person,fever,cough,rash,found", *lines]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return answers


def recipe(
    label: str, model: str = "{kind: linear}", mechanism: str = DPSGD, training: str = "", unit: str = "record",
    access: str = "public",
) -> str:  # fmt: skip
    size = ROWS if unit == "record" else ROWS // 2
    return RECIPE.format(
        label=label, model=model, mechanism=mechanism, training=training, unit=unit, size=size, access=access
    )


CASES = {
    "columns": recipe(COLUMNS),
    "weights": recipe(FOUND, training="class_weights: {rash: 3},"),
    "units": recipe(FOUND, unit="{column: person, max_records: 2}"),
    "encoded": recipe(FOUND, "{kind: mlp, hidden: [4]}", ENCODED),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_from_a_file_to_predictions_by_name(name: str, tmp_path: Path) -> None:
    answers = write_rows(tmp_path)
    finished = run(plan_of(read_text(CASES[name], "recipe.yaml")), tmp_path / "run", data_root=tmp_path)
    dprecipe.verify(finished.release)
    score = finished.score
    assert score is not None
    with (tmp_path / "test.csv").open(encoding="utf-8") as stream:
        rows = [{"heat": float(row["heat"]), "dust": float(row["dust"])} for row in csv.DictReader(stream)]
    model = load(finished.release)
    predicted, chances = model.predict(rows), model.predict_proba(rows)
    assert (predicted.shape, predicted.dtype, model.class_names) == ((ROWS, 3), np.bool_, NAMES)
    assert ((chances > 0.5) == predicted).all()
    assert score.accuracy == pytest.approx((predicted == answers).all(axis=1).mean())
    if name != "encoded":
        assert (predicted[:, :2] == answers[:, :2]).mean() > 0.8
    stated = json.loads((finished.release / "certificate.json").read_text())["predicate"]["data_access"]
    released = stated["evaluation"]["released"]
    private = json.loads((tmp_path / "run" / "private" / "metrics.json").read_text())
    assert released["accuracy"] == score.accuracy
    for key in ("accuracy_baseline", "f1_macro", "f1_micro", "auc", "average_precision", "by_name"):
        assert released[key] == private[key]
    assert [each["name"] for each in released["by_name"]] == list(NAMES)
    fever = released["by_name"][0]
    shown = f"| fever | {fever['share']:.2%} | {fever['f1']:.4g} | {fever['f1_baseline']:.4g} | {fever['auc']:.4g} |"
    assert shown in (finished.release / "card.md").read_text()
    report = (finished.release / "report.html").read_text()
    assert "records with every answer right" in report
    assert "F1 of always yes" in report


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    write_rows(folder)
    text = (
        recipe(COLUMNS, access="private_internal")
        .replace("steps: 60", "steps: 2")
        .replace("report: true", "report: false")
    )
    return run(plan_of(read_text(text, "recipe.yaml")), folder / "run", data_root=folder).release


def test_private_records_leave_no_score_in_the_release(release: Path) -> None:
    texts = "".join(path.read_text("utf-8", "ignore") for path in release.iterdir())
    assert "f1_macro" not in texts
    assert "by_name" not in texts
    assert json.loads((release.parent / "private" / "metrics.json").read_text())["by_name"][2]["name"] == "rash"


def test_the_command_writes_the_names_and_a_column_for_each(release: Path, tmp_path: Path) -> None:
    file, out = release.parents[1] / "test.csv", tmp_path / "out.csv"
    words = ["predict", str(release), str(file), "--no-verify", "--out"]
    answered = CliRunner().invoke(app, [*words, str(out), "--probabilities", "--keep", "found"])
    assert answered.exit_code == 0, answered.output
    with out.open(encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert list(lines[0]) == ["found", "prediction", *(f"probability_{name}" for name in NAMES)]
    for line in lines:
        assert line["prediction"] == ";".join(name for name in NAMES if float(line[f"probability_{name}"]) > 0.5)
    assert len(lines) == ROWS
    table = tmp_path / "out.parquet"
    CliRunner().invoke(app, [*words, str(table)])
    import pyarrow.parquet as pq

    assert pq.read_table(table)["prediction"].to_pylist() == [line["prediction"] for line in lines]


def test_the_model_of_a_release_is_checked_and_has_a_task(release: Path, tmp_path: Path) -> None:
    file = load(release).file
    assert (file.several, file.classes, file.class_names) == (NAMES, None, None)
    assert find_task(file) == "tabular-classification"
    content = json.loads((release / "model.json").read_text())
    save_file(load(release).module.state_dict(), tmp_path / "model.safetensors")
    for change in ({"classes": 3}, {"several": ["fever"]}, {"several": None}):
        (tmp_path / "model.json").write_text(json.dumps({**content, **change}))
        with pytest.raises(DataFault):
            load(tmp_path)


def test_scores_of_other_names_do_not_verify(tmp_path: Path) -> None:
    write_rows(tmp_path)
    text = CASES["columns"].replace("steps: 60", "steps: 2").replace("report: true", "report: false")
    finished = run(plan_of(read_text(text, "recipe.yaml")), tmp_path / "run", data_root=tmp_path)
    path = finished.release / "certificate.json"
    stated = json.loads(path.read_text())
    stated["predicate"]["data_access"]["evaluation"]["released"]["by_name"][1]["name"] = "cold"
    path.write_bytes(to_bytes(stated))
    with pytest.raises(CertificateInvalid, match="not the names of the label"):
        dprecipe.verify(finished.release)


def test_it_is_rehearsed_on_synthetic_labels() -> None:
    for name in ("weights", "units"):
        assert all(check.passed for check in rehearse(plan_of(read_text(CASES[name], "recipe.yaml"))).checks)


@pytest.mark.slow
def test_a_module_from_python_gives_a_logit_for_each_name(tmp_path: Path) -> None:
    write_rows(tmp_path)
    own = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    plan = plan_of(read_text(recipe(COLUMNS, "{kind: mlp, hidden: [4]}"), "recipe.yaml"))
    finished = run(plan, tmp_path / "run", model=own, data_root=tmp_path)
    dprecipe.verify(finished.release)
    module = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    assert load(finished.release, module).predict([{"heat": 0.0, "dust": 1.0}]).shape == (1, 3)


def test_without_privacy(tmp_path: Path) -> None:
    answers = write_rows(tmp_path)
    text = recipe(FOUND, mechanism="{kind: none}", training="batch_size: 20,").replace(
        "path: train.csv", "path: train.csv\n    access: public"
    )
    lines = [line for line in text.splitlines() if not line.startswith(("budget", "release"))]
    (tmp_path / "recipe.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    loaded = read_any(tmp_path / "recipe.yaml")
    assert isinstance(loaded, LoadedPublic)
    done = train(make_plan(loaded), tmp_path, tmp_path / "out")
    predicted = load(done.weights).predict([{"heat": 1.0, "dust": 0.0}, {"heat": 0.0, "dust": 1.0}])
    assert predicted[:, :2].tolist() == [[True, False], [False, True]]
    assert done.score is not None
    assert done.score.accuracy is not None
    assert done.score.accuracy > 1.5 * answers.all(axis=1).mean()
