"""Refusals of a step: each `raise` of a fault that a step reaches depends on private records or on the machine, or
a run decides it before there is a folder.

A fault that is new has to be sorted in here; `tests/training/checks/test_memory.py` tries those decided before.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import dprecipe.faults
from dprecipe.faults import Fault

PACKAGE = Path(dprecipe.faults.__file__).parent
REACHED = (
    "training",
    "mechanisms/dpsgd/train",
    "mechanisms/encoded/train",
    "noisy_sum",
    "models/modules",
    "noise",
)
AROUND = (
    *(f"training/{name}" for name in ("audit", "checks", "loggers", "prior", "probe", "publish", "tuning")),
    *(f"training/processes/{name}" for name in ("cluster", "launch", "workers")),
    *(f"training/program/{name}" for name in ("gather", "program")),
    *(f"training/run/{name}" for name in ("account_run", "attempt", "folder", "nonprivate", "runner", "spend_once")),
    *(f"training/run/{name}" for name in ("stages", "start")),
    *(f"training/steps/{name}" for name in ("built", "module", "outside", "stepwise", "together", "trainer_settings")),
)
"""Modules whose work is done before a step, after it, or without one."""
INTERNAL = "a fault of ours, which no recipe can bring about"
REHEARSED = "`rehearse_step` takes the same path before there is a folder"
BROUGHT = "of a module from Python, and tried before there is a folder: no value of a record decides it"
MACHINE = "disk, network or another process, as they are by then"
SORTED = {
    "mechanisms/encoded/train/run.py: Encoding.divide": "sharding with another mechanism: R307",
    "training/canaries/gradients.py: GradientCanaries.add": INTERNAL,
    "training/canaries/gradients.py: GradientCanaries.score": INTERNAL,
    "training/canaries/scores.py: _probability_of": INTERNAL,
    "training/program/own_loss.py: OwnLoss.of_batch": BROUGHT,
    "training/program/own_loss.py: _refuse_forward": BROUGHT,
    "training/program/standin.py: PlannedTrainer.__getattr__": BROUGHT,
    "training/run/checkpoint.py: load": MACHINE,
    "training/engine/compiled.py: Passes._prepare": REHEARSED,
    "training/engine/sharded_sum.py: plan_passes": "models in shards are our own, and have a plan",
    "training/engine/sharded_sum.py: sharded_clipped_sum": "adaptive clipping, Laplace noise: R307",
    "training/run/gate.py: Gate.admit": INTERNAL,
    "training/run/gate.py: Gate.release": INTERNAL,
    "training/run/gate.py: SumNoise.release": INTERNAL,
    "training/run/gate.py: distribution_of": INTERNAL,
    "training/steps/clipped_sums.py: ClippedSums.divide": "units of several records: R307",
    "training/steps/clipped_sums.py: _group_numbers": REHEARSED,
    "training/steps/clipped_sums.py: clipping_of": REHEARSED,
    "training/steps/noisy_steps.py: NoisySteps._whole": INTERNAL,
    "training/processes/processes.py: FollowerGate.admit": INTERNAL,
    "training/processes/processes.py: FollowerGate.release": INTERNAL,
    "training/processes/processes.py: reporting_unreachable": MACHINE,
    "training/processes/sharded_weights.py: check_in_blocks": "asked by `StepwiseRunner.prepare`",
    "training/processes/shards.py: check_divisible": "asked by `StepwiseRunner.prepare`",
    "training/steps/updates.py: OwnUpdates.__init__": BROUGHT,
    "training/steps/updates.py: _check_optimizer": BROUGHT,
    "training/steps/updates.py: _schedule_of": BROUGHT,
    "training/steps/updates.py: _split": BROUGHT,
    "training/steps/watch.py: Watch._measure_spent": INTERNAL,
    "training/steps/step_failures.py: TensorSnapshot._check_unmoved": "private records: the probe saw no weight move",
    "training/steps/step_failures.py: locate_failures": "private records: synthetic ones raised nothing",
}


def fault_names() -> set[str]:
    """The names of faults, wherever they are defined."""
    names = {name for name, kind in vars(dprecipe.faults).items() if isinstance(kind, type) and issubclass(kind, Fault)}
    return names | {"StepFailed"}


def list_reached() -> set[str]:
    """The functions with a `raise` of a fault that `NoisySteps.take_step` reaches, taking every name for every function
    that bears it: more than can be reached, never less, but for what is called without being named."""
    uses, raising, bearers = {}, set(), defaultdict(list)
    faults = fault_names()

    def visit(node: ast.AST, file: str, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, file, child.name)
            elif isinstance(child, ast.FunctionDef):
                key = f"{file}: {owner}.{child.name}" if owner else f"{file}: {child.name}"
                parts = list(ast.walk(child))
                uses[key] = {part.id for part in parts if isinstance(part, ast.Name)}
                uses[key] |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
                bearers[child.name].append(key)
                if owner and child.name.startswith("__"):
                    bearers[owner].append(key)
                for part in parts:
                    if isinstance(part, ast.Raise) and isinstance(part.exc, ast.Call):
                        name = ast.unparse(part.exc.func)
                        if name in faults or name.startswith("_"):  # a function that makes one: `_refused`
                            raising.add(key)
            else:
                visit(child, file, owner)

    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        if file.startswith(REACHED) and not file.startswith(AROUND):
            visit(ast.parse(path.read_text("utf-8")), file, "")
    reached = ["training/steps/noisy_steps.py: NoisySteps.take_step"]
    seen = set(reached)
    assert seen <= uses.keys()
    while reached:
        for name in uses[reached.pop()]:
            fresh = [key for key in bearers.get(name, ()) if key not in seen]
            seen.update(fresh)
            reached += fresh
    return seen & raising


def test_every_refusal_in_a_step_is_sorted() -> None:
    assert list_reached() == SORTED.keys()
