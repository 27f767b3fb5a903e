"""`dprecipe sweep` as a user runs it: plans, runs, a table and figures; interruption; what is refused and why."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account, open_account
from dprecipe.cli.main import app
from dprecipe.privacy.adjacency import Neighbouring
from tests.recipe_texts import DIGITS

DPSGD = """\
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: full_batch}
budget: {epsilon: 2.0, delta: 1e-5}
training: {steps: 3, optimizer: {kind: sgd, lr: 0.5}}
release: {report: false}
"""
RECIPE = "recipe: dprecipe/v1\nname: small\n" + DIGITS + DPSGD
PLAIN = (
    "recipe: dprecipe/v1\nname: plain\n"
    + DIGITS.replace("split: train}", "split: train, access: public}")
    + "model: {kind: logistic_regression}\nmechanism: {kind: none}\n"
    + "training: {steps: 3, batch_size: 256, optimizer: {kind: sgd, lr: 0.5, weight_decay: 0.01}}\n"
)
LR = "training.optimizer.lr"


def call(command: str, *arguments: object) -> Any:
    return CliRunner().invoke(app, [command, *map(str, arguments)])


def write(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def read_table(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A recipe, the folder of its sweep, and what the sweep said."""
    pytest.importorskip("torch", reason="torch is not installed")
    root = tmp_path_factory.mktemp("sweep")
    recipe = write(root)
    done = call("sweep", recipe, "--over", f"{LR}=0.5,4", "--seeds", 2, "--out", root / "s", "--public")
    assert done.exit_code == 0, done.output
    return recipe, root / "s", done


def test_plans_are_printed_without_a_run(tmp_path: Path) -> None:
    done = call("sweep", write(tmp_path), "--over", "budget.epsilon=1,8", "--over", f"{LR}=0.5,1", "--plan")
    assert done.exit_code == 0, done.output
    assert "4 plans, 4 runs; nothing is trained" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    assert [row[:2] for row in rows] == [["1", "0.5"], ["1", "1"], ["8", "0.5"], ["8", "1"]]
    assert float(rows[0][2]) <= 1 < float(rows[2][2]) <= 8
    assert float(rows[0][-1]) > float(rows[2][-1])  # the noise
    assert sorted(tmp_path.iterdir()) == [tmp_path / "recipe.yaml"]


def test_a_sweep_has_a_table_figures_and_releases_that_verify(swept: tuple[Path, Path, Any]) -> None:
    _, folder, done = swept
    first, *lines = done.stdout.splitlines()
    assert first == "price of looking: none, --public declares the training records public or synthetic"
    assert lines[0].split() == [LR, "ε", "accuracy", "runs"]
    assert [line.split()[0] for line in lines[1:3]] == ["0.5", "4"]
    rows = read_table(folder)
    assert [(row[LR], row["seed"]) for row in rows] == [("0.5", "0"), ("0.5", "1"), ("4", "0"), ("4", "1")]
    assert all(0 < float(row["accuracy"]) <= 1 and float(row["epsilon"]) <= 2 for row in rows)
    assert ElementTree.parse(folder / "figures.svg").getroot().tag.endswith("svg")
    release = folder / "runs" / "lr-4_seed-1" / "release"
    assert call("verify", release).exit_code == 0
    assert "declared public" in (release / "certificate.json").read_text(encoding="utf-8")  # a stranger is to know


@pytest.mark.slow
def test_finished_runs_are_kept_and_a_changed_grid_says_so(swept: tuple[Path, Path, Any], tmp_path: Path) -> None:
    recipe, original, _ = swept
    folder = tmp_path / "s"
    shutil.copytree(original, folder)
    arguments = (recipe, "--seeds", 2, "--out", folder, "--public")
    refused = call("sweep", *arguments, "--over", f"{LR}=0.5,4")
    assert refused.exit_code == 2
    assert "continue it with --resume" in refused.stderr
    before = (folder / "runs" / "lr-4_seed-0" / "private" / "ledger.jsonl").read_bytes()
    shutil.rmtree(folder / "runs" / "lr-4_seed-1")
    done = call("sweep", *arguments, "--over", f"{LR}=4,2", "--resume")
    assert done.exit_code == 0, done.output
    assert "the grid has changed: 2 runs are new" in done.stdout
    assert "the grid has changed: 2 runs of before are not in it, and stay where they are" in done.stdout
    assert [row[LR] for row in read_table(folder)] == ["4", "4", "2", "2"]
    assert (folder / "runs" / "lr-4_seed-0" / "private" / "ledger.jsonl").read_bytes() == before
    assert (folder / "runs" / "lr-0.5_seed-0" / "release").is_dir()
    other = call("sweep", *arguments, "--over", f"{LR}=4,2", "--resume", "--set", "training.steps=4")
    assert other.exit_code == 2
    assert "is another run now" in other.stderr
    keys = call("sweep", *arguments, "--over", "budget.epsilon=4,2", "--resume")
    assert keys.exit_code == 2
    assert f"is a sweep over {LR}, and not over budget.epsilon" in keys.stderr


def test_compare_takes_the_folder_and_plots_against_any_key(swept: tuple[Path, Path, Any], tmp_path: Path) -> None:
    _, folder, _ = swept
    plot = tmp_path / "plot.svg"
    done = call("compare", folder, "--plot", plot, "--x", LR, "--format", "json")
    assert done.exit_code == 0, done.output
    methods = json.loads(done.stdout)["standings"][0]["methods"]
    assert [len(method["runs"]) for method in methods] == [2, 2]
    assert LR in plot.read_text(encoding="utf-8")
    names = call("compare", folder, "--plot", plot, "--x", "model.kind")
    assert names.exit_code == 0
    assert "logistic_regression" in plot.read_text(encoding="utf-8")
    assert call("compare", folder, "--plot", plot, "--x", "model.kinds").exit_code == 2
    assert call("compare", folder, "--x", LR).exit_code == 2


def test_a_sweep_on_private_records_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    text = RECIPE.replace(
        "{source: digits, split: train}", "{source: npz, path: absent.npz, shape: [8, 8], classes: 10}"
    )
    arguments = (write(tmp_path, text), "--over", f"{LR}=0.5,4", "--out", tmp_path / "s")
    refused = call("sweep", *arguments)
    assert refused.exit_code == 2, refused.output
    assert "costs more than the ε of one run" in refused.stderr
    for remedy in ("`tuning`", "dprecipe tune", "budget.account", "--public"):
        assert remedy in refused.stderr
    assert not (tmp_path / "s").exists()
    declared = call("sweep", *arguments, "--public")
    assert declared.exit_code == 4, declared.output  # now the file is looked for
    assert "absent.npz" in declared.stderr


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (", access: public", "", "a sweep compares scores on public records"),
        ("release: {", "tuning: {runs: {kind: poisson, mean: 3}, over: [{key: model.kind, values: "
         "[logistic_regression]}], score: {metric: accuracy, records: test}}\nrelease: {", "`tuning`"),
        ("release: {", "runtime: {processes: 2}\nrelease: {", "runtime.processes"),
    ],
)  # fmt: skip
def test_what_no_sweep_can_be_made_of_is_refused(old: str, new: str, says: str, tmp_path: Path) -> None:
    refused = call("sweep", write(tmp_path, RECIPE.replace(old, new)), "--over", f"{LR}=0.5,4", "--out", tmp_path / "s")
    assert refused.exit_code != 0
    assert says in refused.stderr
    assert not (tmp_path / "s").exists()


def test_a_cell_that_has_no_plan_is_found_before_any_runs(tmp_path: Path) -> None:
    arguments = (write(tmp_path), "--out", tmp_path / "s")
    refused = call("sweep", *arguments, "--over", f"{LR}=0.5,-1", "--over", "budget.epsilon=1,2")
    assert refused.exit_code == 1, refused.output
    assert refused.stderr.count(f"with {LR}=-1, budget.epsilon=") == 2
    assert f"with {LR}=0.5" not in refused.stderr
    unknown = call("sweep", *arguments, "--over", "training.optimiser.lr=1,2")
    assert unknown.exit_code == 1
    tight = call("sweep", *arguments, "--over", "mechanism.noise.multiplier=auto,0.5")
    assert tight.exit_code == 3, tight.output
    assert "with mechanism.noise.multiplier=0.5: " in tight.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_each_run_is_charged_to_the_account_which_refuses_too_many(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    facts = new_facts("digits", 6.0, 1e-4, "record", Neighbouring.ADD_OR_REMOVE_ONE)
    create_account(tmp_path / "digits.db", facts).close()
    recipe = write(tmp_path, RECIPE.replace("epsilon: 2.0", "epsilon: 2.0, account: digits.db"))
    arguments = (recipe, "--over", f"{LR}=0.5,4", "--out", tmp_path / "s")
    many = call("sweep", *arguments, "--seeds", 20)
    assert many.exit_code == 3, many.output
    assert "account digits can't hold 40 more runs like these" in many.stderr
    assert not (tmp_path / "s").exists()
    both = call("sweep", *arguments, "--public")
    assert both.exit_code == 2
    done = call("sweep", *arguments)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        "price of looking: each of 2 runs is charged to account digits, which counts ε = 0 of 6"
    )
    with closing(open_account(tmp_path / "digits.db", read_only=True)) as account:
        assert account.state().totals.runs == 2
    again = call("sweep", *arguments, "--resume")
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith("price of looking: paid, account digits counts ε = ")
    with closing(open_account(tmp_path / "digits.db", read_only=True)) as account:
        assert account.state().totals.runs == 2


def test_an_interrupted_sweep_keeps_what_is_done_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from dprecipe.sweep import run as runs
    from dprecipe.training.steps import noisy_steps  # noqa: F401 - imported before it is stopped

    arguments = (write(tmp_path, PLAIN), "--over", f"{LR}=0.5,1,2", "--out", tmp_path / "s")
    honest, made = runs._run, list[Any]()

    def stopped(*given: Any) -> None:
        if made:
            raise KeyboardInterrupt
        honest(*given)
        made.append(given)

    monkeypatch.setattr(runs, "_run", stopped)
    first = call("sweep", *arguments)
    assert first.exit_code == 130, first.output
    assert "stopped: 1 of 3 runs are done, and kept in" in first.stderr
    assert "--resume" in first.stderr
    weights = tmp_path / "s" / "runs" / "lr-0.5_seed-0" / "weights" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    monkeypatch.setattr(runs, "_run", honest)
    second = call("sweep", *arguments, "--resume")
    assert second.exit_code == 0, second.output
    assert weights.stat().st_mtime_ns == before
    assert [row[LR] for row in read_table(tmp_path / "s")] == ["0.5", "1", "2"]
    assert second.stdout.startswith("price of looking: none, the recipe declares its records public (mechanism none)\n")
    none = call("compare", tmp_path / "s")
    assert none.exit_code == 2
    assert "table.csv" in none.stderr


def test_a_run_that_fails_by_itself_is_in_the_table_and_ends_no_other(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    arguments = (write(tmp_path, PLAIN), "--over", f"{LR}=1e20,0.5", "--out", tmp_path / "s")
    done = call("sweep", *arguments, "--metric", "loss")
    assert done.exit_code == 4, done.output
    assert "1 of 2 runs failed" in done.stderr
    lost, kept = read_table(tmp_path / "s")
    assert "not finite" in lost["failure"]
    assert lost["loss"] == ""
    assert kept["failure"] == ""
    assert float(kept["loss"]) > 0
    wrong = call("sweep", *arguments, "--metric", "beauty", "--resume")
    assert wrong.exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
def test_ctrl_c_stops_all_processes_of_a_sweep(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    recipe = write(tmp_path, RECIPE.replace("steps: 3", "steps: 200"))
    command = [sys.executable, "-m", "dprecipe", "sweep", str(recipe), "--over", f"{LR}=0.5,1,2", "--jobs", "2"]
    command += ["--out", str(tmp_path / "s"), "--seeds", "4"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        until = time.monotonic() + 120
        while time.monotonic() < until and not list((tmp_path / "s" / "runs").glob("*/release")):
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert not list((tmp_path / "s" / "runs").glob("*.failed"))
    done = len(list((tmp_path / "s" / "runs").glob("*/release")))
    assert 1 <= done < 12
    assert subprocess.run([*command, "--resume"], capture_output=True, check=False).returncode == 0
    assert len(read_table(tmp_path / "s")) == 12
