"""What surrounds the engine in a step: a recipe's program under its trainer, in a bare loop, and the engine alone.

`alone`: clipped sum, noise and update, of batches that are there. `bare`: the program's own steps, with gate, ledger,
drawing and gathering. `trained`: the same under the trainer, callbacks and all. They take turns in one process
(A B C A B C …), on synthetic records. Seconds are the processor's, of one thread; the least of each is shown, ratios
are the medians of the rounds.

Run: python benchmarks/trainer.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import numpy as np
import torch
from figures import ROOT, Spread, alternate, parser_of, ratio, write_json

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read
from dprecipe.training.engine.clipped_sum import BatchPart, clipped_sum
from dprecipe.training.engine.clipping import Clipping
from dprecipe.training.program.losses import cross_entropy
from dprecipe.training.program.program import Sets, StepwiseProgram, Synthetic, prepare
from dprecipe.training.program.records import Store
from dprecipe.training.run.gate import Gate
from dprecipe.training.run.runner import runner_of
from dprecipe.training.steps.contract import StepContext
from dprecipe.training.steps.fit import fit_steps
from dprecipe.training.steps.noise import add_noise
from dprecipe.training.steps.noisy_steps import NoisySteps
from dprecipe.training.steps.optimise import FlatGradient, optimizer_of
from dprecipe.training.steps.watch import SpentCurve, Watch

ROUNDS = 4
BATCHES = 50
"""Batches that the engine takes in turn: as in a run, they are not in the cache."""
CASES = {
    "MNIST network, batches of 512": (
        ["mnist-dpsgd.yaml", "mechanism.sampling.batch_size=512", "runtime.compile=false"],
        6,
    ),
    "softmax regression, batches of 64": (
        ["quickstart.yaml", "mechanism.sampling={scheme: poisson, batch_size: 64}", "training.steps=3000"],
        300,
    ),
    "UCI Adult's columns, batches of 512": (["adult-dpsgd.yaml", "mechanism.sampling.batch_size=512"], 300),
}


class Clock:
    """Seconds a step, after the first, which warms up."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []

    def tick(self, steps_done: int) -> None:
        self._ends.append((time.process_time(), steps_done))

    @property
    def seconds(self) -> float:
        (begun, first), (ended, last) = self._ends[0], self._ends[-1]
        return (ended - begun) / (last - first)


class Timed(Watch):
    """The callback of a run, and a clock."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, SpentCurve(plan), None, lambda *_: None, lambda _: None, shown=False)
        self.clock = Clock()

    def on_train_batch_end(self, trainer: lightning.Trainer, module: Any, *_: Any) -> None:
        super().on_train_batch_end(trainer, module)
        if module.steps.gate.stop_reason is None:
            self.clock.tick(module.steps.steps_done)


def built(plan: Plan, program: StepwiseProgram, folder: Path, steps: int) -> NoisySteps:
    ledger = LedgerWriter(folder / f"{time.monotonic_ns()}.jsonl", plan.digest)
    gate = Gate(take_first(plan.events, steps), plan.budget, ledger, Secrets(1))
    module: NoisySteps = runner_of(plan).build(StepContext(plan, program.model, program.store, gate, Secrets(1)))
    return module


def trained(plan: Plan, program: StepwiseProgram, folder: Path, steps: int) -> float:
    """Seconds a step under the trainer."""
    module, watch = built(plan, program, folder, steps), Timed(plan)
    fit_steps(module, watch, steps)
    return watch.clock.seconds


def bare(plan: Plan, program: StepwiseProgram, folder: Path, steps: int) -> float:
    """Seconds a step in a loop that does nothing else."""
    module, clock = built(plan, program, folder, steps), Clock()
    module.model.train()
    for _ in range(steps):
        module.take_step()
        clock.tick(module.steps_done)
    return clock.seconds


def alone(plan: Plan, program: StepwiseProgram, folder: Path, steps: int) -> float:
    """Seconds a step of the engine."""
    model, clock, secrets = program.model.train(), Clock(), Secrets()
    optimizer, gradient = optimizer_of(plan.training.descent, model), FlatGradient(list(model.parameters()))
    size, rows = math.ceil(plan.mechanism_plan.largest_expected_batch), plan.runtime.physical_batch_size
    generator = np.random.default_rng(0)
    drawn = [generator.integers(plan.data.size, size=size) for _ in range(min(steps, BATCHES))]
    batches = [BatchPart(*map(torch.from_numpy, program.sets.train.batch(some))) for some in drawn]
    for step in range(steps):
        summed = clipped_sum(model, cross_entropy, batches[step % len(batches)], Clipping.flat(0.1), rows).value
        gradient.set(add_noise(summed, Distribution("gaussian"), 0.1, secrets.stream("noise", step)).div_(size))
        optimizer.step()
        clock.tick(step)
    return clock.seconds


def main() -> None:
    given = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, Spread] = {}
    print(f"{'program':36} {'alone':>9} {'bare':>9} {'trainer':>9}   trainer / bare, trainer / engine")
    for name, ((file, *overrides), steps) in CASES.items():
        plan = make_plan(read(ROOT / "recipes" / file, overrides))
        program = prepare(plan, runner_of(plan).tests, lambda plan=plan: Sets(Synthetic(plan)))
        result = Synthetic(plan).batch(slice(0, plan.data.size))
        records = Records(*result)
        program = replace(program, store=Store(records, program.device), sets=Sets(records))
        with tempfile.TemporaryDirectory() as folder:
            common = (plan, program, Path(folder), steps)
            ways = {way.__name__: lambda way=way, common=common: way(*common) for way in (alone, bare, trained)}
            times = alternate(ways, given.rounds or ROUNDS, warm_up=0)
        spread = ratios[f"{name}: trainer / bare"] = ratio(times["trained"], times["bare"])
        whole = ratios[f"{name}: trainer / engine"] = ratio(times["trained"], times["alone"])
        least = "".join(f"{1000 * min(times[way]):7.2f} ms" for way in ways)
        print(f"{name:36}{least}   {spread}, {whole}", flush=True)
    write_json(given.json, "trainer", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
