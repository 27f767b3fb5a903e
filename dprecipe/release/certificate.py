"""The certificate: a pure function of the plan, the ledger, and what the run recorded about itself.

The guarantee is computed from the ledger's charges, never from the plan: what was spent is what is claimed. The checks
of a program before it sees a record are exactly those of its rules. Sentences are in the predicate, and not in the
file: they are rendered when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, Final, cast

from pydantic import TypeAdapter

from dprecipe import __version__
from dprecipe.contract.certificate import STAGE_NOISE
from dprecipe.contract.facts import NO_MODEL, Access, BudgetFacts, Status, Stop
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import describe_data
from dprecipe.data.split import describe_split
from dprecipe.faults import InternalFault, RunFailed
from dprecipe.planning.paid import list_solved_prices
from dprecipe.privacy.events import count_events
from dprecipe.privacy.ledger import Ledger
from dprecipe.release import origins, provenance, schema, stages, tensors, tuned, untrusted
from dprecipe.release.claim import Numbers, compute_numbers, list_bounds, make_claim
from dprecipe.release.facts import CheckResult, RunFacts, SpentBudget
from dprecipe.release.scores import KeptFacts, state_score
from dprecipe.release.untrusted import one_line

RULES: Final = 1
"""The rules of the certificates that this version writes, and verifies. They say what is machine-read: fields, events,
checks, assumptions, digests. They do not change with a version; a change that an honest certificate would not survive
is another number, beside this one. `tests/corpus` holds certificates of each."""
RUNS: TypeAdapter[schema.EventRun] = TypeAdapter(schema.EventRun)
FLATTERED = "; the score chose this {} among several, and flatters it"


def make_run_predicate(plan: Plan, ledger: Ledger, run: RunFacts) -> schema.Predicate:
    """Returns the predicate of a run.

    Raises:
        RunFailed: the ledger belongs to another plan or exceeds the budget, or the run facts contradict the plan.
    """
    if ledger.plan_digest != plan.digest:
        raise RunFailed("the ledger belongs to another plan than this one", "use the run's own recipe")
    return make_predicate(plan, SpentBudget.of(ledger), replace(run, policies=plan.policies))


def make_statement(predicate: schema.Predicate, files: Mapping[str, str]) -> dict[str, Any]:
    """Returns the certificate: the in-toto Statement that binds a predicate to files, JSON types only.

    `files`: the released files by name, each with its digest (`sha256:…`), without the certificate's own.
    """
    subjects = tuple(
        schema.Subject(name=name, digest=schema.SubjectDigest(sha256=files[name].removeprefix("sha256:")))
        for name in sorted(files)
    )
    statement = schema.Statement(
        _type="https://in-toto.io/Statement/v1",
        subject=subjects,
        predicateType="urn:dprecipe:certificate:v1",
        predicate=predicate,
    )
    return to_json(statement)


def to_json(model: schema.Statement | schema.Predicate) -> dict[str, Any]:
    """Returns a statement or predicate as JSON types."""
    content: dict[str, Any] = model.model_dump(mode="json", by_alias=True)
    return content


def to_bytes(certificate: Mapping[str, Any]) -> bytes:
    """Returns the text of `certificate.json`."""
    return untrusted.to_bytes(certificate)


def make_predicate(plan: Plan, spent: SpentBudget, run: RunFacts) -> schema.Predicate:
    """Returns everything a certificate states, except the files it is bound to.

    Raises:
        RunFailed: more was spent than the budget holds, or the run facts contradict the plan.
    """
    if run.audit is not None and run.audit.failed:
        accused = ", ".join(part.id for part in run.audit.failed)
        raise RunFailed(
            f"the audit accuses this program ({accused}): no certificate is made",
            "don't publish this run, and please report it",
        )
    numbers = compute_numbers(plan, spent.charges, run.published)
    if not numbers.epsilon <= plan.budget.epsilon:
        raise RunFailed(
            f"internal fault: the ledger holds ε = {numbers.epsilon!r}, more than the budget of "
            f"{plan.budget.epsilon!r}; no certificate is made",
            "don't publish this run, and please report it",
        )
    return assemble_predicate(plan, spent, run, numbers)


def assemble_predicate(plan: Plan, spent: SpentBudget, run: RunFacts, numbers: Numbers) -> schema.Predicate:
    """Returns a predicate from its four sources; it does no arithmetic: `verify` does that separately.

    Raises:
        RunFailed: a score on private records was given.
    """
    has_no_model = spent.stop_reason == NO_MODEL
    bounds = list_bounds(plan)
    return schema.Predicate(
        rules=RULES,
        claim=make_claim(plan, numbers, run.insecure_seed is not None, has_no_model),
        mechanism=mechanism_of(plan.mechanism).certificate.describe_mechanism(plan, spent.charges, numbers.own),
        sampling=_sampling(plan, spent, run.steps_lost),
        events=schema.Events(
            run_length=tuple(RUNS.validate_python(charge.to_json()) for charge in spent.charges),
            total=count_events(spent.charges),
            ledger=spent.digest,
        ),
        accounting=tuple(row.model_copy(update={"bound": bounds.get(row.name, "")}) for row in numbers.accounting),
        assumptions=tuple(
            schema.AssumptionFacts(id=a.id, text=a.text, checked_by=a.checked_by)
            for a in (
                *origins.qualify_assumptions(plan.assumptions, run.model),
                *origins.list_assumptions(
                    run.model, run.data, run.tensors, tensors.has_known_tensors(plan), run.initial, run.trainer
                ),
            )
        ),
        tensors=tuple(
            schema.TensorFacts(name=t.name, shape=t.shape, made_by=t.made_by, dtype=t.dtype) for t in run.tensors
        ),
        stages=None if has_no_model else stages.describe_stages(plan, run.stages),
        data_access=_data_access(plan, run, has_no_model),
        tuning=tuned.describe_tuning(plan),
        budget=_budget(plan, numbers.epsilon, spent),
        statement=plan.release.statement,
        account=run.account,
        audit=run.audit,
        randomness=schema.Randomness(
            generator="chacha20",
            entropy="operating_system" if run.insecure_seed is None else "fixed_seed",
            insecure_seed=run.insecure_seed,
        ),
        numerics=schema.Numerics(sum_dtype="float64", noise_dtype="float64", floating_point="lattice"),
        checks=tuple(check_facts(c, plan) for c in run.checks),
        provenance=_provenance(plan, run),
    )


def _sampling(plan: Plan, spent: SpentBudget, steps_lost: int) -> schema.SamplingFacts:
    part = mechanism_of(plan.mechanism).certificate
    details, charged = plan.mechanism_plan, part.count_steps_charged(spent.charges)
    trained = 0 if spent.stop_reason == NO_MODEL else charged - steps_lost
    return schema.SamplingFacts(
        scheme=details.scheme,
        rate=details.sampling_rate,
        size=plan.data.declared_units,
        size_is_bound=plan.data.hides_size,
        expected_batch=details.expected_batch,
        largest_batch=details.max_batch_size,
        steps_planned=plan.length.steps,
        steps_charged=charged,
        steps_trained=None if tuned.hides_iterates(plan) else trained,
    )


def _data_access(plan: Plan, run: RunFacts, has_no_model: bool) -> schema.DataAccess:
    test, public = plan.data.test, plan.publishes_scores
    if run.score is not None and not public:
        raise InternalFault("a score on private records was about to be released")
    score, kept = None, _kept(plan, run)
    if run.score is not None:
        score = state_score(run.score, describe_data(plan.data).target)
    status: Status
    part = mechanism_of(plan.mechanism).certificate
    if public:
        status, text = "public", _describe_public_records(run)
        if plan.tuning is not None and not has_no_model:
            text += FLATTERED.format("model")
        elif kept is not None:
            text += FLATTERED.format("iterate")
    elif test is not None:
        status, text = "private_internal", tuned.describe_private_scores(plan)
        cut = describe_split(plan.data)
        text += "" if cut is None else f"; these records were {cut}"
    else:
        status, text = "none", "the recipe names no records to evaluate on"
    return schema.DataAccess(
        training=Access(status="covered", text=part.describe_training(plan)),
        public=part.describe_public_data(plan),
        initial_weights=None
        if run.initial is None
        else Access(
            status="declared",
            text="training started from weights that the recipe declares to be learned from "
            + ("images made from a seed, and from no real data" if run.initial.prior else "public data alone")
            + ": the file is named under provenance, and the data it was learned from are not covered",
        ),
        preprocessing=stages.describe_access(has_no_model) if plan.stages else origins.describe_preprocessing(run.data),
        tuning=tuned.describe_access(plan),
        evaluation=schema.EvaluationAccess(status=status, text=text, released=score, kept=kept),
    )


def _kept(plan: Plan, run: RunFacts) -> KeptFacts | None:
    """Returns the facts of the kept iterate; of a recipe that keeps none there are none to state."""
    if run.kept is None or plan.training.keep is None:
        return None
    return KeptFacts(by=plan.training.keep.by, step=run.kept.step, looked_at=run.kept.looked_at)


def _describe_public_records(run: RunFacts) -> str:
    if run.data == "python":
        return (
            "on records that the recipe, or whoever passed records from Python, declares public; this was not checked"
        )
    return "on records that the recipe declares public"


def _budget(plan: Plan, epsilon: float, spent: SpentBudget) -> BudgetFacts:
    return BudgetFacts(
        epsilon=plan.budget.epsilon,
        delta=plan.budget.delta,
        spent=epsilon,
        stop_reason=cast("Stop", spent.stop_reason),
        attempts=spent.attempts,
        resumes=max(0, spent.attempts - 1),
        events_planned=count_events(plan.events),
        events_settled=spent.settled,
        events_reserved_unsettled=spent.unsettled,
        torn_line=spent.torn,
    )


def _provenance(plan: Plan, run: RunFacts) -> provenance.Provenance:
    source, tuning = plan.source, plan.tuning
    commitment = None
    if run.commitment is not None:
        commitment = provenance.Commitment(algorithm="hmac-sha256", value=run.commitment)
    return provenance.Provenance(
        recipe=provenance.RecipeFacts(
            name=plan.name,
            file=PurePath(source.file).name,  # the name alone: no paths of the machine
            text=source.text,
            overrides=source.overrides,
            parents=tuple(provenance.Parent(name=name, text=text) for name, text in source.parents),
            attachments=tuple(provenance.Parent(name=name, text=text) for name, text in source.attachments),
            digest=source.digest,
            resolved=dict(plan.resolved if tuning is None or tuning.resolved is None else tuning.resolved),
        ),
        plan=plan.digest,
        solved={**plan.solved, **list_solved_prices(plan.data, plan.stages)},
        model=run.model,
        data=run.data,
        trainer=run.trainer,
        initial_weights=None
        if run.initial is None
        else provenance.InitialWeightsFacts(
            file=run.initial.name,
            digest=run.initial.digest,
            head=run.initial.head,
            prior=run.initial.prior,
            learned=run.initial.learned,
        ),
        versions=dict(run.versions),
        policies=tuple(provenance.PolicyFacts(name=p.name, digest=p.digest) for p in run.policies),
        device=shorten_record(run.device, MAX_DEVICE),
        started=run.started,
        finished=run.finished,
        data_commitment=commitment,
    )


MAX_MEASURED, MAX_DEVICE = 400, 120
"""Characters of what a check measured, and of a device's name."""


def list_checks(plan: Plan) -> Mapping[str, str]:
    """Lists exactly the checks that a certificate of the plan lists: its mechanism's, and those of paid steps."""
    own = mechanism_of(plan.mechanism).certificate.list_checks(plan)
    return {**own, **STAGE_NOISE} if plan.stages else own


def shorten_record(text: str, max_length: int) -> str:
    """Returns a run's own text as a certificate holds it: one line without control characters, cut to `max_length`."""
    line = one_line(text)
    return line if len(line) <= max_length else f"{line[: max_length - 1]}…"


def check_facts(result: CheckResult, plan: Plan) -> schema.CheckFacts:
    """Returns a check as a certificate of the plan states it, with this version's text."""
    text = list_checks(plan).get(result.id, result.text)
    return schema.CheckFacts(
        id=result.id, text=text, passed=result.passed, measured=shorten_record(result.measured, MAX_MEASURED)
    )


def find_check_differences(stated: Sequence[schema.CheckFacts], plan: Plan) -> list[str]:
    """Checks that are missing, that runs of this plan don't make, or that appear twice."""
    expected, ids = list_checks(plan), [check.id for check in stated]
    problems = [f"checks: {name} is missing" for name in sorted(set(expected) - set(ids))]
    problems += [
        f"checks: {name!a} is not a check of this kind of run" for name in dict.fromkeys(ids) if name not in expected
    ]
    problems += ["checks: one appears twice"] if len(set(ids)) != len(ids) else []
    return problems


def explain_unknown_rules(certificate: dict[str, Any]) -> str | None:
    """Explains that this version does not know the rules of a certificate, and what does; None where it knows them.

    Reads the parsed JSON before anything else: certificates of other rules may have other fields.
    """
    predicate = certificate.get("predicate")
    rules: Any = predicate.get("rules") if isinstance(predicate, dict) else None
    if rules is None or (rules == RULES and type(rules) is int):
        return None  # where no rules are named, the missing field is reported
    if type(rules) is not int or rules < 1:
        return f"rules: {ascii(rules)[:80]} is not a number of rules; nothing was verified"
    return (
        f"rules: the certificate names rules {rules}; dprecipe {__version__} knows rules {RULES} and verified nothing. "
        "Install a newer version of dprecipe, from a place that you trust"
    )
