"""The `mechanism` block of PATE: teachers on disjoint parts of the private records vote, votes get noise."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from dprecipe.data.sources.base import Records
from dprecipe.language.base import Auto, Block, Fraction, Name, PositiveFloat, PositiveInt, SolvableInt, Text
from dprecipe.language.training import Optimizer
from dprecipe.models.schema import Model
from dprecipe.noise.schema import Noise, one_or_many

MAX_TEACHERS = 60_000

Multiplier = Annotated[float, Field(ge=1e-3, le=1e6)]
"""A noise multiplier of a recipe; beyond this range, no ledger could hold the event."""


class TeacherTraining(Block):
    """Training of each teacher on its part, by gradient steps. Exactly one of `epochs` and `steps`."""

    epochs: PositiveFloat | None = Field(
        None, description="passes over a part of average size; every teacher takes the same number of steps"
    )
    steps: PositiveInt | None = Field(None, description="updates of each teacher")
    batch_size: PositiveInt = Field(32, description="records in one update")
    optimizer: Optimizer


class VotesFile(Block):
    """The votes of an ensemble that was trained elsewhere, a row for each query: counts of each class in a column for
    each class, or the class that each teacher votes for, in a column for each teacher."""

    path: Text = Field(description="an .npz, .csv or .parquet file, below the data root")
    array: Text = Field("votes", description="of an .npz file: the name of the array")
    records: Records | None = Field(
        None, description="[first, end): the rows for `data.public`, in its order; without one, those that are asked"
    )

    @property
    def format(self) -> Literal["npz", "csv", "parquet"] | None:
        """The format of the file, by its name; None: no such format."""
        name = self.path.lower().removesuffix(".gz")
        ending = name.rpartition(".")[2]
        return "csv" if ending == "csv" else "parquet" if ending == "parquet" else "npz" if ending == "npz" else None


class Teachers(Block):
    """The ensemble: a model to be trained on each part, or the votes of one trained elsewhere; exactly one of them."""

    count: Annotated[int, Field(ge=2, le=MAX_TEACHERS)] = Field(description="N, the number of teachers")
    identity: Name | None = Field(
        None, description="column that identifies a record permanently; default: its number in the source"
    )
    model: Model | None = None
    training: TeacherTraining | None = Field(None, description="of teachers that learn by gradient steps")
    votes: VotesFile | None = None


class Selection(Block):
    """The check that selects queries: one is answered if its largest count, with noise, reaches the threshold."""

    threshold: PositiveFloat = Field(description="T, in votes")
    noise: Noise


class VotingRound(Block):
    """A round of queries with constants of its own. Those of the first round are in `selection` and `noise`."""

    queries: PositiveInt | None = Field(None, description="of every round but the last, which takes what is left")
    threshold: PositiveFloat | None = Field(
        None, description="how far the votes must exceed what the student expects; `interaction.threshold` if left out"
    )
    selection_multiplier: Multiplier | None = Field(
        None, description="standard deviation of the check's noise, in votes; that of `selection.noise` if left out"
    )
    multiplier: Multiplier | None = Field(
        None, description="standard deviation of the noise on each count, in votes; that of `noise` if left out"
    )


class Interaction(Block):
    """The student's part from the second round on: queries on which it agrees with the teachers are not answered."""

    rounds: Annotated[
        Annotated[Annotated[int, Field(ge=2, le=100)], Tag("one")]
        | Annotated[Annotated[tuple[VotingRound, ...], Field(min_length=2, max_length=100)], Tag("many")],
        Discriminator(one_or_many),
    ] = Field(
        2,
        description="number of rounds, or a list of them; after each, the student is trained on all answers so far",
    )
    threshold: PositiveFloat | None = Field(
        None, description="votes above those that the student predicts; default: `selection.threshold`"
    )
    confidence: Fraction = Field(0.95, description="above it, the student's own prediction becomes a label, at no cost")


class LnMax(Block):
    """The class with the most votes under Laplace noise; every query is answered (Papernot et al. 2017)."""

    kind: Literal["lnmax"]
    noise: Noise


class GnMax(Block):
    """The class with the most votes under Gaussian noise; every query is answered."""

    kind: Literal["gnmax"]
    noise: Noise


class ConfidentGnMax(Block):
    """The aggregator `gnmax`, for queries on which the teachers agree."""

    kind: Literal["confident_gnmax"]
    noise: Noise
    selection: Selection


class InteractiveGnMax(Block):
    """In the first round `confident_gnmax`; then for queries on which the teachers tell the student something new."""

    kind: Literal["interactive_gnmax"]
    noise: Noise
    selection: Selection
    interaction: Interaction = Field(default_factory=Interaction)


Aggregator = Annotated[LnMax | GnMax | ConfidentGnMax | InteractiveGnMax, Field(discriminator="kind")]


class Queries(Block):
    """The number of queries put to the teachers."""

    max: SolvableInt = Field(description="queries, at most; `auto`: as many as fit the budget")
    answers: PositiveInt | None = Field(None, description="answers, at most, if not every query is answered")


class SmoothSensitivity(Block):
    """Noise in proportion to the smooth sensitivity, which makes the data-dependent ε publishable. All constants are
    fixed before the votes are seen."""

    method: Literal["smooth_sensitivity"]
    order: Annotated[float, Field(ge=1.01, le=10_000)] = Field(description="α, the Rényi order of the bound")
    beta: PositiveFloat = Field(description="β of the smooth sensitivity")
    multiplier: Multiplier = Field(description="standard deviation of the bound's noise over its smooth sensitivity")
    scale_multiplier: Multiplier = Field(
        description="standard deviation of the noise of the sensitivity's logarithm, over β"
    )
    delta: Annotated[float, Field(gt=0, le=0.01)] = Field(
        1e-6, description="probability that a noise exceeds its allowance; adds twice as much to the statement's δ"
    )


class Pate(Block):
    """PATE (Papernot et al. 2017, 2018)."""

    kind: Literal["pate"]
    teachers: Teachers
    aggregator: Aggregator
    queries: Queries
    analysis: Literal["data_independent", "data_dependent"] = Field(
        "data_independent",
        description="`data_dependent`: also compute the cost of these votes, for a report in `private/`",
    )
    sanitize: SmoothSensitivity | None = Field(None, description="publish the data-dependent ε too; this costs privacy")

    @property
    def solvable(self) -> dict[str, float | int | Auto]:
        """The values that may be `auto`, by dotted path."""
        return {
            "mechanism.aggregator.noise.multiplier": self.aggregator.noise.multiplier,
            "mechanism.queries.max": self.queries.max,
        }

    @property
    def selection(self) -> Selection | None:
        """The check that selects queries; None where every query is answered."""
        return self.aggregator.selection if isinstance(self.aggregator, ConfidentGnMax | InteractiveGnMax) else None


BLOCK = Pate
