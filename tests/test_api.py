"""The Python interface, as a user meets it: in a fresh interpreter, whatever was imported before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

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
            "import dprecipe.training.run.gate, dprecipe",
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


def test_an_argument_of_another_type_is_refused_with_what_to_pass() -> None:
    from torch import nn

    import dprecipe

    loaded = dprecipe.load(RECIPE)
    plan = dprecipe.plan(loaded)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: dprecipe.plan(cast(Any, str(RECIPE))), "dprecipe.load"),
        (lambda: dprecipe.plan(cast(Any, plan)), "dprecipe.load"),
        (lambda: dprecipe.run(cast(Any, str(RECIPE))), "dprecipe.plan"),
        (lambda: dprecipe.run(cast(Any, loaded)), "dprecipe.plan"),
        (lambda: dprecipe.tune(cast(Any, loaded)), "dprecipe.plan"),
        (lambda: dprecipe.load(RECIPE, cast(Any, ["training.steps=3"])), "a mapping"),
        (lambda: dprecipe.run(plan, model=cast(Any, nn.Linear)), "an instance"),
        (lambda: dprecipe.run(plan, model=cast(Any, abs)), "an instance"),
        (lambda: dprecipe.run(plan, model=cast(Any, "resnet18")), "an instance"),
        (lambda: dprecipe.load_model("release", cast(Any, nn.Linear)), "an instance"),
    ]
    for call, remedy in calls:
        with pytest.raises(UsageFault, match="expected") as caught:
            call()
        assert remedy in caught.value.remedy
