"""Strategies: the matrices C by which noise is correlated, and how far one unit moves a sum under them; no numpy.

C is given by its first column c, with c_0 = 1. Both kinds have c >= 0: formulas for the worst unit are exact then, and
noise that begins again never costs more than noise that goes on. With negative entries neither holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dprecipe.privacy.events import check_positive

MAX_BANDS = 64
"""The most bands of a strategy: each but one is a vector of noise that a run keeps."""
_ROUND_UP = 1 + 1e-14


@dataclass(frozen=True, slots=True)
class PreviousStep:
    """The noise of a step takes back the share `previous` of the fresh noise of the step before: w_t = z_t - λ z_{t-1},
    so that c_j = λ^j. Source: DP-λCGD, arXiv 2601.22334."""

    previous: float

    def __post_init__(self) -> None:
        if not 0 <= self.previous <= 1:  # written so that NaN fails
            raise ValueError(f"expected 0 <= previous <= 1, got {self.previous}")

    @property
    def bands(self) -> tuple[float, ...]:
        """The numerator of c(x) = bands(x) / taps(x)."""
        return (1.0,)

    @property
    def taps(self) -> tuple[float, ...]:
        """The first column of C⁻¹ up to its last entry that is not 0: the weights of z_t, z_{t-1} in w_t."""
        return (1.0, -float(self.previous))

    def pass_energy(self, batches: int, number: int) -> float:
        """Returns Q_e = Σ_q (Σ_{i<=e} c_{q + iB})², q = 0 … B - 1: the squared distance by which a unit that takes part
        once a pass, always at the same place, moves C x in pass e = `number` (0, 1, …) of B = `batches` steps.

        Guarantees: never below the exact value, and at most 2e-14 above it, relatively; 1 for λ = 0. Holds for every
        place, whatever was released before. Increases with λ and with e.
        Source: docs/explanation/accounting.md#correlated-noise.
        """
        check_positive(batches=batches, number=number + 1)
        if self.previous == 0:
            return 1.0
        if self.previous == 1:
            return float(batches) * float(number + 1) ** 2
        log = math.log(self.previous)
        column = math.expm1(2 * batches * log) / math.expm1(2 * log)
        carried = math.expm1((number + 1) * batches * log) / math.expm1(batches * log)
        return column * carried**2 * _ROUND_UP

    def sensitivity(self, batches: int, passes: int) -> float:
        """Returns the distance by which such a unit moves C x in all `passes` of a run, from the first on."""
        return math.sqrt(math.fsum(self.pass_energy(batches, number) for number in range(passes)))


@dataclass(frozen=True, slots=True)
class Banded:
    """The strategy with the first column `bands`: w_t = z_t - Σ c_j w_{t-j}. What a unit adds to a step shows in b =
    len(`bands`) rows of C x. Source: BandMF, arXiv 2306.08153."""

    bands: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.bands) <= MAX_BANDS:
            raise ValueError(f"expected between 1 and {MAX_BANDS} coefficients, got {len(self.bands)}")
        if self.bands[0] != 1:
            raise ValueError(f"expected the first coefficient to be 1, got {self.bands[0]}")
        for before, after in zip(self.bands, self.bands[1:], strict=False):
            if not 0 <= after <= before:
                raise ValueError(f"expected coefficients >= 0 that never increase, got {after} after {before}")

    @property
    def taps(self) -> tuple[float, ...]:
        """The denominator of c(x) = bands(x) / taps(x)."""
        return (1.0,)

    @property
    def norm(self) -> float:
        """The norm of a column: the distance by which a unit moves C x if it takes part once. Never below the exact
        value; 1 for one band."""
        return math.sqrt(math.fsum(c * c for c in self.bands)) * _ROUND_UP if any(self.bands[1:]) else 1.0


Strategy = PreviousStep | Banded


def make_bands(bands: int, power: float) -> Banded:
    """Returns the strategy of the first coefficients of (1 - x)^-g, g = `power` in (0, 1].

    For prefix sums the best g is within 0.3 % of the best coefficients of all.
    """
    if not 0 < power <= 1:
        raise ValueError(f"expected 0 < power <= 1, got {power}")
    if not 0 < bands <= MAX_BANDS:
        raise ValueError(f"expected between 1 and {MAX_BANDS} bands, got {bands}")
    column = [1.0]
    for j in range(1, bands):
        column.append(column[-1] * ((j - 1 + power) / j))
    return Banded(tuple(column))
