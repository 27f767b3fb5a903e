"""Pooled scattering features of images, for linear models that train in seconds: one archive for each data set.

    python benchmarks/accuracy/pooled.py --data-root DIR --out DIR

A recipe's own steps make each image's features; they are averaged over a grid of as many squares a side as `SIDES`
says. Each image's features depend on that image and on public constants alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dprecipe.data.records import Records
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.training.program.gather import gather_records

RECIPES = Path(__file__).parents[2] / "recipes"
SIDES = {"papers/tramer2021-fashion-mnist": ("fashion-pooled", 4), "cifar10-scattering": ("cifar10-pooled", 3)}
ROWS = 512


def pool(features: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """Returns a vector of each image: averages over `side` x `side` squares, which overlap if they don't divide it."""
    size = features.shape[2]
    edges = [slice(n * size // side, -(-(n + 1) * size // side)) for n in range(side)]
    squares = [features[:, :, rows, columns].mean((2, 3)) for rows in edges for columns in edges]
    return np.stack(squares, 2).reshape(len(features), -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    for recipe, (name, side) in SIDES.items():
        gathered = gather_records(make_plan(read(RECIPES / f"{recipe}.yaml")), given.data_root)
        arrays: dict[str, NDArray[np.generic]] = {}
        for role, records in gathered.sources.items():
            assert isinstance(records, Records)
            slices = [slice(start, start + ROWS) for start in range(0, len(records), ROWS)]
            arrays[role] = np.concatenate([pool(records.batch(part)[0], side) for part in slices])
            arrays[f"{role}_labels"] = records.labels
        np.savez(given.out / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        print(name, {key: array.shape for key, array in arrays.items()}, flush=True)


if __name__ == "__main__":
    main()
