"""The canaries of a run's attempt: made when its ledger is open, and judged when it has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dprecipe import durable
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.faults import InternalFault
from dprecipe.planning.audit import canaries_of, naming_of
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import AuditBound, Guesses
from dprecipe.privacy.audit.verdicts import judge_bound
from dprecipe.training.audit.run import ClaimRefuted
from dprecipe.training.canaries.coins import Coins
from dprecipe.training.canaries.contract import RunCanaries
from dprecipe.training.canaries.gradients import GradientCanaries
from dprecipe.training.canaries.placement import Floats
from dprecipe.training.canaries.records import RecordCanaries, WithCanaries, losses_on
from dprecipe.training.program.losses import choose_loss
from dprecipe.training.program.records import RecordSource


def add_canaries(plan: Plan, records: RecordSource) -> RecordSource:
    """Returns the training records, with the canaries of the plan where these are records too."""
    if canaries_of(plan, "record"):
        return WithCanaries(records, canaries_of(plan, "record"), describe_data(plan.data), plan.digest)
    return records


def make_canaries(
    plan: Plan, coins: Coins, records: RecordSource, model: nn.Module, device: torch.device
) -> RunCanaries:
    """Returns the canaries of an attempt. `records`: what `add_canaries` returned. `model`: with its initial
    weights."""
    if isinstance(records, WithCanaries):
        loss = choose_loss(describe_data(plan.data).target, plan.training)
        losses = losses_on(records, model, loss, device, plan.runtime.physical_batch_size)
        return RecordCanaries(coins, records, losses)
    replaced = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    return GradientCanaries(coins, records.unit_count, plan.digest, replaced=replaced)


def guess_coins(plan: Plan, canaries: RunCanaries, released: Mapping[str, Tensor]) -> Guesses:
    """Returns what is published of a run's canaries; `released`: the weights that are released."""
    return count_guesses(plan, canaries.coins, canaries.rank(released))


def count_guesses(plan: Plan, coins: Coins, scores_M: Floats) -> Guesses:
    """Counts how many names, as many as the plan says, are right.

    Those with the highest scores are named in, those with the lowest out; of equal ones the first is the lower.
    """
    each = naming_of(plan).each
    order = np.argsort(scores_M, kind="stable")
    correct = int(coins.inside[order[-each:]].sum() + (~coins.inside[order[:each]]).sum())
    return Guesses(canaries=coins.count, named_in=each, named_out=each, correct=correct)


def judge_guesses(plan: Plan, guesses: Guesses, epsilon: float) -> AuditBound:
    """Returns the lower bound of ε that the guesses show, beside the ε that is claimed."""
    block = plan.audit
    if block is None:
        raise InternalFault("canaries of a run that is not audited")
    return judge_bound(
        "canaries",
        f"{block.canary}_canaries",
        describe_bound(block.canary),
        guesses,
        confidence=block.confidence,
        claimed=epsilon,
        delta=plan.budget.delta,
    )


def describe_bound(canary: str) -> str:
    """Describes what is expected of a sound program."""
    told = "all noisy sums tell" if canary == "gradient" else "the released model tells"
    return f"{told} no more of which {canary} canaries were in this run than the claim allows"


def refuse_release(path: Path, bound: AuditBound) -> ClaimRefuted:
    """Returns the fault of a run whose claim its canaries have refuted; the folder says why, so that no attempt goes
    on."""
    reason = (
        f"the canaries of this run refute its claim: at confidence {bound.confidence:g} it spent at least "
        f"ε = {bound.lower:g}, and ε = {bound.claimed:g} is claimed"
    )
    content = {"schema": "dprecipe.refuted/v1", "reason": reason, "bound": bound.model_dump(mode="json")}
    try:
        durable.replace_file(path, json.dumps(content, indent=1).encode())
    except OSError as error:
        reason += f" (and {path} can't be written: {error.strerror})"
    return ClaimRefuted(
        f"{reason}; nothing is released, and what was drawn stays charged",
        "a sound program gets there with probability 1 - confidence at most: please report this, with private/ kept",
    )
