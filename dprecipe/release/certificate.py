"""The certificate: a pure function of the plan, the ledger, and what the run recorded of itself.

The guarantee is computed from the ledger's charges, never from the plan: what was spent is what is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, cast

from pydantic import TypeAdapter

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.dpsgd import account as dpsgd
from dprecipe.mechanisms.pate import certificate as voting
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd import certificate as hiding
from dprecipe.privacy.events import HIDDEN, Charge, Event, PartitionedGaussian, SanitisedCost, total
from dprecipe.privacy.ledger import Ledger
from dprecipe.release import origins, schema, tensors, untrusted
from dprecipe.release.checks import MAX_DEVICE, check_facts, recorded
from dprecipe.release.claim import HiddenNumbers, Numbers, claim, data_dependent, numbers
from dprecipe.release.facts import PublicScore, RunFacts, Spent

RUNS: TypeAdapter[schema.EventRun] = TypeAdapter(schema.EventRun)
NOT_PROVEN = (
    "A signature proves who issued this certificate and that it was not altered. It does not prove that the "
    "program drew the noise, read these data, or ran unmodified; that the declared assumptions hold; or that "
    "nothing else was released from the same records. The checks are the only evidence of the first."
)


def make(plan: Plan, ledger: Ledger, run: RunFacts, files: Mapping[str, str]) -> dict[str, Any]:
    """The certificate of a run: an in-toto Statement, JSON types only.

    `files`: the released files by name, each with its digest (`sha256:…`), without the certificate's own.

    Raises:
        RunFailed: the ledger is of another plan or holds more than the budget, or the run facts contradict
            the plan.
    """
    return statement(of_run(plan, ledger, run), files)


def of_run(plan: Plan, ledger: Ledger, run: RunFacts) -> schema.Predicate:
    """The predicate of a run; see `make`."""
    if ledger.plan_digest != plan.digest:
        raise RunFailed("the ledger is of another plan than the certificate was asked for", "use the run's own recipe")
    return predicate(plan, Spent.of(ledger), run)


def statement(made: schema.Predicate, files: Mapping[str, str]) -> dict[str, Any]:
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


def predicate(plan: Plan, spent: Spent, run: RunFacts) -> schema.Predicate:
    """All that a certificate states, but the files it is bound to.

    Raises:
        RunFailed: more was spent than the budget holds, or the run facts contradict the plan.
    """
    if run.sanitised is not None and not voting.count(spent.charges, SanitisedCost):
        raise RunFailed("internal fault: what votes cost was published, and not charged", "please report this")
    found = numbers(plan, spent.charges, run.sanitised)
    if not found.epsilon <= plan.budget.epsilon:
        raise RunFailed(
            f"internal fault: the ledger holds ε = {found.epsilon!r}, more than the budget of "
            f"{plan.budget.epsilon!r}; no certificate is made",
            "don't publish this run, and please report it",
        )
    return assemble(plan, spent, run, found)


def assemble(plan: Plan, spent: Spent, run: RunFacts, found: Numbers) -> schema.Predicate:
    """A predicate from its four sources; no arithmetic is done here, so `verify` can do it apart.

    Raises:
        RunFailed: a score on private records was given, or what votes cost where the plan does not publish it.
    """
    return schema.Predicate(
        claim=claim(plan, found, run.insecure_seed is not None),
        mechanism=_facts(plan, spent.charges, found),
        sampling=_sampling(plan, spent.charges, run.steps_lost),
        events=schema.Events(
            run_length=tuple(RUNS.validate_python(charge.to_json()) for charge in spent.charges),
            total=total(spent.charges),
            ledger=spent.digest,
        ),
        accounting=found.accounting,
        data_dependent=data_dependent(plan, found, run.sanitised),
        assumptions=tuple(
            schema.AssumptionFacts(id=a.id, text=a.text, checked_by=a.checked_by)
            for a in (*plan.assumptions, *origins.assumptions(run.model, run.data, run.tensors, tensors.known(plan)))
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
        checks=tuple(check_facts(c) for c in run.checks),
        provenance=_provenance(plan, run),
        what_a_signature_does_not_prove=NOT_PROVEN,
    )


def _facts(plan: Plan, charges: Sequence[Charge], found: Numbers) -> schema.MechanismFacts:
    if plan.mechanism == voting.NAME:
        return _votes(plan, charges)
    return _mechanism(plan) if found.hidden is None else _descent(plan, found.hidden)


def _mechanism(plan: Plan) -> schema.MechanismFacts:
    return _encoded(plan) if "codebook" in plan.settings else _clipped(plan)


def _clipped(plan: Plan) -> schema.MechanismFacts:
    settings = plan.settings
    clip, phases = settings["clip"], settings["phases"]
    last, family = phases[-1], settings["noise_family"]
    scale = dpsgd.noise_scale(clip, last["clip_norm"], last["noise_multiplier"])
    each = {
        "flat": "each unit's clipped to the norm",
        "per_layer": "each unit's clipped layer by layer",
        "automatic": "each unit's scaled to less than the norm",
        "adaptive": "each unit's clipped to the norm of the step",
    }[clip["mode"]]
    moving = any(phase["expected_lot"] != phases[0]["expected_lot"] for phase in phases)
    return schema.MechanismFacts(
        kind=plan.mechanism,
        noise=schema.NoiseFacts(
            family=family,
            multiplier=last["noise_multiplier"],
            scale=scale,
            standard_deviation=scale * (math.sqrt(2) if family == "laplace" else 1.0),
            added_to="the sum of the clipped gradients, before it is divided or used",
        ),
        phases=None
        if len(phases) == 1
        else tuple(
            schema.PhaseFacts(
                steps=phase["steps"],
                family=family,
                shape=None,
                multiplier=phase["noise_multiplier"],
                clip_norm=phase["clip_norm"],
                expected_lot=phase["expected_lot"] if moving else None,
            )
            for phase in phases
        ),
        clipping=schema.ClippingFacts(
            norm=settings["clip_norm"],
            mode=clip["mode"],
            norm_kind=clip["norm_kind"],
            layers=None if clip["norms"] is None else tuple(clip["norms"]),
            stability=clip["stability"],
            count=None
            if clip["count_noise"] is None
            else schema.CountFacts(
                quantile=clip["quantile"],
                learning_rate=clip["learning_rate"],
                noise=clip["count_noise"],
                gradient_multiplier=dpsgd.gradient_multiplier(last["noise_multiplier"], clip["count_noise"]),
            ),
            augmentations=settings["augmentations"],
        ),
        encoding=None,
        aggregation=schema.AggregationFacts(
            of=f"sum of a lot's gradients, {each}; an empty lot is a zero sum",
            divisor=plan.length.expected_lot,
        ),
        projection=None,
    )


def _encoded(plan: Plan) -> schema.MechanismFacts:
    settings = plan.settings
    each = "each unit's bounded rank by rank by a codeword"
    if settings["slots"] is not None:
        each = "the mean of each micro-batch bounded rank by rank by a codeword"
    return schema.MechanismFacts(
        kind=plan.mechanism,
        noise=schema.NoiseFacts(
            family=settings["noise_family"],
            shape=settings["noise_shape"],
            multiplier=settings["noise_multiplier"],
            scale=settings["noise_scale"],
            standard_deviation=settings["noise_std"],
            added_to="the sum of the codes, before it is divided or used",
        ),
        phases=_phases(settings.get("phases")),
        clipping=None,
        encoding=_encoding(settings),
        aggregation=schema.AggregationFacts(
            of=f"sum of a lot's gradients, {each}; an empty lot is a zero sum",
            divisor=plan.length.expected_lot,
        ),
        projection=None,
    )


def _votes(plan: Plan, charges: Sequence[Charge]) -> schema.MechanismFacts:
    settings = plan.settings
    return schema.MechanismFacts(
        kind=plan.mechanism,
        noise=schema.NoiseFacts(
            family=settings["noise_family"],
            multiplier=settings["noise_multiplier"],
            scale=settings["noise_multiplier"],
            standard_deviation=settings["noise_std"],
            added_to="each count of the teachers' votes for a class, before the largest is chosen",
        ),
        clipping=None,
        encoding=None,
        voting=voting.facts(plan, charges),
        aggregation=schema.AggregationFacts(
            of="the class with the most noisy votes of each answered query; the counts themselves stay in private/",
            divisor=None,
        ),
        projection=None,
    )


def _descent(plan: Plan, found: HiddenNumbers) -> schema.MechanismFacts:
    settings, phases = plan.settings, hiding.phases(plan)
    family, scale = settings["noise_family"], settings["stages"][-1]["noise_scale"]
    return schema.MechanismFacts(
        kind=plan.mechanism,
        noise=schema.NoiseFacts(
            family=family,
            multiplier=settings["noise_multiplier"] if phases is None else phases[-1].multiplier,
            scale=scale,
            standard_deviation=scale * (math.sqrt(2) if family == "laplace" else 1.0),
            added_to="the mean gradient of a lot, before it is multiplied by the learning rate",
        ),
        phases=phases,
        clipping=None,
        encoding=None,
        aggregation=schema.AggregationFacts(
            of="sum of the gradients of a lot's records, over the public size of a lot, a short one's too",
            divisor=plan.length.expected_lot,
        ),
        projection=hiding.facts(plan, found),
    )


def _phases(phases: Sequence[Mapping[str, Any]] | None) -> tuple[schema.PhaseFacts, ...] | None:
    if phases is None:
        return None
    return tuple(
        schema.PhaseFacts(
            steps=phase["steps"],
            family=phase["noise_family"],
            shape=phase["noise_shape"],
            multiplier=phase["noise_multiplier"],
        )
        for phase in phases
    )


def _encoding(settings: Mapping[str, Any]) -> schema.EncodingFacts:
    codebook, denoise, relative = settings["codebook"], settings["denoise"], settings["group_noise"]
    denoising = "none"
    if denoise is not None:
        each = "one factor" if denoise["per"] == "model" else "one factor for each group"
        less = ", less what pure noise gives" if denoise["shrink"] else ""
        denoising = (
            f"steps are scaled by the Kolmogorov-Smirnov distance of the noisy sum from the noise law{less}, {each}"
        )
    return schema.EncodingFacts(
        codebook=codebook["digest"],
        source=codebook["source"],
        codewords=codebook["size"],
        norm=codebook["norm"],
        sensitivity=settings["sensitivity"],
        dimension=settings["dimension"],
        groups=tuple(settings["groups"]),
        group_noise=None if relative is None else tuple(relative),
        microbatch=settings["microbatch"],
        slots=settings["slots"],
        denoising=denoising,
    )


def _sampling(plan: Plan, charges: Sequence[Charge], lost: int) -> schema.SamplingFacts:
    charged = steps_charged(plan, charges)
    return schema.SamplingFacts(
        scheme=plan.settings["scheme"],
        rate=plan.sampling_rate,
        size=plan.data.size,
        expected_lot=plan.settings["expected_lot"],
        largest_lot=plan.resolved["mechanism"].get("sampling", {}).get("max_batch_size"),
        steps_planned=plan.length.steps,
        steps_charged=charged,
        steps_trained=None if plan.mechanism == hiding.NAME else charged - lost,
    )


def steps_charged(plan: Plan, charges: Sequence[Charge]) -> int:
    """How many steps, or queries of a vote, events are charged for."""
    if plan.mechanism == voting.NAME:
        return voting.queries(charges)
    return sum(charge.count * steps_of(charge.event) for charge in charges)


def steps_of(event: Event) -> int:
    """How many noisy steps an event takes."""
    if isinstance(event, HIDDEN):
        return event.steps
    return event.lots if isinstance(event, PartitionedGaussian) else 1


def _score(found: PublicScore) -> schema.Score | schema.NumericScore:
    loss, records = found.loss, found.records
    if found.mean_absolute_error is not None:
        return schema.NumericScore(mean_absolute_error=found.mean_absolute_error, loss=loss, records=records)
    if found.accuracy is None:
        raise RunFailed("internal fault: a score of neither a classifier nor a regression", "please report this")
    return schema.Score(accuracy=found.accuracy, loss=loss, records=records)


def _data_access(plan: Plan, run: RunFacts) -> schema.DataAccess:
    test, public = plan.data.test, plan.publishes_scores
    if run.score is not None and not public:
        raise RunFailed("internal fault: a score on private records was about to be released", "please report this")
    score: schema.Score | schema.NumericScore | None = None
    if run.score is not None:
        score = _score(run.score)
    status: schema.Status
    if public:
        status, text = "public", _public_records(run)
    elif test is not None:
        status, text = "private_internal", "on private records: the scores stay in private/ and chose nothing"
    else:
        status, text = "none", "the recipe names no records to evaluate on"
    return schema.DataAccess(
        training=schema.Access(status="covered", text=_training(plan)),
        public=_public(plan),
        initial_weights=None
        if run.initial is None
        else schema.Access(
            status="declared",
            text="training began from weights that the recipe declares to be learned from public data alone: the file "
            "is named under provenance, and what it was learned from is not covered",
        ),
        preprocessing=origins.preprocessing(run.data),
        tuning=schema.Access(
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


def _training(plan: Plan) -> str:
    if plan.mechanism == hiding.NAME:
        return hiding.training(plan)
    if plan.mechanism != voting.NAME:
        return "every use of the training records is one of the events"
    readers = "private records are read by teachers alone"
    if plan.settings["teachers_from"] == "file":
        readers = "private records were read by teachers alone, before this run, and are not opened in it"
    return f"{readers}, and teachers speak through noisy votes alone, each of which is one of the events"


def _public(plan: Plan) -> schema.Access | None:
    if plan.mechanism != voting.NAME:
        return None
    return schema.Access(
        status="public",
        text="unlabelled records that the recipe declares public: teachers are asked about them and the student learns "
        "from them; labels of theirs are never read",
    )


def _budget(plan: Plan, epsilon: float, spent: Spent) -> schema.BudgetFacts:
    return schema.BudgetFacts(
        epsilon=plan.budget.epsilon,
        delta=plan.budget.delta,
        spent=epsilon,
        stop_reason=cast("schema.Stop", spent.stop_reason),
        attempts=spent.attempts,
        resumes=max(0, spent.attempts - 1),
        events_planned=total(plan.events),
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
        device=recorded(run.device, MAX_DEVICE),
        started=run.started,
        finished=run.finished,
        data_commitment=commitment,
    )
