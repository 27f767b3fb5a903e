"""DP-SGD: clip each unit's gradient, add noise to the sum, step (Abadi et al. 2016)."""

from dprecipe.mechanisms.contract import Mechanism
from dprecipe.mechanisms.dpsgd.schema import Dpsgd

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="dpsgd",
    package="dprecipe.mechanisms.dpsgd",
    block=Dpsgd,
    summary="clip each record's gradient, add noise to the sum, step",
    several=True,
)
