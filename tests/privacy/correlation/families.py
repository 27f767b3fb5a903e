"""Golden figures, and what they are compared to: columns of published strategies, and every pattern of a small run."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

RECORDS = json.loads((Path(__file__).parents[2] / "golden" / "correlated.json").read_text())["records"]


def of(*groups: str) -> list[Any]:
    """The inputs, value and tolerance of each record of some groups."""
    found = [
        pytest.param(record["inputs"], record["value"], record["tol"], id=record["id"])
        for record in RECORDS
        if record["group"] in groups
    ]
    assert {record["group"] for record in RECORDS} >= set(groups)
    return found


def power_series(power: float, ratio: float, steps: int) -> NDArray:
    """The first coefficients of (1 - `ratio` x)^`power`."""
    j_N = np.arange(1, steps)
    return np.concatenate([[1.0], np.cumprod((j_N - 1 - power) / j_N * ratio)])


def square_root(power: float, beta: float, steps: int) -> NDArray:
    """The first coefficients of ((1 - x)(1 - β x))^`power`."""
    return np.convolve(power_series(power, 1.0, steps), power_series(power, beta, steps))[:steps]


def make_family(name: str, steps: int) -> tuple[NDArray, NDArray]:
    """The first columns of C and of its inverse."""
    numbers = [float(part) for part in re.findall(r"\d*\.?\d+", name.split(" ", 1)[1])] if " " in name else []
    if name.startswith("blt"):
        j_N = np.arange(steps - 1)
        column = np.concatenate([[1.0], 0.2 * 0.98**j_N + 0.25 * 0.6**j_N])
        return column, invert(column)
    if name.startswith("lambda"):
        return numbers[0] ** np.arange(steps), pad(np.array([1.0, -numbers[0]]), steps)
    beta = numbers[1] if len(numbers) > 1 else 0.0
    width = int(numbers[0])
    if name.startswith("sqrt"):
        column = pad(square_root(-0.5, beta, width), steps)
        return column, invert(column)
    inverse = pad(square_root(0.5, beta, width), steps)
    return invert(inverse), inverse


def pad(series: NDArray, steps: int) -> NDArray:
    return np.concatenate([series, np.zeros(max(0, steps - len(series)))])[:steps]


def invert(column: NDArray) -> NDArray:
    """The first column of the inverse of a lower-triangular Toeplitz matrix."""
    return np.linalg.solve(dense(column), np.eye(len(column))[0])


def dense(column: NDArray) -> NDArray:
    """The lower-triangular Toeplitz matrix with this first column."""
    steps = len(column)
    distance = np.arange(steps)[:, None] - np.arange(steps)
    return np.where(distance >= 0, column[np.maximum(distance, 0)], 0.0)


def patterns(steps: int, separation: int, most: int) -> Iterator[tuple[int, ...]]:
    """All sets of at most `most` steps that are at least `separation` apart."""
    for count in range(1, most + 1):
        for places in itertools.combinations(range(steps), count):
            if all(b - a >= separation for a, b in itertools.pairwise(places)):
                yield places


def largest_bound(matrix: NDArray, among: Iterator[tuple[int, ...]]) -> float:
    """The bound that holds for any signs, by the sum of the absolute Gram matrix; exact for non-negative matrices."""
    gram = np.abs(matrix.T @ matrix)
    return max(float(gram[np.ix_(places, places)].sum()) for places in among) ** 0.5


def largest_sign(matrix: NDArray, among: Iterator[tuple[int, ...]]) -> float:
    """The distance moved by the worst numbers of either sign: gradients of one dimension."""
    return max(
        float(np.linalg.norm(matrix[:, list(places)] @ np.array(signs)))
        for places in among
        for signs in itertools.product((1.0, -1.0), repeat=len(places))
    )


def iterates(steps: int, beta: float, decay: float, rates: NDArray | None = None) -> NDArray:
    """The matrix from gradients to iterates of gradient descent with momentum."""
    factors = (decay ** np.arange(steps), np.ones(steps) if rates is None else rates, beta ** np.arange(steps))
    shrink, rate, momentum = dense(factors[0]), np.diag(factors[1]), dense(factors[2])
    return reduce(np.matmul, (shrink, rate, momentum))
