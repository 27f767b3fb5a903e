"""Gradient encoding with denoising (Nasr, Shokri and Houmansadr 2020)."""

from dprecipe.mechanisms.contract import Mechanism
from dprecipe.mechanisms.encoded.schema import Encoded

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="encoded",
    package="dprecipe.mechanisms.encoded",
    block=Encoded,
    summary="clip each record's gradient rank by rank, add noise of any family, step by what stands out of it",
    reads_files=True,
)
