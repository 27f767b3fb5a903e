"""A recipe's run of projected noisy SGD as arithmetic: its event, and the noise or length that keeps the budget.

Accountants are imported on use: a recipe with something to solve validates without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cached_property

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.stages import find_overspent_stages
from dprecipe.faults import Finding, PlanRefused, Severity
from dprecipe.mechanisms.pnsgd import rules
from dprecipe.mechanisms.pnsgd.constants import apply_declared
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.plan import BoundValue, PlannedDescent
from dprecipe.mechanisms.pnsgd.schedule import Stage, convert_to_steps, cut_stages
from dprecipe.mechanisms.pnsgd.schema import Pnsgd
from dprecipe.noise.schema import phases
from dprecipe.noisy_sum import solve
from dprecipe.privacy import rounding
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge

MIN_NOISE, MAX_NOISE = 1e-9, 1e7
"""Range of the multiplier that is solved for. σ over L is small where a step averages many records."""
MIN_MULTIPLIER = 1e-3
"""The smallest multiplier that a recipe may state."""
MIN_NOISE_RATIO = solve.MIN_NOISE / 2
"""Smallest noise over the distance between neighbouring gradients, which is up to twice a clip norm."""
LARGE_EPSILON = 10.0
"""Largest ε that is suggested: the guarantee of a larger one would be weak."""
MAX_WIDTH = 5.0
"""Value of M D / (ησ) above which a step contracts hardly at all."""

_CLOSE = 1 - 1e-3
"""Share of the budget's δ that is close enough to it: ε changes by far less."""
_CLOSE_EPSILON = 1 - 1e-4
"""Share of the budget's ε that is close enough to it."""
_INSIDE = 1 - 1e-6
"""Share of the budget's ε that is converted to δ, so that converting back stays within the budget."""


class PnsgdRun:
    """A recipe's run as arithmetic."""

    def __init__(self, spec: Pnsgd, facts: Facts) -> None:
        self.spec, self.facts = spec, facts
        self.proven = apply_declared(rules.derive_constants(spec, facts), spec.constants)
        self.batches, self.opening = rules.count_batches(spec, facts), rules.opening_steps(spec, facts)
        self.steps = rules.count_steps(spec, facts)
        self.phases = phases(spec.noise)
        self.family = self.phases[0][1].family
        self.budget, self.relation = facts.budget, Neighbouring(facts.budget.neighbouring)
        auto = [f"{path}.multiplier" for path, noise in self.phases if noise.multiplier == "auto"]
        path, last = self.phases[-1]
        self.path = auto[0] if auto else f"{path}.multiplier"
        """Path of the multiplier that is solved for, or else offered as a remedy."""
        self.multiplier = None if auto or last.multiplier == "auto" else float(last.multiplier)

    def scales(self, multiplier: float) -> list[float]:
        """Returns the noise multiplier of each phase."""
        return [
            multiplier if f"{path}.multiplier" == self.path else float(noise.multiplier) for path, noise in self.phases
        ]

    def stages(self, multiplier: float, steps: int) -> tuple[Stage, ...]:
        """Returns the run, cut into stages of equal steps."""
        lengths = self.phase_steps
        scales = [scale * self.proven.lipschitz for scale in self.scales(multiplier)]
        return cut_stages(
            self.spec.learning_rate, [*zip(lengths, scales, strict=False), (1, scales[-1])], steps, self.batches
        )

    def event(self, multiplier: float, steps: int) -> ProjectedDescent:
        """Returns the event of the run."""
        return self.problem.event(self.stages(multiplier, steps))

    @cached_property
    def problem(self) -> PlannedDescent:
        """The problem, and how it is solved."""
        spec = self.spec
        return PlannedDescent(
            neighbouring=self.relation.value,
            family=self.family,
            size=self.facts.size,
            batch_size=spec.batch_size,
            order=spec.order,
            stop=spec.stop,
            proven=self.proven,
        )

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """Steps of each phase of noise but the last; empty if there is one noise."""
        noise = self.spec.noise
        return (
            tuple(convert_to_steps(p.epochs, p.steps, self.batches) for p in noise[:-1])
            if isinstance(noise, tuple)
            else ()
        )

    def check(self) -> list[Finding]:
        """Finds out whether a run whose noise is given exceeds the budget, and whether a last-iterate release gains
        nothing."""
        if self.multiplier is None:
            return []
        if self.steps is None:
            first = self.event(self.multiplier, self.opening + 1)
            fits = self.facts.cap is None or self._fits(first)
            return [] if fits else [self._overspent(self.multiplier, first.steps)]
        event = self.event(self.multiplier, self.steps)
        cap = self.facts.cap
        if cap is not None and self._cost(event) > cap:
            return [self._overspent(self.multiplier, self.steps)]
        return find_advice(self.spec, event, self.bounds(event)[1])

    def solve(self) -> tuple[float, int, dict[str, float | int]]:
        """Returns the multiplier, the number of steps, and which of them was solved for.

        Raises:
            PlanRefused: as `plan`.
        """
        multiplier, steps = self.multiplier, self.steps
        if multiplier is not None and steps is not None:
            if self.facts.cap is not None and self._cost(self.event(multiplier, steps)) > self.facts.cap:
                raise PlanRefused([self._overspent(multiplier, steps)])
            return multiplier, steps, {}
        if self.facts.cap is not None and steps is not None:
            multiplier = self._solved_multiplier(steps)
            return multiplier, steps, {self.path: multiplier}
        if self.facts.cap is not None and multiplier is not None:
            steps = self._solved_steps(multiplier)
            if self.facts.training.steps is not None:
                return multiplier, steps, {"training.steps": steps}
            return multiplier, steps, {"training.epochs": float(Fraction(steps, self.batches))}
        raise PlanRefused([solve.two_free_variables(self.path)])

    def bounds(self, event: ProjectedDescent) -> tuple[tuple[BoundValue, ...], str]:
        """Returns ε by each bound for this noise, rounded up (None: infinite), and the name of the claimed bound."""
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        delta = self.budget.delta
        names = last_iterate.BOUNDS if self.family == "gaussian" else last_iterate.BOUNDS[:3]
        result = {name: rounding.round_up(last_iterate.epsilon(event, delta, name).value) for name in names}
        return (
            tuple(BoundValue(name, value if math.isfinite(value) else None) for name, value in result.items()),
            last_iterate.epsilon(event, delta).name,
        )

    def _solved_multiplier(self, steps: int) -> float:
        result = self.min_multiplier(steps)
        if result is None:
            raise PlanRefused([self._too_tight()])
        if result * self.spec.batch_size * self.proven.lipschitz < MIN_NOISE_RATIO * self.proven.gradient_sensitivity:
            raise PlanRefused([solve.too_loose(f"is met with a noise multiplier of {result:g}, hardly any noise")])
        return result

    def _solved_steps(self, multiplier: float) -> int:
        if self._fits(self.event(multiplier, solve.MAX_STEPS)):
            raise PlanRefused([self._any_length()])
        steps = self.max_steps(multiplier)
        if steps <= self.opening:
            raise PlanRefused([self._overspent(multiplier, self.opening + 1)])
        return steps

    def min_multiplier(self, steps: int) -> float | None:
        """Returns the smallest multiplier, to six digits, with which `steps` steps fit the budget; None: none does."""
        from dprecipe.privacy import calibrate, gdp

        budget, proven, limit = self.budget, self.proven, self._limit

        def cost(multiplier: float) -> float:
            return self._measure(self.event(multiplier, steps))

        # The search starts at the noise that one published use of a record needs.
        one_use = proven.gradient_sensitivity / (proven.lipschitz * self.spec.batch_size)
        start = one_use / gdp.mu_for(_INSIDE * float(self.facts.cap or math.inf), budget.delta)
        start = rounding.round_up(min(max(start, MIN_NOISE), MAX_NOISE))
        here = (start, cost(start))
        fits, factor = here[1] <= limit, 1.25
        while True:
            if (here[0] <= MIN_NOISE) if fits else (here[0] >= MAX_NOISE):
                return here[0] if fits else None
            further = here[0] / factor if fits else here[0] * factor
            there = rounding.round_up(min(max(further, MIN_NOISE), MAX_NOISE))
            last, here, factor = here, (there, cost(there)), factor * factor
            if (here[1] <= limit) is not fits:
                break
        inside, outside = (last, here) if fits else (here, last)
        return calibrate.refine_noise(cost, inside, outside, limit, rounding.round_up, self._close)

    def max_steps(self, multiplier: float) -> int:
        """Returns the largest number of steps, up to `MAX_STEPS`, that fit the budget; the opening's where not one more
        does.

        Bisection: where the cost is not quite monotone in the length, a length that fits, and whose successor does not.
        """

        def fits(steps: int) -> bool:
            return self._fits(self.event(multiplier, steps))

        low, high = self.opening, self.opening + 1
        while high <= solve.MAX_STEPS and fits(high):
            low, high = high, self.opening + 2 * (high - self.opening)
        high = min(high, solve.MAX_STEPS + 1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    @cached_property
    def _measure(self) -> Callable[[ProjectedDescent], float]:
        """The cost function of events, compared with `_limit`: alone, δ at the budget's ε, which is fast; with paid
        steps before it, ε of everything at the budget's δ, since distributions on a grid invert each other only
        roughly."""
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        if self.facts.stages:
            return self._cost
        cap = _INSIDE * (math.inf if self.facts.cap is None else self.facts.cap)
        if self.budget.accountant != "pld":
            return lambda event: last_iterate.renyi_delta(event, cap)
        return lambda event: last_iterate.delta(event, cap).value

    @property
    def _limit(self) -> float:
        """Largest allowed value of `_measure`."""
        return self.facts.cap or math.inf if self.facts.stages else self.budget.delta

    @property
    def _close(self) -> float:
        """Share of `_limit` that is close enough."""
        return _CLOSE_EPSILON if self.facts.stages else _CLOSE

    def _fits(self, event: ProjectedDescent) -> bool:
        return self._measure(event) <= self._limit

    def _cost(self, event: ProjectedDescent) -> float:
        """Returns ε of everything, paid steps and run, at the budget's δ, rounded up."""
        from dprecipe.privacy import accountants

        charges = self.facts.release((Charge(event, 1),))
        return rounding.round_up(accountants.epsilon(charges, self.budget.delta, self.relation, self.budget.accountant))

    def _overspent(self, multiplier: float, steps: int) -> Finding:
        """Returns the finding for an overspent budget: the excess, and the single changes that would each fit it."""
        if (finding := find_overspent_stages(self.facts)) is not None:
            return finding
        cap, max_steps, min_multiplier = self.facts.cap, self.max_steps(multiplier), self.min_multiplier(steps)
        cost = self._cost(self.event(multiplier, steps))
        remedies = []
        if max_steps > self.opening:
            remedies += self._suggest_length(max_steps)
        if min_multiplier is not None and min_multiplier >= MIN_MULTIPLIER:
            remedies.append(f"set {self.path} to {min_multiplier:.6g}")
        if max_steps <= self.opening and cost <= LARGE_EPSILON:
            remedies.append(f"raise budget.epsilon to {rounding.round_up(cost / _INSIDE):.6g}")
        nothing = max_steps == 0
        start = "" if not nothing else "not even one step fits: " + ("one " if steps == 1 else "the run ")
        return Finding(
            "P106" if nothing else "P102",
            f"{start}spends ε = {cost:.4g} of {cap:g} at δ = {self.budget.delta:g}",
            ", or ".join(remedies) or "raise budget.epsilon or budget.delta",
            "budget.epsilon",
        )

    def _suggest_length(self, max_steps: int) -> list[str]:
        """Suggests a shorter run, in the unit that the recipe uses."""
        if self.facts.training.steps is not None:
            return [f"lower training.steps to {max_steps} {solve.AS_MANY}"]
        passes = Fraction(max_steps, self.batches)
        for shown in (float(math.floor(passes)), math.floor(passes * 10_000) / 10_000):
            if shown and convert_to_steps(shown, None, self.batches) > self.opening:
                return [f"lower training.epochs to {shown:g} {solve.AS_MANY}"]
        return []

    def _any_length(self) -> Finding:
        field = "steps" if self.facts.training.steps is not None else "epochs"
        return Finding(
            "P107",
            f"the budget holds {solve.MAX_STEPS:,} steps or more at this noise: on a bounded set the cost of a run "
            "levels off",
            f"give training.{field} a number, or lower budget.epsilon",
            f"training.{field}",
        )

    def _too_tight(self) -> Finding:
        if (finding := find_overspent_stages(self.facts)) is not None:
            return finding
        others = "raise the noise of the other phases, or " if self.opening else ""
        others += "raise that of the paid steps of data.preprocess, or " if self.facts.stages else ""
        return Finding(
            "P106",
            f"no noise meets this budget: the run exceeds it even with {self.path} = {MAX_NOISE:g}",
            f"{others}raise budget.epsilon or budget.delta",
            "budget.epsilon",
        )


_SMALLER = {
    "ball": "lower mechanism.constraint.radius",
    "box": "lower mechanism.constraint.bound",
    "intervals": "move mechanism.constraint.low and high closer to one another",
    "simplex": "lower mechanism.constraint.total",
}


def find_advice(spec: Pnsgd, event: ProjectedDescent, winner: str) -> list[Finding]:
    """Warns where releasing only the last iterate gains nothing, or hardly anything."""
    min_width = min(shrink * diameter for _, _, shrink, diameter in event.stages)
    fixed = spec.order == "sequential" and spec.stop == "last"
    later = event.batches > 1 and not fixed
    if later and min_width > MAX_WIDTH and winner in ("contraction", "nonlinear", "no_amplification"):
        return [
            Finding(
                "P174",
                f"the set is {min_width:.3g} times as wide as the noise of a step (M D/(ησ) > {MAX_WIDTH:g}): "
                "contraction helps hardly at all",
                f"{_SMALLER[spec.constraint.kind]}, or raise mechanism.learning_rate",
                "mechanism.constraint",
                severity=Severity.WARNING,
            )
        ]
    if winner == "no_amplification":
        return [
            Finding(
                "P173",
                "releasing only the last iterate gains nothing here: the smallest bound is that of publishing all of "
                "them",
                "set mechanism.order to permuted"
                if fixed and event.batches > 1
                else "lower mechanism.batch_size: with several steps in a pass, later noise protects earlier records",
                "mechanism.order" if fixed and event.batches > 1 else "mechanism",
                severity=Severity.WARNING,
            )
        ]
    return []
