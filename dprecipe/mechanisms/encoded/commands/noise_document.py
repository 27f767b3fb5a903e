"""The comparison of noise distributions, as text, JSON (`dprecipe.noise/v1`) and JSON Schema show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field

from dprecipe.contract.document import Document, OrInfinite, Part, RecipeName
from dprecipe.contract.drawing import CAP, INK, LINE, MARK, SOFT
from dprecipe.language.base import NonNegativeFloat, PositiveFloat, PositiveInt
from dprecipe.noise.families import FAMILIES
from dprecipe.privacy.adjacency import Neighbouring

MAX_L1_GAIN = 0.0079
"""Upper bound on how far, relative, an L1 error can be below that of Gaussian noise of the same Fisher information.

Source: docs/noise.md (the density Ai², the ground state of -ψ'' + |x| ψ, has 0.99213 of it).
"""
RESOLUTION = 5e-4
"""Relative differences below this are within the error of the solver, which stops within 1e-4 of the budget."""


class NamedNoise(Part):
    """A family of noise, and its shape."""

    family: Annotated[str, Field(json_schema_extra={"enum": list(FAMILIES)})]
    shape: float | None = Field(description="df or λ")

    @property
    def name(self) -> str:
        """`student_t(9)`."""
        return self.family if self.shape is None else f"{self.family}({self.shape:g})"


class Alternative(Part):
    """The answer of another accountant."""

    accountant: str
    epsilon: float


class Compared(NamedNoise):
    """A distribution at the smallest scale that keeps the budget. Errors are those of one coordinate of the noisy
    sum."""

    chosen: bool = Field(description="whether it is the recipe's own")
    multiplier: PositiveFloat
    scale: PositiveFloat = Field(description="multiplier × norm of a codeword")
    l1: OrInfinite = Field(description="E|noise|, averaged over coordinates; null: the distribution has no mean")
    l2: OrInfinite = Field(description="root mean square; null: the distribution has no variance")
    l1_ratio: OrInfinite = Field(description="over that of gaussian noise")
    l2_ratio: OrInfinite = Field(description="over that of gaussian noise")
    equal_fisher_scale: PositiveFloat = Field(
        description="the standard deviation of gaussian noise with the same Fisher information"
    )
    signal_to_noise: NonNegativeFloat = Field(
        description="norm of a sum of parallel codewords over the root mean square norm of its noise; 0 where that is "
        "infinite"
    )
    epsilon: float
    accountant: str
    alternative: Alternative


class LeftOut(NamedNoise):
    """A distribution that this budget refuses."""

    reason: str


class ComparedBudget(Part):
    """The budget at which all are compared."""

    epsilon: PositiveFloat
    delta: PositiveFloat
    neighbouring: Neighbouring
    accountant: str


class ComparedCodebook(Part):
    """Facts of the codewords that the accounting uses."""

    words: PositiveInt
    norm: PositiveFloat = Field(description="L2 norm of a codeword")
    envelope: Annotated[float, Field(ge=1)] = Field(
        description="L2 norm of the codewords' envelope over `norm`; noise other than gaussian is accounted with it"
    )


class Comparison(Document):
    """All distributions at one budget and length, the smallest L2 error first, then the smallest L1 error."""

    model_config = ConfigDict(title="dprecipe noise")

    schema_: Literal["dprecipe.noise/v1"] = Field("dprecipe.noise/v1", alias="schema")
    recipe: RecipeName
    mechanism: str
    compared_as: Literal["encoded"] = "encoded"
    budget: ComparedBudget
    steps: PositiveInt
    sampling_rate: Annotated[float, Field(gt=0, le=1)] | None
    codes: PositiveFloat = Field(description="expected number of codes in a sum: its public divisor")
    dimension: PositiveInt
    codebook: ComparedCodebook
    exchanged: bool = Field(description="units share codes in micro-batches, so that a neighbour exchanges a code")
    distributions: Annotated[tuple[Compared, ...], Field(min_length=1)]
    left_out: tuple[LeftOut, ...] = Field(description="distributions that this budget refuses")

    @computed_field(return_type=NamedNoise)  # type: ignore[prop-decorator]
    @property
    def min_l1(self) -> Compared:
        return _select_smallest(self.distributions, lambda compared: compared.l1_ratio)

    @computed_field(return_type=NamedNoise)  # type: ignore[prop-decorator]
    @property
    def min_l2(self) -> Compared:
        return _select_smallest(self.distributions, lambda compared: compared.l2_ratio)

    @computed_field(description="a distribution gains more than Fisher information alone allows")  # type: ignore[prop-decorator]
    @property
    def matters(self) -> bool:
        return self.min_l2.l2_ratio < 1 - RESOLUTION or self.min_l1.l1_ratio < 1 - MAX_L1_GAIN - RESOLUTION

    @computed_field(description="the conclusion, in plain words")  # type: ignore[prop-decorator]
    @property
    def verdict(self) -> str:
        best = f"Smallest L1 error: {_format_gain(self.min_l1, 'l1_ratio')}. "
        best += f"Smallest L2 error: {_format_gain(self.min_l2, 'l2_ratio')}."
        if self.matters:
            lines = [
                best,
                "The choice matters here: with few coordinates, one unit moves single coordinates by a large part "
                "of the",
                "noise's scale, so more than Fisher information counts. The gain shrinks with more coordinates.",
            ]
        else:
            lines = [
                best,
                f"The choice hardly matters: over {self.dimension:,} coordinates only Fisher information counts. At "
                "equal Fisher information",
                f"no distribution has a smaller L2 error than gaussian noise, nor an L1 error smaller by more than "
                f"{MAX_L1_GAIN:.2%}. Use gaussian.",
            ]
        return "\n".join([*lines, *self._explain_bounds()])

    def _explain_bounds(self) -> list[str]:
        """Differences that come from the bounds that can be proved, not from the distributions."""
        lines = []
        longer = self.codebook.envelope - 1
        if longer > 1e-3:
            lines.append(
                f"All others pay {longer:.1%} for the envelope of {self.codebook.words:,} codewords; gaussian noise "
                "does not. With one codeword none does."
            )
        if self.budget.neighbouring is Neighbouring.REPLACE_ONE:
            lines.append(
                "Under replace_one all others are charged for removing one unit and adding another; gaussian noise has "
                "a tighter bound of its own."
            )
        if self.exchanged:
            lines.append("For micro-batches all others have looser bounds than gaussian noise.")
        return lines


def _format_gain(row: Compared, error: str) -> str:
    gain = 1 - float(getattr(row, error))
    return row.name if row.family == "gaussian" else f"{row.name}, {gain:.1%} below gaussian"


def _select_smallest(distributions: tuple[Compared, ...], error: Callable[[Compared], float]) -> Compared:
    """The distribution with the smallest error; Gaussian noise if none is better by more than the solver's error."""
    result = min(distributions, key=error)
    gaussian = next(row for row in distributions if row.family == "gaussian")
    return result if error(result) < error(gaussian) * (1 - RESOLUTION) else gaussian


LEFT, WIDTH, RIGHT, ROW, TOP, BOTTOM = 140, 330, 150, 24, 60, 50
MAX_RATIO = 1.5
"""Largest error that is drawn to scale; larger ones, including infinite ones, are an arrow at the edge."""
MARGIN = 0.02


def plot_noise(comparison: Comparison) -> str:
    """Draws one row for each distribution, in the order of the table: a disc for its L1 error, a square for its L2
    error."""
    ratios = [ratio for row in comparison.distributions for ratio in (row.l1_ratio, row.l2_ratio)]
    low = min(ratios) - MARGIN
    high = max(ratio for ratio in ratios if ratio <= MAX_RATIO) + MARGIN

    def x(ratio: float) -> float:
        return LEFT + WIDTH * (ratio - low) / (high - low)

    bottom = TOP + ROW * len(comparison.distributions)
    parts = [_text(LEFT, 22, "Error at equal privacy, gaussian = 1", INK, "start", bold=True)]
    parts += [_disc(LEFT + 5, 40), _text(LEFT + 14, 44, "L1, E|noise|", SOFT, "start")]
    parts += [_square(LEFT + 115, 40), _text(LEFT + 124, 44, "L2, root mean square", SOFT, "start")]
    for head, column in (("L1", 70), ("L2", 140)):
        parts.append(_text(LEFT + WIDTH + column, 44, head, SOFT, "end"))
    for tick in _ticks(low, high):
        parts.append(_line(x(tick), TOP, x(tick), bottom, LINE, 1))
        parts.append(_text(x(tick), bottom + 18, f"{tick:g}", SOFT, "middle"))
    parts.append(_line(x(1), TOP, x(1), bottom, INK, 1))
    for index, row in enumerate(comparison.distributions):
        y = TOP + ROW * index + ROW / 2
        parts.append(_text(LEFT - 10, y + 4, row.name, INK, "end", bold=row.chosen))
        for ratio, mark, column in ((row.l2_ratio, _square, 140), (row.l1_ratio, _disc, 70)):
            parts.append(mark(x(ratio), y) if ratio <= MAX_RATIO else _arrow(x(high), y))
            label = f"{ratio:.3f}" if math.isfinite(ratio) else "infinite"
            parts.append(_text(LEFT + WIDTH + column, y + 4, label, INK, "end"))
    budget = comparison.budget
    size = f"{comparison.steps:,} steps, {comparison.dimension:,} coordinates"
    note = f"ε = {budget.epsilon:g}, δ = {budget.delta:g}, {size}"
    parts.append(_text(LEFT, bottom + 38, note, SOFT, "start"))
    width, height = LEFT + WIDTH + RIGHT, bottom + BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img" aria-label="errors of noise distributions" font-family="system-ui, sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _ticks(low: float, high: float) -> list[float]:
    step = next(step for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if (high - low) / step <= 7)
    return [round(n * step, 2) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _text(x: float, y: float, text: str, fill: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def _disc(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{MARK}"/>'


def _square(x: float, y: float) -> str:
    return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{CAP}"/>'


def _arrow(x: float, y: float) -> str:
    return f'<path d="M{x - 9:.1f} {y - 4:.1f} L{x - 1:.1f} {y:.1f} L{x - 9:.1f} {y + 4:.1f} Z" fill="{SOFT}"/>'
