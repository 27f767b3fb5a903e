"""The recipes of DP-SGD as they are, once for each seed of initial weights: accuracy on the held-out records, and time.

Finished runs are kept and not run again, so an interrupted table goes on.

Run: python benchmarks/reproduction/dpsgd.py --data-root DIR --out FOLDER [--only WORD] [--seeds 3]
docs/project/reproduction/dpsgd.md holds a table that was made this way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from dprecipe.api import run
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read

RECIPES = Path(__file__).parents[2] / "recipes"
NAMES = ("mnist-dpsgd", "mnist-scattering", "cifar10-scattering", "adult-dpsgd")


def main() -> None:
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = [name for name in NAMES if arguments.only in name]
    for name in names:
        for seed in range(arguments.seeds):
            result = arguments.out / f"{name}-{seed}.json"
            if not result.exists():
                result.write_text(json.dumps(scored(arguments, name, seed)), encoding="utf-8")
    print("recipe | ε | δ | accuracy of each run | mean | minutes a run, reading and preparing included")
    for name in names:
        results = [json.loads(path.read_text("utf-8")) for path in sorted(arguments.out.glob(f"{name}-*.json"))]
        accuracies = [100 * line["accuracy"] for line in results]
        each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        minutes = ", ".join(f"{line['seconds'] / 60:.1f}" for line in results)
        spent, delta = results[0]["epsilon"], results[0]["delta"]
        print(f"{name} | {spent:g} | {delta:g} | {each} | {statistics.mean(accuracies):.2f} | {minutes}")


def scored(arguments: argparse.Namespace, name: str, seed: int) -> dict[str, float]:
    clock = time.monotonic()
    plan = make_plan(read(RECIPES / f"{name}.yaml", [f"runtime.seed={seed}"]))
    print(f"{name}, seed {seed}: {plan.length.steps} steps", file=sys.stderr)
    done = run(plan, arguments.out / f"{name}-{seed}", data_root=arguments.data_root)
    assert done.score is not None
    assert done.score.accuracy is not None
    return {
        "accuracy": done.score.accuracy,
        "epsilon": done.epsilon,
        "delta": plan.budget.delta,
        "seconds": time.monotonic() - clock,
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
