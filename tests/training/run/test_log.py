"""A log may hold anything: its sound lines are read, and the next one mends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dprecipe.training.run import log

SOUND = b"step,loss\n1,0.5\n2,0.25\n"


@pytest.mark.parametrize(
    ("content", "steps", "damaged"),
    [
        (SOUND, [1, 2], 0),
        (SOUND[:-3], [1], 1),  # cut inside a number: 0. would be read as another
        (SOUND[:-1], [1], 1),
        (b"", [], 0),
        (b"step,lo", [], 1),
        (b"\n", [], 1),
        (b"1,0.5\n2,0.25\n", [], 2),
        (bytes(50), [], 1),
        (b"step,loss\n" + bytes(9) + b"\n2,0.25\n", [2], 1),
        (b"\xff\xfe\x00step,loss\n1,0.5\n", [], 2),
        (b"step,loss\n\xc3\x28,1\n", [], 1),
        ("step,loss\n²,1\n".encode(), [], 1),
        (b"step,loss\n-1,1\n1.5,1\n1,x\n1\n1,2,3\n7,1\n", [7], 5),
        (b"step,loss\n" + b"9" * 5000 + b",1\n", [], 1),
        (b"step,step\n1,2\n", [], 2),
        (b"step,loss\r\n1,0.5\r\n", [1], 0),
    ],
)
def test_what_is_sound_is_read_and_the_next_line_mends_the_rest(
    tmp_path: Path, content: bytes, steps: list[int], damaged: int
) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    result = log.read(path)
    assert [row["step"] for row in result.rows] == steps
    assert (result.damaged > 0) == (damaged > 0)
    log.append_line(path, {"step": 9, "loss": 0.125})
    after = log.read(path)
    assert [row["step"] for row in after.rows] == [*steps, 9]
    assert (after.damaged, after.sound) == (0, True)
    assert after.rows[-1] == {"step": 9, "loss": 0.125}
    assert path.stat().st_mode & 0o777 in (0o600, 0o644)  # a sound file keeps the mode it was made with


def test_a_new_log_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    assert log.read(path) == log.Lines((), (), 0, sound=False)
    log.append_line(path, {"step": 1, "loss": 2.0})
    log.append_line(path, {"step": 2, "loss": float("nan")})
    assert path.read_text("ascii") == "step,loss\n1,2\n2,nan\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_a_log_that_cannot_be_written_is_told_once_and_stops_nothing(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.csv"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    (path / "in the way").touch() if kind == "folder" else None
    for step in (1, 2):
        log.append_line(path, {"step": step, "loss": 1.0})
        log.read(path)
    if kind == "folder":
        assert capsys.readouterr().err.count("the run goes on without this log") == 1
    else:
        assert len(log.read(path).rows) == 2  # the pipe has been replaced
