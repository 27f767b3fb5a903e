"""UCI Adult without privacy: what the models of `recipes/papers/papernot2018-adult.yaml` reach on true labels.

All of the private records at once, and as many records as the teachers answer. Scored on the recipe's held-out rows.

Run: python benchmarks/reproduction/pate_baselines.py --data-root DIR [--seeds 3]
docs/project/reproduction/pate.md holds rows that were made this way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier

from dprecipe.data.load import load
from dprecipe.recipe.read import read

RECIPE = Path(__file__).parents[2] / "recipes" / "papers" / "papernot2018-adult.yaml"
ANSWERS = 500


def make_boosted(seed: int) -> Any:
    """The recipe's student."""
    return GradientBoostingClassifier(n_estimators=100, max_depth=2, min_samples_leaf=5, random_state=seed)


def make_forest(seed: int) -> Any:
    """The recipe's teacher."""
    return RandomForestClassifier(n_estimators=30, max_features=1.0, random_state=seed)


def main() -> None:
    arguments = parsed()
    features, labels = read_records(arguments.data_root, "train")
    held_out, truth = read_records(arguments.data_root, "test")
    print("model | records | accuracy of each seed | mean | s a run")
    for name, make in (("boosted trees", make_boosted), ("random forest", make_forest)):
        for records in (len(labels), ANSWERS):
            scores, seconds = score(make, features, labels, held_out, truth, records, arguments.seeds)
            each = ", ".join(f"{value:.2f}" for value in scores)
            print(f"{name} | {records} | {each} | {statistics.mean(scores):.2f} | {seconds:.1f}", flush=True)


def read_records(data_root: Path, role: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features (records, width) and labels, as the recipe reads them."""
    data = read(RECIPE).recipe.data
    source = data.train if role == "train" else data.test
    assert source is not None
    features, labels = load(source, data, data_root, role).batch(slice(None))
    return np.asarray(features), np.asarray(labels)


def score(
    make: Callable[[int], Any],
    features: NDArray[Any],
    labels: NDArray[Any],
    held_out: NDArray[Any],
    truth: NDArray[Any],
    records: int,
    seeds: int,
) -> tuple[list[float], float]:
    """Accuracies in per cent, a seed each, of a model of so many records drawn at random; and seconds of a fit."""
    scores, clock = [], time.monotonic()
    for seed in range(seeds):
        chosen = np.random.default_rng(seed).permutation(len(labels))[:records]
        fitted = make(seed).fit(features[chosen], labels[chosen])
        scores.append(100 * float(np.mean(fitted.predict(held_out) == truth)))
    return scores, (time.monotonic() - clock) / seeds


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
