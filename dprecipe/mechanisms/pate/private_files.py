"""Faults of votes from a file, as `dprecipe data check` reports them before a run reads the votes."""

from __future__ import annotations

from pathlib import Path

from dprecipe.contract.plan import Plan
from dprecipe.faults import DataFault
from dprecipe.mechanisms.pate import votes_file
from dprecipe.mechanisms.pate.plan import PatePlan
from dprecipe.mechanisms.pate.votes_file import Expected


def find_faults(plan: Plan, root: Path, public: int | None) -> list[DataFault]:
    """Returns the fault of the votes; none where teachers are trained in the run. `public`: how many public records
    were read; None if none were."""
    votes = plan.as_plan_of(PatePlan).ensemble.votes
    if votes is None:
        return []
    try:
        votes_file.read(votes, root, Expected.of(plan, public))
    except DataFault as fault:
        return [fault]
    return []
