"""Runs a plan again and again in forked children, each killed with SIGKILL at a random moment.

Counts the noise draws in a file of its own, independently of the ledger: one byte for each event, before its draw, of
another letter for paid steps of preprocessing; of votes, holds that what was answered stays. Prints one JSON object.
Called by tests in a process of its own, since torch must not have started threads before a fork.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dp_accounting.pld.pld_privacy_accountant  # noqa: F401  # imported once, and not by every child
import sklearn.metrics  # noqa: F401
import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dprecipe.account.account import DataAccount  # noqa: E402
from dprecipe.api import run  # noqa: E402
from dprecipe.contract.plan import Plan  # noqa: E402
from dprecipe.contract.table import mechanism_of  # noqa: E402
from dprecipe.data.paid.stage import release_stage  # noqa: E402
from dprecipe.mechanisms.pate.events import NoisyMax  # noqa: E402
from dprecipe.mechanisms.pate.train import ballot, program  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.privacy.events import Charge, count_events  # noqa: E402
from dprecipe.privacy.ledger import LedgerWriter  # noqa: E402
from dprecipe.privacy.stages.events import StageEvent  # noqa: E402
from dprecipe.recipe.read import read  # noqa: E402
from dprecipe.release import folder  # noqa: E402
from dprecipe.training.run import stages  # noqa: E402
from tests.count_draws import count_noisy_sums  # noqa: E402


def main(recipe: str, out: str, kills: int, seed: int) -> None:
    plan = make_plan(read(recipe))
    counter = os.open(f"{out}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    honest = ballot.noise

    def counted_votes(event: object, stream: object, count: int) -> object:
        classes = plan.mechanism_plan.classes if isinstance(event, NoisyMax) else 1
        os.write(counter, b"." * (count // classes))
        return honest(event, stream, count)  # type: ignore[arg-type]

    def counted_stage(*terms: object) -> object:
        dawdle()  # draws are over in no time, and few kills would come between a reservation and what follows
        os.write(counter, b"s" * count_events(terms[2]))  # type: ignore[arg-type]
        constants = release_stage(*terms)  # type: ignore[arg-type]
        dawdle()
        return constants

    def settled_late(ledger: LedgerWriter, charges: Sequence[Charge]) -> None:
        if any(isinstance(charge.event, StageEvent) for charge in charges):
            dawdle()
        settle_all(ledger, charges)

    settle_all = LedgerWriter.settle_all
    LedgerWriter.settle_all = settled_late  # type: ignore[method-assign]

    count_noisy_sums(lambda: os.write(counter, b"."))
    stages.release_stage = counted_stage  # type: ignore[assignment]
    ballot.noise = counted_votes  # type: ignore[assignment]
    if plan.mechanism == "pate":
        checked_once(plan)
    if plan.budget.account is not None:
        dawdle_at_accounts()
    mechanism_of(plan.mechanism).import_runner()  # imported once, and not by every child
    random.seed(seed)
    killed = finished = 0
    answers, ledger, known = Path(out) / "private/answers.jsonl", Path(out) / "private/ledger.jsonl", b""
    canaries, coins = Path(out) / "private/canaries.json", b""
    while not finished:
        size = ledger.stat().st_size if ledger.exists() else 0
        child = os.fork()
        if child == 0:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 2)
            code = 1
            try:
                run(plan, out, resume=Path(out).exists())
                code = 0
            finally:
                os._exit(code)
        if killed < kills:
            # From when the attempt begins: before, there is nothing to lose.
            while not (ledger.exists() and ledger.stat().st_size > size) and running(child):
                time.sleep(0.001)
            kept = len(list(Path(out).glob("private/stages/*.json")))
            time.sleep(random.expovariate(1 / (0.25 if kept == len(plan.stages) else 0.12)))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if coins and canaries.read_bytes() != coins:
            sys.exit(f"the coins of canaries changed after {killed} kills")
        coins = canaries.read_bytes() if canaries.exists() else b""
        result = answers.read_bytes() if answers.exists() else b""
        if not result.startswith(known):
            sys.exit(f"an answer was forgotten after {killed} kills")
        known = result[: result.rfind(b"\n") + 1]
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0:
            finished = 1
        else:
            sys.exit(f"a child failed with {os.WEXITSTATUS(status)} after {killed} kills")
    drawn = Path(f"{out}.draws").read_bytes()
    print(json.dumps({"killed": killed, "draws": len(drawn), "of_stages": drawn.count(b"s")}))


def dawdle() -> None:
    """A moment in which a kill may come; of another length in every child."""
    time.sleep(random.Random(time.monotonic_ns()).expovariate(1 / 0.1))


def dawdle_at_accounts() -> None:
    """Let kills come right before and after what an account is asked, and before a release is there."""
    for owner, name in ((DataAccount, "reserve"), (DataAccount, "settle"), (folder, "publish_draft")):
        honest = getattr(owner, name)

        def slow(*terms: Any, honest: Any = honest, **named: Any) -> Any:
            dawdle()
            answer = honest(*terms, **named)
            dawdle()
            return answer

        setattr(owner, name, slow)


def running(child: int) -> bool:
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def checked_once(plan: Plan) -> None:
    """Let the checks before a run be made once, and not by every child: its time is for what can be lost."""
    noise_scale, device = program.checks.noise_scale(plan), torch.device("cpu")
    program.checks.noise_scale = lambda plan: noise_scale  # type: ignore[assignment]
    teachers = program.teachers_of(plan)
    if teachers.model is not None:
        check_vote_sensitivity = program.checks.check_vote_sensitivity(program.lesson_of(plan, teachers), device)
        program.checks.check_vote_sensitivity = lambda lesson, device: check_vote_sensitivity  # type: ignore[assignment]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
