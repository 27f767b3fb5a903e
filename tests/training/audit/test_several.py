"""Two processes of the program agree; where the second goes on without noise, or parts overlap, tests fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.audit.results import Equality
from dprecipe.privacy.noisy_sums import Gaussian
from dprecipe.recipe.read import read_text
from dprecipe.training.audit.several import (
    GROUP,
    ROUNDS,
    SHARDED,
    UNITS,
    _compare,
    _compare_shards,
    compare_gathered,
    examine_processes,
    sum_gathered,
)
from dprecipe.training.processes.processes import SingleProcess
from tests.planted.recipes import RECIPES

PARTS = [[unit for unit in range(UNITS) if unit // GROUP % 2 == rank] for rank in range(2)]

SOUND = {
    "parts": [PARTS[0]] * ROUNDS,
    "given": [[1.0, 2.0]] * ROUNDS,
    "sums": [[4.0, 6.0]] * ROUNDS,
    "noisy": [[0.5, 0.25]] * ROUNDS,
    "released": [[0.5, 0.25]] * ROUNDS,
    "seeds": [1] * ROUNDS,
}
OTHER = SOUND | {"parts": [PARTS[1]] * ROUNDS, "given": [[3.0, 4.0]] * ROUNDS, "seeds": [2] * ROUNDS}


def failed(other: dict[str, object]) -> set[str]:
    tests = list(_compare(SOUND, other))
    return {t.id for t in tests if isinstance(t.evidence, Equality) and t.evidence.differing}


def test_each_fault_of_a_second_process_fails_its_test() -> None:
    assert failed(OTHER) == set()
    assert failed(OTHER | {"parts": SOUND["parts"]}) == {"processes_parts"}
    assert failed(OTHER | {"parts": [PARTS[1][1:]] * ROUNDS}) == {"processes_parts"}  # one unit in none
    assert failed(OTHER | {"released": [[4.0, 6.0]] * ROUNDS}) == {"processes_noise"}
    assert failed(OTHER | {"sums": [[3.0, 4.0]] * ROUNDS}) == {"processes_sums"}
    assert failed(OTHER | {"seeds": SOUND["seeds"]}) == {"processes_seeds"}


def test_a_group_in_two_processes_fails() -> None:
    mine, other = ([list(range(rank, UNITS, 2))] * ROUNDS for rank in range(2))
    tests = {t.id: t.evidence for t in _compare(SOUND | {"parts": mine}, OTHER | {"parts": other})}
    assert isinstance(evidence := tests["processes_parts"], Equality)
    assert evidence.differing == ROUNDS


def shards(rank: int, noise: list[float] | None = None) -> dict[str, object]:
    """A sum of ones in each process, and noise with the alternating sign of its rank; sizes are small."""
    half = SHARDED // 2
    noise = [(2.0 if number % 2 == rank else -2.0) for number in range(half)] if noise is None else noise
    noisy = [2.0 + draw for draw in noise]
    return {
        "given": [1.0] * SHARDED,
        "place": [rank * half, (rank + 1) * half],
        "sum": [2.0] * half,
        "noisy": noisy,
        "whole": [2.0 + (2.0 if number % 2 == shard else -2.0) for shard in range(2) for number in range(half)],
    }


def failed_of_shards(**other: object) -> set[str]:
    rows = [{"shards": [shards(rank) | (other if rank else {})] * ROUNDS} for rank in range(2)]
    tests = list(_compare_shards(*rows, Gaussian(noise_multiplier=2.0)))
    return {t.id for t in tests if isinstance(t.evidence, Equality) and t.evidence.differing}


def test_each_fault_of_a_second_shard_fails_its_test() -> None:
    half = SHARDED // 2
    assert failed_of_shards() == set()
    assert failed_of_shards(place=[half + 1, SHARDED]) == {"processes_shards"}
    assert failed_of_shards(place=[half, SHARDED - 1]) == {"processes_shards"}
    assert failed_of_shards(sum=[1.0] * half) == {"processes_shards", "processes_shard_noise"}
    assert failed_of_shards(whole=[2.0] * SHARDED) == {"processes_shards"}
    assert "processes_shard_noise" in failed_of_shards(noisy=[2.0] * half)
    assert "processes_shard_noise" in failed_of_shards(noisy=shards(0)["noisy"])


def test_each_fault_of_weights_in_shards_fails_its_test() -> None:
    alone = sum_gathered(SingleProcess())
    sums, cut = [np.array(one) for one in alone["sums"]], len(alone["sums"][0]) // 2

    def failed_of_gathered(change: Callable[[dict[str, Any]], object]) -> set[str]:
        both = [{**alone, "sums": [one[part].tolist() for one in sums]} for part in (slice(0, cut), slice(cut, None))]
        change(both[1])
        tests = list(compare_gathered(*both))
        return {t.id for t in tests if isinstance(t.evidence, Equality) and t.evidence.differing}

    assert failed_of_gathered(lambda second: None) == set()
    assert failed_of_gathered(lambda second: second["sums"][0].pop()) == {"processes_gathered_sums"}
    assert failed_of_gathered(lambda second: second.update(bound=0.4)) == {"processes_gathered_sums"}
    halved = [(one[cut:] / 2).tolist() for one in sums]
    assert failed_of_gathered(lambda second: second.update(sums=halved)) == {"processes_gathered_sums"}
    moved = [1.01 * value for value in alone["outputs"]]
    assert failed_of_gathered(lambda second: second.update(outputs=moved)) == {"processes_gathered_weights"}


@pytest.mark.slow
def test_two_real_processes_with_shards_accuse_nothing() -> None:
    tests = list(examine_processes(make_plan(read_text(RECIPES["two_gathered"]))))
    of_shards = {"processes_shards", "processes_shard_noise"}
    assert {test.id for test in tests} >= of_shards | {"processes_gathered_sums", "processes_gathered_weights"}
    assert all(isinstance(test.evidence, Equality) and not test.evidence.differing for test in tests)
