"""UCI Adult, one logistic regression, three ways: projected noisy SGD (last iterate, permuted order), DP-SGD under the
same relation, and without privacy, at several ε.

Settings are chosen on the last 6,561 training records, by one run each over the same number of candidates for either
method; then each trains on all 32,561 and is scored on the test records, once for each seed. Finished runs are kept and
not run again, so an interrupted table goes on.

Run: python benchmarks/reproduction/pnsgd_adult.py --data-root DIR --out FOLDER [--epsilon 0.5 1 2] [--seeds 3]
docs/project/reproduction/pnsgd.md holds a table that was made this way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from dprecipe.api import run
from dprecipe.data.load import load
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.text.dump import dump_inline

RECIPES = Path(__file__).parents[2] / "recipes"
KEPT = 26_000
"""Training records while settings are chosen; the rest score them."""


@dataclass(frozen=True)
class Method:
    """A recipe, and the settings it is tried with."""

    name: str
    recipe: str
    candidates: tuple[dict[str, Any], ...]
    changes: dict[str, Any]


def descent(batch_size: int, epochs: float, last_rate: float) -> dict[str, Any]:
    rate: Any = 0.76 if last_rate == 0.76 else {"schedule": "linear", "from": 0.76, "to": last_rate}
    return {"mechanism.batch_size": batch_size, "training.epochs": epochs, "mechanism.learning_rate": rate}


def dpsgd(batch_size: int, epochs: float, rate: float) -> dict[str, Any]:
    return {
        "mechanism.sampling": {"scheme": "poisson", "batch_size": batch_size},
        "training.epochs": epochs,
        "training.optimizer.lr": rate,
    }


COMMON: dict[str, Any] = {"release.report": False}
METHODS = (
    Method(
        "pnsgd",
        "adult-pnsgd.yaml",
        (descent(2048, 40.0, 0.76), descent(4096, 80.0, 0.76), descent(4096, 120.0, 0.076)),
        COMMON,
    ),
    Method(
        "dpsgd, replace_one",
        "adult-dpsgd.yaml",
        (dpsgd(1024, 20.0, 2.0), dpsgd(2048, 40.0, 2.0), dpsgd(1024, 20.0, 1.0)),
        {**COMMON, "budget.neighbouring": "replace_one"},
    ),
    Method(
        "dpsgd, add_or_remove_one",
        "adult-dpsgd.yaml",
        (dpsgd(1024, 20.0, 2.0), dpsgd(2048, 40.0, 2.0), dpsgd(1024, 20.0, 1.0)),
        COMMON,
    ),
)


def main() -> None:
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for epsilon in arguments.epsilon:
        for method in METHODS:
            for index in range(len(method.candidates)):
                scored(arguments, method, epsilon, index, 0, "tuning")
            for seed in range(arguments.seeds):
                scored(arguments, method, epsilon, best(arguments.out, method, epsilon), seed, "final")
    print("method | ε | settings | accuracy of each run | mean | sd | s a run")
    for line in rows(results(arguments.out), arguments.epsilon):
        print(line)
    print(without_privacy(arguments.data_root))


def scored(arguments: argparse.Namespace, method: Method, epsilon: float, index: int, seed: int, stage: str) -> None:
    """One run, unless it was done before; its line goes to `results.jsonl`."""
    key = {"stage": stage, "method": method.name, "epsilon": epsilon, "settings": index, "seed": seed}
    if any(all(line[name] == value for name, value in key.items()) for line in results(arguments.out)):
        return
    values = {**method.changes, **method.candidates[index], "budget.epsilon": float(epsilon), "runtime.seed": seed}
    if stage == "tuning":
        source = read(RECIPES / method.recipe).recipe.data.train.model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        values |= {
            "data.train": {**source, "records": [0, KEPT]},
            "data.test": {**source, "records": [KEPT, 32_561], "access": "public"},
            "data.size": KEPT,
        }
    overrides = [f"{path}={dump_inline(value)}" for path, value in values.items()]
    plan = make_plan(read(RECIPES / method.recipe, overrides))
    folder = arguments.out / f"{stage} {method.name} {epsilon:g} {index} {seed}"
    print(f"{folder.name}: {plan.length.steps} steps", file=sys.stderr)
    done = run(plan, folder, data_root=arguments.data_root)
    accuracy = None if done.score is None else done.score.accuracy
    line = {**key, "accuracy": accuracy, "spent": done.epsilon, "seconds": round(done.seconds, 2)}
    with (arguments.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def best(folder: Path, method: Method, epsilon: float) -> int:
    """The settings with the best score on the records kept from training."""
    of = {"stage": "tuning", "method": method.name, "epsilon": epsilon}
    tried = [line for line in results(folder) if all(line[name] == value for name, value in of.items())]
    return int(max(tried, key=lambda line: line["accuracy"])["settings"])


def rows(lines: list[dict[str, Any]], epsilons: list[float]) -> Iterator[str]:
    for epsilon in epsilons:
        for method in METHODS:
            of = {"stage": "final", "method": method.name, "epsilon": epsilon}
            final = [line for line in lines if all(line[name] == value for name, value in of.items())]
            if final:
                accuracies = [100 * line["accuracy"] for line in final]
                spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
                yield (
                    f"{method.name} | {epsilon:g} | {final[0]['settings']} | "
                    f"{', '.join(f'{accuracy:.2f}' for accuracy in accuracies)} | {statistics.mean(accuracies):.2f} | "
                    f"{spread:.2f} | {statistics.mean(line['seconds'] for line in final):.1f}"
                )


def without_privacy(data_root: Path) -> str:
    """The same features and model, fitted to the end."""
    data = read(RECIPES / "adult-pnsgd.yaml").recipe.data
    assert data.test is not None
    train, test = (load(source, data, data_root, role) for source, role in ((data.train, "train"), (data.test, "test")))
    clock = time.monotonic()
    fitted = LogisticRegression(C=1e3, max_iter=5000).fit(*train.batch(slice(None)))
    seconds = time.monotonic() - clock
    features, labels = test.batch(slice(None))
    return f"without privacy | | | {100 * np.mean(fitted.predict(features) == labels):.2f} | | | {seconds:.1f}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
