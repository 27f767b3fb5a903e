"""A process of a run that is stopped after 20 steps and continued, without noise; keeps what came of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

torch.set_num_threads(1)

from safetensors.torch import load_file  # noqa: E402

from dprecipe.api import run  # noqa: E402
from dprecipe.faults import Interrupted  # noqa: E402
from dprecipe.planning.make import plan as make_plan  # noqa: E402
from dprecipe.recipe.read import read  # noqa: E402
from dprecipe.training.checks.noise import DRAWS  # noqa: E402
from dprecipe.training.run import checkpoint, gate  # noqa: E402
from dprecipe.training.steps.contract import BatchSums, StepContext  # noqa: E402
from dprecipe.training.steps.noisy_steps import NoisySteps  # noqa: E402

STOP = 20


def main(recipe: str, out: str) -> None:
    plan, sizes = make_plan(read(Path(recipe))), list[int]()
    honest, made, taken = gate.add_noise, NoisySteps.__init__, NoisySteps.take_step

    def leave_out(value: torch.Tensor, *terms: Any) -> torch.Tensor:
        if len(value) == DRAWS:  # the check of noise before a run stays
            return honest(value, *terms)
        drawn.append(len(value))
        return value

    def make(self: NoisySteps, context: StepContext, sums: BatchSums) -> None:
        made(self, context, sums)
        sizes[:] = [sum(p.numel() for p in self._moved)] * context.processes.count
        kept[:] = [p.to_local() if isinstance(p, DTensor) else p for p in self.model.parameters()]

    def take_step(self: NoisySteps) -> bool:
        if self.steps_done == STOP and not stopped:
            stopped.append(1)
            self.request_stop()
        return taken(self)

    kept: list[torch.Tensor] = []
    stopped: list[int] = []
    drawn: list[int] = []
    gate.add_noise, NoisySteps.__init__, NoisySteps.take_step = leave_out, make, take_step  # type: ignore[method-assign]
    try:
        run(plan, out)
    except Interrupted:
        done = run(plan, out, resume=True)
        frozen = sum(p.untyped_storage().nbytes() for p in kept if not p.requires_grad)
        own = json.dumps({"draws": drawn, "frozen": frozen})
        Path(f"{out}.own{os.environ.get('RANK', '0')}").write_text(own, encoding="utf-8")
        state = checkpoint.load(done.folder / "private" / "checkpoints" / "last.pt")
        if state is None or os.environ.get("RANK", "0") != "0":
            return
        weights = load_file(done.release / "model.safetensors")
        moments = [value.reshape(-1) for part in state["optimizer"]["state"].values() for value in part.values()]
        content = {
            "released": torch.cat([weights[name].reshape(-1).double() for name in sorted(weights)]),
            "optimizer": torch.cat([value.double() for value in moments]),
            "sizes": sizes,
        }
        torch.save(content, f"{out}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
