"""The comparison of whole commands, as far as it takes no run: its recipes, its scripts, its tables."""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dprecipe.recipe.read import read

ROOT = Path(__file__).parents[1]


@pytest.fixture
def endtoend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import endtoend

    return endtoend


def column(*seconds: float, **phases: float) -> list[dict[str, Any]]:
    return [{"processor": s, "wall": 2 * s, "peak_mb": 300.0, "accuracy": 90.0, "phases": phases} for s in seconds]


def test_each_rows_recipe_is_valid_and_says_what_its_scripts_are_told(endtoend: ModuleType, tmp_path: Path) -> None:
    assert set(endtoend.ROWS) == {"quickstart", "adult", "mnist", "cifar", "sms", "lora", "pate", "pnsgd"}
    for name, row in endtoend.ROWS.items():
        folder = ROOT / "recipes"
        if row.make is not None:
            folder = tmp_path
            (tmp_path / row.recipe).write_text(sys.modules["rows"].LORA_RECIPE, "utf-8")
        recipe, told = read(folder / row.recipe, row.overrides).recipe, row.settings
        mechanism = recipe.mechanism.model_dump()
        extras = ("average", "augment", "semi_supervised")
        assert [each for each in extras if getattr(recipe.training, each)] == []  # which no script has
        if name == "pate":
            assert mechanism["teachers"]["count"] == told["teachers"]
            assert mechanism["teachers"]["training"]["steps"] == told["teacher_steps"]
            assert mechanism["aggregator"]["noise"]["multiplier"] == told["noise"]
            assert mechanism["queries"]["max"] == told["queries"]
            assert recipe.training.steps == told["steps"]
        elif name == "pnsgd":
            assert (recipe.training.epochs, mechanism["batch_size"]) == (told["passes"], told["batch"])
            assert mechanism["constraint"]["radius"] == told["radius"]
        else:
            assert (recipe.training.steps, mechanism["clip"]["norm"]) == (told["steps"], told["clip"])
            assert mechanism["sampling"].get("batch_size", recipe.data.size) == told["batch"]
            assert recipe.training.optimizer.kind == told["optimizer"].lower()
            assert recipe.budget.delta == told["delta"]


def test_the_scripts_are_there_and_are_python(endtoend: ModuleType) -> None:
    named = {*endtoend.SCRIPTS.values(), *(row.script for row in endtoend.ROWS.values() if row.script)}
    assert {path.name for path in endtoend.PEERS.glob("*.py")} == {*named, "tasks.py"}
    for name in (*named, "tasks.py"):
        tree = ast.parse((endtoend.PEERS / name).read_text("utf-8"))
        imported = {n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names}
        imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not [each for each in imported if each.startswith("dprecipe")]  # a peer shares no code with us


def test_tables_have_ratios_of_rounds_phases_and_reasons(endtoend: ModuleType) -> None:
    rows = {
        "adult": {
            "columns": {"plain": column(10, 10, 20), "dprecipe": column(11, 12, 30, loop=9.0, start=1.0)},
            "left_out": {"hooks": "no opacus"},
        },
        "lora": {"columns": {}, "left_out": {"all": "no transformers"}},
    }
    shown = endtoend.show(rows)
    assert "| adult | 10.0 |   |   |   | 12.0 | 1.20 (1.10 to 1.50) |" in shown
    assert "| adult | 20.0 |   |   |   | 24.0 | 1.20 (1.10 to 1.50) |" in shown
    assert "9.00 (75%)" in shown
    assert "2.00 (17%)" in shown  # what no phase has
    assert "- adult, hooks: no opacus\n- lora, all: no transformers" in shown
    ratios = endtoend.ratios_of(rows)
    assert {name: spread.median for name, spread in ratios.items()} == {"adult: dprecipe / plain": 1.2}


def test_of_several_runs_the_later_column_wins(endtoend: ModuleType) -> None:
    first = {"adult": {"columns": {"plain": column(1), "dprecipe": column(2)}, "left_out": {"hooks": "no opacus"}}}
    later = {"adult": {"columns": {"dprecipe": column(3), "hooks": column(4)}, "left_out": {}}}
    merged = endtoend.merge([first, later])["adult"]
    assert {name: each[0]["processor"] for name, each in merged["columns"].items()} == {
        "plain": 1, "dprecipe": 3, "hooks": 4
    }  # fmt: skip
    assert merged["left_out"] == {}


def test_a_column_runs_the_code_of_its_own_checkout(endtoend: ModuleType, tmp_path: Path) -> None:
    tree, data = tmp_path / "tree", tmp_path / "data"
    (tree / "dprecipe").mkdir(parents=True)
    (tree / "dprecipe" / "__init__.py").touch()
    (tree / "dprecipe" / "__main__.py").write_text(
        f"import sys; assert sys.argv[2].startswith({str(tree)!r}); print('accuracy 12.3 %')", "utf-8"
    )
    (data / "mnist").mkdir(parents=True)
    given = argparse.Namespace(opacus_python=sys.executable, data_root=data, before=tree, threads=1, columns=None)
    comparison = endtoend.Comparison("pate", given, tmp_path)
    assert list(comparison.columns()) == ["plain", "before", "dprecipe"]
    taken = comparison.measure("before")
    assert (taken["accuracy"], taken["phases"]) == (12.3, {})
    assert 0 < taken["processor"] < 10
    assert taken["peak_mb"] > 1


def test_a_row_without_its_files_or_libraries_says_so(endtoend: ModuleType, tmp_path: Path) -> None:
    given = argparse.Namespace(opacus_python=sys.executable, data_root=tmp_path, before=None, threads=1)
    with pytest.raises(endtoend.Unmeasured, match="--data-root has no mnist"):
        endtoend.Comparison("pate", given, tmp_path)
