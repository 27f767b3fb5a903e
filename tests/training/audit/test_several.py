"""Two processes of the program agree; where the second goes on without noise, or parts overlap, tests fail."""

from __future__ import annotations

from dprecipe.privacy.audit.results import Equality
from dprecipe.training.audit.several import GROUP, ROUNDS, UNITS, _compare

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
