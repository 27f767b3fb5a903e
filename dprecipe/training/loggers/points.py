"""The points that loggers get: covered ones, which may go anywhere, and private ones, which stay in the owner's files.

Formal guarantee: a `CoveredPoint` holds numbers that anyone may compute from the recipe and the noisy results of events
that are already paid: the step, ε so far, the learning rate, what noisy sums have decided, and scores of the released
iterate on records that are declared public. `make_covered_point` and `make_end_point` are the only makers (a test), and
decide by the plan what goes in; no caller passes them a score's figures by name.

| plan | covered points |
|---|---|
| its duration is protected (`Plan.hides_duration`) | none: when a point is made tells how long a step takes |
| the claim covers the last iterate alone | none on the way |
| held-out records are private, or came from Python | without scores |
| its mechanism takes no steps that are seen | one, when its release is made: ε and scores that are in it |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from dprecipe.contract.plan import Plan
from dprecipe.release import tuned

if TYPE_CHECKING:
    from dprecipe.training.program.evaluate import Score


@final
@dataclass(frozen=True, slots=True)
class CoveredPoint:
    """Numbers at a step that the claim covers; made in this module alone."""

    step: int
    values: Mapping[str, float]


@final
@dataclass(frozen=True, slots=True)
class PrivatePoint:
    """Numbers at a step for the run's owner: scores on private records are among them."""

    step: int
    values: Mapping[str, float]


def make_covered_point(
    plan: Plan,
    step: int,
    epsilon: float,
    learning_rate: float,
    decided: Mapping[str, float],
    score: Score | None,
    test_from_python: bool,
) -> CoveredPoint | None:
    """Returns the covered point of a step; None where the claim covers none. See the module.

    `decided`: what noisy sums have decided. `score`: on the held-out records, of this step's weights.
    """
    if plan.hides_duration or tuned.hides_iterates(plan):
        return None
    public = plan.publishes_scores and not test_from_python
    scores = score.metrics if score is not None and public else {}
    return CoveredPoint(step, {"epsilon": epsilon, "learning_rate": learning_rate, **decided, **scores})


def make_end_point(plan: Plan, epsilon: float, score: Score | None, test_from_python: bool) -> CoveredPoint | None:
    """Returns the covered point of a release, at the planned number of steps or queries: nothing is in it that is not
    in the release. `epsilon`: the certificate's; `score`: of the released model. None where the duration is
    protected."""
    if plan.hides_duration:
        return None
    scores = score.metrics if score is not None and plan.publishes_scores and not test_from_python else {}
    return CoveredPoint(plan.length.steps, {"epsilon": epsilon, **scores})


def make_private_point(
    step: int, epsilon: float, learning_rate: float | None, figures: Mapping[str, float]
) -> PrivatePoint:
    """Returns the private point of a step: all that was measured. `learning_rate`: None where there is none."""
    rate = {} if learning_rate is None else {"learning_rate": learning_rate}
    return PrivatePoint(step, {"epsilon": epsilon, **rate, **figures})
