"""The plans of a tuned recipe, from its texts: of the whole, of each run, and of the released run. The code that
carries them out reads plans alone."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from dprecipe.contract.plan import Plan, RecipeSource
from dprecipe.faults import PlanRefused
from dprecipe.planning.candidates import Point
from dprecipe.planning.make import plan, plan_chosen, plan_trial
from dprecipe.recipe.read import read_source


@lru_cache(maxsize=2)
def planner_of(source: RecipeSource) -> TrialPlanner:
    """Returns the planner of a tuned recipe, made once: solving takes seconds.

    Raises:
        PlanRefused, RecipeError: the texts have no plan.
    """
    return TrialPlanner(source)


@final
class TrialPlanner:
    """The planner of the runs of a tuned recipe.

    Raises:
        PlanRefused, RecipeError: the texts have no plan.
    """

    def __init__(self, source: RecipeSource) -> None:
        self._loaded = read_source(source)
        self.whole: Plan = plan(self._loaded)
        """The plan of all runs together."""

    def plan_trial(self, point: Point) -> Plan:
        """Returns the plan of one run: see `planning.make.plan_trial`."""
        return plan_trial(self._loaded, self.whole, point)

    def makes_model(self, point: Point) -> bool:
        """Returns True if these values have a plan: some combinations contradict each other."""
        try:
            self.plan_trial(point)
        except PlanRefused:
            return False
        return True

    def plan_chosen(self, point: Point) -> Plan:
        """Returns the plan after the choice: see `planning.make.plan_chosen`."""
        return plan_chosen(self._loaded, point)
