"""Runs on the pretended device: of each mechanism, and by the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs_time import needs_time
from tests.pretend_cuda.cases.recipes import TRAINING
from tests.pretend_cuda.child import needs_device, run_python, run_tests
from tests.pretend_cuda.roads import Settings
from tests.recipe_texts import DIGITS, DPSGD

CASES = Path(__file__).parent / "cases"


@pytest.mark.slow
@needs_device
def test_each_mechanism_trains_on_the_device(tmp_path: Path) -> None:
    """On the second of two: what forgets which one it is on would be on the first."""
    run_tests(tmp_path, str(CASES / "runs.py"), settings=Settings(devices=2, current=1, mib=128), least=8)


@needs_device
@pytest.mark.slow
def test_commands_run_and_verify(tmp_path: Path) -> None:
    """Without a hand of the tests in their processes."""
    recipe = "recipe: dprecipe/v1\nname: small\n" + DIGITS + "model: {kind: mlp, hidden: [16]}\n" + DPSGD + TRAINING
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    command = ["-m", "dprecipe", "run", "recipe.yaml", "--out", "run", "--set", "runtime.device=cuda"]
    run_python(command, tmp_path)
    certificate = (tmp_path / "run" / "release" / "certificate.json").read_text(encoding="utf-8")
    assert "Pretended CUDA device" in certificate
    done = run_python(["-m", "dprecipe", "verify", "run/release"], tmp_path)
    assert "verified" in done.stdout.lower()


@needs_device
@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [pytest.param("models", 9, marks=needs_time), ("commands", 5)])
def test_long_runs(name: str, least: int, tmp_path: Path) -> None:
    run_tests(tmp_path, str(CASES / f"long_{name}.py"), settings=Settings(mib=2048), least=least)
