"""Laws 1 and 2 in the package's own text: one place draws noise, and it is behind the ledger."""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dprecipe"
GATE = PACKAGE / "training" / "gate.py"


def imported(path: Path) -> set[str]:
    """Every dotted name that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_t6_only_the_gate_draws_noise() -> None:
    users = [path for path in PACKAGE.rglob("*.py") if "dprecipe.noise.draws" in imported(path)]
    assert users == [GATE]


def test_t6_the_gate_draws_noise_in_one_function_which_asks_for_a_ticket() -> None:
    tree = ast.parse(GATE.read_text(encoding="utf-8"))
    drawing = [
        (function.name, [argument.annotation for argument in function.args.args])
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "draw"
                for n in ast.walk(function))
    ]  # fmt: skip
    assert [name for name, _ in drawing] == ["release"]
    assert [a.id for a in drawing[0][1] if isinstance(a, ast.Name)] == ["Ticket", "ClippedSum"]
