"""Phases of a run: what is inside another one suspends it, and the seconds add up."""

from __future__ import annotations

import threading

import pytest

from dprecipe import timeline
from dprecipe.timeline import Seconds, measure_run, phase


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clocks is one second later than the last, half of it computed."""
    looks = iter(range(1000))
    monkeypatch.setattr(timeline, "read_clocks", lambda: Seconds(float(look := next(looks)), look / 2))


def test_a_phase_inside_another_suspends_it_and_all_add_up() -> None:
    with measure_run() as measured:
        with phase("loop"), phase("scores"):
            pass
        totals = measured.totals()
    assert totals == {"start": Seconds(2.0, 1.0), "loop": Seconds(2.0, 1.0), "scores": Seconds(1.0, 0.5)}
    assert sum(spent.wall for spent in totals.values()) == 5.0


def test_a_phase_that_fails_ends() -> None:
    with measure_run() as measured:
        with pytest.raises(RuntimeError), phase("read"):
            raise RuntimeError
        with phase("loop"):
            pass
    assert measured.totals()["read"] == Seconds(1.0, 0.5)
    assert measured.totals()["loop"] == Seconds(1.0, 0.5)


def test_a_run_inside_a_command_is_part_of_it_and_starts_when_the_process_did() -> None:
    with measure_run(Seconds(-10.0, 0.0)) as command, measure_run() as run:
        assert run is command
    assert command.totals()["start"].wall == 10.0


def test_nothing_is_measured_outside_of_a_run_or_in_another_thread() -> None:
    with phase("loop"):
        assert timeline.current_timeline() is None
    seen = []
    with measure_run() as measured:
        thread = threading.Thread(target=lambda: seen.append(timeline.current_timeline()))
        thread.start()
        thread.join()
        with phase("scores"):
            pass
    assert seen == [None]
    assert timeline.current_timeline() is None
    assert "scores" in measured.totals()


def test_a_function_can_be_a_phase() -> None:
    @phase("verify")
    def check(value: int) -> int:
        return value + 1

    with measure_run() as measured:
        assert [check(1), check(2)] == [2, 3]
    assert measured.totals()["verify"] == Seconds(2.0, 1.0)
