"""What a number of noise costs: the gate's, in place and onto its lattice, against torch's and numpy's generators.

Rounds alternate A B C A B C …, so that a machine whose speed drifts gives honest ratios; of each the fastest round
and the median, in processor time (of several threads, of all together), which other programs lengthen less. `gate` is
`add_noise`, as it is trained with; `lattice` its rounding alone; `numpy path` the draws of votes and of hidden
descent, without adding them. torch's and numpy's own are not secure, and are not added to anything.
Run: python benchmarks/noise.py [threads]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets
from dprecipe.training.noise import add_noise, onto_lattice

SECONDS = 15.0
"""For all ways at one size."""
GAUSSIAN, LAPLACE = Distribution("gaussian"), Distribution("laplace")


def ways(count: int) -> dict[str, Callable[[], object]]:
    secrets = Secrets()
    total, single = torch.zeros(count, dtype=torch.float64), torch.zeros(count)
    layers = torch.full((count,), 1.3, dtype=torch.float64)
    generator = np.random.default_rng()
    return {
        "gate": lambda: add_noise(total, GAUSSIAN, 1.3, secrets.stream("noise", 1)),
        "gate, scale of each": lambda: add_noise(total, GAUSSIAN, layers, secrets.stream("noise", 1)),
        "gate, laplace": lambda: add_noise(total, LAPLACE, 1.3, secrets.stream("noise", 1)),
        "lattice": lambda: onto_lattice(total, 1.3),
        "numpy path": lambda: draw_noise(GAUSSIAN, secrets.stream("noise", 1), count),
        "torch.normal": lambda: torch.normal(0.0, 1.3, (count,)),
        "normal_": lambda: single.normal_(),
        "normal_, float64": lambda: total.normal_(),
        "numpy": lambda: generator.standard_normal(count),
    }


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s); ns a number: fastest, median")
    for count in (1_000, 100_000, 10_000_000):
        taken: dict[str, list[float]] = {name: [] for name in ways(count)}
        result, end = ways(count), time.process_time() + SECONDS
        while time.process_time() < end or not taken["gate"]:
            for name, way in result.items():
                start = time.process_time()
                way()
                taken[name].append((time.process_time() - start) / count * 1e9)
        print(f"\n{count:,} numbers, {len(taken['gate'])} rounds")
        for name, times in taken.items():
            print(f"  {name:22}{min(times):8.2f}{statistics.median(times):8.2f}")


if __name__ == "__main__":
    main()
