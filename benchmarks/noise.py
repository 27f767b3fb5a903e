"""What a number of noise costs: the gate's, in place and onto its lattice, against torch's and numpy's generators.

Rounds alternate A B C A B C …, so that a machine whose speed drifts gives honest ratios; of each the fastest round
and the median, in processor time (of several threads, of all together), which other programs lengthen less. `gate` is
`add_noise`, as it is trained with; `lattice` its rounding alone; `numpy path` the draws of votes and of hidden
descent, without adding them. `drawn again` and `kept`: correlated noise of λ, and of four bands. torch's and numpy's
own are not secure, and are not added to anything.
Run: python benchmarks/noise.py [--threads N] [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from figures import Spread, alternate, parser_of, ratio, seconds_of, write_json

from dprecipe.noise.distributions import Distribution
from dprecipe.noise.draws import draw_noise
from dprecipe.noise.entropy import Secrets
from dprecipe.privacy.correlated_sums import BandedGaussian
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.run.gate import SumNoise, Ticket
from dprecipe.training.steps.noise import add_noise, onto_lattice

ROUND_NUMBERS = 2_000_000
"""At least so many of each way in a round: fewer take less time than a clock can tell."""
COMPARED = {
    "gate": "torch.normal",
    "gate, one drawn again": "gate",
    "gate, three kept": "gate",
    "gate, laplace": "torch.normal",
    "numpy path": "numpy",
}
"""Ours and another's, for `--json`."""
GAUSSIAN, LAPLACE = Distribution("gaussian"), Distribution("laplace")


def ways(count: int) -> dict[str, Callable[[], object]]:
    secrets = Secrets()
    total, single = torch.zeros(count, dtype=torch.float64), torch.zeros(count)
    layers = torch.full((count,), 1.3, dtype=torch.float64)
    generator = np.random.default_rng()
    banded, kept = SumNoise(secrets), Ticket(BandedGaussian(1.3, 0.1, (1.0, 0.82, 0.7462, 0.701428)), 1)
    kept.releases = 1 << 30
    return {
        "gate": lambda: add_noise(total, GAUSSIAN, 1.3, secrets.stream("noise", 1)),
        "gate, scale of each": lambda: add_noise(total, GAUSSIAN, layers, secrets.stream("noise", 1)),
        "gate, laplace": lambda: add_noise(total, LAPLACE, 1.3, secrets.stream("noise", 1)),
        "gate, one drawn again": lambda: add_noise(
            total, GAUSSIAN, 1.3, secrets.stream("noise", 1), (-0.9, secrets.stream("noise", 0))
        ),
        "gate, three kept": lambda: banded.release(kept, ClippedSum(total, 1.0)),
        "lattice": lambda: onto_lattice(total, 1.3),
        "numpy path": lambda: draw_noise(GAUSSIAN, secrets.stream("noise", 1), count),
        "torch.normal": lambda: torch.normal(0.0, 1.3, (count,)),
        "normal_": lambda: single.normal_(),
        "normal_, float64": lambda: total.normal_(),
        "numpy": lambda: generator.standard_normal(count),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ratios: dict[str, Spread] = {}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread(s); ns a number: fastest, median")
    for count in (1_000, 100_000, 10_000_000):
        repeats = max(1, ROUND_NUMBERS // count)
        timed = {name: lambda way=way, repeats=repeats: seconds_of(way, repeats) for name, way in ways(count).items()}
        taken = alternate(timed, given.rounds or (7 if given.quick else 21))
        print(f"\n{count:,} numbers, {len(taken['gate'])} rounds", flush=True)
        for name, seconds in taken.items():
            times = [1e9 * each / count for each in seconds]
            print(f"  {name:22}{min(times):8.2f}{Spread.of(times).median:8.2f}")
        for ours, theirs in COMPARED.items():
            ratios[f"{count:,} numbers: {ours} / {theirs}"] = ratio(taken[ours], taken[theirs])
    write_json(given.json, "noise", ratios, quick=given.quick)


if __name__ == "__main__":
    main()
