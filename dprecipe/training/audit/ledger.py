"""The ledger and the plan: every draw of noise is on record before, none is drawn twice, and the events cost ε."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from dprecipe.contract.plan import Plan
from dprecipe.privacy import accountants, cross_check
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import Equality, Excess
from dprecipe.privacy.sampling import EveryUnit, Partition
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import Rig

RENYI = 0.02
"""Largest relative excess of the library's Rényi accountant over ours: their orders differ."""


def examine_ledgers(rigs: Sequence[Rig]) -> Iterator[AuditFinding]:
    """Yields the tests of closed attempts whose events were all released."""
    differing, draws, early, repeated = 0, 0, 0, 0
    for rig in rigs:
        differing += abs(rig.settled - math.ceil(rig.secrets.draws / rig.event.steps))
        draws, early, repeated = draws + rig.secrets.draws, early + rig.secrets.early, repeated + rig.secrets.repeated
    draws = max(1, draws)
    texts: Mapping[str, tuple[str, int]] = {
        "ledger_counts": ("the ledger settles as many events as had noise drawn", differing),
        "ledger_first": ("an event is in the ledger's file before its noise is drawn", early),
        "streams_once": ("no stream of noise is drawn from twice", repeated),
    }
    for name, (text, count) in texts.items():
        yield AuditFinding("program", name, text, Equality(differing=min(count, draws), compared=draws))


def examine_plan(plan: Plan) -> Iterator[AuditFinding]:
    """Checks that the planned events cost what is claimed, at the δ that the recipe states, by two libraries."""
    budget, written = plan.budget, plan.resolved["budget"]
    delta, cap = float(written["delta"]), written["epsilon"]
    claimed = plan.guarantee.epsilon
    own = accountants.epsilon(plan.events, delta, budget.neighbouring, budget.accountant)
    yield _excess("epsilon", "the planned events cost no more than the claim, at the recipe's δ", own, claimed)
    if cap != "auto":
        yield _excess("epsilon_cap", "the claim is within the recipe's budget", claimed, float(cap))
    yield from _examine_unsampled(plan)
    relative, absolute = max(charge.event.cross_check_tolerance for charge in plan.events)
    answer = cross_check.ask_library(plan.events, delta, budget.neighbouring)
    if answer.name == "dp_accounting.pld":
        allowed = claimed * (1 + relative) + absolute
    else:
        allowed = accountants.epsilon(plan.events, delta, budget.neighbouring, "rdp") * (1 + RENYI) + absolute
    if math.isfinite(answer.epsilon):
        text = "a second library finds no more than the claim, at the recipe's δ"
        yield _excess("epsilon_second", text, answer.epsilon, allowed)


def _examine_unsampled(plan: Plan) -> Iterator[AuditFinding]:
    """Steps with every unit, and epochs, are charged the μ² that their noise and the move of a unit come to. The second
    library takes μ from the events; here it is computed independently."""
    relation, owed, charged = Neighbouring(plan.budget.neighbouring), 0.0, 0.0
    moved = 2.0 if relation is Neighbouring.REPLACE_ONE else 1.0
    for charge in plan.mechanism_plan.events:
        event = charge.event
        squared = event.squared_mu(charge.count, relation)
        if squared is not None and isinstance(event.sampling(), EveryUnit | Partition):
            (multiplier,) = event.multipliers
            owed += charge.count * (moved / multiplier) ** 2
            charged += squared
    if owed:
        text = "steps with every unit are charged what their noise and the move of one unit come to"
        yield _excess("unsampled_mu", text, math.sqrt(owed), math.sqrt(charged) * (1 + 1e-12))


def _excess(name: str, text: str, largest: float, allowed: float) -> AuditFinding:
    return AuditFinding("program", name, text, Excess(largest=largest, allowed=allowed))
