"""Gradient encoding with denoising (Nasr, Shokri and Houmansadr 2020)."""

from dprecipe.contract.mechanism import Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="encoded",
    package="dprecipe.mechanisms.encoded",
    summary="clip each record's gradient rank by rank, add noise of any family, denoise, step",
    reads_files=True,
    composes_paid_steps=True,
    can_hide_size=True,
    can_split=True,
    can_omit_records=True,
    can_be_tuned=True,
    covers_iterates=True,
    canaries=("record",),
    audit_depths=("program", "steps"),
    runtime_options=frozenset({"physical_batch", "processes", "loggers"}),
)
