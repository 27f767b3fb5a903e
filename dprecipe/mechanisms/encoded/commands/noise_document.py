"""The comparison of noise distributions, as text, JSON (`dprecipe.noise/v1`) and JSON Schema show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, computed_field

from dprecipe.contract.document import Document, OrInfinite, Part, RecipeName
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
