"""Before training: the gate that will guard the run is asked for noise, and the noise is measured."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets, Stream
from dprecipe.privacy.correlation.series import inverse_of
from dprecipe.privacy.correlation.strategies import Strategy
from dprecipe.privacy.correlation.whiten import Whitener
from dprecipe.privacy.events import Charge, Event
from dprecipe.privacy.grouped_sums import GroupedGaussian
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.progress import report_progress
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.engine.full_precision import largest_error
from dprecipe.training.engine.sizes import widest_type
from dprecipe.training.probe.program import Check
from dprecipe.training.run.gate import Gate, distribution_of, multiplier_of
from dprecipe.training.steps.chacha import BLOCK, Keystream
from dprecipe.training.steps.compiled_keystream import compile_keystream
from dprecipe.training.steps.noise import DEVICE_CHUNK, MIN_ON_DEVICE

MAX_ERROR = 2.0**-20
"""Single precision stays below 2^-21 of it; TF32 is off by 2^-12 or more."""
DRAWS = 200_000
BLOCKS = 70_000
"""Blocks of the keystream that are compared with another implementation's."""
MIN_CHUNKS = 1000
"""The least number of noise chunks in a run for which compiling pays: it takes 15 ms a chunk or more."""
DISTANCE = 3.3
"""Largest √n × Kolmogorov–Smirnov distance: a sound generator passes it once in a billion times (2 exp(-2·3.3²))."""
ERRORS = 6.0
"""Standard errors allowed of the share of positive draws: once in 500 million times."""


def noise_scale(plan: Plan, device: torch.device, trained: int = 0) -> Check:
    """Checks that every noise of the plan, added to zeros, has the planned distribution and scale, and both signs.

    The zeros are on `device`: noise is made where the sum is. Where that is no CPU, the keystream that noise is made of
    there is compared with OpenSSL's first; and there are few of them, and many, for whose noise is made otherwise.
    `trained`: how many numbers a step adds noise to. Where it pays, the keystream is compiled, and then compared.

    Nothing is spent: the gate writes to a ledger of its own, which is thrown away, and the sum is made of zeros.

    Raises:
        RunFailed: it does not.
    """
    noises = {
        (distribution_of(c.event), multiplier_of(c.event), c.event.norm, _bounds_of(c.event)): Charge(c.event, 1)
        for c in plan.mechanism_plan.events
    }
    place = widest_type(device)
    remark = ""
    if place.type != "cpu":
        remark = _compile_where_it_pays(plan, place, trained)
        keystream_known(place)
    counts = (DRAWS,) if place.type == "cpu" else (DRAWS, max(DRAWS, MIN_ON_DEVICE))
    check = check_lattice(
        (_draw_noises(plan, charge, place, count, bound)[0], distribution, scale * bound)
        for (distribution, scale, _, bounds), charge in noises.items()
        for bound in bounds
        for count in counts
    )
    if place.type == "cpu":
        return check
    return replace(check, measured=f"{check.measured}; its keystream, made on {place.type}, is OpenSSL's{remark}")


def _compile_where_it_pays(plan: Plan, device: torch.device, trained: int) -> str:
    """Says what was done; empty where there is nothing to gain."""
    chunks = math.ceil(trained / DEVICE_CHUNK) * plan.length.steps
    if (
        trained < MIN_ON_DEVICE
        or plan.runtime.compile is False
        or (plan.runtime.compile == "auto" and chunks < MIN_CHUNKS)
    ):
        return ""
    report_progress("compiling the keystream of noise")
    return f" ({compile_keystream(device)})"


def keystream_known(device: torch.device) -> None:
    """Checks that the keystream of a device is that of another implementation, where its counter starts, where it
    passes
    the largest number with a sign, and where it ends.

    Raises:
        RunFailed: it is not.
    """
    key = Secrets().stream("noise", 0).key
    for first, count in ((0, BLOCKS), (2**31 - 1, 3), (2**32 - 2, 2)):
        result = Keystream(key, device, first).next(count).cpu().numpy()
        expected = np.empty(BLOCK * count, dtype=np.uint8)
        Stream(key, first).fill(expected)
        if not np.array_equal(result, expected.view("<i4")):
            raise RunFailed(
                f"the keystream made on {device} is not that of ChaCha20, from block {first} on",
                "set runtime.device to cpu, and don't trust this device",
            )


def check_lattice(draws: Iterable[tuple[NDArray[np.float64], Distribution, float]]) -> Check:
    """Returns the check of noise that was drawn, some number of draws at a time, each with its distribution and scale.

    Raises:
        RunFailed: one is not of its distribution.
    """
    measured = [measure_noise(*noise) for noise in draws]
    return Check(
        "noise_scale",
        "noise drawn by the gate has the planned distribution, scale and symmetry",
        True,
        "; ".join(measured),
    )


def _bounds_of(event: Event) -> tuple[float, ...]:
    """Returns the bounds of a sum at which the noise of an event is measured: for groups with noise of their own, the
    bound at which each group has it."""
    return tuple(sorted({1 / share for share in event.shares})) if isinstance(event, GroupedGaussian) else (1.0,)


def noise_correlation(plan: Plan, device: torch.device) -> tuple[Check, ...]:
    """Checks that correlated noise takes back what its event says; no check where noise is independent over steps.

    Whitened, that is with what was taken back added again, the noise of each step is fresh noise; the covariance of the
    first step with each later one is that of the strategy. A forgotten step shows here alone: single steps look like
    noise.

    Raises:
        RunFailed: it does not.
    """
    events = {strategy: c.event for c in plan.mechanism_plan.events if (strategy := c.event.strategy) is not None}
    return tuple(_check_correlation(plan, event, of, widest_type(device)) for of, event in events.items())


def _check_correlation(plan: Plan, event: Event, strategy: Strategy, device: torch.device) -> Check:
    steps, scale = max(len(strategy.bands) + 1, 3), multiplier_of(event)
    noises = _draw_noises(plan, Charge(event, steps), device, max(DRAWS, MIN_ON_DEVICE), releases=steps)
    whitener: Whitener[NDArray[np.float64]] = Whitener(strategy)
    measured = [measure_noise(whitener.take(noise), Distribution("gaussian"), scale) for noise in noises]
    expected = inverse_of(strategy, steps)
    covariances = [float((noises[0] * noise).mean()) / scale**2 for noise in noises[1:]]
    for lag, covariance in enumerate(covariances, 1):
        variance = float((expected[: lag + 1] ** 2).sum() + expected[lag] ** 2)
        if not abs(covariance - expected[lag]) < ERRORS * math.sqrt(variance / len(noises[0])):
            raise RunFailed(
                f"the noise of steps {lag} apart has covariance {covariance:.4f} of its variance, not "
                f"{expected[lag]:.4g}: a step does not take back what it should",
                "don't trust this installation",
            )
    return Check(
        "noise_correlation",
        "the noise of a step takes back the planned share of the noise of the steps before",
        True,
        f"covariance {covariances[0]:.4f} for {expected[1]:.4g}; whitened, {measured[-1]}",
    )


def _draw_noises(
    plan: Plan, charge: Charge, device: torch.device, count: int, bound: float = 1.0, releases: int = 1
) -> list[NDArray[np.float64]]:
    """Returns the noise of the gate's first releases."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest)
        gate = Gate([charge], plan.budget, ledger, Secrets())
        noises: list[NDArray[np.float64]] = []
        while len(noises) < releases:
            ticket = gate.admit()
            if ticket is None:
                raise RunFailed("the gate admits not even one event of the plan")
            for _ in range(min(ticket.releases, releases - len(noises))):
                zeros = torch.zeros(count, dtype=torch.float64, device=widest_type(device))
                by_coordinate = bound if bound == 1.0 else torch.full_like(zeros, bound)
                clipped = ClippedSum(zeros, by_coordinate, charge.event.norm)
                noises.append(gate.release(ticket, clipped).cpu().numpy())
        ledger.abandon()
    return noises


def measure_noise(noise: NDArray[np.float64], distribution: Distribution, scale: float) -> str:
    """Describes what was measured of noise with a distribution and a scale.

    Raises:
        RunFailed: the noise does not have them.
    """
    count = len(noise)
    # Magnitudes show an error of the scale best: by about a half of it.
    sizes = np.sort(np.abs(noise)) / scale
    expected = 2 * distribution.cdf(sizes) - 1
    ranks = np.arange(count)
    distance = float(max((expected - ranks / count).max(), ((ranks + 1) / count - expected).max()))
    positive = float((noise > 0).mean())
    measured = (
        f"{distribution.family}: distance {distance:.5f} from the planned distribution over {count:,} draws, "
        f"{positive:.2%} positive"
    )
    if not (distance < DISTANCE / math.sqrt(count) and abs(positive - 0.5) < ERRORS * 0.5 / math.sqrt(count)):
        raise RunFailed(f"the noise is not what the plan says: {measured}", "don't trust this installation")
    return measured


def single_precision(device: torch.device) -> Check:
    """Checks that products of matrices and convolutions on the device round as single precision does.

    Raises:
        RunFailed: they round more, whatever torch's settings are.
    """
    error = largest_error(device)
    if not error <= MAX_ERROR:
        raise RunFailed(
            f"products of matrices on {device} are off by {error:.1e} of their size: single precision is rounded to "
            "fewer bits there, and clip norms would not hold",
            "unset NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and CUBLAS_EMULATE_SINGLE_PRECISION, or set "
            "runtime.device to cpu",
        )
    return Check(
        "single_precision",
        "products in single precision are not rounded to fewer bits after a norm was taken",
        True,
        f"largest relative error {error:.1e} on {device.type}",
    )
