"""A recipe's run with bands as arithmetic: groups of as many steps as there are bands, and the choice of bands."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property, partial

from dprecipe.contract.mechanism import Facts
from dprecipe.faults import Finding, PlanRefused
from dprecipe.mechanisms.correlated.beside_poisson import calibrate_poisson
from dprecipe.mechanisms.correlated.schema import BandedNoise, Correlated
from dprecipe.noisy_sum import solve
from dprecipe.noisy_sum.clipped_plan import Phase
from dprecipe.noisy_sum.sampling import CyclicPoissonSampling, Pace
from dprecipe.privacy.correlated_sums import BandedGaussian
from dprecipe.privacy.correlation.strategies import Banded, make_bands
from dprecipe.privacy.events import Charge

NOISE = "mechanism.noise.multiplier"
MAX_KEPT = 1 << 32
"""The most bytes of noise that bands which are `auto` keep in memory."""


class GroupedRun:
    """A recipe's run as arithmetic; its steps draw from the parts of the data in turn."""

    def __init__(self, noise: BandedNoise, sampling: CyclicPoissonSampling, spec: Correlated, facts: Facts) -> None:
        self.noise, self.sampling, self.spec, self.facts = noise, sampling, spec, facts

    @property
    def steps(self) -> int | None:
        """The number of steps that the recipe asks for; None: as many as the budget holds."""
        training = self.facts.training
        if training.epochs == "auto" or training.steps == "auto":
            return None
        return self._pace(1).events_for(training.epochs, training.steps)

    @cached_property
    def strategy(self) -> Banded:
        """The bands: those of the recipe, or those that leave the least noise in the iterates.

        Raises:
            PlanRefused: they can't be chosen, see `check_choice`.
        """
        from dprecipe.privacy.correlation import choice

        bands, power, steps = self.noise.bands, self.noise.power, self.steps
        if bands != "auto" and power != "auto":
            return make_bands(bands, power)
        if (finding := self.check_choice()) is not None or steps is None:
            raise PlanRefused([finding or solve.two_free_variables(NOISE)])
        powers = choice.POWERS if power == "auto" else (power,)
        if bands != "auto":
            return make_bands(bands, choice.choose_power(bands, steps, powers=powers))
        exact = self.facts.training.steps
        counts = [each for each in choice.BANDS if not isinstance(exact, int) or exact % each == 0]
        parameters = sum(self.facts.layers)
        return choice.choose_bands(
            self.sampling.batch_size / self.facts.size,
            steps,
            [each for each in counts if (each - 1) * 8 * parameters <= MAX_KEPT],
            partial(calibrate_poisson, self.facts),
            powers=powers,
        )

    def check_choice(self) -> Finding | None:
        """Returns the finding for bands or a power that nothing decides; None where they can be chosen."""
        noise = self.noise
        if noise.bands == "auto" and self.facts.cap is None:
            return _no_choice("bands", "budget.epsilon")
        for name in ("bands", "power"):
            if getattr(noise, name) == "auto" and self.steps is None:
                return _no_choice(name, "training.epochs" if self.facts.training.steps is None else "training.steps")
        return None

    @cached_property
    def pace(self) -> Pace:
        return self._pace(len(self.strategy.bands))

    def _pace(self, bands: int) -> Pace:
        return Pace(bands, ((0, Fraction(self.sampling.batch_size)),), self.facts.size, True)

    @cached_property
    def problem(self) -> solve.Problem:
        written = self.noise.multiplier
        multiplier = None if written == "auto" else float(written)
        return solve.Problem(self.facts, self.pace, self.charges, multiplier, NOISE)

    def charges(self, multiplier: float, groups: int) -> tuple[Charge, ...]:
        """Returns the charges of a run of this many groups."""
        bands = self.strategy.bands
        part_rate = len(bands) * self.sampling.batch_size / self.facts.size
        return (Charge(BandedGaussian(multiplier, part_rate, bands), groups),)

    @property
    def least_multiplier(self) -> float:
        """The least noise multiplier of a step that protects anything."""
        return solve.MIN_NOISE * self.strategy.norm

    def phases(self, charges: tuple[Charge, ...], norm: float) -> tuple[Phase, ...]:
        """Returns the one phase, at one clip norm."""
        return tuple(Phase(charge, norm, self.pace.expected_batch) for charge in charges)

    @property
    def chosen(self) -> dict[str, float | int]:
        """The values that were `auto` and follow from length and budget, by path."""
        bands = len(self.strategy.bands)
        chosen: dict[str, float | int] = {"mechanism.noise.bands": bands} if self.noise.bands == "auto" else {}
        if self.noise.power == "auto" and bands > 1:
            chosen["mechanism.noise.power"] = self.strategy.bands[1]  # c_1 = g
        return chosen


def _no_choice(name: str, path: str) -> Finding:
    return Finding(
        "P178",
        f"{name} that are `auto` are chosen for a length and a budget, and {path} is `auto`"
        if name == "bands"
        else f"a power that is `auto` is chosen for a length, and {path} is `auto`",
        f"give mechanism.noise.{name} a number, or {path}",
        f"mechanism.noise.{name}",
    )
