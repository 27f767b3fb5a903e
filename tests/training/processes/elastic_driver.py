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

from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read  # noqa: E402
from dprecipe.training.checks.noise import DRAWS  # noqa: E402
from dprecipe.training.processes.processes import end_with_launcher  # noqa: E402
from dprecipe.training.run import gate  # noqa: E402
from dprecipe.training.run.start import run  # noqa: E402
from dprecipe.training.steps import noise  # noqa: E402


def main(recipe: str, out: str) -> None:
    end_with_launcher()
    counter = os.open(f"{out}.draws", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def counted(value: torch.Tensor, *terms: object) -> torch.Tensor:
        if len(value) != DRAWS:  # the check before a run draws noise onto zeros
            os.write(counter, os.environ["RANK"][-1].encode())
        return noise.add_noise(value, *terms)  # type: ignore[arg-type]

    gate.add_noise = counted  # type: ignore[assignment]
    # A run folder that is there is refused, unless this launch has made it.
    run(make_plan(read(Path(recipe))), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
