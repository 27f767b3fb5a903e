"""Projected noisy SGD that releases only the last iterate (Asoodeh, Diaz and Calmon 2020)."""

from dprecipe.contract.mechanism import Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="pnsgd",
    package="dprecipe.mechanisms.pnsgd",
    summary="projected noisy steps on a convex loss; only the last iterate is released",
    is_convex=True,
    composes_paid_steps=True,
    runtime_options=frozenset({"loggers"}),
    hides_duration=lambda spec: getattr(spec, "stop", None) == "random",
    audit_depths=("program", "releases"),
    relations=("replace_one", "zero_out_one"),
    relations_reason="adding or removing a record moves all later ones to other steps",
)
