"""The loggers of one attempt at a run: each point to those that may have it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.faults import Interrupted, UsageFault
from dprecipe.language.blocks import LoggerBlock, MlflowLog
from dprecipe.libraries import check_libraries, is_installed
from dprecipe.training.loggers.points import (
    CoveredPoint,
    PrivatePoint,
    make_covered_point,
    make_end_point,
    make_private_point,
)
from dprecipe.training.loggers.sinks import BackgroundSink, Identity, Sink, Status, close_to_others, open_sink
from dprecipe.training.run.folder import WHEN, RunFolder

if TYPE_CHECKING:
    from dprecipe.training.program.evaluate import Score

FOLDER, STATE = "logs", "loggers.json"


def check_loggers(plan: Plan) -> None:
    """Checks that the libraries of a plan's loggers are installed, before anything is spent.

    Raises:
        UsageFault: one is not, or no server is named.
    """
    for block in plan.runtime.loggers:
        if not any(map(is_installed, block.modules)):
            check_libraries(f"runtime.loggers: {block.kind}", *block.modules[:1])
        if isinstance(block, MlflowLog) and not (block.uri or os.environ.get("MLFLOW_TRACKING_URI")):
            raise UsageFault(
                "runtime.loggers: no server of mlflow is named",
                "set its uri, or MLFLOW_TRACKING_URI in the environment",
            )


@final
class RunLoggers:
    """See the module; made by `open_loggers`."""

    def __init__(self, plan: Plan, test_from_python: bool, sinks: Mapping[BackgroundSink, str]) -> None:
        self._plan = plan
        self._test_from_python = test_from_python
        self._sinks = sinks

    @property
    def are_used(self) -> bool:
        """True if there is any."""
        return bool(self._sinks)

    @property
    def takes_public_scores(self) -> bool:
        """True if covered points have scores."""
        return self._plan.publishes_scores and not self._test_from_python

    def make_point(
        self, step: int, epsilon: float, learning_rate: float, decided: Mapping[str, float], score: Score | None
    ) -> CoveredPoint | None:
        """Returns what is covered of a step: see `make_covered_point`."""
        return make_covered_point(self._plan, step, epsilon, learning_rate, decided, score, self._test_from_python)

    def log_covered(self, point: CoveredPoint | None) -> None:
        """Logs what is covered of a step."""
        self._send_covered(point)

    def log_private(self, step: int, epsilon: float, learning_rate: float | None, figures: Mapping[str, float]) -> None:
        """Logs all that was measured at a step, in the owner's files."""
        if self._sinks:
            self._send_private(make_private_point(step, epsilon, learning_rate, figures))

    def log_end(self, epsilon: float, score: Score | None) -> None:
        """Logs what a release says of its run; arguments as of `make_end_point`."""
        if self._sinks:
            self._send_covered(make_end_point(self._plan, epsilon, score, self._test_from_python))

    def _send_covered(self, point: CoveredPoint | None) -> None:
        for sink, stream in self._sinks.items():
            if stream == "covered" and point is not None:
                sink.log(point.step, point.values)

    def _send_private(self, point: PrivatePoint) -> None:
        for sink, stream in self._sinks.items():
            if stream == "private":
                sink.log(point.step, point.values)

    def finish(self, status: Status) -> None:
        """Ends all of them."""
        for sink in self._sinks:
            sink.finish(status)


@contextmanager
def open_loggers(plan: Plan, folder: RunFolder, test_from_python: bool) -> Iterator[RunLoggers]:
    """Yields the loggers of an attempt, which end with the block.

    Covered files go to `logs/` of the run folder, private ones to `private/logs/`.
    """
    sinks: dict[BackgroundSink, str] = {}
    known = _read_state(folder)
    for number, block in enumerate(plan.runtime.loggers):
        base = folder.private if block.values == "private" else folder.path
        place = base / FOLDER / _name(plan, number)
        key = _key(block)
        identity = Identity(folder.path.resolve().name, _constants(plan), known.get(key))
        identity.remember = partial(_remember, folder, known, key)
        sinks[BackgroundSink(block.kind, partial(_open, block, place, identity))] = block.values
    loggers = RunLoggers(plan, test_from_python, sinks)
    status: Status = "failed"
    try:
        yield loggers
        status = "finished"
    except (Interrupted, KeyboardInterrupt):
        status = "interrupted"
        raise
    finally:
        loggers.finish(status)
        close_to_others(folder.private / FOLDER)


def log_release(plan: Plan, folder: RunFolder, epsilon: float, score: Score | None, test_from_python: bool) -> None:
    """Logs a run of whose course nothing may be seen, when its release is made: what the release says, in covered
    loggers; all scores that the run has recorded, in private ones. `epsilon`: the certificate's."""
    with open_loggers(plan, folder, test_from_python) as loggers:
        for row in folder.history()[0]:
            figures = {name: value for name, value in row.items() if name not in WHEN}
            loggers.log_private(int(row[WHEN[0]]), row[WHEN[1]], None, figures)
        loggers.log_end(epsilon, score)


def _open(block: LoggerBlock, place: Path, identity: Identity) -> Sink:
    place.mkdir(parents=True, exist_ok=True)
    return open_sink(block, place, identity)


def _name(plan: Plan, number: int) -> str:
    """Returns the folder of a logger: its kind, and a number if it is not the first of its kind."""
    kinds = [block.kind for block in plan.runtime.loggers]
    before = kinds[:number].count(kinds[number])
    return kinds[number] if before == 0 else f"{kinds[number]}-{before + 1}"


def _constants(plan: Plan) -> dict[str, str | float]:
    """Returns what names a run: constants of its recipe and plan."""
    return {
        "recipe": plan.name,
        "plan": plan.digest,
        "mechanism": plan.mechanism,
        "budget_epsilon": plan.budget.epsilon,
        "budget_delta": plan.budget.delta,
    }


def _key(block: LoggerBlock) -> str:
    return json.dumps(block.model_dump(mode="json", exclude={"values"}), sort_keys=True)


def _read_state(folder: RunFolder) -> dict[str, str]:
    with suppress(OSError, ValueError, TypeError, AttributeError):
        content = json.loads(durable.read_bytes(folder.private / STATE))
        return {str(key): str(value) for key, value in content.items()}
    return {}


def _remember(folder: RunFolder, known: dict[str, str], key: str, identifier: str) -> None:
    known[key] = identifier
    with suppress(OSError):
        durable.replace_file(folder.private / STATE, json.dumps(known, sort_keys=True).encode())
