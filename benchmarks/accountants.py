"""Time to calibrate σ for ε = 3 with privacy-loss distributions: ours and dp-accounting, alternating.

Run: python benchmarks/accountants.py [rounds]
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings

from dprecipe.privacy import accountants, calibrate
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.noisy_sums import PoissonGaussian

Q, STEPS, EPSILON, DELTA = 512 / 60_000, 4688, 3.0, 1e-5
ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


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
    warnings.simplefilter("ignore")
    import_seconds = time.perf_counter()
    import dp_accounting.pld  # noqa: F401

    import_seconds = time.perf_counter() - import_seconds
    calibrate_ours(), accountants.epsilon([], DELTA, Neighbouring.ADD_OR_REMOVE_ONE, "pld")
    times: dict[str, list[float]] = {"dprecipe": [], "dp-accounting": []}
    sigmas: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, solve in (("dprecipe", calibrate_ours), ("dp-accounting", calibrate_theirs)):
            start = time.perf_counter()
            sigmas[name] = solve()
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        shown = " ".join(f"{s:.3f}" for s in seconds)
        print(f"{name:14s} sigma {sigmas[name]:.6f}  median {statistics.median(seconds):.3f} s  ({shown})")
    print(f"importing dp_accounting took {import_seconds:.2f} s and is not counted")


if __name__ == "__main__":
    main()
