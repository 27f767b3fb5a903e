"""The certificate's shape: an in-toto Statement whose predicate states a privacy claim and what it rests on.

Frozen, strict, closed and finite, as recipes are: a certificate that a stranger hands over is checked against
these models before anything in it is believed. `certificate_schema` exports them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dprecipe.language.base import Block, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from dprecipe.mechanisms.pnsgd.schema import Constraint
from dprecipe.privacy.events import MOST_ROWS
from dprecipe.release.facts import Dtype

FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=4000)]
PackageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
PackageVersion = Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+!_-]{0,63}$")]
AccountantVersion = Annotated[str, StringConstraints(pattern=r"^(dprecipe )?[0-9][A-Za-z0-9.+!_-]{0,63}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Stop = Literal["completed", "budget", "interrupted"]
Role = Literal["claim", "cross_check", "second_opinion"]
Status = Literal["covered", "public", "declared", "private_internal", "none"]


class Point(Block):
    """One point of the privacy profile: the release is (epsilon, delta)-DP."""

    epsilon: NonNegativeFloat
    delta: Probability


class GaussianBound(Block):
    """δ(ε) is at most that of a Gaussian mechanism of this μ, for every ε of the interval."""

    mu: PositiveFloat
    from_epsilon: NonNegativeFloat
    to_epsilon: NonNegativeFloat | None = Field(description="null: for every ε; the bound is exact")


class PositionBound(Block):
    """What protects the records at one place in the file: ε at the claim's δ, and δ at its ε."""

    position: PositiveInt
    epsilon: NonNegativeFloat
    delta: Probability


class PrivacyUnit(Block):
    """Who is protected."""

    name: Word
    max_records: PositiveInt
    enforced_by: Sentence


class Claim(Block):
    """What is guaranteed."""

    epsilon: NonNegativeFloat
    delta: Annotated[float, Field(gt=0, lt=1)]
    neighbouring: Literal["add_or_remove_one", "replace_one", "zero_out_one"]
    unit: PrivacyUnit
    sentence: Sentence
    released: Annotated[tuple[Word, ...], Field(max_length=100)]
    not_protected: Annotated[tuple[Sentence, ...], Field(max_length=100)]
    profile: Annotated[tuple[Point, ...], Field(max_length=64)]
    gdp: GaussianBound | None
    by_position: Annotated[tuple[PositionBound, ...], Field(max_length=1000)] = Field(
        (), description="of hidden runs through the file's order; the claim is that of the worst place"
    )


class NoiseFacts(Block):
    """The noise that was added; of several phases, in the last."""

    family: Word
    shape: PositiveFloat | None = Field(None, description="the family's parameter beyond its scale: df, or λ")
    multiplier: PositiveFloat = Field(
        description="scale over the clip norm, the codeword norm or the Lipschitz constant, or in votes"
    )
    scale: PositiveFloat | None = Field(
        None,
        description="absolute; of Gaussian noise, its standard deviation; where layers differ, of relative scale 1",
    )
    standard_deviation: PositiveFloat | None = Field(
        description="absolute, of the noise on the sum, at that scale; null: infinite"
    )
    added_to: Sentence


class PhaseFacts(Block):
    """A part of a run with noise of its own."""

    steps: PositiveInt
    family: Word
    shape: PositiveFloat | None
    multiplier: PositiveFloat
    clip_norm: PositiveFloat | None = Field(None, description="of mechanisms that clip gradients")
    expected_lot: PositiveFloat | None = Field(
        None, description="the public divisor of its sums; null: the one under aggregation"
    )


class CountFacts(Block):
    """How the clip norm follows the gradients: by a noisy count that is one release with their sum."""

    quantile: Probability = Field(description="share of gradients that shall be no longer than the norm")
    learning_rate: PositiveFloat
    noise: PositiveFloat = Field(description="standard deviation of the noise on the count, in units")
    gradient_multiplier: PositiveFloat = Field(
        description="deviation of the noise on the gradients alone over the clip norm; of the last phase"
    )


class ClippingFacts(Block):
    """How far one unit can move what is released."""

    norm: PositiveFloat = Field(description="at the first step")
    mode: Word
    norm_kind: Literal["l2", "l1"] = "l2"
    layers: Annotated[tuple[PositiveFloat, ...], Field(max_length=10_000)] | None = Field(
        None, description="the norm of each layer over `norm`; null: one norm, or the same share for each layer"
    )
    stability: PositiveFloat | None = Field(None, description="γ, where gradients are scaled to norm · ‖g‖ / (‖g‖ + γ)")
    count: CountFacts | None = Field(None, description="where the norm adapts")
    augmentations: PositiveInt = Field(1, description="copies of a record whose gradients are averaged before clipping")


class EncodingFacts(Block):
    """The public codebook whose envelope bounds what one unit can move, coordinate by coordinate."""

    codebook: Digest
    source: Literal["gaussian", "file"]
    codewords: PositiveInt
    norm: PositiveFloat = Field(description="L2 norm of every codeword")
    sensitivity: PositiveFloat = Field(
        description="the most one unit moves a sum in L2 norm, each layer in units of its relative noise"
    )
    dimension: PositiveInt
    groups: Annotated[tuple[PositiveInt, ...], Field(max_length=10_000)] = Field(
        description="coordinates that are ranked together"
    )
    group_noise: Annotated[tuple[PositiveFloat, ...], Field(max_length=10_000)] | None
    microbatch: PositiveInt
    slots: PositiveInt | None
    denoising: Sentence


class AggregationFacts(Block):
    """How contributions become one vector."""

    of: Sentence
    divisor: PositiveFloat | None = Field(description="a public constant; null: nothing is divided")


class InteractionFacts(Block):
    """How a student took part in the choice of what is answered."""

    rounds: PositiveInt
    threshold: PositiveFloat = Field(description="in votes beyond what the student expects")
    confidence: Probability = Field(description="above it the student's own prediction is the label")


class VotingFacts(Block):
    """Who voted, on how much, and what decided which queries were answered."""

    teachers: PositiveInt
    teachers_from: Literal["recipe", "file"] = Field(description="`file`: trained elsewhere, their votes were read")
    partition: Sentence
    classes: PositiveInt
    aggregator: Word
    threshold: PositiveFloat | None = Field(description="T, in votes; null: every query is answered")
    selection_multiplier: PositiveFloat | None = Field(
        description="standard deviation of the check's noise, in votes; null: there is no check"
    )
    interaction: InteractionFacts | None
    queries_planned: PositiveInt = Field(description="the most that are put")
    queries_charged: NonNegativeInt = Field(description="put, or lost in a crash")
    answers_planned: PositiveInt = Field(description="the most that are answered")
    answers_charged: NonNegativeInt = Field(description="answered, or lost in a crash")
    filter: PositiveFloat | None = Field(
        description="most that Σ μ² of the votes may come to, and what the run is charged whatever was answered; null: "
        "how much is answered was known in advance"
    )


class StageFacts(Block):
    """A part of a hidden run whose steps are alike."""

    steps: PositiveInt
    learning_rate: PositiveFloat
    noise_scale: PositiveFloat = Field(description="absolute, on the mean gradient")
    noise_multiplier: PositiveFloat = Field(description="`noise_scale` over the Lipschitz constant")


class BoundFacts(Block):
    """What one bound gives for the events, at the claim's δ."""

    name: Word
    epsilon: NonNegativeFloat | None = Field(description="null: it has none")


class ProjectionFacts(Block):
    """The convex problem whose last iterate was released, and what each bound of it gives."""

    constraint: Constraint
    diameter: PositiveFloat = Field(description="D, of the set")
    largest_norm: PositiveFloat = Field(description="of the parameters together")
    parameters: PositiveInt
    feature_norm: PositiveFloat | None = Field(description="R, by clipping; null: no feature is read")
    l2: NonNegativeFloat
    lipschitz: PositiveFloat = Field(description="L, of a record's loss without its regulariser")
    moved: PositiveFloat = Field(description="Δ, between the gradients of two neighbouring records")
    smoothness: PositiveFloat = Field(description="β")
    strong_convexity: NonNegativeFloat = Field(description="ρ")
    contraction: Probability = Field(description="largest Lipschitz constant of a step")
    order: Literal["sequential", "permuted"]
    stop: Literal["last", "random"]
    batch_size: PositiveInt
    lots: PositiveInt = Field(description="steps of one pass")
    passes: PositiveFloat
    stages: Annotated[tuple[StageFacts, ...], Field(min_length=1, max_length=MOST_ROWS)]
    bounds: Annotated[tuple[BoundFacts, ...], Field(max_length=16)]
    winner: Word = Field(description="the simplest of the least")


class MechanismFacts(Block):
    """How information left the private data."""

    kind: Word
    noise: NoiseFacts = Field(description="of the last phase, where there are several")
    phases: Annotated[tuple[PhaseFacts, ...], Field(max_length=1000)] | None = None
    clipping: ClippingFacts | None
    encoding: EncodingFacts | None = Field(description="of mechanisms that encode gradients")
    voting: VotingFacts | None = Field(None, description="of mechanisms whose teachers vote")
    aggregation: AggregationFacts
    projection: ProjectionFacts | None = Field(description="of mechanisms that project iterates")


class SamplingFacts(Block):
    """Which units took part in which step."""

    scheme: Word
    rate: Annotated[float, Field(gt=0, le=1)] | None = Field(description="null: no amplification is claimed")
    size: PositiveInt = Field(description="units in the data set: declared, public")
    expected_lot: PositiveFloat
    largest_lot: PositiveInt | None = Field(None, description="units that a lot has at most; null: as many as joined")
    steps_planned: PositiveInt
    steps_charged: NonNegativeInt
    steps_trained: NonNegativeInt | None = Field(
        description="of the steps (queries) charged, those in the released model; null: its iterates are hidden"
    )


class GaussianRun(Block):
    """Equal events of kind `gaussian`; the fields beyond `count` and `kind` are those of the event."""

    count: PositiveInt
    kind: Literal["gaussian"]
    noise_multiplier: PositiveFloat


class PoissonGaussianRun(Block):
    """Equal events of kind `poisson_gaussian`."""

    count: PositiveInt
    kind: Literal["poisson_gaussian"]
    noise_multiplier: PositiveFloat
    sampling_rate: Rate


class PartitionedGaussianRun(Block):
    """Equal events of kind `partitioned_gaussian`."""

    count: PositiveInt
    kind: Literal["partitioned_gaussian"]
    noise_multiplier: PositiveFloat
    lots: PositiveInt


class PoissonLaplaceRun(Block):
    """Equal events of kind `poisson_laplace`."""

    count: PositiveInt
    kind: Literal["poisson_laplace"]
    noise_multiplier: PositiveFloat
    sampling_rate: Rate


class TruncatedPoissonGaussianRun(Block):
    """Equal events of kind `truncated_poisson_gaussian`."""

    count: PositiveInt
    kind: Literal["truncated_poisson_gaussian"]
    noise_multiplier: PositiveFloat
    sampling_rate: Rate
    size: PositiveInt
    most: PositiveInt


class FixedSizeGaussianRun(Block):
    """Equal events of kind `fixed_size_gaussian`."""

    count: PositiveInt
    kind: Literal["fixed_size_gaussian"]
    noise_multiplier: PositiveFloat
    size: PositiveInt
    lot: PositiveInt


class EncodedRun(Block):
    """Equal events of kind `encoded`."""

    count: PositiveInt
    kind: Literal["encoded"]
    sampling_rate: Rate
    noise_multiplier: PositiveFloat
    family: Word
    shape: PositiveFloat | None
    shifts: Annotated[tuple[tuple[NonNegativeFloat, PositiveInt], ...], Field(min_length=1, max_length=MOST_ROWS)]
    exchanged: bool
    codebook: Digest


class NoisyMaxRun(Block):
    """Equal events of kind `noisy_max`."""

    count: PositiveInt
    kind: Literal["noisy_max"]
    family: Literal["gaussian", "laplace"]
    noise_multiplier: PositiveFloat


class NoisyThresholdRun(Block):
    """Equal events of kind `noisy_threshold`."""

    count: PositiveInt
    kind: Literal["noisy_threshold"]
    noise_multiplier: PositiveFloat


class FilterRestRun(Block):
    """Equal events of kind `filter_rest`."""

    count: PositiveInt
    kind: Literal["filter_rest"]
    noise_multiplier: PositiveFloat


class SanitisedCostRun(Block):
    """Equal events of kind `sanitised_cost`."""

    count: PositiveInt
    kind: Literal["sanitised_cost"]
    beta: PositiveFloat
    noise_multiplier: PositiveFloat
    scale_multiplier: PositiveFloat


class ProjectedDescentRun(Block):
    """Equal events of kind `projected_descent`."""

    count: PositiveInt
    kind: Literal["projected_descent"]
    neighbouring: Literal["replace_one", "zero_out_one"]
    family: Literal["gaussian", "laplace"]
    size: PositiveInt
    lot: PositiveInt
    order: Literal["sequential", "permuted"]
    stop: Literal["last", "random"]
    stages: Annotated[
        tuple[tuple[PositiveInt, PositiveFloat, Probability, PositiveFloat], ...],
        Field(min_length=1, max_length=MOST_ROWS),
    ]


EventRun = Annotated[
    GaussianRun
    | PoissonGaussianRun
    | PartitionedGaussianRun
    | PoissonLaplaceRun
    | TruncatedPoissonGaussianRun
    | FixedSizeGaussianRun
    | EncodedRun
    | ProjectedDescentRun
    | NoisyMaxRun
    | NoisyThresholdRun
    | FilterRestRun
    | SanitisedCostRun,
    Field(discriminator="kind"),
]
"""A run of equal events: `dprecipe.privacy.events`."""


class Events(Block):
    """Everything that counts as spent, read from the ledger."""

    run_length: Annotated[tuple[EventRun, ...], Field(max_length=10_000)]
    total: NonNegativeInt
    ledger: Digest = Field(description="of all whole lines of `private/ledger.jsonl`")


class Accountant(Block):
    """One accountant's answer for the events, at the claim's δ."""

    name: Word
    version: AccountantVersion
    bound: Sentence
    role: Role
    epsilon: NonNegativeFloat | None = Field(description="null: it has no bound for these events")


class DataDependentFacts(Block):
    """What these very votes cost, from noisy values that were published and paid for: no worst case, not the claim."""

    epsilon: NonNegativeFloat
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(description="the claim's, and twice `failure`")
    sentence: Sentence
    order: Annotated[float, Field(gt=1)] = Field(description="α, the Rényi order of the bound")
    beta: PositiveFloat = Field(description="β of the smooth sensitivity")
    noise_multiplier: PositiveFloat = Field(description="of `noisy_cost`, over the smooth sensitivity")
    scale_multiplier: PositiveFloat = Field(description="of `noisy_log_sensitivity`, over β")
    failure: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        description="chance that the one noise exceeds its allowance, and that the other does"
    )
    noisy_cost: float = Field(description="published: the votes' Rényi cost with noise")
    noisy_log_sensitivity: float = Field(
        description="published: the logarithm of its smooth sensitivity with noise, its allowance added"
    )
    cost: NonNegativeFloat = Field(description="upper bound of the Rényi cost of the votes, from the two")
    worst_case_epsilon: NonNegativeFloat = Field(description="of the claim's events, at the same δ")
    smaller: Literal["worst_case", "data_dependent"] = Field(description="which of the two statements says more")


class AssumptionFacts(Block):
    """Something the claim rests on."""

    id: Word
    text: Sentence
    checked_by: Literal["code", "test", "declaration"]


class Access(Block):
    """How one use of data relates to the claim."""

    status: Status
    text: Sentence


class Score(Block):
    """Of a released classifier on public records."""

    accuracy: Probability
    loss: NonNegativeFloat
    records: PositiveInt


class NumericScore(Block):
    """Of a released regression on public records, in the units of what it predicts."""

    mean_absolute_error: NonNegativeFloat
    loss: NonNegativeFloat = Field(description="the mean squared error")
    records: PositiveInt


class EvaluationAccess(Access):
    """Evaluation: what was released of it."""

    released: Score | NumericScore | None


class DataAccess(Block):
    """Every use of data: covered by the claim, public, declared, or kept inside."""

    training: Access
    public: Access | None = Field(None, description="unlabelled records that are asked about")
    initial_weights: Access | None = Field(None, description="where training began from learned weights")
    preprocessing: Access
    tuning: Access
    evaluation: EvaluationAccess


class BudgetFacts(Block):
    """The cap, and what was spent of it."""

    epsilon: PositiveFloat
    delta: Annotated[float, Field(gt=0, lt=1)]
    spent: NonNegativeFloat
    stop_reason: Stop
    attempts: PositiveInt
    resumes: NonNegativeInt
    events_planned: PositiveInt
    events_settled: NonNegativeInt
    events_reserved_unsettled: NonNegativeInt = Field(description="charged as if they had run")
    torn_line: bool = Field(description="the ledger's last line was cut short and left out")


class Randomness(Block):
    """Where sampling and noise came from."""

    generator: Word
    entropy: Word
    insecure_seed: NonNegativeInt | None = Field(description="a fixed seed: such a run is no release")


class Numerics(Block):
    """In which arithmetic."""

    sum_dtype: Word
    noise_dtype: Word
    floating_point: Sentence


class CheckFacts(Block):
    """One thing that was tested on this very program, before training."""

    id: Word
    text: Sentence
    passed: bool
    measured: Annotated[str, StringConstraints(max_length=400)]


class TensorFacts(Block):
    """A tensor of `model.safetensors`."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    shape: Annotated[tuple[NonNegativeInt, ...], Field(max_length=16)]
    made_by: Literal["noisy_steps", "seed", "file", "python"] = Field(
        description="what made its values: the mechanism; or, without any noise, the recipe's own initialisation, the "
        "declared initial weights, or a module that was passed from Python, declared to hold nothing private"
    )
    dtype: Dtype = Field(description="the type of its numbers, as safetensors names it")


class Parent(Block):
    """A text that belongs to the recipe: one that it extends, or the summary of a file."""

    name: Word
    text: str


class RecipeFacts(Block):
    """The recipe, verbatim."""

    name: Word
    file: Word
    text: str
    overrides: Annotated[tuple[str, ...], Field(max_length=1000)]
    parents: Annotated[tuple[Parent, ...], Field(max_length=8)]
    attachments: Annotated[tuple[Parent, ...], Field(max_length=8)] = Field(
        (), description="what the accounting needs of other files the recipe names, by name"
    )
    digest: Digest
    resolved: dict[str, Any]


class Commitment(Block):
    """To the private data, under a key that stays in `private/`: a plain digest would itself leak."""

    algorithm: Literal["hmac-sha256"]
    value: Hex


class InitialWeightsFacts(Block):
    """The file of weights that training began from, declared to be learned from public data alone."""

    file: Word
    digest: Digest
    head: Literal["taken over", "new"] = Field(description="the last layer: `new` where the file's has another shape")


class Provenance(Block):
    """Where it came from."""

    recipe: RecipeFacts
    plan: Digest
    model: Literal["recipe", "python"] = Field(description="`python`: the module was passed from Python")
    data: Literal["recipe", "python"] = Field(description="`python`: any set of records was passed from Python")
    initial_weights: InitialWeightsFacts | None = Field(None, description="null: drawn from the recipe's seed")
    versions: Annotated[dict[PackageName, PackageVersion], Field(max_length=100)]
    device: Word
    started: Word
    finished: Word
    data_commitment: Commitment | None


class Predicate(Block):
    """The claim and all it rests on."""

    claim: Claim
    mechanism: MechanismFacts
    sampling: SamplingFacts
    events: Events
    accounting: Annotated[tuple[Accountant, ...], Field(min_length=2)]
    data_dependent: DataDependentFacts | None = Field(None, description="where the recipe publishes it")
    assumptions: Annotated[tuple[AssumptionFacts, ...], Field(max_length=100)]
    tensors: Annotated[tuple[TensorFacts, ...], Field(min_length=1, max_length=100_000)]
    data_access: DataAccess
    budget: BudgetFacts
    randomness: Randomness
    numerics: Numerics
    checks: Annotated[tuple[CheckFacts, ...], Field(min_length=1, max_length=100)]
    provenance: Provenance
    what_a_signature_does_not_prove: Sentence


class SubjectDigest(Block):
    """Of a released file."""

    sha256: Hex


class Subject(Block):
    """A released file."""

    name: Annotated[str, StringConstraints(pattern=FILE_NAME)]
    digest: SubjectDigest


class Statement(Block):
    """The whole certificate."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(max_length=1000)]
    predicate_type: Literal["urn:dprecipe:certificate:v1"] = Field(alias="predicateType")
    predicate: Predicate


def certificate_schema() -> dict[str, Any]:
    """The JSON Schema of `certificate.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dprecipe certificate",
        **Statement.model_json_schema(by_alias=True),
    }
