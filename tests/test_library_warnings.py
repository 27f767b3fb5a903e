"""Warnings of libraries: a warning planted in torch reaches no screen and decides nothing, whatever the filters are."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dprecipe
from dprecipe import libraries
from dprecipe.libraries import ignoring_warnings

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("lightning", reason="lightning is not installed")

from dprecipe.training.engine.planning import GradientPlan, plan_of  # noqa: E402
from dprecipe.training.engine.single import explain_loop  # noqa: E402
from dprecipe.training.program.losses import cross_entropy  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error")
PACKAGE = Path(dprecipe.__file__).parent
RECIPE = PACKAGE.parent / "recipes" / "quickstart.yaml"
PLANT = """
import logging, warnings
from torch.nn import functional
plain = functional.linear
def warned(*args, **kwargs):
    warnings.warn("planted", FutureWarning, stacklevel=2)
    logging.getLogger("transformers").warning("planted")
    return plain(*args, **kwargs)
functional.linear = warned
"""
"""The next release of a library may do this."""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Plants a warning in each linear layer's call; filters make an error of it, as `-W error` does."""
    plain = torch.nn.functional.linear

    def warned(*args: Any, **kwargs: Any) -> Any:
        warnings.warn("planted", FutureWarning, stacklevel=2)
        return plain(*args, **kwargs)

    def plant() -> None:
        monkeypatch.setattr(torch.nn.functional, "linear", warned)
        with pytest.raises(FutureWarning, match="planted"):
            torch.nn.Linear(1, 1)(torch.zeros(1, 1))

    return plant


def plan_network() -> GradientPlan:
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    return plan_of(network, cross_entropy, torch.zeros(5, 3), torch.zeros(5).long())


def test_the_engine_plans_the_same(planted: Callable[[], None]) -> None:
    before = plan_network()
    planted()
    assert len(plan_network().places) == len(before.places) == 2


def test_records_go_through_a_module_together_all_the_same(planted: Callable[[], None]) -> None:
    planted()
    assert explain_loop(torch.nn.Linear(3, 2), cross_entropy, torch.zeros(5, 3), torch.zeros(5).long()) == ""


def test_a_run_and_a_prediction_say_nothing(planted: Callable[[], None], tmp_path: Path) -> None:
    planted()
    plan = dprecipe.plan(dprecipe.load(RECIPE, {"training.steps": 2}))
    dprecipe.run(plan, tmp_path / "run")
    model = dprecipe.load_model(tmp_path / "run" / "release")
    assert len(model.predict(torch.zeros(2, 8, 8).numpy())) == 2
    with pytest.raises(FutureWarning, match="planted"):  # the caller's filters are as before
        torch.nn.Linear(1, 1)(torch.zeros(1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("option", ["error", "always"])
def test_a_command_shows_nothing(option: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(PLANT, encoding="utf-8")
    path = os.pathsep.join((str(tmp_path), str(PACKAGE.parent)))
    arguments = ["run", str(RECIPE), "--set", "training.steps=2", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-W", option, "-m", "dprecipe", *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": option},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "planted" not in done.stdout + done.stderr
    assert "Warning" not in done.stdout + done.stderr


def test_every_public_function_ignores_warnings() -> None:
    functions = [value for name in dprecipe.__all__ if callable(value := getattr(dprecipe, name))]
    own = [value for value in functions if getattr(value, "__module__", "") == "dprecipe.api"]
    assert len(own) == 9
    for function in own:
        assert function.__closure__ is not None
        assert function.__wrapped__.__name__ == function.__name__  # type: ignore[attr-defined]


def test_threads_leave_the_filters_as_they_were() -> None:
    """The first one in is the first one out: the other is inside still, and restores them."""
    before = list(warnings.filters)
    inside, over = threading.Event(), threading.Event()

    def stay() -> None:
        with ignoring_warnings():
            inside.set()
            over.wait(60)

    thread = threading.Thread(target=stay)
    with ignoring_warnings():
        thread.start()
        assert inside.wait(60)
    warnings.warn("dropped", stacklevel=1)
    over.set()
    thread.join()
    assert list(warnings.filters) == before
    assert libraries._inside == 0


@pytest.mark.slow
def test_filters_are_changed_in_one_place() -> None:
    """`fit` drops what the trainer alone says."""
    changing = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("catch_warnings", "simplefilter", "filterwarnings"):
                changing.add(path.relative_to(PACKAGE).as_posix())
    assert changing == {"libraries.py", "training/steps/fit.py"}
