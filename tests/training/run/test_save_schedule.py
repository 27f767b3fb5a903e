"""When a checkpoint is due, by a clock of the test's own."""

from __future__ import annotations

import pytest

from dprecipe.training.run import checkpoint
from dprecipe.training.run.checkpoint import PARTS, WRITING_SHARE, SaveSchedule


class Clock:
    """In the place of the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(checkpoint, "time", made)
    return made


def run(clock: Clock, steps: int, step_seconds: float, writing: float, max_seconds: float = 30.0) -> list[int]:
    """After which steps a run saves."""
    schedule, saved = SaveSchedule(steps, 0, max_seconds), list[int]()
    for done in range(1, steps + 1):
        clock.now += step_seconds
        if schedule.is_due(done):
            clock.now += writing
            schedule.saved(done)
            saved.append(done)
    return saved


def gaps(saved: list[int], steps: int) -> list[int]:
    return [after - before for before, after in zip([0, *saved], [*saved, steps], strict=True)]


@pytest.mark.parametrize("steps", [7, 100, 2247])
def test_a_fiftieth_of_a_run_is_lost_at_most(clock: Clock, steps: int) -> None:
    saved = run(clock, steps, step_seconds=1.0, writing=0.001, max_seconds=1000)
    assert max(gaps(saved, steps)) <= max(1, -(-steps // PARTS))
    assert len(saved) <= PARTS or steps < PARTS


def test_a_large_model_is_not_written_all_the_time(clock: Clock) -> None:
    """Writing takes 4 s, a fiftieth of the run 2 s: one checkpoint in 200 s. What the first will take is unknown."""
    begin = clock.now
    saved = run(clock, 1000, step_seconds=0.1, writing=4.0, max_seconds=1000)
    assert saved[0] == 20
    assert 4.0 * (len(saved) - 1) <= WRITING_SHARE * (clock.now - begin) + 4.0


def test_the_longest_time_is_the_recipe_s(clock: Clock) -> None:
    saved = run(clock, 1000, step_seconds=0.1, writing=4.0, max_seconds=10)
    assert max(gaps(saved, 1000)) <= 101


def test_a_resumed_run_counts_from_its_checkpoint(clock: Clock) -> None:
    schedule = SaveSchedule(100, 51, 30.0)
    assert not schedule.is_due(52)
    assert schedule.is_due(53)
