"""Its account: nothing is solved for."""

from __future__ import annotations

from dprecipe.contract.mechanism import Facts, Planned
from dprecipe.faults import Finding
from dprecipe.privacy.events import Charge
from fifth.events import NoisyWeights
from fifth.plan import FifthPlan
from fifth.schema import Fifth


def check(spec: Fifth, facts: Facts) -> list[Finding]:
    return []


def plan(spec: Fifth, facts: Facts) -> Planned[FifthPlan]:
    return Planned(FifthPlan(facts.size, Charge(NoisyWeights(spec.multiplier), 1)), {}, ())
