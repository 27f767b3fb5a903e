"""The event of a last-iterate release, and its cost. Cheap to import: methods import the formulas on use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from dprecipe.language.base import PositiveFloat, PositiveInt
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import MAX_ROWS, Event, check_positive, one_of
from dprecipe.privacy.profile import Answer, PositionRow, Profile
from dprecipe.privacy.questions import Question, WholeRun

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair

Contraction = Annotated[float, Field(ge=0, le=1)]
Stage = tuple[PositiveInt, PositiveFloat, Contraction, PositiveFloat]
"""(steps, noise multiplier, contraction, diameter)."""


@register_event
@dataclass(frozen=True, slots=True)
class ProjectedDescent(Event):
    """The last iterate of a projected noisy descent, released without the iterates before it: one event, however many
    steps it takes.

    The records are in an order, in batches of `batch`. The last batch may be short; it is divided by `batch` too. Step
    t uses batch t modulo ceil(`size` / `batch`). A step maps the iterate, adds noise of distribution `family`, and
    projects on a convex set.

    Args:
        neighbouring: `replace_one` or `zero_out_one`, which the distances in `stages` are for.
        family: of the noise: `gaussian` or `laplace`.
        size: records.
        batch: records of a full batch, 1 to `size`.
        order: `sequential`, that of the file, where the guarantee depends on a record's position; or `permuted`, drawn
            once, uniformly and independently of the data, for all passes.
        stop: `last`, after all steps; or `random`, after a number of steps drawn uniformly from 1 to all of them.
        stages: (steps, noise_multiplier, contraction, diameter), in order. The multiplier is the scale of the noise
            over the largest distance by which the change of one record moves a step; the contraction is the Lipschitz
            constant of a step's map, 0 to 1; the diameter of the set is over the scale of the noise.

    Guarantees: ε and δ are the smallest of `theory.last_iterate.BOUNDS`, for `neighbouring` alone. The distance is
    already that of `neighbouring`; nothing is doubled. With what was released before the run it composes by a
    dominating pair (`theory.beside_others` has the proof).

    | case | result |
    |---|---|
    | a record that no step uses | no loss |
    | contraction 1 | later steps still help, by their noise on a bounded set |
    | contraction 0 | a step forgets everything before it |
    | one record | accounted like any other; its batch is short |

    Raises:
        ValueError: a field outside its range.

    Source: Asoodeh, Diaz & Calmon 2020; Bok, Su & Altschuler 2024.
    """

    kind: ClassVar[str] = "projected_descent"
    hides_iterates: ClassVar[bool] = True
    composes: ClassVar[bool] = True
    exact_losses: ClassVar[bool] = False
    exact_curve: ClassVar[bool] = False
    cross_check_tolerance: ClassVar[tuple[float, float]] = (2e-2, 2e-3)
    """The cross-check groups positions. Over random sizes, orders, stages and sets it was at most 0.1 % of ε above our
    bound, and 1.1 % with a random stop or with Laplace noise in several stages."""
    renyi_tolerance: ClassVar[float] = 1e-3
    """Losses of Laplace noise are composed on a grid; the Rényi bound of a last-iterate release uses none."""
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
        """Number of steps in one pass over the records."""
        return -(-self.size // self.batch)

    @property
    def steps(self) -> int:
        """Number of all steps, of all passes."""
        return sum(steps for steps, *_ in self.stages)

    @property
    def multipliers(self) -> tuple[float, ...]:
        return tuple(multiplier for _, multiplier, *_ in self.stages)

    def profile(self) -> Profile:
        return LastIterateProfile(self)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.mechanisms.pnsgd.theory import beside_others

        return beside_others.renyi_curve(self, orders)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.mechanisms.pnsgd.theory import beside_others

        return beside_others.dominating_losses(self, step, tail)

    def cross_check(self) -> Question:
        def epsilon(delta: float) -> float:
            from dprecipe.mechanisms.pnsgd.theory import recheck

            return recheck.epsilon(self, delta)

        def deltas(epsilons: Sequence[float]) -> list[float]:
            from dprecipe.mechanisms.pnsgd.theory import recheck

            run = recheck.RecheckedRun(self)
            return [run.total(at) for at in epsilons]

        return WholeRun(epsilon, deltas)

    def describe_sensitivity(self) -> str:
        return f"one step of a pass, by 1; {self.family} noise; {self.order} order, only the last iterate released"


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
        """Returns rows for runs in the file's order to their last step; none for others. Records of a batch have equal
        rows. Where stages and batches are many, adjacent batches share the largest of their bounds."""
        from dprecipe.mechanisms.pnsgd.theory import last_iterate

        if (self.event.order, self.event.stop) != ("sequential", "last"):
            return ()
        chosen = choose_positions(self.event, max_rows, fewer)
        epsilons = last_iterate.epsilons_at(self.event, chosen, delta)
        deltas = last_iterate.deltas_at(self.event, chosen, epsilon)
        return tuple(zip(chosen, epsilons.tolist(), deltas.tolist(), strict=True))


EVENTS = (ProjectedDescent,)


def choose_positions(event: ProjectedDescent, max_positions: int, max_chosen: int) -> tuple[int, ...]:
    """Returns all positions from 1 if there are at most `max_positions`; else at most `max_chosen` (3 or more): both
    ends, and one position in each of some batches, closer together where the last use is later and guarantees differ
    most."""
    size, batches = event.size, event.batches
    if size <= max_positions:
        return tuple(range(1, size + 1))
    last, distance, chosen = (event.steps - 1) % batches, 0, []
    for index in range(min(max_chosen, batches)):
        distance = max(distance + 1, round(batches ** (index / max(min(max_chosen, batches) - 1, 1))))
        chosen.append((last + 1 - distance) % batches * event.batch + 1)
    inner = [position for position in chosen if position not in (1, size)]
    return tuple(sorted({1, *inner[: max_chosen - 2], size}))
