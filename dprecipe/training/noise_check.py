"""Before training: the very gate that will guard the run is asked for noise, and the noise is measured."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import torch

from dprecipe.faults import RunFailed
from dprecipe.noise.entropy import Secrets
from dprecipe.planning.model import Plan
from dprecipe.privacy.ledger import LedgerWriter
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.gate import Gate
from dprecipe.training.probe import Check

DRAWS = 50_000
ERRORS = 6.0
"""Standard errors allowed: a sound generator fails once in 500 million times."""


def noise_scale(plan: Plan) -> Check:
    """The noise of the plan's first event, added to zeros, has the planned standard deviation and mean zero.

    Nothing is spent: the gate writes to a ledger of its own, which is thrown away, and the sum is made of zeros.

    Raises:
        RunFailed: it does not.
    """
    bound = float(plan.settings["clip_norm"])
    with tempfile.TemporaryDirectory() as folder:
        ledger = LedgerWriter(Path(folder) / "ledger.jsonl", plan.digest)
        gate = Gate(plan.events[:1], plan.budget, ledger, Secrets())
        ticket = gate.admit()
        if ticket is None:
            raise RunFailed("the gate admits not even the plan's first event")
        noise = gate.release(ticket, ClippedSum(torch.zeros(DRAWS), bound))
        ledger.abandon()
    expected = float(plan.settings["noise_std"])
    ratio, mean = float(noise.std()) / expected, float(noise.mean()) / expected
    passed = abs(ratio - 1) < ERRORS / math.sqrt(2 * DRAWS) and abs(mean) < ERRORS / math.sqrt(DRAWS)
    text = "noise drawn by the gate has the planned standard deviation and mean zero"
    measured = f"{ratio:.4f} of the planned standard deviation over {DRAWS:,} draws, mean {mean:+.4f}"
    if not passed:
        raise RunFailed(f"the noise is not what the plan says: {measured}", "don't trust this installation")
    return Check("noise_scale", text, passed, measured)
