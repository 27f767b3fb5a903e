"""The results of an audit, as the certificate states them: evidence, and what follows from it.

Everything that is not evidence follows from it: `dprecipe.privacy.audit.verdicts` computes it, when an audit ends and
again when a certificate is verified.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from dprecipe.language.base import Block, Fraction, NonNegativeFloat, PositiveFloat

Depth = Literal["program", "steps", "canaries", "releases"]
"""The depth of an audit: synthetic records through the compiled program; a canary in thousands of its steps; canaries
among the records of a run; many whole runs."""
Measure = Literal["mu", "epsilon", "rate"]

MAX_COUNT = 10**9
MAX_TRIALS = 10**7
MAX_ALL_TRIALS = 3 * MAX_TRIALS
"""The most trials of all bounds together, on both sides."""
MAX_CANARIES = 10**6
MAX_DIFFERENCE = 1e6
"""The most by which two means are stated to differ, in standard deviations: without noise it is any number."""
MAX_SAMPLE = 10**6
"""The largest sample of a distance, whose exact distribution takes seconds at this size; all samples of an audit
together may have twice as much."""

AuditId = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
AuditText = Annotated[str, StringConstraints(min_length=1, max_length=400)]
ProgramDigest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
TrialCount = Annotated[int, Field(ge=1, le=MAX_TRIALS)]
PositiveCount = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]


class Excess(Block):
    """The largest of some values that may not exceed `allowed` (rounding included)."""

    kind: Literal["excess"] = "excess"
    largest: NonNegativeFloat
    allowed: NonNegativeFloat


class Equality(Block):
    """The number of pairs that must be equal, and how many differ."""

    kind: Literal["equality"] = "equality"
    differing: Count
    compared: PositiveCount

    @model_validator(mode="after")
    def check_counts(self) -> Self:
        if self.differing > self.compared:
            raise ValueError("differing is more than compared")
        return self


class Frequency(Block):
    """Independent trials that succeed with probability `expected` each; exact two-sided binomial test."""

    kind: Literal["frequency"] = "frequency"
    successes: Count
    trials: PositiveCount
    expected: Share

    @model_validator(mode="after")
    def check_counts(self) -> Self:
        if self.successes > self.trials:
            raise ValueError("successes is more than trials")
        return self


class Variance(Block):
    """Sum of squares of `degrees` independent standard normals: Gaussian noise over its claimed standard deviation;
    two-sided chi-square test."""

    kind: Literal["variance"] = "variance"
    sum_squares: NonNegativeFloat
    degrees: PositiveCount


class Correlation(Block):
    """Sum of products of `pairs` pairs of numbers that must be independent, each of mean 0 and no wider than a standard
    normal; a two-sided bound of the p-value."""

    kind: Literal["correlation"] = "correlation"
    sum_products: float
    pairs: PositiveCount


class Distance(Block):
    """Kolmogorov-Smirnov distance of a sample of this size from the claimed distribution; two-sided."""

    kind: Literal["distance"] = "distance"
    statistic: Share
    sample: Annotated[int, Field(ge=1, le=MAX_SAMPLE)]


class AttackTrials(Block):
    """The counts of an attack, fixed before these trials, that said "in": with the canary, and without it.

    `form`: what is bounded from below. mu: the μ of a Gaussian pair, for Gaussian claims. epsilon: the ε of (ε, δ)-DP.
    rate: the true-positive rate, to compare with the largest that the claimed curve allows.
    """

    kind: Literal["trials"] = "trials"
    form: Measure
    positives_in: Count
    trials_in: TrialCount
    positives_out: Count
    trials_out: TrialCount

    @model_validator(mode="after")
    def check_counts(self) -> Self:
        if self.positives_in > self.trials_in or self.positives_out > self.trials_out:
            raise ValueError("positives are more than trials")
        return self


class Guesses(Block):
    """The counts of guesses about canaries, each of which was in a run by its own fair coin: how many were named "in"
    and "out", both fixed before the run, and how many of these names were right."""

    kind: Literal["guesses"] = "guesses"
    canaries: Annotated[int, Field(ge=1, le=MAX_CANARIES)]
    named_in: Count
    named_out: Count
    correct: Count

    @model_validator(mode="after")
    def check_counts(self) -> Self:
        if not 0 < self.named_in + self.named_out <= self.canaries:
            raise ValueError("named are none, or more than there are canaries")
        if self.correct > self.named_in + self.named_out:
            raise ValueError("correct is more than named")
        return self


TestEvidence = Annotated[Excess | Equality | Frequency | Variance | Correlation | Distance, Field(discriminator="kind")]
BoundEvidence = Annotated[AttackTrials | Guesses, Field(discriminator="kind")]


class CurvePoint(Block):
    """One point of a claimed privacy profile: (epsilon, delta)-DP."""

    epsilon: NonNegativeFloat
    delta: Share


class AuditTest(Block):
    """A test that a sound program fails with probability at most `level`. Made by `judge_test`."""

    depth: Depth
    id: AuditId
    text: AuditText = Field(description="what is expected of a sound program")
    evidence: TestEvidence
    choices: PositiveCount = Field(1, description="the evidence is the most extreme of this many")
    level: Annotated[float, Field(ge=0, lt=1)] = Field(description="0: the test is deterministic")
    p_value: Share = Field(description="of the evidence, times `choices`, at most 1")
    passed: bool = Field(description="whether p_value > level")


class AuditBound(Block):
    """A lower bound beside the claimed upper one. Made by `judge_bound`."""

    depth: Depth
    id: AuditId
    text: AuditText
    evidence: BoundEvidence
    confidence: Fraction
    delta: Annotated[float, Field(ge=0, lt=1)] | None = Field(description="of a bound of ε")
    curve: Annotated[tuple[CurvePoint, ...], Field(min_length=1, max_length=1000)] | None = Field(
        description="the claimed profile that a rate, or the chance of the right names, is compared with"
    )
    measure: Measure
    claimed: NonNegativeFloat = Field(description="the claim's upper bound, in this measure")
    p_value: Share | None = Field(
        description="of guesses: no program that keeps to the curve has as many right with a larger probability"
    )
    lower: NonNegativeFloat = Field(
        description="a sound program gives more than its true value with probability at most 1 - confidence; of "
        "guesses, if its curve is that of a Gaussian"
    )
    implied_epsilon: NonNegativeFloat | None = Field(
        description="the ε of the whole run, at the claim's δ, if every step were as the bound says; null: not a step's"
    )
    smallest_fault: PositiveFloat | None = Field(
        description="smallest true value that an audit of these sizes calls a fault with probability 0.8; null: none"
    )
    refuted: bool = Field(description="whether lower > claimed; of guesses, whether p_value < 1 - confidence")

    @model_validator(mode="after")
    def check_parts(self) -> Self:
        form = "epsilon" if isinstance(self.evidence, Guesses) else self.evidence.form
        if self.measure != form:
            raise ValueError(f"measure is not {form}, the form of the evidence")
        guessed = isinstance(self.evidence, Guesses)
        if (self.delta is None) is (form == "epsilon") or (self.curve is None) is (form == "rate" or guessed):
            raise ValueError("delta goes with a bound of epsilon, and curve with a bound of a rate and with guesses")
        if (self.p_value is None) is guessed:
            raise ValueError("p_value goes with guesses")
        return self

    @property
    def contradicted(self) -> bool:
        """True if the evidence refutes the claim, by the stated p-value or bound."""
        return self.lower > self.claimed if self.p_value is None else self.p_value < 1 - self.confidence


class Scores(Block):
    """The scores of the canaries of one run, those that were in against those that were out."""

    inside: Annotated[int, Field(ge=0, le=MAX_CANARIES)]
    outside: Annotated[int, Field(ge=0, le=MAX_CANARIES)]
    difference: Annotated[float, Field(ge=-MAX_DIFFERENCE, le=MAX_DIFFERENCE)] = Field(
        description="of the two means, over the pooled standard deviation; 0 where there is none"
    )


class SpecificationTest(Block):
    """A test that scores are those of the specified program: Gaussian noise, and canaries that move a sum by their
    bound. It bounds no ε. Made by `judge_specification`."""

    evidence: Scores
    confidence: Fraction
    specified_mu: PositiveFloat = Field(description="the most by which the specified program separates the two means")
    lower_mu: NonNegativeFloat = Field(
        description="the least separation that is not rejected at 1 - confidence, if scores are Gaussian"
    )
    p_value: Share = Field(description="of so large a difference, for the specified program")
    consistent: bool = Field(description="whether p_value >= 1 - confidence")


class Audit(Block):
    """Everything that was tested and bounded on one program. Made by `make_audit`."""

    program: ProgramDigest = Field(description="of the plan, and of the version and the sources of dprecipe that ran")
    sources: ProgramDigest = Field(description="of the modules of dprecipe, as they were where the audit ran")
    tests: Annotated[tuple[AuditTest, ...], Field(max_length=1000)]
    bounds: Annotated[tuple[AuditBound, ...], Field(max_length=10)]
    specification: SpecificationTest | None = Field(
        description="whether canaries of the run are consistent with it; it refutes no claim. null: there are none, or "
        "their scores are not Gaussian"
    )

    @model_validator(mode="after")
    def check_sizes(self) -> Self:
        """Refuses an audit of a size that would take hours to verify."""
        samples = sum(test.evidence.sample for test in self.tests if isinstance(test.evidence, Distance))
        seen = [bound.evidence for bound in self.bounds]
        trials = sum(each.trials_in + each.trials_out for each in seen if isinstance(each, AttackTrials))
        if samples > 2 * MAX_SAMPLE or trials > MAX_ALL_TRIALS:
            raise ValueError("more samples or trials than an audit has")
        return self

    @model_validator(mode="after")
    def check_names(self) -> Self:
        for parts in (self.tests, self.bounds):
            names = [(part.depth, part.id) for part in parts]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{twice[0][1]} of depth {twice[0][0]} appears twice")
        return self

    @property
    def failed(self) -> tuple[AuditTest | AuditBound, ...]:
        """The results that accuse the program: failed tests, and bounds above the claim."""
        return tuple(t for t in self.tests if not t.passed) + tuple(b for b in self.bounds if b.refuted)

    @property
    def depths(self) -> tuple[Depth, ...]:
        """The depths at which something was tested or bounded, in order."""
        done = {test.depth for test in self.tests} | {bound.depth for bound in self.bounds}
        order: tuple[Depth, ...] = ("program", "steps", "canaries", "releases")
        return tuple(depth for depth in order if depth in done)
