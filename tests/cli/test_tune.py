"""The arguments of `dprecipe tune`."""

from __future__ import annotations

import pytest
import typer

from dprecipe.cli.main import app
from dprecipe.cli.tune import describe_score
from dprecipe.release.facts import PublicScore


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
