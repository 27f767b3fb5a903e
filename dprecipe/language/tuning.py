"""The `tuning` block: which values are tried, how often, and by which score one model is chosen."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dprecipe.language.base import Block, NonNegativeFloat, PositiveFloat, PositiveInt, Text

MAX_RUNS = 1000
"""Largest mean of the number of runs."""
TUNABLE = ("training", "model", "mechanism", "data.preprocess")
"""The blocks whose keys can be tuned."""
Value = float | int | str | bool
"""A value of one key."""


class NegativeBinomialRunCount(Block):
    """Number of runs, at least one; the spread is set by `shape`."""

    kind: Literal["negative_binomial"]
    mean: Annotated[float, Field(gt=1, le=MAX_RUNS)] = Field(description="expected number of runs")
    shape: Annotated[NonNegativeFloat, Field(le=100)] = Field(
        0.5, description="η: 0 (logarithmic) is cheapest and often draws a single run, 1 is geometric"
    )

    @property
    def selection(self) -> tuple[str, float, float | None]:
        """Selection as the event writes it: (distribution, mean, shape)."""
        return self.kind, float(self.mean), float(self.shape)


class PoissonRunCount(Block):
    """Truncated Poisson: at least one run, and numbers close to the mean."""

    kind: Literal["poisson"]
    mean: Annotated[float, Field(ge=1.01, le=MAX_RUNS)] = Field(description="expected number of runs")

    @property
    def selection(self) -> tuple[str, float, float | None]:
        """Selection as the event writes it."""
        return self.kind, float(self.mean), None


class FixedRunCount(Block):
    """A number of runs that is no secret; dearer than a secret number of the same mean."""

    kind: Literal["fixed"]
    count: Annotated[PositiveInt, Field(le=MAX_RUNS)] = Field(description="number of runs")

    @property
    def selection(self) -> tuple[str, float, float | None]:
        """Selection as the event writes it."""
        return self.kind, float(self.count), None


RunCount = Annotated[NegativeBinomialRunCount | PoissonRunCount | FixedRunCount, Field(discriminator="kind")]


class Candidates(Block):
    """The values that one key of the recipe may take: a list, or a range with a scale."""

    key: Annotated[Text, Field(max_length=200)] = Field(description="dotted path, such as training.optimizer.lr")
    values: Annotated[tuple[Value, ...], Field(min_length=1, max_length=100)] | None = Field(
        None, description="a list to draw from, all equally likely"
    )
    range: tuple[float, float] | None = Field(None, description="smallest and largest value")
    scale: Literal["linear", "log"] | None = Field(
        None, description="of a range: values, or their logarithms, are drawn uniformly"
    )


class TuningScore(Block):
    """Score that the runs are compared by: a score on public records, or a noisy one on private records."""

    metric: Literal["accuracy", "balanced_accuracy", "auc", "average_precision", "loss", "mean_absolute_error"] = Field(
        description="private records: `accuracy` alone"
    )
    records: Literal["test"] = Field("test", description="`test`: data.test; private records take `noise_multiplier`")
    noise_multiplier: PositiveFloat | None = Field(
        None,
        description="standard deviation of the noise on the number of right answers among private records, which every "
        "run pays for; null where they are public",
    )

    @property
    def figure(self) -> str:
        """The name of what runs are compared by."""
        return self.metric if self.noise_multiplier is None else "noisy_right_answers"


class KeptRuns(Block):
    """Runs that are kept although they are not chosen."""

    encrypt_to: Text = Field(description="file with a public key of age (age1…), whose private key is elsewhere")


class Tuning(Block):
    """Train several times with values drawn at random, and release the best model alone."""

    runs: RunCount = Field(description="how many runs there are; drawn before the first one, and kept secret")
    over: Annotated[tuple[Candidates, ...], Field(min_length=1, max_length=20)]
    score: TuningScore
    search: Literal["random", "bayesian", "tpe", "asha", "hyperband", "population"] = Field(
        "random", description="only `random` has a guarantee: each run draws its values by itself"
    )
    keep: KeptRuns | None = Field(None, description="the other runs, encrypted, in `private/`; null: they are deleted")
