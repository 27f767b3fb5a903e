"""Laws 1 and 2 in the package's own text: one place draws noise, and it is behind the ledger."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "dprecipe"
GATE = PACKAGE / "training" / "run" / "gate.py"
SAMPLERS = PACKAGE / "training" / "steps" / "noise.py"
DEVICE_DRAWS = PACKAGE / "training" / "steps" / "device_draws.py"
COMPILED = PACKAGE / "training" / "steps" / "compiled_keystream.py"
CHECK = PACKAGE / "training" / "checks" / "noise.py"
LATTICE = PACKAGE / "noise" / "lattice.py"
STAGES = PACKAGE / "data" / "paid" / "release.py"
RELEASED = PACKAGE / "data" / "paid" / "stage.py"
SCORES = PACKAGE / "training" / "tuning" / "score.py"
VOTES = PACKAGE / "mechanisms" / "pate" / "train"
LAST_ITERATE = PACKAGE / "mechanisms" / "pnsgd" / "train"


@cache
def imported(path: Path) -> set[str]:
    """Every dotted name that a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_t6_only_the_gates_draw_noise() -> None:
    users = {path for path in PACKAGE.rglob("*.py") if "dprecipe.noise.draws" in imported(path)}
    assert users == {
        SAMPLERS,
        LATTICE,
        VOTES.parent / "aggregators.py",
        VOTES / "analysis.py",
        LAST_ITERATE / "descent.py",
    }
    assert {path for path in PACKAGE.rglob("*.py") if "dprecipe.noise.lattice.add_gaussian" in imported(path)} == {
        STAGES
    }
    assert {p for p in PACKAGE.rglob("*.py") if "dprecipe.data.paid.release" in imported(p)} == {RELEASED, SCORES}
    of_scores = {name for name in imported(SCORES) if name.startswith("dprecipe.data.paid.release.")}
    assert of_scores == {"dprecipe.data.paid.release.release_right_answers"}
    scoring = {path for path in PACKAGE.rglob("*.py") if "dprecipe.training.tuning.score.keep_score" in imported(path)}
    assert scoring == {PACKAGE / "training" / "tuning" / "trials.py"}, "runs, whose one event is reserved before them"
    releasing = {path for path in PACKAGE.rglob("*.py") if "dprecipe.data.paid.stage.release_stage" in imported(path)}
    audits = {PACKAGE / "training" / "audit" / "stages.py"}  # of synthetic records alone
    assert releasing == {PACKAGE / "training" / "run" / "stages.py", *audits}
    assert {path for path in PACKAGE.rglob("*.py") if "dprecipe.training.steps.noise" in imported(path)} == {
        GATE,
        CHECK,
    }
    of_noise = {name for name in imported(CHECK) if name.startswith("dprecipe.training.steps.noise.")}
    numbers = {f"dprecipe.training.steps.noise.{name}" for name in ("DEVICE_CHUNK", "MIN_ON_DEVICE")}
    assert of_noise == numbers, "numbers, and nothing that draws"
    # The check compares the keystream of a key of its own with another implementation's, and has it compiled before.
    keyed = {path for path in PACKAGE.rglob("*.py") if "dprecipe.training.steps.chacha" in imported(path)}
    assert keyed == {SAMPLERS, DEVICE_DRAWS, CHECK, COMPILED}
    compiling = {p for p in PACKAGE.rglob("*.py") if "dprecipe.training.steps.compiled_keystream" in imported(p)}
    assert compiling == {CHECK}, "nothing is compiled once something is spent"
    assert {path for path in PACKAGE.rglob("*.py") if "dprecipe.training.steps.device_draws" in imported(path)} == {
        SAMPLERS
    }


def find_call_lines(function: ast.FunctionDef, *names: str) -> list[int]:
    """The lines on which a function calls any of these, as a name or as a method."""
    calls_found = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return [n.lineno for n in calls_found if getattr(n.func, "id", getattr(n.func, "attr", None)) in names]


def test_t6_noise_that_meets_votes_is_drawn_after_its_event_is_reserved() -> None:
    drawing = []
    for name in ("ballot.py", "analysis.py"):
        tree = ast.parse((VOTES / name).read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            if draws := find_call_lines(function, "noise", "draw_gaussian"):
                drawing.append(function.name)
                assert min(find_call_lines(function, "reserve")) < min(draws), function.name
    assert sorted(drawing) == ["_answer", "_check", "release_sanitised_cost"]


def test_t6_a_hidden_run_descends_after_its_event_is_reserved_or_carried_on() -> None:
    """Noise is drawn by a `Noise`, which the runner makes in one function; that is called by `spend_once` alone, which
    asks the ledger first."""
    tree = ast.parse((LAST_ITERATE / "run.py").read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert sorted(f.name for f in functions if find_call_lines(f, "Noise")) == ["_descend", "rehearse"]
    assert sorted(f.name for f in functions if find_call_lines(f, "_descend")) == ["attempt", "descend"]
    (attempt,) = (function for function in functions if function.name == "attempt")
    assert len(find_call_lines(attempt, "_descend")) == 1, "by the function inside alone"
    uses = [n for n in ast.walk(attempt) if isinstance(n, ast.Name) and n.id == "descend"]
    (spending,) = (n for n in ast.walk(attempt) if isinstance(n, ast.Call) and ast.unparse(n.func) == "spend_once")
    assert uses == [spending.args[-1]]
    spend_once = ast.parse((PACKAGE / "training" / "run" / "spend_once.py").read_text(encoding="utf-8"))
    (frame,) = (f for f in ast.walk(spend_once) if isinstance(f, ast.FunctionDef) and f.name == "spend_once")
    (reserved,), (carried,), (drawn,) = (find_call_lines(frame, name) for name in ("reserve", "carry", "draw"))
    assert max(reserved, carried) < drawn
    makers = {
        path for path in PACKAGE.rglob("*.py") if "dprecipe.mechanisms.pnsgd.train.descent.Noise" in imported(path)
    }
    # An audit's descents take noise of their own, onto synthetic records.
    assert makers == {LAST_ITERATE / name for name in ("run.py", "checks.py", "audit_descents.py")}


def test_t6_the_gate_draws_noise_in_one_function_which_asks_for_a_ticket() -> None:
    tree = ast.parse(GATE.read_text(encoding="utf-8"))
    drawing = [
        (function.name, [argument.annotation for argument in function.args.args])
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "add_noise"
                for n in ast.walk(function))
    ]  # fmt: skip
    assert [name for name, _ in drawing] == ["release"]
    assert [a.id for a in drawing[0][1] if isinstance(a, ast.Name)] == ["Ticket", "ClippedSum", "int"]
