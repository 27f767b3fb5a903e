"""The certificate: a pure function of the plan, the ledger, and what the run recorded of itself.

The guarantee is computed from the ledger's charges, never from the plan: what was spent is what is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, cast

from pydantic import TypeAdapter

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.facts import Access, BudgetFacts, Status, Stop
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.privacy.events import Charge, count_events
from dprecipe.privacy.ledger import Ledger
from dprecipe.release import origins, schema, tensors, untrusted
from dprecipe.release.checks import MAX_DEVICE, check_facts, record_text
from dprecipe.release.claim import Numbers, compute_numbers, make_claim
from dprecipe.release.facts import PublicScore, RunFacts, Spent

RUNS: TypeAdapter[schema.EventRun] = TypeAdapter(schema.EventRun)
NOT_PROVEN = (
    "A signature proves who issued this certificate and that it was not altered. It does not prove that the "
    "program drew the noise, read these data, or ran unmodified; that the declared assumptions hold; or that "
    "nothing else was released from the same records. The checks are the only evidence of the first."
)


def make_certificate(plan: Plan, ledger: Ledger, run: RunFacts, files: Mapping[str, str]) -> dict[str, Any]:
    """The certificate of a run: an in-toto Statement, JSON types only.

    `files`: the released files by name, each with its digest (`sha256:…`), without the certificate's own.

    Raises:
        RunFailed: the ledger is of another plan or holds more than the budget, or the run facts contradict
            the plan.
    """
    return make_statement(of_run(plan, ledger, run), files)


def of_run(plan: Plan, ledger: Ledger, run: RunFacts) -> schema.Predicate:
    """The predicate of a run; see `make_certificate`."""
    if ledger.plan_digest != plan.digest:
        raise RunFailed("the ledger is of another plan than the certificate was asked for", "use the run's own recipe")
    return make_predicate(plan, Spent.of(ledger), run)


def make_statement(made: schema.Predicate, files: Mapping[str, str]) -> dict[str, Any]:
    """The Statement that binds a predicate to files."""
    subjects = tuple(
        schema.Subject(name=name, digest=schema.SubjectDigest(sha256=files[name].removeprefix("sha256:")))
        for name in sorted(files)
    )
    whole = schema.Statement(
        _type="https://in-toto.io/Statement/v1",
        subject=subjects,
        predicateType="urn:dprecipe:certificate:v1",
        predicate=made,
    )
    return to_json(whole)


def to_json(model: schema.Statement | schema.Predicate) -> dict[str, Any]:
    """As JSON types."""
    content: dict[str, Any] = model.model_dump(mode="json", by_alias=True)
    return content


def to_bytes(certificate: Mapping[str, Any]) -> bytes:
    """The text of `certificate.json`."""
    return untrusted.to_bytes(certificate)


def make_predicate(plan: Plan, spent: Spent, run: RunFacts) -> schema.Predicate:
    """All that a certificate states, but the files it is bound to.

    Raises:
        RunFailed: more was spent than the budget holds, or the run facts contradict the plan.
    """
    numbers = compute_numbers(plan, spent.charges, run.published)
    if not numbers.epsilon <= plan.budget.epsilon:
        raise RunFailed(
            f"internal fault: the ledger holds ε = {numbers.epsilon!r}, more than the budget of "
            f"{plan.budget.epsilon!r}; no certificate is made",
            "don't publish this run, and please report it",
        )
    return assemble_predicate(plan, spent, run, numbers)


def assemble_predicate(plan: Plan, spent: Spent, run: RunFacts, found: Numbers) -> schema.Predicate:
    """A predicate from its four sources; no arithmetic is done here, so `verify` can do it apart.

    Raises:
        RunFailed: a score on private records was given.
    """
    return schema.Predicate(
        claim=make_claim(plan, found, run.insecure_seed is not None),
        mechanism=mechanism_of(plan.mechanism).certificate.describe_mechanism(plan, spent.charges, found.own),
        sampling=_sampling(plan, spent.charges, run.steps_lost),
        events=schema.Events(
            run_length=tuple(RUNS.validate_python(charge.to_json()) for charge in spent.charges),
            total=count_events(spent.charges),
            ledger=spent.digest,
        ),
        accounting=found.accounting,
        assumptions=tuple(
            schema.AssumptionFacts(id=a.id, text=a.text, checked_by=a.checked_by)
            for a in (
                *plan.assumptions,
                *origins.list_assumptions(run.model, run.data, run.tensors, tensors.is_known(plan)),
            )
        ),
        tensors=tuple(
            schema.TensorFacts(name=t.name, shape=t.shape, made_by=t.made_by, dtype=t.dtype) for t in run.tensors
        ),
        data_access=_data_access(plan, run),
        budget=_budget(plan, found.epsilon, spent),
        randomness=schema.Randomness(generator=run.generator, entropy=run.entropy, insecure_seed=run.insecure_seed),
        numerics=schema.Numerics(
            sum_dtype=run.sum_dtype, noise_dtype=run.noise_dtype, floating_point=run.floating_point
        ),
        checks=tuple(check_facts(c, plan) for c in run.checks),
        provenance=_provenance(plan, run),
        what_a_signature_does_not_prove=NOT_PROVEN,
    )


def _sampling(plan: Plan, charges: Sequence[Charge], lost: int) -> schema.SamplingFacts:
    part = mechanism_of(plan.mechanism).certificate
    room, charged = plan.room, part.count_steps_charged(charges)
    return schema.SamplingFacts(
        scheme=room.scheme,
        rate=room.sampling_rate,
        size=plan.data.size,
        expected_batch=room.expected_batch,
        largest_batch=room.max_batch_size,
        steps_planned=plan.length.steps,
        steps_charged=charged,
        steps_trained=None if part.hides_iterates else charged - lost,
    )


def _score(found: PublicScore) -> schema.ClassifierScore | schema.NumericScore:
    loss, records = found.loss, found.records
    if found.mean_absolute_error is not None:
        return schema.NumericScore(mean_absolute_error=found.mean_absolute_error, loss=loss, records=records)
    if found.accuracy is None:
        raise RunFailed("internal fault: a score of neither a classifier nor a regression", "please report this")
    return schema.ClassifierScore(accuracy=found.accuracy, loss=loss, records=records)


def _data_access(plan: Plan, run: RunFacts) -> schema.DataAccess:
    test, public = plan.data.test, plan.publishes_scores
    if run.score is not None and not public:
        raise RunFailed("internal fault: a score on private records was about to be released", "please report this")
    score: schema.ClassifierScore | schema.NumericScore | None = None
    if run.score is not None:
        score = _score(run.score)
    status: Status
    part = mechanism_of(plan.mechanism).certificate
    if public:
        status, text = "public", _public_records(run)
    elif test is not None:
        status, text = "private_internal", "on private records: the scores stay in private/ and chose nothing"
    else:
        status, text = "none", "the recipe names no records to evaluate on"
    return schema.DataAccess(
        training=Access(status="covered", text=part.describe_training(plan)),
        public=part.describe_public_data(plan),
        initial_weights=None
        if run.initial is None
        else Access(
            status="declared",
            text="training began from weights that the recipe declares to be learned from public data alone: the file "
            "is named under provenance, and what it was learned from is not covered",
        ),
        preprocessing=origins.describe_preprocessing(run.data),
        tuning=Access(
            status="declared",
            text="the recipe's constants were chosen without these records; a choice among several runs on "
            "them would spend more than is counted here",
        ),
        evaluation=schema.EvaluationAccess(status=status, text=text, released=score),
    )


def _public_records(run: RunFacts) -> str:
    if run.data == "python":
        return (
            "on records that are declared public, by the recipe or by who passed records from Python; nobody checked it"
        )
    return "on records that the recipe declares public"


def _budget(plan: Plan, epsilon: float, spent: Spent) -> BudgetFacts:
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


def _provenance(plan: Plan, run: RunFacts) -> schema.Provenance:
    source = plan.source
    commitment = None
    if run.commitment is not None:
        commitment = schema.Commitment(algorithm="hmac-sha256", value=run.commitment)
    return schema.Provenance(
        recipe=schema.RecipeFacts(
            name=plan.name,
            file=PurePath(source.file).name,  # no path of the machine it was made on
            text=source.text,
            overrides=source.overrides,
            parents=tuple(schema.Parent(name=name, text=text) for name, text in source.parents),
            attachments=tuple(schema.Parent(name=name, text=text) for name, text in source.attachments),
            digest=source.digest,
            resolved=dict(plan.resolved),
        ),
        plan=plan.digest,
        model=run.model,
        data=run.data,
        initial_weights=None
        if run.initial is None
        else schema.InitialWeightsFacts(file=run.initial.name, digest=run.initial.digest, head=run.initial.head),
        versions=dict(run.versions),
        device=record_text(run.device, MAX_DEVICE),
        started=run.started,
        finished=run.finished,
        data_commitment=commitment,
    )
