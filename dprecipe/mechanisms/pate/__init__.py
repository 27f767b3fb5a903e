"""PATE: teachers vote, noise is added to their votes, a student learns (Papernot et al. 2018)."""

from dprecipe.contract.mechanism import Mechanism

__all__ = ["MECHANISM"]


def _list_votes(spec: object) -> dict[str, str]:
    votes = getattr(getattr(spec, "teachers", None), "votes", None)
    return {} if votes is None else {"teachers.votes.path": votes.path}


MECHANISM = Mechanism(
    kind="pate",
    package="dprecipe.mechanisms.pate",
    summary="teachers on disjoint parts of the records vote; a student learns from their noisy votes on public ones",
    private_files=_list_votes,
    checks_files=True,
    has_student=True,
    composes_paid_steps=True,
    runtime_options=frozenset({"loggers"}),
    can_split=True,
    has_teachers=True,
    audit_depths=("program", "releases"),
)
