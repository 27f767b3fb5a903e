"""A logger can't stop, delay or change a run, whatever it does."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from dprecipe.training.loggers import sinks
from dprecipe.training.loggers.sinks import BackgroundSink


class Recording:
    def __init__(self, fail_at: int = -1, wait: threading.Event | None = None) -> None:
        self.got: list[Any] = []
        self.fail_at, self.wait = fail_at, wait

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self.wait is not None:
            self.wait.wait(10)
        if step == self.fail_at:
            raise ConnectionError("http://user:secret@host refused, value 0.7")
        self.got.append((step, dict(values)))

    def finish(self, status: str) -> None:
        self.got.append(status)


def test_values_arrive_in_order_and_the_end_is_told() -> None:
    sink = Recording()
    logger = BackgroundSink("csv", lambda: sink)
    for step in range(50):
        logger.log(step, {"epsilon": step / 10})
    logger.finish("finished")
    assert sink.got == [*((step, {"epsilon": step / 10}) for step in range(50)), "finished"]


def test_a_sink_that_fails_is_told_once_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Recording(fail_at=2)
    logger = BackgroundSink("mlflow", lambda: sink)
    for step in range(5):
        logger.log(step, {})
        time.sleep(0.02)
    logger.finish("finished")
    assert [step for step, _ in sink.got] == [0, 1]
    assert capsys.readouterr().err == "logger mlflow: ConnectionError; the run goes on without it\n"


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt(), MemoryError()])
def test_a_sink_that_does_not_open(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> Any:
        raise error

    logger = BackgroundSink("wandb", refuse)
    logger.log(1, {})
    logger.finish("failed")
    assert capsys.readouterr().err == f"logger wandb: {type(error).__name__}; the run goes on without it\n"


def test_a_sink_that_hangs_holds_up_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sinks, "MAX_SECONDS", 0.1)
    wait = threading.Event()
    sink = Recording(wait=wait)
    logger, began = BackgroundSink("mlflow", lambda: sink), time.monotonic()
    logger.log(1, {})
    logger.finish("finished")
    assert time.monotonic() - began < 5
    assert "does not answer" in capsys.readouterr().err
    wait.set()


def test_a_sink_that_is_too_slow_gets_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sinks, "MAX_WAITING", 3)
    wait = threading.Event()
    sink = Recording(wait=wait)
    logger = BackgroundSink("mlflow", lambda: sink)
    for step in range(10):
        logger.log(step, {})
    assert capsys.readouterr().err.count("too slow") == 1
    wait.set()
    logger.finish("finished")
    assert len(sink.got) <= 5
