"""Lines of progress, where there is no terminal."""

from __future__ import annotations

import pytest

from dprecipe import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_and_the_last_one_once(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Progress("name", "step", 30)
    for done in range(1, 31):
        clock[0] = float(done)
        shown.show(done, lambda done=done: f"ε {done / 10}")
    shown.end(30, lambda: "ε 3.0")
    assert capsys.readouterr().err.splitlines() == [
        "step 10 of 30, ε 1.0",
        "step 20 of 30, ε 2.0",
        "step 30 of 30, ε 3.0",
    ]


def test_private_parts_are_counted_in_a_terminal_only(
    clock: list[float], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def show() -> str:
        shown = progress.Progress("name", "record", 30, private=True)
        clock[0] += 11.0
        shown.show(20)
        shown.end(30)
        return capsys.readouterr().err

    assert show() == ""
    monkeypatch.setattr(progress, "is_watched", lambda: True)
    assert "30/30" in show()


def test_the_end_is_told_where_it_is_early_or_says_more(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    shown = progress.Progress("name", "step", 30)
    clock[0] = 11.0
    shown.show(30)
    shown.end(30, lambda: "done")
    progress.Progress("name", "vote", 7).end(3)
    assert capsys.readouterr().err.splitlines() == ["step 30 of 30", "step 30 of 30, done", "vote 3 of 7"]


def test_what_takes_no_time_is_not_shown(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    late = progress.LateProgress("reading", "record", None, private=False)
    late.show(1)
    clock[0] = 1.5
    late.show(2)
    late.end(2)
    assert capsys.readouterr().err == ""
    clock[0] = 3.0
    late.show(3)
    clock[0] = 14.0
    late.show(4)
    late.end(5)
    assert capsys.readouterr().err.splitlines() == ["record 4", "record 5"]
