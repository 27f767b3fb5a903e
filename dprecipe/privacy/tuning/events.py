"""The event of a tuned run: train a secret number of times, release the best. Imports are light: methods import the
formulas they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from dprecipe.language.base import NonNegativeFloat, PositiveFloat
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.event_kinds import register_event
from dprecipe.privacy.events import MAX_ROWS, Charge, Event, one_of
from dprecipe.privacy.questions import Question, SelectedRuns, WholeRun
from dprecipe.privacy.workload import relation_of_all, shrink_charges

if TYPE_CHECKING:
    from dprecipe.privacy.curves import Array
    from dprecipe.privacy.loss import LossPair
    from dprecipe.privacy.profile import Profile
    from dprecipe.privacy.tuning.runs import RunDistribution


@register_event
@dataclass(frozen=True, slots=True)
class SelectedBest(Event):
    """The best of a number of independent runs, each with the charges `base`; nothing is seen of the others.

    `distribution`, `mean`, `shape`: of the number of runs, drawn in secret before the first one. `negative_binomial`
    (truncated: at least one run) with η = `shape`, where 0 is logarithmic and 1 geometric; `poisson`, also truncated;
    `fixed`, where the number is `mean`.

    Formal guarantee: that of `profile.SelectedProfile`, on its conditions. It composes if a run composes, also with
    what was released before the first run and all runs start from (`profile.selected_losses` has the proof).

    | case | |
    |---|---|
    | one run for certain (`fixed`, 1) | what a run costs |
    | a run that does not compose | nor does the best of several |
    | a paid step of preprocessing | an event of its own, before this one; inside `base` each run would draw it again |
    """

    kind: ClassVar[str] = "selected_best"
    hides_iterates: ClassVar[bool] = True
    exact_losses: ClassVar[bool] = False
    exact_curve: ClassVar[bool] = False
    cross_check_tolerance: ClassVar[tuple[float, float]] = (1e-2, 1e-3)
    """The tolerance of the cross-check, which rounds losses and cuts scores into cells of its own."""
    distribution: Annotated[str, one_of("negative_binomial", "poisson", "fixed")]
    mean: PositiveFloat
    shape: NonNegativeFloat | None
    base: Annotated[tuple[Charge, ...], Field(min_length=1, max_length=MAX_ROWS)]

    def __post_init__(self) -> None:
        self.runs  # noqa: B018  # checks the three
        if not 0 < len(self.base) <= MAX_ROWS or not all(charge.count for charge in self.base):
            raise ValueError(f"expected between 1 and {MAX_ROWS} charges of a run, and none of 0 events")
        if any(isinstance(charge.event, SelectedBest) for charge in self.base):
            raise ValueError("a run that is itself the best of several can't be selected from")
        whole = [charge for charge in self.base if charge.event.profile() is not None]
        if whole and (len(self.base) > 1 or self.distribution == "poisson"):
            raise ValueError("a run that does not compose is selected alone, and not of a Poisson number of runs")

    @property
    def runs(self) -> RunDistribution:
        """The distribution of the number of runs."""
        from dprecipe.privacy.tuning.runs import make_runs

        return make_runs(self.distribution, self.mean, self.shape)

    @property
    def steps(self) -> int:
        """The number of steps of the run that is released."""
        return sum(charge.event.steps * charge.count for charge in self.base)

    def accounted_under(self, relation: Neighbouring) -> Neighbouring:
        return relation_of_all([charge.event for charge in self.base], relation)

    def is_bounded(self, relation: Neighbouring) -> bool:
        return all(charge.event.is_bounded(relation) for charge in self.base)

    def among_fewer(self, fewer: int, relation: Neighbouring) -> Event | None:
        base = shrink_charges(self.base, fewer, relation)
        return None if base is None else replace(self, base=base)

    def needs_group_privacy(self, relation: Neighbouring) -> bool:
        return any(charge.event.needs_group_privacy(relation) for charge in self.base)

    def profile(self) -> Profile | None:
        from dprecipe.privacy.tuning.profile import SelectedProfile

        one = self.base[0].event.profile()
        return None if one is None else SelectedProfile(self.base, self.runs, one.relation)

    def rdp(self, orders: Sequence[float], relation: Neighbouring) -> Array:
        from dprecipe.privacy.tuning.base import selected_curve

        return selected_curve(self.base, self.runs, orders, relation)

    def losses(self, relation: Neighbouring, step: float, tail: float) -> LossPair:
        from dprecipe.privacy.tuning.profile import selected_losses

        return selected_losses(self.base, self.runs, relation, step, tail)

    def stand_in(self) -> Event:
        """Returns Gaussian noise with the Rényi divergence of one run at the order 2: a tuned run costs more by a
        factor that hardly depends on the noise."""
        from dprecipe.privacy.noisy_sums import Gaussian

        relation = self.accounted_under(Neighbouring.ADD_OR_REMOVE_ONE)
        events = [(charge.event, charge.count) for charge in self.base]
        if any(event.profile() is not None or event.needs_group_privacy(relation) for event, _ in events):
            return self
        squares = math.fsum(
            float(count * event.rdp((2.0,), relation)[0]) if square is None else square
            for event, count in events
            for square in [event.squared_mu(count, relation)]
        )
        return Gaussian(1 / math.sqrt(squares)) if 1e-30 < squares < math.inf else self

    def cross_check(self) -> Question:
        first = self.base[0].event.cross_check()
        if isinstance(first, WholeRun):

            def epsilon(delta: float) -> float:
                from dprecipe.privacy.tuning import recheck

                return recheck.whole_epsilon(first, self.base[0].count, self.distribution, self.mean, self.shape, delta)

            return WholeRun(epsilon)
        questions = tuple((charge.event.cross_check(), charge.count) for charge in self.base)
        return SelectedRuns(questions, self.distribution, self.mean, self.shape)

    def describe_sensitivity(self) -> str:
        return f"the best of runs, {self.mean:g} {'of them' if self.distribution == 'fixed' else 'on average'}"
