"""The way from a certificate back to its plan: reads the recipe text it carries, plans again, reports differences.

Nothing here touches the file system: everything it reads is in the certificate.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dprecipe.contract.plan import Plan, PolicyRecord, RecipeSource
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import describe_data
from dprecipe.data.targets import SeveralTarget, Target, name_classes
from dprecipe.faults import Fault, PlanRefused, RecipeError
from dprecipe.models.public_record import InitialWeights
from dprecipe.models.schema import Pretrained, Primed
from dprecipe.planning.again import StatedOtherwise, StatedPlan, plan_again
from dprecipe.privacy.events import Charge, Event, charge_from_json, count_by_event, count_events, run_lengths
from dprecipe.recipe.read import read_source
from dprecipe.release import audit_checks, certificate, charged_account, endings, no_model, origins, tensors, tuned
from dprecipe.release.claim import Numbers
from dprecipe.release.facts import CheckResult, KeptIterate, PublicScore, ReleasedTensor, RunFacts, SpentBudget
from dprecipe.release.schema import Predicate
from dprecipe.release.scores import AnyScore, SeveralScore, score_block

MAX_EVENTS = 10**9
WEAKER = re.compile(r"stages\.\d+\.epsilon_alone|tuning\.one_run_epsilon")
"""Costs that planning works out: a certificate may state more than a tighter accountant finds."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The plan of a certificate, computed again, and the charges of the certificate, all events of that plan."""

    plan: Plan
    charges: tuple[Charge, ...]


def rebuild_predicate(stated: Predicate, failures: list[str]) -> Rebuilt | None:
    """Plans again from what the certificate holds: the recipe's texts and defaults, and the solved values. On failure,
    appends to `failures` and returns None."""
    plan = _plan_again(stated, failures)
    if plan is not None and sorted(name for name, _ in plan.source.attachments) != sorted(
        plan.mechanism_plan.attachments
    ):
        failures.append("provenance.recipe.attachments: not the files that this recipe reads")
        return None
    charges = _read_charges(stated, failures)
    if plan is None or charges is None:
        return None
    part = mechanism_of(plan.mechanism).certificate
    unplanned = [i for i, charge in enumerate(charges) if not part.may_charge(plan, charge.event)]
    if unplanned:
        failures += [f"events.run_length.{i}: not an event that this recipe plans" for i in unplanned[:5]]
        return None
    begun = count_by_event(charges).keys() - count_by_event(plan.stage_charges).keys()
    if part.is_adaptive(plan) and (begun or not no_model.has_no_model(stated)):
        problems = _check_charges(stated, plan, charges)
        failures += problems
        return None if problems else Rebuilt(plan, charges)
    if not _is_in_order(stated, plan, charges):
        failures.append("events.run_length: not the events of a run of this recipe, whose phases follow one another")
        return None
    return Rebuilt(plan, charges)


def _check_charges(stated: Predicate, plan: Plan, charges: tuple[Charge, ...]) -> list[str]:
    try:
        return mechanism_of(plan.mechanism).certificate.check_charges(plan, charges, stated.budget)
    except ArithmeticError as error:
        return [f"events.run_length: the events can't be added up: {error}"]


def _is_in_order(stated: Predicate, plan: Plan, charges: tuple[Charge, ...]) -> bool:
    """Returns True if a run through the plan's phases, in order, can have charged these events.

    Crashed attempts may charge a phase more often than planned, but never less often than a later phase requires.
    """
    if stated.budget.stop_reason == "completed" and stated.budget.attempts == 1:
        return run_lengths(charges) == run_lengths(plan.events)
    charged = count_by_event(charges)
    earlier: Counter[Event] = Counter()
    for phase in plan.events:
        # An event that an earlier phase also has may belong to that phase, run again after a crash.
        reached = stated.budget.stop_reason == "completed" or (charged[phase.event] > 0 and not earlier[phase.event])
        if reached and any(charged[event] < count for event, count in earlier.items()):
            return False
        earlier[phase.event] += phase.count
    return stated.budget.stop_reason != "completed" or all(charged[event] >= n for event, n in earlier.items())


def stated_source(stated: Predicate) -> RecipeSource:
    """Returns the texts of the recipe that a certificate holds."""
    facts = stated.provenance.recipe
    return RecipeSource(
        facts.text,
        facts.file,
        facts.overrides,
        tuple((parent.name, parent.text) for parent in facts.parents),
        tuple((attached.name, attached.text) for attached in facts.attachments),
    )


def _plan_again(stated: Predicate, failures: list[str]) -> Plan | None:
    resolved = stated.provenance.recipe.resolved
    try:
        loaded = read_source(stated_source(stated))
        chosen, solved = tuned.read_chosen(stated), stated.provenance.solved
        plan = plan_again(loaded, StatedPlan(resolved, solved, stated.budget.epsilon, chosen))
        if stated.is_own:  # its defaults are today's
            today = loaded.recipe.model_dump(mode="json", by_alias=True)
            failures += compare_json(resolved, _leave_out_new(today, resolved), "provenance.recipe.resolved")
        return plan
    except StatedOtherwise as error:
        failures.append(str(error))
    except (RecipeError, PlanRefused) as error:
        codes = ", ".join(sorted({f"{finding.code} {finding.path}".strip() for finding in error.findings}))
        failures.append(f"provenance.recipe.text: the recipe can't be planned again: {codes}")
    except (Fault, ValueError, ArithmeticError) as error:
        failures.append(f"provenance.recipe.text: the recipe can't be planned again: {error}")
    return None


def _leave_out_new(today: Any, stated: Any) -> Any:
    """Returns today's values without the keys that are unset, and not stated: a certificate may be older than they."""
    if isinstance(today, dict) and isinstance(stated, dict):
        kept = {key: value for key, value in today.items() if value is not None or key in stated}
        return {key: _leave_out_new(value, stated.get(key)) for key, value in kept.items()}
    if isinstance(today, list) and isinstance(stated, list) and len(today) == len(stated):
        return [_leave_out_new(one, other) for one, other in zip(today, stated, strict=True)]
    return today


def _read_charges(stated: Predicate, failures: list[str]) -> tuple[Charge, ...] | None:
    charges = []
    for index, run in enumerate(stated.events.run_length):
        try:
            charges.append(charge_from_json(run.model_dump()))
        except ValueError as error:
            failures.append(f"events.run_length.{index}: {error}")
    if len(charges) != len(stated.events.run_length):
        return None
    if not 0 < count_events(charges) <= MAX_EVENTS:
        failures.append(f"events.total: expected between 1 and {MAX_EVENTS:,} events")
        return None
    return tuple(charges)


def find_differences(stated: Predicate, rebuilt: Rebuilt) -> tuple[list[str], Predicate]:
    """Finds where the certificate differs from what its own recipe, events and recorded facts imply. Returns with it
    what they imply, which has the sentences, too.

    Everything except the accountants' numbers is derived again and compared, leaf by leaf.
    """
    if stated.mechanism.kind != rebuilt.plan.mechanism:
        return [f"mechanism.kind: {stated.mechanism.kind}, but the recipe's is {rebuilt.plan.mechanism}"], stated
    try:
        expected = certificate.assemble_predicate(
            rebuilt.plan, read_spent(stated, rebuilt.charges), read_run(stated), read_numbers(stated)
        )
    except Fault as fault:
        return [f"data_access.evaluation.released: {fault.message}"], stated
    return compare_json(certificate.to_json(stated), certificate.to_json(expected)), expected


def read_spent(stated: Predicate, charges: tuple[Charge, ...]) -> SpentBudget:
    """Reads what the certificate says about its ledger."""
    budget = stated.budget
    return SpentBudget(
        charges=charges,
        digest=stated.events.ledger,
        attempts=budget.attempts,
        stop_reason=budget.stop_reason,
        settled=budget.events_settled,
        unsettled=budget.events_reserved_unsettled,
        torn=budget.torn_line,
    )


def read_numbers(stated: Predicate) -> Numbers:
    """Returns the accountants' numbers, as the certificate states them."""
    claim, mechanism = stated.claim, stated.mechanism
    own = mechanism_of(mechanism.kind).certificate.read_numbers(mechanism)
    return Numbers(claim.epsilon, claim.profile, claim.gdp, claim.groups, stated.accounting, claim.risk, own)


def read_run(stated: Predicate) -> RunFacts:
    """Reads what the certificate records about its run."""
    provenance, evaluation = stated.provenance, stated.data_access.evaluation
    score, kept = evaluation.released, evaluation.kept
    commitment, initial = provenance.data_commitment, provenance.initial_weights
    return RunFacts(
        checks=tuple(CheckResult(c.id, c.text, c.passed, c.measured) for c in stated.checks),
        versions=provenance.versions,
        device=provenance.device,
        started=provenance.started,
        finished=provenance.finished,
        steps_lost=_count_lost_steps(stated),
        insecure_seed=stated.randomness.insecure_seed,
        commitment=None if commitment is None else commitment.value,
        score=None if score is None else _read_score(score),
        kept=None if kept is None else KeptIterate(kept.step, kept.looked_at),
        published=mechanism_of(stated.mechanism.kind).certificate.read_published(stated.mechanism),
        model=provenance.model,
        data=provenance.data,
        trainer=provenance.trainer,
        initial=None
        if initial is None
        else InitialWeights(initial.file, initial.digest, initial.head, initial.prior, initial.learned),
        tensors=tuple(ReleasedTensor(t.name, t.shape, t.made_by, t.dtype) for t in stated.tensors),
        stages=tuple(stage.constants for stage in stated.stages or ()),
        policies=tuple(PolicyRecord(policy.name, policy.digest) for policy in provenance.policies),
        account=stated.account,
        audit=stated.audit,
    )


def _find_other_prior(stated: Predicate, plan: Plan) -> list[str]:
    """Checks that a prior is of runs whose recipe declares one, and of the images whose digest the recipe states, if it
    does."""
    initial = stated.provenance.initial_weights
    declared = plan.model.prior if isinstance(plan.model, Primed) else None
    facts = None if initial is None else initial.prior
    if (declared is None) != (facts is None):
        return ["provenance.initial_weights.prior: expected exactly for recipes that declare a prior"]
    if declared is not None and facts is not None and declared.digest not in (None, facts.images):
        return ["provenance.initial_weights.prior.images: not the digest that the recipe states"]
    return []


def find_contradictions(stated: Predicate, plan: Plan | None) -> list[str]:
    """Finds what a finished, sound run can't have recorded."""
    budget, result = stated.budget, []
    if budget.stop_reason == "interrupted":
        result.append("budget.stop_reason: an interrupted run has no release")
    if budget.events_settled + budget.events_reserved_unsettled != stated.events.total:
        result.append("budget.events_settled: settled and unsettled events don't add up to the events charged")
    if budget.attempts == 1 and budget.events_reserved_unsettled:
        result.append("budget.events_reserved_unsettled: a run of one attempt settles everything it reserved")
    has_ended = budget.stop_reason == "completed" or budget.attempts == 1
    part = None if plan is None else mechanism_of(plan.mechanism).certificate
    adaptive = plan is not None and part is not None and part.is_adaptive(plan)
    if has_ended and stated.events.total < budget.events_planned and not adaptive:
        result.append("events.total: fewer events than planned, in a run that was not interrupted")
    for index, check in enumerate(stated.checks):
        if not check.passed:
            result.append(f"checks.{index}.passed: {check.id} did not pass: {check.measured}")
    seed = stated.randomness.insecure_seed
    if seed is not None:
        result.append("randomness.insecure_seed: the randomness was fixed in advance: this is not a release")
    if plan is not None and part is not None:
        if stated.mechanism.kind == plan.mechanism:
            if stated.provenance.model == "python" and mechanism_of(plan.mechanism).is_convex:
                kind = plan.mechanism
                result.append(
                    f"provenance.model: {kind} trains only the recipe's model, for which its constants are proved"
                )
            if not no_model.has_no_model(stated):
                result += part.check_run(plan, stated.mechanism, budget)
            result += endings.find_impossible_end(stated, plan)
            result += endings.find_impossible_choice(stated, plan)
        starts_elsewhere = isinstance(plan.model, Pretrained) and plan.model.starts_elsewhere
        if starts_elsewhere != (stated.provenance.initial_weights is not None):
            result.append("provenance.initial_weights: expected exactly for recipes that name initial weights")
        result += _find_other_prior(stated, plan)
        insecure = plan.runtime.insecure
        if seed != (None if insecure is None else insecure.seed):
            result.append("randomness.insecure_seed: not what the recipe says")
        if budget.stop_reason == "budget" and budget.attempts == 1 and not adaptive:
            result.append("budget.stop_reason: a run of one attempt takes the planned steps, and these fit the budget")
        if not (no_model.has_no_model(stated) and plan.tuning is not None and not stated.checks):
            result += certificate.find_check_differences(stated.checks, plan)
        if not no_model.has_no_model(stated):
            result += tensors.find_contradictions(stated, plan)
        result += _find_told_duration(stated, plan)
        result += charged_account.find_contradictions(stated.account, plan)
        result += audit_checks.find_contradictions(stated, plan)
        score = stated.data_access.evaluation.released
        target = describe_data(plan.data).target
        if score is not None and not isinstance(score, score_block(target)):
            result.append("data_access.evaluation.released: the score of another kind of model")
        elif isinstance(score, SeveralScore) and [each.name for each in score.by_name] != _list_names(target):
            result.append("data_access.evaluation.released.by_name: not the names of the label")
    result += origins.find_contradictions(stated)
    result += _check_times(stated)
    return result


def _list_names(target: Target) -> list[str]:
    return list(name_classes(target)) if isinstance(target, SeveralTarget) else []


def _read_score(stated: AnyScore) -> PublicScore:
    full = stated.model_dump()
    loss, records = full.pop("loss"), full.pop("records")
    return PublicScore(full.pop("accuracy", None), loss, records, full.pop("mean_absolute_error", None), full)


def _count_lost_steps(stated: Predicate) -> int:
    sampling = stated.sampling
    return 0 if sampling.steps_trained is None else sampling.steps_charged - sampling.steps_trained


def _check_times(stated: Predicate) -> list[str]:
    moments = []
    for name in ("started", "finished"):
        try:
            moment = datetime.fromisoformat(getattr(stated.provenance, name))
        except ValueError:
            return [f"provenance.{name}: not a time in ISO 8601"]
        if moment.tzinfo is None:
            return [f"provenance.{name}: a time without an offset from UTC"]
        moments.append(moment)
    return [] if moments[0] <= moments[1] else ["provenance.finished: earlier than provenance.started"]


def _find_told_duration(stated: Predicate, plan: Plan) -> list[str]:
    """Returns a certificate whose plan hides its duration ends where it begins, to the letter."""
    if not plan.hides_duration or stated.provenance.started == stated.provenance.finished:
        return []
    secret = "runs" if plan.tuning is not None else "units or of steps"
    return [
        f"provenance.finished: how long it took tells of the number of {secret}, which is secret; expected its start"
    ]


def compare_json(stated: Any, expected: Any, path: str = "") -> list[str]:
    """Finds where two JSON values differ, leaf by leaf."""
    if isinstance(stated, dict) and isinstance(expected, dict):
        problems = []
        for key in {**expected, **stated}:
            inner = f"{path}.{key}".lstrip(".")
            if key not in expected:
                problems.append(f"{inner}: does not belong here")
            elif key not in stated:
                problems.append(f"{inner}: missing")
            else:
                problems += compare_json(stated[key], expected[key], inner)
        return problems
    if isinstance(stated, list) and isinstance(expected, list):
        if len(stated) != len(expected):
            return [f"{path}: {len(stated)} entries, expected {len(expected)}"]
        return [
            line
            for index, (left, right) in enumerate(zip(stated, expected, strict=True))
            for line in compare_json(left, right, f"{path}.{index}")
        ]
    if _equal(stated, expected) or (WEAKER.fullmatch(path) and stated > expected):
        return []
    return [f"{path}: the certificate says {_shorten(stated)}, its recipe, events and claim imply {_shorten(expected)}"]


def _equal(stated: Any, expected: Any) -> bool:
    if isinstance(stated, bool) or isinstance(expected, bool):
        return stated is expected
    if isinstance(stated, int | float) and isinstance(expected, int | float):
        return stated == expected and (isinstance(stated, int) or math.isfinite(stated))
    return type(stated) is type(expected) and bool(stated == expected)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
