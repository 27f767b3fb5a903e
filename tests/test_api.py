"""The Python interface, as a user meets it: in a fresh interpreter, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dprecipe.faults import UsageFault
from tests.sweeps import sweep

RECIPE = Path(__file__).parents[1] / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize(
    "before",
    sweep(
        [
            "import dprecipe",
            "import dprecipe.planning.make, dprecipe",
            "import dprecipe.training.gate, dprecipe",
            "from dprecipe import plan, load; import dprecipe",
        ],
        (1,),
    ),
)
def test_a_recipe_is_loaded_and_planned(before: str) -> None:
    code = f"{before}\nloaded = dprecipe.load({str(RECIPE)!r}, overrides={{'training.steps': 3}})\n"
    code += "print(dprecipe.plan(loaded).length.steps)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_every_public_name_is_there() -> None:
    code = "import dprecipe\nfor name in dprecipe.__all__: getattr(dprecipe, name)\nassert callable(dprecipe.plan)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tuning_takes_the_cluster_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address goes where that of `--ray` goes: one that is none, and one where nobody is, cost nothing."""
    import dprecipe
    from dprecipe import libraries

    monkeypatch.setattr(libraries, "find_spec", lambda name: object())
    plan = dprecipe.plan(dprecipe.load(RECIPE.with_name("tuned-digits.yaml")))
    for address, words in (("head", "expected HOST:PORT"), ("127.0.0.1:1", "no cluster is reachable")):
        with pytest.raises(UsageFault, match=words) as caught:
            dprecipe.tune(plan, tmp_path / "run", cluster=address)
        assert caught.value.exit_code == 2
    assert not (tmp_path / "run").exists()


def test_a_plan_of_one_run_is_not_tuned() -> None:
    import dprecipe

    with pytest.raises(UsageFault, match="no block `tuning`"):
        dprecipe.tune(dprecipe.plan(dprecipe.load(RECIPE)))
