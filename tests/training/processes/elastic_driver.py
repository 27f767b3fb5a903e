"""A process of a run that `torchrun` starts, and starts again.

Counts draws of noise in a file of its own, independently of the ledger: one byte for each, before the draw: the last
digit of the rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from dprecipe.api import run  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read  # noqa: E402
from dprecipe.training.processes.processes import end_with_launcher  # noqa: E402
from tests.count_draws import count_noisy_sums  # noqa: E402


def main(recipe: str, out: str) -> None:
    end_with_launcher()
    counter = os.open(f"{out}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    count_noisy_sums(lambda: os.write(counter, os.environ["RANK"][-1].encode()))
    # A run folder that is there is refused, unless this launch has made it.
    run(make_plan(read(Path(recipe))), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
