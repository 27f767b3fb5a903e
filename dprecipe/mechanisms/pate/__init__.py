"""PATE: teachers vote, noise is added to their votes, a student learns (Papernot et al. 2018)."""

from dprecipe.mechanisms.contract import Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="pate",
    package="dprecipe.mechanisms.pate",
    summary="teachers on disjoint parts of the records vote; a student learns from their noisy votes on public ones",
    has_student=True,
    composes_paid_steps=True,
    runtime_options=frozenset({"loggers"}),
    can_split=True,
    has_teachers=True,
    audit_depths=("program", "releases"),
)
