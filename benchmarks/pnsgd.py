"""Time of a descent on a million records, the part of it that is noise, and the time of other implementations.

Rounds alternate A B C A B C …, so that ratios hold on a machine whose speed drifts. `blas` is the engine; `numpy` the
same steps of single records in numpy's in-place operations; `torch` those of `device_backend`, on the CPU. Records are
synthetic, float32, of a logistic regression, in a random order; noise is Gaussian.
Run: OMP_NUM_THREADS=1 python benchmarks/pnsgd.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from figures import Spread, alternate, parser_of, ratio, write_json

from dprecipe.data.records import Records
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.descent import Backend, CpuBackend, Descent, Noise, Objective, State
from dprecipe.mechanisms.pnsgd.train.losses import Logistic
from dprecipe.mechanisms.pnsgd.train.run import DeviceBackend
from dprecipe.mechanisms.pnsgd.train.sets import Ball
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets

RECORDS = {100: 40_000, 1000: 8_000}
"""Of a round, by their features: enough for a second."""
BATCH_SIZES = (1, 64)
ROUNDS = 5


class InNumpy(CpuBackend):  # type: ignore[misc]
    """Single records by numpy's operations."""

    def _step_single_records(
        self, slope: Any, x_TD: Any, y_T: list[float], factor: float, shrink: float, noise_TD: Any
    ) -> None:
        w, scratch = self._w, np.empty(self._w.shape)
        radius = self._objective.within.max_norm
        for x_D, y, noise_D in zip(x_TD, y_T, noise_TD, strict=True):
            np.multiply(x_D, factor * slope(float(x_D.dot(w)), y), out=scratch)
            np.multiply(w, shrink, out=w)
            np.add(w, scratch, out=w)
            np.add(w, noise_D, out=w)
            square = float(w.dot(w))
            if square > radius * radius:
                np.multiply(w, radius / square**0.5, out=w)


def seconds(width: int, batch: int, backend: Callable[[Objective], Backend] | None) -> float:
    """Of the processor, of a pass over a million records; of drawing its noise alone where nothing makes the steps."""
    count, generator = RECORDS[width], np.random.default_rng(0)
    features = generator.standard_normal((count, width), dtype=np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True) * 1.01
    records = Records(features, generator.integers(2, size=count))
    objective = Objective(Logistic(), width, True, 1.0, 0.01, Ball(2.0))
    steps = -(-count // batch)
    noise = Noise(Distribution("gaussian"), Secrets(), width + 1)
    state = State.fresh(objective.start(), count, steps, Secrets(), permuted=True, random_stop=False)
    start = time.process_time()
    if backend is None:
        for step in range(0, steps, noise.block):
            noise.of(step, min(noise.block, steps - step))
    else:
        descent = Descent(objective, [Stage(steps, 0.1, 0.1)], batch, records, noise, state, backend(objective))
        while not state.finished:
            descent.advance()
        descent.state  # noqa: B018
    return (time.process_time() - start) * 1e6 / count


def main() -> None:
    given = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, Spread] = {}
    ways: dict[str, Callable[[Objective], Backend] | None] = {
        "blas": CpuBackend,
        "numpy": InNumpy,
        "torch": lambda objective: DeviceBackend(objective, torch.device("cpu")),
        "noise": None,
    }
    for width in RECORDS:
        for batch in BATCH_SIZES:
            names = [name for name in ways if batch == 1 or name != "numpy"]
            if given.quick and batch == 1:
                names.remove("torch")  # seconds, for what nobody uses on a CPU
            timed = {
                name: lambda way=ways[name], width=width, batch=batch: seconds(width, batch, way) for name in names
            }
            times = alternate(timed, given.rounds or (3 if given.quick else ROUNDS), warm_up=0)
            middle = {name: Spread.of(measured).median for name, measured in times.items()}
            shown = ", ".join(f"{name} {value:.1f} s" for name, value in middle.items())
            share = middle["noise"] / middle["blas"]
            case = f"{width} features, batches of {batch}"
            print(f"{case}: a million records in {shown}; {share:.0%} of blas is noise", flush=True)
            for other in set(names) & {"numpy", "torch"}:
                ratios[f"{case}: blas / {other}"] = ratio(times["blas"], times[other])
    write_json(given.json, "pnsgd", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
