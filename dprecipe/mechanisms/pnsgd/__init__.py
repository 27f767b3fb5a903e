"""Projected noisy SGD whose last iterate alone is seen (Asoodeh, Diaz and Calmon 2020)."""

from dprecipe.mechanisms.contract import Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="pnsgd",
    package="dprecipe.mechanisms.pnsgd",
    summary="plain noisy steps on a convex loss, projected; nobody sees an iterate but the last",
    is_convex=True,
    relations=("replace_one", "zero_out_one"),
    relations_reason="one record more or less moves all later ones to other steps",
)
