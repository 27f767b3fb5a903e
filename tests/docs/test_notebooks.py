"""The notebooks of examples/notebooks run from top to bottom: each cell, in a folder of its own, as a kernel would.

No Jupyter is needed: a cell is Python, and what its last expression gives is shown.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dprecipe

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read_cells(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    for cell in content["cells"]:
        yield "".join(cell["source"]), cell


def run_cell(source: str, names: dict[str, Any], file: str) -> Any:
    """Run a cell; the value of its last expression, None where it ends otherwise."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)  # the notebooks are ours
    return None if last is None else eval(compile(ast.Expression(last.value), file, "eval"), names)


def test_there_are_three_of_them_without_outputs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["images", "own_module", "tabular"]
    for path in NOTEBOOKS:
        kinds = set()
        for source, cell in read_cells(path):
            kinds.add(cell["cell_type"])
            assert source.strip()
            assert not cell.get("outputs")
            if cell["cell_type"] == "code":
                ast.parse(source)
        assert kinds == {"code", "markdown"}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[Any] = []
    names: dict[str, Any] = {"display": shown.append}
    for number, (source, cell) in enumerate(read_cells(path)):
        if cell["cell_type"] == "code":
            value = run_cell(source, names, f"{path.name}, cell {number}")
            shown += [value] * (value is not None)
    cards = [value._repr_html_() for value in shown if type(value).__module__.startswith("dprecipe")]
    assert len(cards) >= 3  # the plan, the run and what was verified
    assert all(card.startswith('<div class="dprecipe">') for card in cards)
    assert dprecipe.verify(names["run"].release).claim.epsilon <= names["plan"].budget.epsilon
    if path.stem == "tabular":
        assert set(shown[-1]["predicted"]) <= {"no", "yes"}
    if path.stem == "images":
        assert sum(told == answer for told, answer in shown[-1]) > len(shown[-1]) / 2
    if path.stem == "own_module":
        assert shown[-1] > 0.7
