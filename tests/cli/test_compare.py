"""`dprecipe compare`: what is read, printed, drawn and refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.release.facts import PublicScore
from tests.recipe_texts import FULL_BATCH

RECIPE = (
    """\
recipe: dprecipe/v1
name: small
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1437
"""
    + FULL_BATCH
    + """\
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
release: {report: false}
runtime: {seed: 0}
"""
)


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, release_of: Any) -> list[Path]:
    """Two seeds of one method, and two of another."""
    root = tmp_path_factory.mktemp("runs")
    result = []
    for lr, scores in ((0.5, (0.9, 0.8)), (0.25, (0.93, 0.85))):
        for seed, score in enumerate(scores):
            text = RECIPE.replace("lr: 0.5", f"lr: {lr}").replace("seed: 0", f"seed: {seed}")
            text = text.replace("name: small", f"name: lr-{lr}")
            folder = root / f"{lr}-{seed}"
            folder.mkdir()
            release_of(text, folder, score=PublicScore(score, 0.4, 360))
            result.append(folder)
    return result


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("recipe") / "other.yaml"
    text = RECIPE.replace("delta: 1e-5}", "delta: 1e-5, neighbouring: replace_one}").replace("small", "other")
    file.write_text(text, encoding="utf-8")
    return file


def test_methods_are_compared_over_their_seeds(runs: list[Path], tmp_path: Path) -> None:
    result = call(*runs, "--plot", tmp_path / "plot.svg")
    assert result.exit_code == 0, result.output
    assert "protects adding or removing one record" in result.stdout
    assert "90.00%" not in result.stdout  # the mean, not a run
    assert "85.00% ± " in result.stdout
    assert "paired over 2 seeds, p = " in result.stdout
    assert "costs more than its own ε" in result.stdout
    assert "without a model" not in result.stdout  # these releases state none
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "lr-0.25" in drawn
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    content = json.loads(call(*runs, "--format", "json", "--metric", "loss").stdout)
    assert content["schema"] == "dprecipe.compare/v1"
    (standing,) = content["standings"]
    assert standing["metric"] == "loss"
    assert [len(method["runs"]) for method in standing["methods"]] == [2, 2]


def test_unequal_classes_are_compared_by_what_a_constant_does_not_reach(tmp_path: Path, release_of: Any) -> None:
    full = {"accuracy_baseline": 0.9356, "balanced_accuracy": 0.512, "balanced_accuracy_baseline": 0.5, "auc": 0.607}
    release_of(RECIPE, tmp_path, score=PublicScore(0.9368, 0.4, 360, full=full))
    said = call(tmp_path).stdout
    assert "balanced accuracy" in said
    assert "51.20%             50.00%" in said
    assert "93.68%" not in said
    by_accuracy = call(tmp_path, "--metric", "accuracy", "--format", "json").stdout
    (method,) = json.loads(by_accuracy)["standings"][0]["methods"]
    assert (method["score"]["mean"], method["baseline"]) == (0.9368, 0.9356)


def test_another_claim_is_another_table_and_no_plot(runs: list[Path], recipe: Path, tmp_path: Path) -> None:
    result = call(runs[0], recipe)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 different claims: no ε of one is compared with one of another\n")
    assert "planned" in result.stdout
    refused = call(runs[0], recipe, "--plot", tmp_path / "plot.svg")
    assert refused.exit_code == 2
    assert "different claims" in refused.stderr
    assert not (tmp_path / "plot.svg").exists()


def test_a_release_that_does_not_verify_is_not_compared(runs: list[Path], tmp_path: Path) -> None:
    text = (runs[0] / "release" / "certificate.json").read_text(encoding="utf-8")
    file = tmp_path / "certificate.json"
    file.write_text(text.replace('"accuracy": 0.9', '"accuracy": 1.9'), encoding="utf-8")
    assert call(file).exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [("--format", "xml"), ("--delta", "1"), ("--delta", "0"), ("--plot", "x.png"), ("--metric", "beauty")],
)
def test_what_is_asked_wrongly_is_refused(arguments: tuple[str, str], recipe: Path) -> None:
    assert call(recipe, *arguments).exit_code == 2


def test_a_folder_without_a_release_is_refused(tmp_path: Path) -> None:
    assert call(tmp_path).exit_code == 2


def test_a_copy_of_a_release_is_no_second_run(runs: list[Path], tmp_path: Path) -> None:
    shutil.copytree(runs[0], tmp_path / "copy")
    result = call(runs[0], tmp_path / "copy", "--format", "json")
    (standing,) = json.loads(result.stdout)["standings"]
    once = json.loads(call(runs[0], "--format", "json").stdout)["standings"][0]
    assert standing == once
    assert len(standing["methods"][0]["runs"]) == 1


def test_of_many_methods_the_pairs_with_the_best_are_shown(tmp_path: Path, release_of: Any) -> None:
    folders = []
    for number in range(4):
        for seed in range(2):
            text = RECIPE.replace("lr: 0.5", f"lr: 0.{number + 1}").replace("seed: 0", f"seed: {seed}")
            folders.append(tmp_path / f"{number}-{seed}")
            folders[-1].mkdir()
            score = PublicScore(0.9 - abs(number - 1) / 50 - seed * number / 100, 0.4 + number / 100, 360)
            release_of(text.replace("name: small", f"name: m{number}"), folders[-1], score=score)
    for metric, best in (("accuracy", "m1"), ("loss", "m0")):
        said = call(*folders, "--metric", metric).stdout
        assert len(re.findall(rf"^  (?:m\d − {best}|{best} − m\d): .*paired over", said, re.MULTILINE)) == 3
        assert said.count("paired over") == 3
        assert f"pairs without {best}, the best, are left out: 3 (--format json has them)" in said
    assert len(json.loads(call(*folders, "--format", "json").stdout)["standings"][0]["tests"]) == 6


def test_many_methods_without_common_seeds_take_one_line(tmp_path: Path, release_of: Any) -> None:
    folders = []
    for number in range(5):
        text = RECIPE.replace("lr: 0.5", f"lr: 0.{number + 1}").replace("seed: 0", f"seed: {number}")
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        release_of(text.replace("name: small", f"name: m{number}"), folders[-1], score=PublicScore(0.9, 0.4, 360))
    said = call(*folders).stdout
    assert said.count("no test") == 1
    assert "10 pairs of methods: no test: fewer than two seeds in common" in said
    two = call(*folders[:2]).stdout
    assert "m1 − m0: no test: fewer than two seeds in common" in two
