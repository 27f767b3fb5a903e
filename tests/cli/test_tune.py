"""The arguments of `dprecipe tune`."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.cli.tune import describe_score
from dprecipe.release.facts import PublicScore

RECIPE = """\
recipe: dprecipe/v1
name: tuned
data:
  train: {source: csv, path: absent.csv, columns: {a: {kind: boolean}}, label: {column: y, classes: 2}}
  test: {path: held.csv, access: public}
  size: 900
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
tuning:
  runs: {kind: negative_binomial, mean: 4, shape: 0.5}
  over: [{key: training.optimizer.lr, values: [0.5, 1.0]}]
  score: {metric: accuracy}
"""


@pytest.mark.parametrize(
    ("words", "address"),
    [
        ("r.yaml", None),
        ("r.yaml --ray", "local"),
        ("--ray --jobs 2 r.yaml", "local"),
        ("r.yaml --ray 10.0.0.1:6379", "10.0.0.1:6379"),
        ("--ray=auto r.yaml", "auto"),
    ],
)
def test_ray_without_an_address_is_a_cluster_of_its_own(words: str, address: str | None) -> None:
    command = typer.main.get_command(app).load_command("tune")  # type: ignore[attr-defined]
    given = command.make_context("tune", words.split()).params
    assert given["cluster"] == address
    assert given["recipe"].name == "r.yaml"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("auc", "AUC 0.607 (0.5 without a model), balanced accuracy 51.20%, accuracy 93.68% (93.56%)"),
        ("loss", "loss 0.25, balanced accuracy 51.20%, AUC 0.607 (0.5 without a model), accuracy 93.68% (93.56%)"),
    ],
)
def test_the_score_that_a_run_was_chosen_by_is_beside_those_that_say_most(metric: str, words: str) -> None:
    full = {"accuracy_baseline": 0.9356, "balanced_accuracy": 0.512, "auc": 0.607, "auc_baseline": 0.5}
    assert describe_score(PublicScore(0.9368, 0.25, 1000, full=full), metric) == words
    assert describe_score(PublicScore(None, 0.25, 9, 1.5), "mean_absolute_error") == "mean absolute error 1.5"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 4, "absent.csv: no such data file"),
        (("--out", "."), 2, "never overwritten"),
        (("--resume", "--out", "."), 2, "no run to resume"),
    ],
)
def test_what_is_known_without_records_is_refused_before_the_plan_is_printed(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    refused = CliRunner().invoke(app, ["tune", "recipe.yaml", *words])
    assert (refused.exit_code, refused.stdout) == (code, "")
    assert said in refused.stderr
