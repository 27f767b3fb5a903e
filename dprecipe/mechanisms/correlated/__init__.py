"""DP-SGD in a fixed order, with noise that is correlated over steps: a step takes back part of the last one's."""

from dprecipe.contract.mechanism import ALL_RUNTIME_OPTIONS, Mechanism

__all__ = ["MECHANISM"]

MECHANISM = Mechanism(
    kind="correlated",
    package="dprecipe.mechanisms.correlated",
    summary="clip and sum in a fixed order, with noise that takes back part of the last step's",
    composes_paid_steps=True,
    can_hide_size=True,
    can_split=True,
    can_omit_records=True,
    covers_iterates=True,
    can_be_tuned=True,
    canaries=("gradient", "record"),
    audit_depths=("program", "steps"),
    runtime_options=ALL_RUNTIME_OPTIONS,
)
