"""A check that a run can end in a certificate, before it spends anything: a draft is written of what is known by
then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pydantic import ValidationError

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import UsageFault
from dprecipe.privacy.events import count_events
from dprecipe.privacy.risk import assess_point
from dprecipe.release import certificate, tensors
from dprecipe.release.claim import Numbers, describe_risk
from dprecipe.release.facts import ReleasedTensor, SpentBudget
from dprecipe.release.folder import list_released_files
from dprecipe.release.schema import Accountant, Statement
from dprecipe.release.untrusted import MAX_BYTES, ContentError, validate_document
from dprecipe.training.publish.provenance import RunProvenance

_ROOM = 1 << 20
"""The bytes by which a run's certificate may be longer than its draft: more attempts, scores, bounds by position."""
_REMEDIES = {
    "tensors": "give the module's parameters and buffers shorter names and fewer axes, or register fewer of them",
    "assumptions": "give the module's buffers shorter names and fewer axes; or shorten what the recipe names",
    "provenance.recipe.file": "give the recipe's file a shorter name",
    "provenance.recipe.parents": "extend fewer recipes, by shorter paths",
    "provenance.recipe.overrides": "write what --set changes into the recipe",
    "provenance.initial_weights": "give the file of initial weights a shorter name",
}
"""The remedies, by the part of the certificate that is too long."""
_REMEDY = "shorten what the recipe has there"


def check_publishable(plan: Plan, provenance: RunProvenance, released: Sequence[ReleasedTensor] = ()) -> None:
    """Checks that a certificate of this run can hold all that it has to state. Ask before anything is spent.

    `released`: all tensors, or none where they are the recipe's own and known only after training. ε is left as the
    budget has it: no accountant is asked.

    Raises:
        UsageFault: it can't; the message names what is too long or too much, and the remedy.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    some = (ReleasedTensor("weight", (1,), "noisy_steps"),) if plan.has_model else ()
    facts = provenance.facts(released or some, "0" * 64, now, now)
    facts = replace(facts, stages=(f"sha256:{'0' * 64}",) * len(plan.stages))
    spent = SpentBudget(plan.events, f"sha256:{'0' * 64}", 1, "completed", count_events(plan.events), 0, torn=False)
    try:
        result = certificate.assemble_predicate(plan, spent, facts, draft_numbers(plan))
        digests = dict.fromkeys(list_released_files(plan), f"sha256:{'0' * 64}")
        whole = certificate.to_bytes(certificate.make_statement(result, digests))
        validate_document(Statement, json.loads(whole), "certificate")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise _fault(f"{_place(error.title, first['loc'])}: {first['msg']}") from None
    except ContentError as error:
        raise _fault(error.failures[0].removeprefix("predicate.")) from None
    if len(whole) > MAX_BYTES - _ROOM:
        raise _fault(f"{_largest(result.model_dump(mode='json'))}: the whole has {len(whole):,} bytes")
    names = sum(len(json.dumps({t.name: t.shape})) + 80 for t in released)
    if names > tensors.MAX_HEADER:
        raise _fault(f"tensors: their names and shapes take {names:,} bytes")


def _place(title: str, place: tuple[int | str, ...]) -> str:
    inside = ".".join(map(str, place))
    return f"{_OF.get(title, title)}.{inside}".strip(".")


_OF = {
    "TensorFacts": "tensors",
    "AssumptionFacts": "assumptions",
    "RecipeFacts": "provenance.recipe",
    "Parent": "provenance.recipe.parents",
    "InitialWeightsFacts": "provenance.initial_weights",
    "Predicate": "",
    "Statement": "",
}
"""The place of each part in a certificate."""


def _largest(parts: dict[str, object]) -> str:
    return max(parts, key=lambda name: len(json.dumps(parts[name])))


def _fault(part: str) -> UsageFault:
    remedy = next((words for place, words in _REMEDIES.items() if part.startswith(place)), _REMEDY)
    return UsageFault(f"nothing was spent: the certificate of this run can't hold its {part[:500]}", remedy)


def draft_numbers(plan: Plan) -> Numbers:
    """Returns placeholders as long as what the accountants will state; a mechanism's own statement is computed."""
    statement = mechanism_of(plan.mechanism).certificate.compute_numbers(plan, plan.events, plan.budget.epsilon, None)
    row = Accountant(name="pld", version="dprecipe 0", role="claim", epsilon=plan.budget.epsilon, bound="upper")
    risk = describe_risk(assess_point(plan.budget.epsilon, plan.budget.delta))
    return Numbers(plan.budget.epsilon, (), None, (), (row, row, row), risk, statement)
