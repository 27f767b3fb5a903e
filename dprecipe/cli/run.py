"""`dprecipe run`: train, stop within the budget, write the run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from dprecipe.cli.plan import plan_lines
from dprecipe.faults import Interrupted, UsageFault
from dprecipe.libraries import importing_libraries
from dprecipe.mechanisms.plan import Plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.screen import write_note, write_output


def run(
    recipe: Path,
    overrides: Sequence[str] = (),
    out: Path | None = None,
    resume: bool = False,
    rehearse: bool = False,
    data_root: Path | None = None,
    accept_lost_steps: bool = False,
) -> int:
    """Plan, then train; the exit code. Raises every `Fault` of the two."""
    plan = make_plan(read(recipe, overrides))
    missing = [name for name in ("torch", "lightning", "safetensors") if find_spec(name) is None]
    if missing:
        raise UsageFault(f"training needs {', '.join(missing)}", "pip install 'dprecipe[train]'")
    if plan.runtime.processes > 1 and not rehearse and "WORLD_SIZE" not in os.environ:
        from dprecipe.training.processes import launch_processes

        return launch_processes(plan.runtime.processes, sys.argv[1:], plan.runtime.device)
    if "WORLD_SIZE" in os.environ:
        from dprecipe.training.processes import end_with_launcher

        end_with_launcher()
    if int(os.environ.get("RANK", "0")) > 0:
        return _led(plan, resume, data_root)
    write_output(plan_lines(plan))
    if plan.release.sign is not None:
        from dprecipe.release.sign import permission_advice

        advice = permission_advice(Path(plan.source.file).parent / plan.release.sign.key)
        write_note(*([] if advice is None else [f"warning: {advice}"]))
    # Torch is imported by the run itself, once the data are checked: what is refused should not have to wait for it.
    with importing_libraries():
        from dprecipe.training import run as training

    if rehearse:
        result = training.rehearse(plan)
        about = f"about {result.seconds / 60:.1f} minutes for the run"
        write_output([*result.remarks, f"rehearsed {result.done}, {about}; nothing was spent"])
        return 0
    done = training.run(plan, out, data_root=data_root, resume=resume, accept_lost_steps=accept_lost_steps)
    score = ""
    if done.score is not None and plan.publishes_scores:
        score = f", {done.score.summary} on {done.score.records:,} held-out records"
    elif done.score is not None:
        score = f", scores on private records are in {done.folder / 'private' / 'metrics.csv'}"
    spent = f"spent ε = {done.epsilon:g} of {plan.budget.epsilon:g} at δ = {plan.budget.delta:g}"
    last = f"publish {done.release}; check it with: dprecipe verify {done.release}"
    if not done.verified:
        last = f"don't publish {done.release}: runtime.insecure fixed its randomness, and it does not verify"
    write_output([*done.remarks, f"{done.stop_reason}: {spent}{score} in {done.seconds:.0f} s", last])
    return 0


def _led(plan: Plan, resume: bool, data_root: Path | None) -> int:
    """One of several processes that is not the first: it has nothing to say, unless it alone fails."""
    with importing_libraries():
        from dprecipe.training import run as training

    try:
        training.run(plan, data_root=data_root, resume=resume)
    except Interrupted as fault:
        return fault.exit_code
    return 0
