"""What a last-iterate release tells, and what it costs. Light: formulas are imported inside of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import Field

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import MAX_ROWS, Event, check_positive, one_of, register_event
from dprecipe.privacy.profile import Answer, PositionRow, Profile
from dprecipe.privacy.questions import Question, WholeRun

Contraction = Annotated[float, Field(ge=0, le=1)]
Stage = tuple[PositiveInt, PositiveFloat, Contraction, PositiveFloat]
"""(steps, noise multiplier, contraction, diameter)."""


@register_event
@dataclass(frozen=True, slots=True)
class ProjectedDescent(Event):
    """The last iterate of a projected noisy descent, none of whose other iterates anybody sees: one event, however many
    steps it takes.

    Records stand in an order, in batches of `batch` (the last may be short, and is divided by `batch` all the same),
    and step t uses batch t modulo ceil(`size` / `batch`). A step is a map of the last iterate, noise of distribution
    `family`, and the projection on a convex set. `order`: `sequential`, that of the file, so that the guarantee depends
    on where a record stands; `permuted`, drawn once, uniformly and independently of the data, for all passes. `stop`:
    `last`, after all steps; `random`, after a number of steps drawn uniformly from 1 to all of them.

    `stages`: (steps, noise_multiplier, contraction, diameter), one after the other: the noise's scale over the farthest
    that one record, changed as `neighbouring` says, moves a step that uses it; the Lipschitz constant of a step's map;
    the diameter of the set over the noise's scale.

    Formal guarantee: the least of `theory.bounds`, for `neighbouring` alone; the distance is the change's own: nothing
    is doubled. Source: Asoodeh, Diaz & Calmon 2020; Bok, Su & Altschuler 2024.

    | case | |
    |---|---|
    | a record that no step uses | protected entirely |
    | contraction 1 | later steps still help, by their noise on a bounded set |
    | contraction 0 | a step forgets all before it |
    | one record | as any other; its batch is short |
    """

    kind: ClassVar[str] = "projected_descent"
    hides_iterates: ClassVar[bool] = True
    cross_check_tolerance: ClassVar[tuple[float, float]] = (2e-2, 2e-3)
    """The cross-check takes places together: over random sizes, orders, stages and sets it lay at most 0.1 % of ε above
    ours, and 1.1 % where the stop is random or stages have Laplace noise."""
    renyi_tolerance: ClassVar[float] = 1e-3
    """Losses of Laplace noise are composed on a grid, which the Rényi bound of a last-iterate release knows nothing
    of."""
    neighbouring: Annotated[str, one_of("replace_one", "zero_out_one")]
    family: Annotated[str, one_of("gaussian", "laplace")]
    size: PositiveInt
    batch: PositiveInt
    order: Annotated[str, one_of("sequential", "permuted")]
    stop: Annotated[str, one_of("last", "random")]
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=MAX_ROWS)] = field(repr=False)

    def __post_init__(self) -> None:
        for name, words in (
            ("neighbouring", (Neighbouring.REPLACE_ONE, Neighbouring.ZERO_OUT_ONE)),
            ("family", ("gaussian", "laplace")),
            ("order", ("sequential", "permuted")),
            ("stop", ("last", "random")),
        ):
            if getattr(self, name) not in words:
                raise ValueError(f"expected {name} {' or '.join(words)}, got {getattr(self, name)!r}")
        if not 0 < self.batch <= self.size:
            raise ValueError(f"expected 0 < batch <= size, got {self.batch} and {self.size}")
        if not 0 < len(self.stages) <= MAX_ROWS:
            raise ValueError(f"expected between 1 and {MAX_ROWS} stages, got {len(self.stages)}")
        for steps, noise_multiplier, contraction, diameter in self.stages:
            check_positive(steps=steps, noise_multiplier=noise_multiplier, diameter=diameter)
            if not 0 <= contraction <= 1:  # written so that NaN fails
                raise ValueError(f"expected 0 <= contraction <= 1, got {contraction}")

    @property
    def batches(self) -> int:
        """Steps in one pass over the records."""
        return -(-self.size // self.batch)

    @property
    def steps(self) -> int:
        """All steps, of all passes."""
        return sum(steps for steps, *_ in self.stages)

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(multiplier for _, multiplier, *_ in self.stages)

    def profile(self) -> Profile:
        return LastIterateProfile(self)

    def cross_check(self) -> Question:
        def epsilon(delta: float) -> float:
            from dprecipe.mechanisms.pnsgd.theory import recheck

            return recheck.epsilon(self, delta)

        return WholeRun(epsilon)

    def describe_sensitivity(self) -> str:
        return f"one step of a pass, by 1; {self.family} noise; {self.order} order, all but the end hidden"


@dataclass(frozen=True, slots=True)
class LastIterateProfile:
    """δ(ε) of a last-iterate release: `privacy.profile.Profile`, by `theory.last_iterate`."""

    event: ProjectedDescent

    @property
    def relation(self) -> Neighbouring:
        return Neighbouring(self.event.neighbouring)

    def epsilon(self, delta: float) -> Answer:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        epsilon = last_iterate.epsilon(self.event, delta)
        return Answer(epsilon.value, epsilon.name)

    def delta(self, epsilon: float) -> Answer:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        delta = last_iterate.delta(self.event, epsilon)
        return Answer(delta.value, delta.name)

    def renyi_epsilon(self, delta: float) -> float:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        return last_iterate.renyi_epsilon(self.event, delta)

    def renyi_delta(self, epsilon: float) -> float:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        return last_iterate.renyi_delta(self.event, epsilon)

    def mu(self) -> float | None:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        return last_iterate.gaussian_mu(self.event)

    def epsilon_by_bound(self, delta: float) -> Mapping[str, float]:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        return {name: last_iterate.epsilon(self.event, delta, name).value for name in last_iterate.bounds(self.event)}

    def delta_by_bound(self, epsilon: float) -> Mapping[str, float]:
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        return {name: last_iterate.delta(self.event, epsilon, name).value for name in last_iterate.bounds(self.event)}

    def by_position(self, delta: float, epsilon: float, max_rows: int, fewer: int) -> tuple[PositionRow, ...]:
        """Of runs through the file's order to their last step. Records of a batch have the same; where stages and
        batches are many, some next to each other are given what bounds them all."""
        from dprecipe.mechanisms.pnsgd.theory import last_iterate, positions

        if (self.event.order, self.event.stop) != ("sequential", "last"):
            return ()
        shown = positions.choose_positions(self.event, max_rows, fewer)
        at_delta = last_iterate.epsilons_at(self.event, shown, delta)
        at_epsilon = last_iterate.deltas_at(self.event, shown, epsilon)
        return tuple(zip(shown, at_delta.tolist(), at_epsilon.tolist(), strict=True))


EVENTS = (ProjectedDescent,)
