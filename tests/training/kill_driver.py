"""Runs a plan again and again in forked children, each killed with SIGKILL at a random moment.

Counts the noise draws in a file of its own, independently of the ledger: one byte, before each draw. Prints one JSON
object. Called by `test_kill.py` in a process of its own, since torch must not have started threads before a fork.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

torch.set_num_threads(1)

from dprecipe.noise import draws  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read  # noqa: E402
from dprecipe.training import gate  # noqa: E402
from dprecipe.training.noise_check import DRAWS  # noqa: E402
from dprecipe.training.run import run  # noqa: E402


def main(recipe: str, out: str, kills: int, seed: int) -> None:
    plan = make_plan(read(recipe))
    counter = os.open(f"{out}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def counted(law: object, stream: object, count: int) -> object:
        if count != DRAWS:  # the check before a run draws noise onto zeros
            os.write(counter, b".")
        return draws.draw(law, stream, count)  # type: ignore[arg-type]

    gate.draw = counted  # type: ignore[assignment]
    random.seed(seed)
    killed = finished = 0
    while not finished:
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
            time.sleep(random.expovariate(1 / 0.25))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status) == 0:
            finished = 1
        else:
            sys.exit(f"a child failed with {os.WEXITSTATUS(status)} after {killed} kills")
    print(json.dumps({"killed": killed, "draws": os.path.getsize(f"{out}.draws")}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
