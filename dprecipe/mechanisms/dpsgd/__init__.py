"""DP-SGD: clip each unit's gradient, add noise to the sum, step (Abadi et al. 2016)."""

from dprecipe.contract.mechanism import ALL_RUNTIME_OPTIONS, Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="dpsgd",
    package="dprecipe.mechanisms.dpsgd",
    summary="clip each record's gradient, add noise to the sum, step",
    composes_paid_steps=True,
    can_hide_size=True,
    can_split=True,
    can_omit_records=True,
    can_be_tuned=True,
    covers_iterates=True,
    canaries=("gradient", "record"),
    audit_depths=("program", "steps"),
    runtime_options=ALL_RUNTIME_OPTIONS,
)
