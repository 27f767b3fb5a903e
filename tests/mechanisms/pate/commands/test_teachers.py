"""`dprecipe teachers` and `dprecipe run --teachers`, as a user types them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dprecipe.cli.main import app
from dprecipe.release.verify import verify
from tests.mechanisms.pate.conftest import AGGREGATORS, DIGITS, VOTES

FEW = (
    "mechanism.teachers.training=null",
    "mechanism.teachers.count=4",
    "mechanism.queries.max=10",
    # Four votes pass it: a run without a single answer is one in 10^5.
    "mechanism.aggregator.selection={threshold: 1, noise: {family: gaussian, multiplier: 2}}",
)
DPSGD = """\
recipe: dprecipe/v1
name: example
data:
  train: {source: digits, split: train}
  size: 1438
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 2.0}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: auto, delta: 1e-5}
training: {steps: 2, optimizer: {kind: sgd, lr: 0.5}}
"""


def call(*words: object, sets: Sequence[str] = FEW) -> Result:
    line = [str(word) for word in words] + [word for each in sets for word in ("--set", each)]
    return CliRunner().invoke(app, line)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "digits.yaml"
    path.write_text(DIGITS, encoding="utf-8")
    return path


@pytest.mark.slow
def test_shards_of_machines_without_a_common_disk(recipe: Path, tmp_path: Path) -> None:
    """The folder is made once, copied to each machine, and all are named to the run."""
    first, second, out = tmp_path / "first", tmp_path / "second", tmp_path / "run"
    made = call("teachers", recipe, "--out", first, "--prepare")
    assert made.exit_code == 0
    assert f"copy it, with its key, to every machine that trains a shard\n{first} is private" in made.stdout
    shutil.copytree(first, second)
    done = call("teachers", recipe, "--shard", "1/2", "--out", first)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"wrote {first}/shard-1-of-2.votes: shard 1/2, 2 teachers, 0 … 1",
        f"nothing was spent; when all shards are there: dprecipe run {recipe} --teachers {first}",
        f"{first} is private: votes of single teachers, without noise. Publish nothing of it; delete it after the run",
    ]
    gap = call("run", recipe, "--teachers", first, "--teachers", second, "--out", out)
    assert gap.exit_code == 2
    assert "1 of 2 shards are missing: 2" in gap.stderr
    assert f"dprecipe teachers RECIPE --shard 2/2 --out {first}" in gap.stderr
    assert not out.exists()
    assert call("teachers", recipe, "--shard", "2/2", "--out", second).exit_code == 0
    again = call("teachers", recipe, "--shard", "2/2", "--out", second)
    assert again.stdout.startswith(f"was there already {second}/shard-2-of-2.votes")
    merged = call("run", recipe, "--teachers", first, "--teachers", second, "--out", out)
    assert merged.exit_code == 0, merged.stderr
    verify(out / "release")


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (DIGITS, ("teachers", "--shard", "3/2", "--out", "t"), "expected I/N with 1 <= I <= N"),
        (DIGITS, ("teachers", "--shard", "1/26", "--out", "t"), "25 teachers, fewer than shards"),
        (DIGITS, ("teachers", "--shard", "1/2"), "Missing option '--out'"),
        (DIGITS, ("run", "--teachers", "absent"), "absent: no folder of `dprecipe teachers`"),
        (DIGITS, ("run", "--teachers", "t", "--ray"), "--teachers and --ray can't be combined"),
        (DIGITS, ("run", "--teachers", "t", "--rehearse"), "--rehearse trains a few teachers here: --teachers"),
        (DIGITS, ("run", "--ray", "127.0.0.1:1"), "nothing was spent: "),
        (VOTES % (AGGREGATORS["gnmax"], 10), ("teachers", "--out", "t"), "the votes come from a file"),
        (DPSGD, ("teachers", "--out", "t"), "mechanism dpsgd has no teachers"),
        (DPSGD, ("run", "--teachers", "t"), "mechanism dpsgd has no teachers"),
        (DPSGD, ("run", "--ray"), "mechanism dpsgd has no teachers"),
    ],
)
def test_what_can_not_be_done_is_wrong_usage_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: tuple[str, ...], message: str
) -> None:
    if "127.0.0.1:1" in words:
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'dprecipe[ray]'")
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    done = call(words[0], "recipe.yaml", *words[1:], sets=())
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert [entry.name for entry in tmp_path.iterdir()] == ["recipe.yaml"]


@pytest.mark.slow
def test_an_array_of_processes_on_one_disk(recipe: Path, tmp_path: Path) -> None:
    """All begin at once, as those of a Slurm array do: one of them draws the key."""
    words = [sys.executable, "-m", "dprecipe", "teachers", str(recipe), "--out", str(tmp_path / "shards")]
    words += [word for each in FEW for word in ("--set", each)]
    array = [
        subprocess.Popen([*words, "--shard", f"{number}/2"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for number in range(1, 3)
    ]
    said = [process.communicate(timeout=300)[1] for process in array]
    assert [process.returncode for process in array] == [0] * 2, said
    merged = call("run", recipe, "--teachers", tmp_path / "shards", "--out", tmp_path / "run")
    assert merged.exit_code == 0, merged.stderr
    verify(tmp_path / "run" / "release")
