"""A forecast, as text, JSON (`dprecipe.votes/v1`) and JSON Schema show it: costs, the expected end, the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field

from dprecipe.contract.document import Document, OrInfinite, Part, RecipeName
from dprecipe.contract.drawing import CAP, INK, LINE, MARK, SOFT
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
    student: Probability = Field(description="chance that an interactive run's student knows the class of a query")
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


class ForecastRound(Part):
    """A round of an interactive run."""

    queries: PositiveInt
    threshold: PositiveFloat
    selection_multiplier: PositiveFloat
    noise_multiplier: PositiveFloat
    answered: Probability = Field(description="share of the queries")
    right: Probability | None = Field(description="share of the answers; null: hardly any answer is given")
    own: Probability = Field(description="share of the queries that the student labels itself, at no cost")
    own_right: Probability | None = Field(description="share of these; null: there are none")
    asked: NonNegativeFloat = Field(description="queries that are put, on average, before the run ends")
    answers: NonNegativeFloat


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
    rounds: tuple[ForecastRound, ...] = Field(description="of an interactive run")
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


LEFT, WIDTH, HEIGHT, TOP, BOTTOM, RIGHT = 60, 420, 200, 70, 60, 30
GREEN = "#15803d"

Line = tuple[str, str, Sequence[tuple[float, float]]]
"""A name, a colour, and points."""


def plot_votes(forecast: Forecast) -> str:
    """Draws one panel below the other; the first is left out where every query is answered."""
    panels: list[tuple[str, list[Line], float | None]] = []
    if forecast.threshold is not None:
        lines: list[Line] = [
            ("answered, of the queries", MARK, [(each.threshold, each.answered) for each in forecast.thresholds]),
            (
                "right, of the answers",
                GREEN,
                [(each.threshold, each.right) for each in forecast.thresholds if each.right is not None],
            ),
        ]
        panels.append(("Threshold, in votes", lines, forecast.threshold))
    points = forecast.points
    lines = [
        ("worst case", CAP, [(point.queries, point.worst_case) for point in points]),
        ("data-dependent, private", MARK, [(point.queries, point.data_dependent) for point in points]),
    ]
    sanitised = [(float(point.queries), point.sanitised) for point in points if point.sanitised is not None]
    if sanitised:
        lines.append(("sanitised", GREEN, sanitised))
    panels.append(("ε against queries", lines, None))
    parts, top = [], 0
    for title, series, mark in panels:
        parts += _panel(title, series, mark, top)
        top += TOP + HEIGHT + BOTTOM
    width = LEFT + WIDTH + RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" viewBox="0 0 {width} {top}" '
        'role="img" aria-label="simulated votes" font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{top}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _panel(title: str, lines: Sequence[Line], mark: float | None, above: int) -> list[str]:
    """Draws lines over common axes, their names on top, and a dashed line at `mark`."""
    series = [[(x, y) for x, y in points if math.isfinite(y)] for _, _, points in lines]
    everything = [point for points in series for point in points]
    low, high = min((x for x, _ in everything), default=0.0), max((x for x, _ in everything), default=1.0)
    low, high = (0.0 if mark is None else low), max(high, low + 1e-9)
    max_y = max((y for _, y in everything), default=1.0) * 1.05 or 1.0
    top, bottom = above + TOP, above + TOP + HEIGHT

    def x_of(x: float) -> float:
        return LEFT + WIDTH * (x - low) / (high - low)

    def y_of(y: float) -> float:
        return bottom - HEIGHT * y / max_y

    parts = [_text(LEFT, above + 24, title, INK, "start", bold=True)]
    for tick in _ticks(0.0, max_y):
        parts.append(_line(LEFT, y_of(tick), LEFT + WIDTH, y_of(tick), LINE))
        parts.append(_text(LEFT - 8, y_of(tick) + 4, f"{tick:g}", SOFT, "end"))
    for tick in _ticks(low, high):
        parts.append(_line(x_of(tick), top, x_of(tick), bottom, LINE))
        parts.append(_text(x_of(tick), bottom + 18, f"{tick:g}", SOFT, "middle"))
    if mark is not None and low <= mark <= high:
        parts.append(_line(x_of(mark), top, x_of(mark), bottom, SOFT, dashed=True))
        parts.append(_text(x_of(mark), bottom + 36, f"the recipe's, {mark:g}", SOFT, "middle"))
    x_legend = LEFT
    for (name, colour, _), points in zip(lines, series, strict=True):
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x_legend + 5}" cy="{above + 46}" r="4.5" fill="{colour}"/>')
        parts.append(_text(x_legend + 14, above + 50, name, SOFT, "start"))
        x_legend += 30 + 7 * len(name)
    return parts


def _ticks(low: float, high: float) -> list[float]:
    """Returns about five round numbers from low to high."""
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next((factor for factor in (1, 2, 5) if factor * unit >= rough), 10)
    return [float(f"{n * step:.10g}") for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, fill: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"{dash}/>'
