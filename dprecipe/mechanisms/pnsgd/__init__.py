"""Projected noisy SGD whose last iterate alone is seen (Asoodeh, Diaz and Calmon 2020)."""

from dprecipe.mechanisms.contract import Mechanism
from dprecipe.mechanisms.pnsgd.schema import Pnsgd

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="pnsgd",
    package="dprecipe.mechanisms.pnsgd",
    block=Pnsgd,
    summary="plain noisy steps on a convex loss, projected; nobody sees an iterate but the last",
    hidden=True,
    relations=("replace_one", "zero_out_one"),
)
