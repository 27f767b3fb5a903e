"""What a choice among several runs gains and costs, at equal total ε.

Three ways: the recipe as it is, the best of several runs within the same budget, and a search whose choice is free:
each run has the whole budget, and choosing costs nothing.

    python benchmarks/tuning.py RECIPE [--set a.b=c]… --data-root DIR --out FOLDER [--seeds 0 1 2]

RECIPE has a block `tuning`. Runs are compared on the first half of data.test; all accuracies are of the second half.
The third is no guarantee for what it would release: it shows what privacy of the choice costs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

import dprecipe
from dprecipe.contract.plan import Plan
from dprecipe.models.load import load
from dprecipe.training.program.gather import gather_records

ARMS = ("default", "tuned", "free choice")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--records", type=int, nargs=3, default=[0, 180, 359], help="ends of both halves of data.test")
    asked = parser.parse_args()
    first, middle, last = asked.records
    for seed in asked.seeds:
        for arm in ARMS:
            begin = time.monotonic()
            out = asked.out / f"{arm.replace(' ', '-')}-{seed}"
            common = [*asked.overrides, f"runtime.seed={seed}"]
            chosen_on = f"data.test.records=[{first}, {middle}]"
            plan = make_plan(asked.recipe, arm, [*common, chosen_on])
            train = dprecipe.run if plan.tuning is None else dprecipe.tune
            done = train(plan, out, data_root=asked.data_root)
            tested = make_plan(asked.recipe, "default", [*common, f"data.test.records=[{middle}, {last}]"])
            row = {
                "arm": arm,
                "seed": seed,
                "epsilon": done.epsilon,
                "accuracy": round(measure(done.release, tested, asked.data_root), 4),
                "on the records it was chosen by": None if done.score is None else round(done.score.accuracy or 0, 4),
                "chosen": None if done.plan.tuning is None else dict(done.plan.tuning.chosen or {}),
                "seconds": round(time.monotonic() - begin),
            }
            print(json.dumps(row), flush=True)


def make_plan(recipe: Path, arm: str, overrides: list[str]) -> Plan:
    """The plan of one of the arms."""
    from dprecipe.planning.make import plan
    from dprecipe.recipe.read import read

    if arm == "tuned":
        return plan(read(recipe, overrides))
    default = plan(read(recipe, [*overrides, "tuning=null"]))
    if arm == "default":
        return default
    noise = default.solved["mechanism.noise.multiplier"]
    pins = [f"{stage.path}={{noise_multiplier: {stage.noise_multiplier}, share: null}}" for stage in default.stages]
    return plan(read(recipe, [*overrides, f"mechanism.noise.multiplier={noise}", "budget.epsilon=auto", *pins]))


def measure(release: Path, tested: Plan, root: Path | None) -> float:
    """Accuracy on the plan's test records."""
    model = load(release)
    records = gather_records(tested, root or Path()).prepared("test")
    features, labels = records.with_all_constants(model.file.stages or ()).batch(slice(None))
    with torch.no_grad():
        return float((model(torch.as_tensor(features)).argmax(1) == torch.as_tensor(labels)).double().mean())


if __name__ == "__main__":
    main()
