"""Output perturbation of a convex model (Chaudhuri, Monteleoni and Sarwate 2011): find the minimum, add noise once."""

from dprecipe.contract.mechanism import Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="output_perturbation",
    package="output_perturbation",
    summary="the minimum of a strongly convex loss, and noise on it, once",
    is_convex=True,
    has_length=False,
    relations=("replace_one", "zero_out_one"),
    relations_reason="the loss is a mean over a number of records that both data sets have",
)
