"""Kills a run that releases labels alone at each of some moments, and resumes it; prints a line of JSON for each.

The runs are forked children, since torch must not have started threads before a fork. Noise is counted in a file of its
own, independently of the ledger: a byte for each check and each answer, before its draw.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting.pld.pld_privacy_accountant  # noqa: F401  # imported once, and not by every child

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dprecipe.api import run
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import Fault
from dprecipe.mechanisms.pate.events import NoisyMax
from dprecipe.mechanisms.pate.train import answers, ballot
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read
from dprecipe.release import folder

COMPLETE, FAILED = 2, 70


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_around(owner: Any, name: str, at: int, *, after: bool) -> None:
    """Kills this process before or after a function's call number `at`."""
    real, calls = getattr(owner, name), 0

    def killing(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            die()
        result = real(*given, **named)
        if calls == at:
            die()
        return result

    setattr(owner, name, killing)


def kill_in_a_line() -> None:
    """Kills this process when half a line of outcomes is on disk."""
    real, calls = answers.durable.open_regular, 0

    def opened(path: Path, *flags: int) -> int:
        file: int = real(path, *flags)
        write = os.write

        def torn(target: int, line: bytes) -> int:
            nonlocal calls
            calls += target == file
            if target == file and calls == 3:
                write(target, line[: len(line) // 2])
                die()
            return write(target, line)

        os.write = torn  # type: ignore[assignment]
        return file

    answers.durable.open_regular = opened  # type: ignore[assignment]


MOMENTS: dict[str, Callable[[], None]] = {
    "reserved": lambda: kill_around(ballot.RemainingBudget, "reserve", 3, after=True),
    "drawn": lambda: kill_around(ballot, "noise", 3, after=True),
    "half a line": kill_in_a_line,
    "recorded": lambda: kill_around(answers.AnswersFile, "append", 3, after=True),
    "settled": lambda: kill_around(ballot.RemainingBudget, "settle", 3, after=True),
    "all answered": lambda: kill_around(LedgerWriter, "close", 1, after=False),
    "closed": lambda: kill_around(LedgerWriter, "close", 1, after=True),
    "before the release": lambda: kill_around(folder, "publish_draft", 1, after=False),
    "released": lambda: kill_around(folder, "publish_draft", 1, after=True),
}


def main(recipe: str, base: str) -> None:
    plan = make_plan(read(recipe))
    mechanism_of(plan.mechanism).import_runner()

    def attempt(out: Path, moment: Callable[[], None] | None) -> int:
        child = os.fork()
        if child:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
        code = FAILED
        try:
            os.dup2(os.open(f"{out}.words", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
            counter, honest = os.open(f"{out}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND), ballot.noise

            def counted(event: Any, stream: Any, count: int) -> Any:
                os.write(counter, b"." * (count // (plan.mechanism_plan.classes if isinstance(event, NoisyMax) else 1)))
                return honest(event, stream, count)

            ballot.noise = counted
            if moment is not None:
                moment()
            run(plan, out, resume=out.exists())
            code = 0
        except Fault as fault:
            os.write(2, f"{fault.message}\n".encode())
            code = fault.exit_code
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)

    for number, (name, moment) in enumerate(MOMENTS.items()):
        out = Path(base) / str(number)
        codes = [attempt(out, moment), attempt(out, None), attempt(out, None)]
        print(json.dumps({"moment": name, "out": str(out), "codes": codes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
