"""The form of a certificate: an in-toto Statement whose predicate states a privacy claim and what it rests on.

Frozen, strict, closed and finite, as recipes are: a stranger's certificate is checked by them before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, StringConstraints
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import CoreSchema

from dprecipe import __version__
from dprecipe.contract.document import DIALECT
from dprecipe.contract.facts import (
    Access,
    BudgetFacts,
    Digest,
    MechanismFacts,
    PrivacyUnit,
    Probability,
    Rendered,
    Word,
)
from dprecipe.contract.table import mechanism_facts
from dprecipe.language.base import Block, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, SparseBlock
from dprecipe.language.statement import ReleaseStatement
from dprecipe.privacy.audit.results import Audit
from dprecipe.privacy.charge_shapes import charge_type
from dprecipe.release.charged_account import ChargedAccount
from dprecipe.release.facts import Dtype
from dprecipe.release.provenance import Hex, Provenance
from dprecipe.release.scores import AnyScore, KeptFacts

FILE_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"

AccountantVersion = Annotated[str, StringConstraints(pattern=r"^(dprecipe )?[0-9][A-Za-z0-9.+!_-]{0,63}$")]
Role = Literal["claim", "alternative", "cross_check"]


class ProfilePoint(Block):
    """One point of the privacy profile: the release is (epsilon, delta)-DP."""

    epsilon: NonNegativeFloat
    delta: Probability


class GroupBound(Block):
    """The cost of several units that change together, at the claim's δ."""

    size: PositiveInt
    epsilon: NonNegativeFloat | None = Field(description="null: no bound is known")


class GaussianBound(Block):
    """δ(ε) is at most that of a Gaussian mechanism of this μ, for every ε of the interval."""

    mu: PositiveFloat
    from_epsilon: NonNegativeFloat
    to_epsilon: NonNegativeFloat | None = Field(description="null: for every ε; the bound is exact")


class AttackRate(Block):
    """The largest true-positive rate of any attack that has at most this false-positive rate."""

    false_positive_rate: Probability
    true_positive_rate: Probability


class GuessFacts(Block):
    """Largest chance of a right guess by an attacker who believes by `prior` that the unit is there and has seen the
    release, and what they may believe then, but for outcomes of chance `odds_failure`."""

    prior: Probability
    success: Probability
    posterior: Probability


class RiskFacts(Block):
    """Upper bounds, for every attacker, on what anyone can find out about one unit, from the profile."""

    true_positive_rates: Annotated[tuple[AttackRate, ...], Field(max_length=16)]
    advantage: Probability = Field(description="largest difference of true- and false-positive rate of any attack")
    odds_factor: Annotated[float, Field(ge=1)] | None = Field(
        description="by which the odds of any guess grow at most, but for outcomes of chance `odds_failure`; null: none"
    )
    odds_failure: Probability
    guesses: Annotated[tuple[GuessFacts, ...], Field(max_length=16)]


class Claim(Block):
    """The guarantee."""

    epsilon: NonNegativeFloat
    delta: Annotated[float, Field(gt=0, lt=1)]
    neighbouring: Literal["add_or_remove_one", "replace_one", "zero_out_one"]
    unit: PrivacyUnit
    sentence: Rendered = ""
    released: Annotated[tuple[Word, ...], Field(max_length=100)]
    not_protected: SkipJsonSchema[tuple[str, ...]] = Field((), exclude=True)
    profile: Annotated[tuple[ProfilePoint, ...], Field(max_length=64)]
    gdp: GaussianBound | None
    groups: Annotated[tuple[GroupBound, ...], Field(max_length=16)]
    risk: RiskFacts


class SamplingFacts(Block):
    """Facts on which units took part in which step."""

    scheme: Word
    rate: Annotated[float, Field(gt=0, le=1)] | None = Field(description="null: units join no batch at a rate")
    size: PositiveInt | None = Field(
        description="units in the data set, or a bound on them: declared, public; a split leaves fewer to training; "
        "null: the records are elsewhere, and their number is not declared"
    )
    size_is_bound: bool = Field(description="whether the number of units itself is protected")
    expected_batch: PositiveFloat
    largest_batch: PositiveInt | None = Field(None, description="largest number of units in a batch; null: unbounded")
    steps_planned: PositiveInt
    steps_charged: NonNegativeInt
    steps_trained: NonNegativeInt | None = Field(
        description="of the steps (queries) charged, those that no interruption lost; null: a last-iterate release"
    )


if TYPE_CHECKING:

    class EventRun(Block):
        """Equal events of one kind: their number, and the fields of the event."""

        count: int
        kind: str

else:
    EventRun = charge_type()


class Events(Block):
    """Everything that counts as spent, read from the ledger."""

    run_length: Annotated[tuple[EventRun, ...], Field(max_length=10_000)]
    total: NonNegativeInt
    ledger: Digest = Field(description="of all complete lines of `private/ledger.jsonl`")


class Accountant(Block):
    """One accountant's answer for the events, at the claim's δ."""

    name: Word
    version: AccountantVersion
    bound: Rendered = ""
    role: Role
    epsilon: NonNegativeFloat | None = Field(description="null: it has no bound for these events")


class AssumptionFacts(Block):
    """Something the claim rests on."""

    id: Word
    text: Rendered = ""
    checked_by: Literal["code", "test", "declaration", "probe and declaration"]


class EvaluationAccess(Access, SparseBlock):
    """Evaluation, and the score that was released."""

    left_out: ClassVar[tuple[str, ...] | None] = ("kept",)

    released: AnyScore | None
    kept: KeptFacts | None = Field(None, description="left out where the last iterate was released")


class DataAccess(Block):
    """Every use of data: covered by the claim, public, declared, or private."""

    training: Access
    public: Access | None = Field(None, description="unlabelled public records that the teachers are asked about")
    initial_weights: Access | None = Field(None, description="where training started from learned weights")
    preprocessing: Access
    tuning: Access
    evaluation: EvaluationAccess


class PaidStageFacts(Block):
    """A paid step of preprocessing: its release is among the events, and its constants are covered by the claim."""

    step: NonNegativeInt = Field(description="its number in data.preprocess, from 0")
    kind: Word
    noise_multiplier: PositiveFloat
    epsilon_alone: NonNegativeFloat = Field(description="what the planned step would cost alone, at the claim's δ")
    constants: Digest = Field(description="of the constants in model.json, as canonical JSON")


class Randomness(Block):
    """Sources of the randomness of sampling and noise."""

    generator: Literal["chacha20"]
    entropy: Literal["operating_system", "fixed_seed"]
    insecure_seed: NonNegativeInt | None = Field(description="a fixed seed: such a run is not a release")


class Numerics(Block):
    """The arithmetic of sums and noise."""

    sum_dtype: Literal["float64"]
    noise_dtype: Literal["float64"]
    floating_point: Literal["lattice"] = Field(
        description="protection against floating-point attacks: noisy sums are rounded to a lattice"
    )


class CheckFacts(Block):
    """One thing that was tested on this program before training."""

    id: Word
    text: Rendered = ""
    passed: bool
    measured: Annotated[str, StringConstraints(max_length=400)]


class TensorFacts(Block):
    """A tensor of `model.safetensors`."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=1000)]
    shape: Annotated[tuple[NonNegativeInt, ...], Field(max_length=16)]
    made_by: Literal["noisy_steps", "seed", "file", "python"] = Field(
        description="where its values come from: the mechanism; or, without noise, the recipe's initialisation, the "
        "declared initial weights, or a module passed from Python that is declared to hold nothing private"
    )
    dtype: Dtype = Field(description="the type of its numbers, as safetensors names it")


class CandidateFacts(Block):
    """Values that one key could have."""

    key: Word
    values: Annotated[tuple[float | int | str | bool, ...], Field(max_length=100)] | None
    range: tuple[float, float] | None
    scale: Literal["linear", "log"] | None


class ChosenValue(Block):
    """Value of a key in the released run."""

    key: Word
    value: float | int | str | bool


class TuningFacts(Block):
    """The best of several runs; the number that were made is secret."""

    distribution: Word = Field(description="of the number of runs, as the event names it")
    mean: PositiveFloat
    shape: NonNegativeFloat | None
    over: Annotated[tuple[CandidateFacts, ...], Field(max_length=20)]
    metric: Word = Field(description="by which one was chosen")
    records: Word = Field(description="on which it was measured")
    score_noise_multiplier: PositiveFloat | None = Field(
        description="of the number of right answers on private records, charged to every run; null: public records"
    )
    one_run_epsilon: NonNegativeFloat = Field(description="what one run costs, at the claim's δ")
    chosen: Annotated[tuple[ChosenValue, ...], Field(max_length=20)]


class RegisteredMechanism:
    """Validates the block `mechanism` by its kind, among the mechanisms registered when the model is first built."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(mechanism_facts())


class Predicate(SparseBlock):
    """The claim and all it rests on."""

    left_out = ("account",)

    rules: Literal[1] = Field(description="the rules by which this certificate is checked, whatever version made it")
    claim: Claim
    mechanism: Annotated[MechanismFacts, RegisteredMechanism()]
    sampling: SamplingFacts
    events: Events
    accounting: Annotated[tuple[Accountant, ...], Field(min_length=2)]
    assumptions: Annotated[tuple[AssumptionFacts, ...], Field(max_length=100)]
    tensors: Annotated[tuple[TensorFacts, ...], Field(max_length=100_000)] = Field(
        description="empty only where the run ended without a model (`budget.stop_reason`: no_model)"
    )
    stages: Annotated[tuple[PaidStageFacts, ...], Field(max_length=100)] | None = Field(
        description="paid steps of preprocessing, in order; null: there is none"
    )
    data_access: DataAccess
    tuning: TuningFacts | None = Field(None, description="null: there was one run")
    budget: BudgetFacts
    statement: ReleaseStatement | None = Field(description="in the words of the recipe's author, and checked by nobody")
    account: ChargedAccount | None = Field(None, description="left out where the recipe names no account")
    audit: Audit | None = Field(
        description="how the claim was attacked, and what these attacks could see; null: nobody attacked it"
    )
    randomness: Randomness
    numerics: Numerics
    checks: Annotated[tuple[CheckFacts, ...], Field(max_length=100)] = Field(
        description="empty only where a tuned run ended without a model: each run had its own"
    )
    provenance: Provenance

    @property
    def version(self) -> str:
        """The version of dprecipe that made the certificate, as it says."""
        return self.provenance.versions.get("dprecipe", "unknown")

    @property
    def is_own(self) -> bool:
        """True if that is this very version, whose defaults, words and accountants are known."""
        return self.version == __version__


class SubjectDigest(Block):
    sha256: Hex


class Subject(Block):
    """A released file, and its digest."""

    name: Annotated[str, StringConstraints(pattern=FILE_NAME)]
    digest: SubjectDigest


class Statement(Block):
    """The whole certificate."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(max_length=1000)]
    predicate_type: Literal["urn:dprecipe:certificate:v1"] = Field(alias="predicateType")
    predicate: Predicate


def certificate_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `certificate.json`."""
    return {"$schema": DIALECT, "title": "dprecipe certificate", **Statement.model_json_schema(by_alias=True)}
