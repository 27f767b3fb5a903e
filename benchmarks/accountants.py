"""Time to calibrate σ for ε = 3 with privacy-loss distributions: ours and dp-accounting, alternating.

Run: python benchmarks/accountants.py [--rounds N] [--quick] [--json FILE]
"""

from __future__ import annotations

import time
import warnings

from figures import Spread, alternate, parser_of, ratio, seconds_of, write_json

from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

Q, STEPS, EPSILON, DELTA = 512 / 60_000, 4688, 3.0, 1e-5


def calibrate_ours() -> float:
    accountants._curve_of_one.cache_clear()  # each round computes its own Rényi curves
    return calibrate.noise_multiplier(
        lambda sigma: [Charge(PoissonGaussian(Q, sigma), STEPS)],
        EPSILON,
        DELTA,
        Neighbouring.ADD_OR_REMOVE_ONE,
        "pld",
    )


def calibrate_theirs() -> float:
    import dp_accounting
    from dp_accounting import pld

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(Q, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, STEPS)

    bracket = dp_accounting.ExplicitBracketInterval(0.3, 10.0)
    return dp_accounting.calibrate_dp_mechanism(
        pld.PLDAccountant, event, EPSILON, DELTA, bracket_interval=bracket, tol=1e-4
    )


def main() -> None:
    given = parser_of(__doc__).parse_args()
    rounds = given.rounds or (1 if given.quick else 3)
    warnings.simplefilter("ignore")
    import_seconds = time.perf_counter()
    import dp_accounting.pld  # noqa: F401

    import_seconds = time.perf_counter() - import_seconds
    calibrate_ours(), accountants.epsilon([], DELTA, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    sigmas: dict[str, float] = {}
    ways = {
        "dprecipe": lambda: sigmas.update({"dprecipe": calibrate_ours()}),
        "dp-accounting": lambda: sigmas.update({"dp-accounting": calibrate_theirs()}),
    }
    times = alternate({name: lambda way=way: seconds_of(way) for name, way in ways.items()}, rounds, warm_up=0)
    for name, seconds in times.items():
        print(f"{name:14s} sigma {sigmas[name]:.6f}  {Spread.of(seconds)} s of the processor")
    print(f"importing dp_accounting took {import_seconds:.2f} s and is not counted")
    compared = {"calibrate, PLD: dprecipe / dp-accounting": ratio(times["dprecipe"], times["dp-accounting"])}
    write_json(given.json, "accountants", compared, quick=given.quick)


if __name__ == "__main__":
    main()
