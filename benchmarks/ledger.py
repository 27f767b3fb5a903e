"""What part of a training step goes to the ledger, in the very program that trains.

The ledger's own time (writing, flushing, fsync) is measured inside runs of two recipes on synthetic records: a step of
seconds' tenths (the MNIST network) and one of milliseconds (softmax regression).

Run: python benchmarks/ledger.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import lightning.pytorch as lightning
from figures import ROOT, Spread, parser_of, write_json

from dprecipe.noise.entropy import Secrets
from dprecipe.planning.make import plan as make_plan
from dprecipe.privacy.events import take_first
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.recipe.read import read
from dprecipe.training.program.program import Sets, Synthetic, prepare
from dprecipe.training.run.gate import Gate
from dprecipe.training.run.runner import runner_of
from dprecipe.training.steps.contract import StepContext
from dprecipe.training.steps.fit import fit_steps

CASES = {
    "MNIST network, batches of 512": (
        ["mnist-dpsgd.yaml", "mechanism.sampling.batch_size=512", "runtime.compile=false"],
        40,
    ),
    "softmax regression, batches of 64": (
        ["quickstart.yaml", "mechanism.sampling={scheme: poisson, batch_size: 64}", "training.steps=3000"],
        1500,
    ),
}


class Timed(LedgerWriter):
    """A ledger that adds up the time it takes."""

    seconds = 0.0

    def _append(self, entry: dict[str, object], *, sync: bool = True) -> None:
        start = time.perf_counter()
        super()._append(entry, sync=sync)
        Timed.seconds += time.perf_counter() - start


class Clock(lightning.Callback):
    """Wall time between the first and the last step."""

    def on_train_start(self, *_: object) -> None:
        Timed.seconds, self.start = 0.0, time.perf_counter()

    def on_train_end(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.start


def main() -> None:
    given = parser_of(__doc__).parse_args()
    rounds, ratios = given.rounds or 1, dict[str, Spread]()
    print(f"{'program':34} {'steps':>6} {'ms a step':>10} {'ledger':>8}")
    for name, ((file, *overrides), steps) in CASES.items():
        plan = make_plan(read(ROOT / "recipes" / file, overrides))
        runner = runner_of(plan)
        program = prepare(plan, runner.tests, lambda plan=plan: Sets(Synthetic(plan)))
        steps, shares = steps // 4 if given.quick else steps, list[float]()
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(dir=ROOT) as folder:
                ledger = Timed(Path(folder) / "ledger.jsonl", plan.digest)
                gate = Gate(take_first(plan.events, steps), plan.budget, ledger, Secrets())
                module = runner.build(StepContext(plan, program.model, program.store, gate, Secrets()))
                clock = Clock()
                fit_steps(module, clock, steps)
                gate.close()
            shares.append(Timed.seconds / clock.seconds)
            print(f"{name:34} {steps:6} {1000 * clock.seconds / steps:10.2f} {shares[-1]:8.2%}", flush=True)
        ratios[f"{name}: ledger / step"] = Spread.of(shares)
    write_json(given.json, "ledger", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
