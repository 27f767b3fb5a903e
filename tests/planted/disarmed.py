"""The checks that every run makes before its first record, disarmed: what an audit by itself sees of a bug that they
would refuse."""

from __future__ import annotations

from dataclasses import replace

from tests.planted.bug import Bug, Edit

PATE_CHECKS = "mechanisms/pate/train/checks.py"
DISARMED = (
    Edit("training/probe/program.py", "    if failed:\n", "    if failed and not failed:\n"),
    Edit(
        "training/checks/noise.py",
        "if not (distance < DISTANCE / math.sqrt(count) and abs(positive - 0.5) < ERRORS * 0.5 / math.sqrt(count)):",
        "if not measured:",
    ),
    Edit("training/checks/noise.py", "if not abs(covariance - expected[lag]) <", "if not expected.size <"),
    Edit("training/checks/stages.py", "if not distance < DISTANCE / math.sqrt(QUANTILES):", "if not measured:"),
    Edit("mechanisms/pnsgd/train/checks.py", "    if failed:\n", "    if failed and not failed:\n"),
    Edit(PATE_CHECKS, "if not (complete and unmoved):", "if not names:"),
    Edit(PATE_CHECKS, "if not np.array_equal(before[1:], after[1:]):", "if not len(before):"),
)


def disarm_probe(bug: Bug) -> Bug:
    """The bug, in a program that does not check itself."""
    return replace(bug, edits=(*bug.edits, *DISARMED))
