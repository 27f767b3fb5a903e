"""MNIST at one ε: DP-SGD beside gradient encoding, with two noise distributions, with and without denoising.

Learning rates are chosen on the last 10,000 training images, by one run each over the same number of candidates for
every method; then each method trains on all 60,000 and is scored on the test images, once for each seed. Finished runs
are kept and not run again, so an interrupted table goes on, and several processes may share a folder (`--only dpsgd`).

Run: python benchmarks/reproduction/encoding_mnist.py --data-root DIR --out FOLDER [--only WORD] [--seeds 3]
docs/project/reproduction/encoding.md holds a table that was made this way.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprecipe.api import run
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.text.dump import dump_inline

RECIPES = Path(__file__).parents[2] / "recipes"
EPOCHS = 5.0
TRAINING = {
    "source": "idx",
    "images": "mnist/train-images-idx3-ubyte.gz",
    "labels": "mnist/train-labels-idx1-ubyte.gz",
}
TUNING: dict[str, Any] = {
    "data.train": {**TRAINING, "records": [0, 50_000]},
    "data.test": {**TRAINING, "records": [50_000, 60_000], "access": "public"},
    "data.size": 50_000,
}
GAUSSIAN: dict[str, Any] = {"family": "gaussian", "multiplier": "auto"}
STUDENT_T: dict[str, Any] = {"family": "student_t", "df": 9.0, "multiplier": "auto"}


@dataclass(frozen=True)
class Method:
    """A recipe, what is changed in it, and the learning rates it is tried with."""

    name: str
    recipe: str
    changes: dict[str, Any]
    rates: tuple[float, ...]


def encoded(name: str, noise: dict[str, Any], denoise: str, rates: tuple[float, ...]) -> Method:
    return Method(name, "encoded-mnist.yaml", {"mechanism.noise": noise, "mechanism.denoise": denoise}, rates)


PLAIN, SCALED = (1.0, 2.0, 4.0), (100.0, 200.0, 400.0)
METHODS = (
    Method("dpsgd", "mnist-dpsgd.yaml", {"mechanism.sampling.batch_size": 512}, PLAIN),
    encoded("encoded, gaussian", GAUSSIAN, "none", PLAIN),
    encoded("encoded, gaussian, denoised", GAUSSIAN, "kolmogorov_smirnov", SCALED),
    encoded("encoded, student_t(9)", STUDENT_T, "none", PLAIN),
    encoded("encoded, student_t(9), denoised", STUDENT_T, "kolmogorov_smirnov", SCALED),
)


def main() -> None:
    arguments = parsed()
    arguments.out.mkdir(parents=True, exist_ok=True)
    mine = [method for method in METHODS if arguments.only in method.name]
    for method in mine:
        for rate in method.rates:
            scored(arguments, method, rate, 0, TUNING, "tuning")
    for seed in range(arguments.seeds):
        for method in mine:
            scored(arguments, method, best(arguments.out, method), seed, {}, "final")
    print(table(arguments.out))


def scored(
    arguments: argparse.Namespace, method: Method, rate: float, seed: int, changes: dict[str, Any], stage: str
) -> None:
    """One run, unless it was done before; its line goes to `results.jsonl`."""
    key = {"stage": stage, "method": method.name, "rate": rate, "seed": seed}
    if any(all(line[name] == value for name, value in key.items()) for line in results(arguments.out)):
        return
    values = {
        **method.changes,
        **changes,
        "training.epochs": EPOCHS,
        "training.optimizer.lr": rate,
        "runtime.seed": seed,
        "runtime.device": arguments.device,
        "release.report": False,
    }
    overrides = [f"{path}={dump_inline(value)}" for path, value in values.items()]
    plan = make_plan(read(RECIPES / method.recipe, overrides))
    folder = arguments.out / f"{stage} {method.name} {rate:g} {seed}"
    print(f"{folder.name}: {plan.length.steps} steps", file=sys.stderr)
    done = run(plan, folder, data_root=arguments.data_root)
    accuracy = None if done.score is None else done.score.accuracy
    line = {**key, "accuracy": accuracy, "epsilon": done.epsilon, "seconds": round(done.seconds, 1)}
    with (arguments.out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def results(folder: Path) -> list[dict[str, Any]]:
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def best(folder: Path, method: Method) -> float:
    """The rate with the best score on the images kept from training."""
    tried = [line for line in results(folder) if line["stage"] == "tuning" and line["method"] == method.name]
    return float(max(tried, key=lambda line: line["accuracy"])["rate"])


def table(folder: Path) -> str:
    return "\n".join(["method | lr | accuracy of each seed | mean | sd | ε | s a run", *rows(results(folder))])


def rows(lines: list[dict[str, Any]]) -> Iterator[str]:
    for method in METHODS:
        final = [line for line in lines if line["stage"] == "final" and line["method"] == method.name]
        if not final:
            continue
        accuracies = [100 * line["accuracy"] for line in final]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
        seconds = statistics.mean(line["seconds"] for line in final)
        epsilon = max(line["epsilon"] for line in final)
        yield (
            f"{method.name} | {final[0]['rate']:g} | {each} | {statistics.mean(accuracies):.2f} | {spread:.2f} | "
            f"{epsilon:g} | {seconds:.0f}"
        )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="methods whose name holds this; processes may share a folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
