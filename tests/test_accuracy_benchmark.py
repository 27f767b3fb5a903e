"""The laboratory of accuracy: what chooses a setting, what is reported, what is kept, and the tables made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

import dprecipe
from dprecipe.data.records import Records
from dprecipe.faults import RunFailed

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "accuracy"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.toml"))
BEST = sorted(path for path in (ROOT / "recipes" / "best").glob("*.yaml") if path.stem != "sms-rows")
"""Recipes with runs in `results.jsonl`; those of `sms-rows` are in a file of their own, without digests."""

RECIPE = """
recipe: dprecipe/v1
name: tiny
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
  unit: record
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 719}
budget: {epsilon: 3.0, delta: 1e-5}
training: {epochs: 1, optimizer: {kind: sgd, lr: 1.0}}
"""
STUDY = """
recipes = ["{recipe}"]
seeds = [0, 1, 2]
choice_seeds = [100]
over = {{"budget.epsilon" = [1.0, 3.0]}}
against = "b"
methods.a.try = {{"training.optimizer.lr" = [0.5, 1.0]}}
methods.b.try = {{"training.optimizer.lr" = [0.25]}}
"""


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "accuracy")
    import lab

    return lab


@pytest.fixture
def study(tmp_path: Path) -> Path:
    (tmp_path / "tiny.yaml").write_text(RECIPE, "utf-8")
    (tmp_path / "study.toml").write_text(STUDY.format(recipe=tmp_path / "tiny.yaml"), "utf-8")
    return tmp_path / "study.toml"


Run = Callable[..., Any]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Records, Records]]:
    """The runs that were asked for; none trains, and 0.5 is the best rate."""
    asked: list[tuple[Any, Records, Records]] = []

    def run(plan: Any, out: Path, train: Records, test: Records) -> Any:
        asked.append((plan, train, test))
        rate, seed = plan.training.optimizer.lr, plan.runtime.seed
        score = (1 - rate if rate > 0.3 else 0.2) if seed >= 100 else (0.8 if rate == 0.5 else 0.7) + seed / 100
        return SimpleNamespace(verified=True, epsilon=0.9, score=SimpleNamespace(accuracy=score))

    monkeypatch.setattr(dprecipe, "run", run)
    return asked


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.slow
def test_settings_are_chosen_apart_from_the_test_set_and_the_reported_seeds(
    lab: ModuleType, study: Path, runs: list[tuple[Any, Records, Records]], tmp_path: Path
) -> None:
    lab.main([str(study), "--results", str(tmp_path / "r.jsonl"), "--data-root", str(tmp_path)])
    chosen = [each for each in runs if each[0].runtime.seed >= 100]
    reported = [each for each in runs if each[0].runtime.seed < 100]
    assert [plan.training.optimizer.lr for plan, _, _ in chosen] == [0.5, 1.0, 0.5, 1.0]
    assert {plan.training.optimizer.lr for plan, _, _ in reported} == {0.5, 0.25}
    whole, test = reported[0][1:]
    assert (len(whole), len(test)) == (1438, 359)
    everything = {row.tobytes() for row in np.asarray(whole.features)}
    for plan, kept, held in chosen:
        assert (plan.data.size, len(kept), len(held)) == (1199, 1199, 239)
        parts = [{row.tobytes() for row in np.asarray(part.features)} for part in (kept, held)]
        assert parts[0] | parts[1] == everything
        assert not parts[0] & parts[1]


@pytest.mark.slow
def test_a_choice_declares_a_range_of_as_many_records_as_it_trains_on(
    lab: ModuleType, study: Path, runs: list[tuple[Any, Records, Records]], tmp_path: Path
) -> None:
    (tmp_path / "few.csv").write_text("x,y\n" + "0.5,a\n0.25,b\n" * 40, "utf-8")
    data = """
  train:
    source: csv
    path: few.csv
    columns: {x: {kind: numeric, min: 0, max: 1}}
    label: {column: y, values: [a, b]}
    records: [0, 60]
  test: {source: csv, path: few.csv, records: [60, 80], access: public}
  size: 60
"""
    before, after = RECIPE.split("data:\n")[0], RECIPE.split("size: 1438\n")[1]
    text = f"{before}data:{data}{after}".replace("719", "30").replace(
        "delta: 1e-5}", "delta: 1e-5, neighbouring: zero_out_one}"
    )
    (tmp_path / "tiny.yaml").write_text(text, "utf-8")
    lab.main([str(study), "--results", str(tmp_path / "r.jsonl"), "--data-root", str(tmp_path)])
    ranges = {(each[0].runtime.seed >= 100, each[0].data.train.records, len(each[1])) for each in runs}
    assert ranges == {(True, (0, 50), 50), (False, (0, 60), 60)}


@pytest.mark.slow
def test_results_are_kept_and_not_run_again(
    lab: ModuleType, study: Path, runs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(study), "--results", str(tmp_path / "r.jsonl")]
    lab.main(command)
    assert "80" not in capsys.readouterr().out
    assert runs == []  # without data nothing is run
    lab.main([*command, "--data-root", str(tmp_path)])
    table = capsys.readouterr().out
    assert table.splitlines()[2:] == [
        "| tiny | 1 | 81.00 ± 2.48 | 71.00 ± 2.48 | +10.00 ± 0.00 | 2 |",
        "| tiny | 3 | 81.00 ± 2.48 | 71.00 ± 2.48 | +10.00 ± 0.00 | 2 |",
    ]
    kept = lines(tmp_path / "r.jsonl")
    assert len(kept) == len(runs) == 16
    assert {(each["role"], each["seed"]) for each in kept} == {("choice", 100), *(("report", n) for n in range(3))}
    lab.main(command)
    assert capsys.readouterr().out == table
    lab.main([*command, "--data-root", str(tmp_path)])
    assert len(runs) == 16
    (tmp_path / "tiny.yaml").write_text(RECIPE.replace("719", "360"), "utf-8")
    lab.main([*command, "--data-root", str(tmp_path)])
    assert len(runs) == 32  # another recipe
    assert lines(tmp_path / "r.jsonl")[:16] == kept


@pytest.mark.slow
def test_a_setting_that_was_given_up_still_counts(
    lab: ModuleType, study: Path, runs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [str(study), "--results", str(tmp_path / "r.jsonl"), "--data-root", str(tmp_path)]
    lab.main(command)
    table = capsys.readouterr().out
    study.write_text(study.read_text("utf-8").replace("[0.5, 1.0]", "[0.5, 0.75]"), "utf-8")
    lab.main(command[:-2])
    assert capsys.readouterr().out == table  # of those that have run
    lab.main(command)
    assert [line.split("|")[-2].strip() for line in capsys.readouterr().out.splitlines()[2:]] == ["3", "3"]


@pytest.mark.slow
def test_a_method_may_have_a_recipe_of_its_own(
    lab: ModuleType, study: Path, runs: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wide.yaml").write_text(RECIPE.replace("719", "360"), "utf-8")
    with study.open("a", encoding="utf-8") as file:
        file.write(
            f'methods.c.try = {{"training.optimizer.lr" = [0.5, 1.0]}}\nmethods.c.recipe = "{tmp_path}/wide.yaml"\n'
        )
    lab.main([str(study), "--results", str(tmp_path / "r.jsonl"), "--data-root", str(tmp_path)])
    assert {each["recipe"] for each in lines(tmp_path / "r.jsonl")} == {"tiny", "wide"}
    assert capsys.readouterr().out.splitlines()[2].endswith("| 4 |")


@pytest.mark.slow
def test_a_run_that_fails_is_kept_and_loses(
    lab: ModuleType, study: Path, runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Run = dprecipe.run

    def fail(plan: Any, *rest: Any, **named: Any) -> Any:
        if plan.training.optimizer.lr == 0.5:
            raise RunFailed("the loss is not finite", "use a smaller rate")
        return run(plan, *rest, **named)

    monkeypatch.setattr(dprecipe, "run", fail)
    lab.main([str(study), "--results", str(tmp_path / "r.jsonl"), "--data-root", str(tmp_path)])
    kept = lines(tmp_path / "r.jsonl")
    assert [each["score"] for each in kept if each["settings"]["training.optimizer.lr"] == 0.5] == [None, None]
    assert {each["settings"]["training.optimizer.lr"] for each in kept if each["role"] == "report"} == {1.0, 0.25}


def test_seeds_that_choose_are_not_reported(lab: ModuleType, study: Path) -> None:
    study.write_text(study.read_text("utf-8").replace("[100]", "[2]"), "utf-8")
    with pytest.raises(SystemExit, match="disjoint"):
        lab.read_study(study)


@pytest.mark.slow
def test_a_run_of_the_program_is_kept_with_what_it_spent(lab: ModuleType, study: Path, tmp_path: Path) -> None:
    laboratory = lab.Laboratory(tmp_path / "r.jsonl", tmp_path)
    for role, seed in (("choice", 100), ("report", 0)):
        (found,) = laboratory.find(tmp_path / "tiny.yaml", {"budget.epsilon": 3.0}, role, [seed])
        assert 0.2 < found.score < 1
        assert 2.9 < found.epsilon <= 3
        assert (found.recipe, found.role, found.seed, found.delta) == ("tiny", role, seed, 1e-5)
        assert found.version == dprecipe.__version__
        assert found.seconds > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_the_page_has_the_table_that_its_results_make(lab: ModuleType, name: str) -> None:
    study = lab.read_study(FOLDER / f"{name}.toml")
    page = (ROOT / "docs" / "project" / "accuracy.md").read_text("utf-8")
    assert lab.render(lab.Laboratory(lab.RESULTS, None), study) in page
    assert f"benchmarks/accuracy/{name}.toml" in page
    for row in study.rows:
        for method in study.methods:
            dprecipe.plan(dprecipe.load(method.recipe or row.recipe, {**row.point, **method.overrides}))


@pytest.mark.parametrize("path", BEST, ids=lambda path: path.stem)
def test_a_best_recipe_and_each_command_of_its_header_have_reported_runs(lab: ModuleType, path: Path) -> None:
    """A row of the page can be had from the recipe alone: as it is, and by what its comments set."""
    commands = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#") and "--set" in line]
    reported = [each.digest for each in lab.Laboratory(lab.RESULTS, None).results if each.role == "report"]
    for command in ["", *commands]:
        settings = {key: yaml.safe_load(value) for key, value in re.findall(r"--set ([^=\s]+)=([^\s;]+)", command)}
        assert reported.count(lab.digest_recipe(path, settings)) >= 3, command


def test_the_page_of_correlated_noise_has_the_same_means(lab: ModuleType) -> None:
    study = lab.read_study(FOLDER / "correlated.toml")
    table = lab.render(lab.Laboratory(lab.RESULTS, None), study)
    page = (ROOT / "docs" / "explanation" / "correlated.md").read_text("utf-8")
    names = {"fashion-pooled": "Fashion-MNIST", "cifar10-pooled": "CIFAR-10"}
    rows = [[cell.partition(" ±")[0] for cell in line.strip("| ").split(" | ")] for line in table.splitlines()[2:]]
    assert rows
    for recipe, epsilon, previous, independent, banded, _, poisson, *_ in rows:
        assert f"| {names[recipe]} | {epsilon} | {previous} | {independent} | {banded} | {poisson} |" in page
