"""Audits of any mechanism: its runner gathers evidence, and `dprecipe.privacy.audit` judges it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final, get_args

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import RunFailed
from dprecipe.language.audit import CONFIDENCE, DEFAULT_RELEASES, DEFAULT_STEPS, MIN_STEPS, AuditBlock
from dprecipe.libraries import importing_libraries
from dprecipe.noise.entropy import Purpose, Secrets
from dprecipe.privacy.audit.implied import implied_epsilon, step_response
from dprecipe.privacy.audit.program import make_audit
from dprecipe.privacy.audit.results import Audit, AuditBound, AuditTest, Depth, Equality, Excess
from dprecipe.privacy.audit.verdicts import is_deterministic, judge_bound, judge_test, share_level
from dprecipe.progress import LateProgress, report_progress
from dprecipe.training.audit.request import Attack, AuditEvidence, AuditFinding, AuditRequest
from dprecipe.training.run.runner import PythonInputs, runner_of


class ClaimRefuted(RunFailed):
    """An audit shows that the program does not keep its claim. Exit code 4."""


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit, and what it left out."""

    audit: Audit
    remarks: tuple[str, ...] = ()


@final
class Watcher:
    """Shows how far an audit is, from a few seconds on; a context manager."""

    def __init__(self) -> None:
        self._shown: LateProgress | None = None
        self._what, self._done = "", 0

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.end(self._done)

    def show(self, what: str, done: int, total: int) -> None:
        """Reports `done` of `total` parts (0: unknown)."""
        if what != self._what or self._shown is None:
            self._what, self._shown = what, LateProgress(f"audit: {what}", what, total or None, private=False)
            self._done = 0
        self._done = done or self._done + 1
        self._shown.show(self._done)


def make_request(
    plan: Plan,
    depths: tuple[Depth, ...] = (),
    steps: int | None = None,
    releases: int | None = None,
    confidence: float | None = None,
    show: Callable[[str, int, int], None] = lambda what, done, total: None,
    inputs: PythonInputs | None = None,
) -> AuditRequest:
    """Makes the request: what is named, else what the recipe's block says, else all that the mechanism has and needs
    no private record."""
    block = plan.audit or AuditBlock(steps=_choose_steps(plan), releases=DEFAULT_RELEASES, confidence=CONFIDENCE)
    known = [depth for depth in mechanism_of(plan.mechanism).audit_depths if depth != "canaries"]
    wanted = depths or block.depths
    return AuditRequest(
        tuple(depth for depth in ("program", "steps", "releases") if depth in wanted and depth in known),
        steps or block.steps or _choose_steps(plan),
        releases or block.releases or DEFAULT_RELEASES,
        confidence or block.confidence,
        show,
        inputs,
    )


def _choose_steps(plan: Plan) -> int:
    """Returns how many canaries take `DEFAULT_STEPS` steps, with those after its own that each shows in."""
    rows = max((len(step_response(charge.event)) for charge in plan.mechanism_plan.events), default=1)
    return max(MIN_STEPS, DEFAULT_STEPS // rows)


def audit(plan: Plan, request: AuditRequest) -> Audited:
    """Attacks the program of a plan with synthetic records: reads no data, spends nothing, leaves nothing.

    Guarantees: a sound program fails any statistical test with probability at most `SHARED_LEVEL`, no deterministic
    one, and each lower bound is above its true value with probability at most 1 - `request.confidence`.

    Raises:
        PlanRefused, RunFailed: as a run would, before any data is at stake.
    """
    evidence = runner_of(plan).audit(plan, request)
    if request.asks("program"):
        evidence = AuditEvidence.joined((evidence, AuditEvidence(tuple(_examine_others(plan, request)))))
    evidence = AuditEvidence.joined((evidence, AuditEvidence(remarks=_list_remarks(plan))))
    return judge(plan, evidence, request.confidence)


def audit_before(plan: Plan, inputs: PythonInputs) -> Audit | None:
    """Returns the audit that a plan asks for, before the run's first private record; None where it asks for none.

    Raises:
        ClaimRefuted: it accuses the program; nothing was spent.
        PlanRefused, RunFailed: see `audit`.
    """
    if plan.audit is None or not plan.audit.depths:
        return None
    report_progress("auditing the program on synthetic records, before the first private one")
    with Watcher() as watcher:
        audited = audit(plan, make_request(plan, show=watcher.show, inputs=inputs))
    for remark in audited.remarks:
        report_progress(remark)
    return require_sound(audited)


def _list_remarks(plan: Plan) -> tuple[str, ...]:
    """Lists where a run is another program than the one that is audited."""
    remarks = []
    if plan.tuning is not None:
        remarks.append("tuning: the recipe's own values were audited; its runs try others, and choose one of them")
    if plan.runtime.insecure is not None:
        remarks.append("runtime.insecure: the audit drew anew; a run by this recipe draws what its seed says")
    return tuple(remarks)


def _examine_others(plan: Plan, request: AuditRequest) -> Iterator[AuditFinding]:
    """Examines what any mechanism has beside its own program: secrets, and perhaps paid steps of preprocessing and a
    second process."""
    yield _examine_secrets()
    if plan.stages:
        with importing_libraries("an audit"):
            from dprecipe.training.audit.stages import examine_stages

        yield from examine_stages(plan, lambda: request.show("program", 0, 0))
    if plan.runtime.processes > 1 and "WORLD_SIZE" not in os.environ:
        with importing_libraries("an audit"):
            from dprecipe.training.audit.several import examine_processes

        request.show("program", 0, 0)
        yield from examine_processes(plan)


def _examine_secrets() -> AuditFinding:
    """Returns the streams of two runs, and of two attempts, by their keys."""
    roots = [Secrets(None, attempt) for attempt in (1, 1, 2, 2)]
    purposes: tuple[Purpose, ...] = get_args(Purpose)
    keys = [root.stream(purpose, index).key for root in roots for purpose in purposes for index in range(8)]
    text = "what is secret comes from the system's randomness: no two runs or attempts, and no two uses, have a stream"
    return AuditFinding("program", "secrets", text, Equality(differing=len(keys) - len(set(keys)), compared=len(keys)))


def judge(plan: Plan, evidence: AuditEvidence, confidence: float) -> Audited:
    """Returns the verdicts of evidence."""
    level = share_level(test.evidence for test in evidence.tests)
    tests = [
        judge_test(t.depth, t.id, t.text, t.evidence, 0.0 if is_deterministic(t.evidence) else level, t.choices)
        for t in evidence.tests
    ]
    bounds = [_judge_attack(plan, attack, confidence) for attack in evidence.attacks]
    return Audited(make_audit(plan.digest, tests, bounds), evidence.remarks)


def _judge_attack(plan: Plan, attack: Attack, confidence: float) -> AuditBound:
    terms = (attack.depth, attack.id, attack.text, attack.trials)
    bound = judge_bound(*terms, confidence=confidence, claimed=attack.claimed, delta=attack.delta, curve=attack.curve)
    if not attack.of_step or attack.claimed is None:
        return bound
    relation, delta = plan.budget.neighbouring, plan.budget.delta
    implied = implied_epsilon(
        plan.stage_charges, plan.mechanism_plan.events, relation, delta, attack.claimed, bound.lower
    )
    return bound.model_copy(update={"implied_epsilon": implied})


def require_sound(audited: Audited) -> Audit:
    """Returns the audit, if it accuses the program of nothing.

    Raises:
        ClaimRefuted: with each test that failed, and each lower bound above its claim.
    """
    failed = audited.audit.failed
    if failed:
        lines = "\n".join(f"- {line}" for line in map(describe, failed))
        raise ClaimRefuted(
            f"the audit on synthetic records refutes the claim; no private record was used:\n{lines}",
            "don't run it: the program does not do what is accounted for; please report this, with the plan",
        )
    return audited.audit


def describe(part: AuditTest | AuditBound) -> str:
    """Returns one line: what was expected, and what was found."""
    if isinstance(part, AuditBound):
        word = "refuted" if part.refuted else "not refuted"
        found_bound = f"{part.measure} >= {part.lower:.4g} at confidence {part.confidence:g}"
        return f"{part.id}: {found_bound}, claimed {part.claimed:.4g}: {word}"
    found = part.evidence
    if isinstance(found, Excess):
        what = f"largest {found.largest:.6g}, allowed {found.allowed:.6g}"
    elif isinstance(found, Equality):
        what = f"{found.differing:,} of {found.compared:,} differ"
    else:
        what = f"{found.kind} test: p = {part.p_value:.2g}, level {part.level:.1g}"
    return f"{part.id}: expected: {part.text}; {what}"
