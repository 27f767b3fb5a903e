"""The folder of a run without privacy."""

from __future__ import annotations

from pathlib import Path

from dprecipe.faults import UsageFault
from dprecipe.nonprivate.plan import PublicPlan


def choose_folder(plan: PublicPlan, out: Path | None) -> Path:
    """Returns the folder that a run makes, `out` or one named by its plan.

    Raises:
        UsageFault: it exists.
    """
    folder = out or Path("runs") / f"{plan.name}-{plan.digest.removeprefix('sha256:')[:8]}"
    if folder.exists():
        raise UsageFault(f"{folder} exists; a run folder is never overwritten", "choose another with --out")
    return folder
