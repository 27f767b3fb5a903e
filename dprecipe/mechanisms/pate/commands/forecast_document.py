"""A forecast, as text, JSON (`dprecipe.votes/v1`) and JSON Schema show it: costs, the expected end, the tables."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field

from dprecipe.contract.document import Document, OrInfinite, Part, RecipeName
from dprecipe.contract.facts import Probability
from dprecipe.language.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from dprecipe.mechanisms.pate.schema import SmoothSensitivity
from dprecipe.mechanisms.pate.teacher_rules import FEW_TEACHERS

Reason = Literal["filter", "answers", "queries"]


class Simulated(Part):
    """Constants of the simulated votes."""

    agreement: tuple[Probability, Probability] = Field(
        description="shares of the teachers that agree on a query; uniform between them"
    )
    seed: NonNegativeInt


class Costs(Part):
    """ε of all queries, at the budget's δ."""

    papers: OrInfinite = Field(description="expected cost, classic conversion: no bound")
    bound: OrInfinite = Field(description="a bound, by a theorem")
    exact: OrInfinite | None = Field(description="the same by integration; null: not worked out")


class Stop(Part):
    """The expected end of a run, on average."""

    queries: NonNegativeFloat
    answers: NonNegativeFloat
    reason: Reason = Field(
        description="filter: its limit is reached; answers: as many as planned; queries: all were asked"
    )
    max_queries: NonNegativeFloat | None = Field(description="queries that fit the filter alone; null: no filter")


class ForecastRelease(Part):
    """A data-dependent ε that may be published, and what publishing it makes of the run."""

    sanitize: SmoothSensitivity = Field(description="the block of the recipe")
    epsilon: OrInfinite = Field(description="expected, at `delta`")
    delta: PositiveFloat = Field(description="δ + 2δ'")
    deviation: OrInfinite = Field(description="standard deviation of ε by the noise of the value")
    total: OrInfinite = Field(description="the sum before noise, Rényi, at the order of `sanitize`")
    cost: OrInfinite = Field(description="of the release itself, Rényi, at that order")
    worst_case: OrInfinite | None = Field(
        description="the claim of a run that publishes; null: no plan keeps the budget"
    )
    stop: Stop | None


class ForecastRow(Part):
    """The recipe with a threshold and a noise of the check. Nothing is known of what can't be planned, nor of answers
    where there are none."""

    threshold: PositiveFloat
    selection_multiplier: PositiveFloat
    chosen: bool = Field(description="it is the recipe's own")
    noise_multiplier: PositiveFloat | None
    answered: Probability
    right: Probability | None
    stop: Stop | None
    worst_case: OrInfinite | None = Field(description="null: no plan keeps the budget")


class ForecastThreshold(Part):
    """A threshold with the recipe's noise; these are finer than the rows."""

    threshold: PositiveFloat
    answered: Probability
    right: Probability | None


class ForecastPoint(Part):
    """ε of a plan for some queries. What is sanitised has the constants of `Forecast.release`."""

    queries: PositiveInt
    worst_case: OrInfinite
    data_dependent: OrInfinite
    sanitised: OrInfinite | None


class Forecast(Document):
    """A forecast of a recipe's queries on simulated votes."""

    model_config = ConfigDict(title="dprecipe votes")

    schema_: Literal["dprecipe.votes/v1"] = Field("dprecipe.votes/v1", alias="schema")
    recipe: RecipeName
    aggregator: str
    teachers: PositiveInt
    classes: PositiveInt
    noise_multiplier: PositiveFloat
    threshold: PositiveFloat | None = Field(description="null: every query is answered")
    selection_multiplier: PositiveFloat | None
    simulated: Simulated
    delta: PositiveFloat
    planned: PositiveInt
    queries: PositiveInt = Field(
        description="of which the figures are: all, or those of an interactive run's first round"
    )
    answered: Probability = Field(description="share of the queries")
    right: Probability = Field(description="share of the answers that are the class with the most votes")
    stop: Stop
    has_paid_steps: bool = Field(description="paid steps of preprocessing: in the worst case alone")
    worst_case: OrInfinite = Field(description="the claim")
    unpublished: OrInfinite = Field(description="`worst_case` of the recipe without `sanitize`")
    data_dependent: Costs
    sanitised: ForecastRelease | None = Field(description="by the recipe's constants")
    suggested: ForecastRelease | None
    rows: tuple[ForecastRow, ...]
    thresholds: tuple[ForecastThreshold, ...]
    points: Annotated[tuple[ForecastPoint, ...], Field(min_length=1)]

    @property
    def release(self) -> ForecastRelease | None:
        """The recipe's own, else what is suggested."""
        return self.sanitised or self.suggested

    @computed_field(description="what may be published is expected to be below `unpublished`")  # type: ignore[prop-decorator]
    @property
    def pays(self) -> bool:
        result = self.release
        return result is not None and result.worst_case is not None and result.epsilon < self.unpublished

    @computed_field(description="says whether to publish a data-dependent ε")  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        release = self.release
        if release is None:
            if self.queries < self.planned:
                reason = "what interactive queries cost depends on earlier answers, and has no smooth sensitivity"
            elif self.has_paid_steps:
                reason = "`sanitize` and paid steps of preprocessing exclude each other"
            else:
                reason = "the sensitivity of this many teachers' votes is not worked out"
            return f"A data-dependent ε can't be published here: {reason}.\nThe claim is the worst case."
        owner = "the recipe's constants" if self.sanitised is not None else "the constants suggested"
        figures = (
            f"With {owner} ε = {release.epsilon:.3g} at δ = {release.delta:g} is to be expected; the worst case is "
            f"{self.unpublished:g} at δ = {self.delta:g}."
        )
        rule = f"below about {FEW_TEACHERS:,} teachers the noise that makes it publishable takes what agreement gains"
        has_few_teachers = self.teachers < FEW_TEACHERS
        if self.pays:
            lines = ["Publishing a data-dependent ε would pay.", figures]
            if release.worst_case is not None and self.sanitised is not None:
                lines.append(f"The claim for everyone, whatever the votes, is then ε = {release.worst_case:g}.")
            lines.append(
                "It holds for the votes of the run, not for other data; its constants must be chosen before them."
            )
            if has_few_teachers:
                lines.append(f"Do not rely on it: {rule}. Try less agreement.")
        elif release.worst_case is None and release.epsilon < self.unpublished:
            lines = [
                "Publishing a data-dependent ε does not fit this budget: the release by itself costs too much.",
                figures,
            ]
        else:
            lines = ["Publishing a data-dependent ε does not pay.", figures]
            lines += [f"As a rule, {rule}."] if has_few_teachers else []
            lines.append("A private report, `analysis: data_dependent` without `sanitize`, costs nothing.")
        stop = self.stop
        if stop.reason == "filter" and stop.queries < 0.99 * self.queries:
            lines.append(
                f"Data-dependent figures count all {self.queries:,} planned queries, the filter lets about "
                f"{stop.queries:,.0f} through: plan fewer, and they shrink."
            )
        return "\n".join(lines)
