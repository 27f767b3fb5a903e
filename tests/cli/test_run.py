"""What a run says of private data, in a log and in a terminal; and what a restart finds that has nothing left to do."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.cli.run import run
from dprecipe.faults import CertificateInvalid, UsageFault

RECIPE = """\
recipe: dprecipe/v1
name: example
data:
  train: {source: digits, split: train}
  size: 1437
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
"""
TABLE = (
    "{source: csv, path: train.csv, columns: {x: {kind: numeric, min: 0, max: 9}}, label: {column: y, values: ['no', "
    "'yes']}}"
)


@pytest.mark.slow
def test_the_exact_number_of_private_records_is_for_a_terminal_alone(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "dprecipe", "run", "recipe.yaml"]
    logged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert logged.returncode == 4
    assert "does not have the number of records that data.size: 1437 declares" in logged.stderr
    assert "a terminal shows where and how many; a log must not" in logged.stderr
    assert not any(number in logged.stdout + logged.stderr for number in ("1438", "1,438"))
    leader, terminal = pty.openpty()
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal, check=False)
    os.close(terminal)
    output = b""
    try:
        while part := os.read(leader, 4096):
            output += part
    except OSError:  # all is read, and the other end is closed
        pass
    os.close(leader)
    assert b"in this terminal only: 1,438 records" in output
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_restart_that_finds_the_run_complete_verifies_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(RECIPE.replace("1437", "1438") + "release: {report: false}\n", encoding="utf-8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert run(recipe, out=out) == 0
    with pytest.raises(UsageFault, match="this run is complete"):  # no restart: somebody's second start
        run(recipe, out=out)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    capsys.readouterr()
    assert run(recipe, out=out) == 0
    assert "complete before it was started again, and its release verifies" in capsys.readouterr().out
    with pytest.raises(UsageFault, match="follows another plan"):
        run(recipe, ["training.steps=3"], out=out)
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with pytest.raises(UsageFault, match="this run is complete"):
        run(recipe, out=out)
    monkeypatch.delenv("GROUP_WORLD_SIZE")
    (out / "release" / "README.md").write_text("better", encoding="utf-8")
    with pytest.raises(CertificateInvalid):
        run(recipe, out=out)
    monkeypatch.setenv("RANK", "1")
    assert run(recipe, out=out) == 0


CSV = "{source: csv, path: absent/*.csv, columns: {a: {kind: boolean}}, label: {column: y, classes: 2}}"
TABLES = RECIPE.replace("{source: digits, split: train}", CSV).replace("  size", "  test: {path: held.csv}\n  size")
VOTES = """\
recipe: dprecipe/v1
name: labels
data: {train: {source: elsewhere, classes: 2}, size: 900}
model: {kind: none}
mechanism:
  kind: pate
  teachers: {count: 9, votes: {path: votes.csv}}
  aggregator: {kind: gnmax, noise: {family: gaussian, multiplier: auto}}
  queries: {max: 3}
budget: {epsilon: 3.0, delta: 1e-6}
release: {labels: true}
"""
PUBLIC = """\
recipe: dprecipe/v1
name: public
data:
  train:
    {source: csv, path: absent/*.csv, columns: {a: {kind: boolean}}, label: {column: y, classes: 2}, access: public}
  test: {path: held.csv, access: public}
  size: 900
model: {kind: logistic_regression}
mechanism: {kind: none}
training: {steps: 2, batch_size: 10, optimizer: {kind: sgd, lr: 0.5}}
"""


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        (TABLES, ["absent/*.csv: the pattern matches no file", "held.csv: no such data file"]),
        (VOTES, ["votes.csv: no such data file"]),
        (PUBLIC, ["absent/*.csv: the pattern matches no file", "held.csv: no such data file"]),
    ],
)
def test_what_is_known_without_records_is_refused_before_the_plan_is_printed(
    text: str, missing: list[str], tmp_path: Path
) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(text, encoding="utf-8")
    refused = CliRunner().invoke(app, ["run", str(recipe), "--out", str(out)])
    assert (refused.exit_code, refused.stdout) == (4, "")
    assert all(words in refused.stderr for words in missing)
    out.mkdir()
    (out / "notes.txt").write_text("mine", encoding="utf-8")
    refused = CliRunner().invoke(app, ["run", str(recipe), "--out", str(out)])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "never overwritten" in refused.stderr


def test_a_run_that_cant_be_resumed_prints_no_plan(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    refused = CliRunner().invoke(app, ["run", str(tmp_path / "recipe.yaml"), "--resume", "--out", str(tmp_path / "r")])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "no run to resume" in refused.stderr


@pytest.mark.parametrize("access", ["public", "private_internal"])
def test_rare_classes_that_are_not_found_are_named_by_public_scores_alone(access: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        rows = [f"{row % 7},{'yes' if row % 30 == 0 else 'no'}" for row in range(300)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    text = RECIPE.replace("{source: digits, split: train}", TABLE).replace("1437", "300")
    text = text.replace("  size:", f"  test: {{path: test.csv, access: {access}}}\n  size:")
    (tmp_path / "recipe.yaml").write_text(text)
    made = CliRunner().invoke(
        app, ["run", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "run"), "--data-root", str(tmp_path)]
    )
    assert made.exit_code == 0, made.output
    assert ("rarer classes are hardly found: docs/how-to/imbalance.md" in made.stdout) == (access == "public")
