"""The scores that a certificate states, one block for each kind of label. What was not measured is left out."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dprecipe.contract.facts import Probability, Word
from dprecipe.data.targets import MAX_NAMES, ClassTarget, SeveralTarget, Target, TokenTarget
from dprecipe.language.base import NonNegativeFloat, PositiveInt, SparseBlock
from dprecipe.release.facts import PublicScore


class ReleasedScore(SparseBlock):
    """A score on public records. What was not measured is left out."""


class ClassifierScore(ReleasedScore):
    """Score of a released classifier on public records."""

    accuracy: Probability
    accuracy_baseline: Probability | None = Field(None, description="of the commonest class of these records")
    balanced_accuracy: Probability | None = None
    balanced_accuracy_baseline: Probability | None = None
    f1: Probability | None = Field(None, description="mean over the classes that occur")
    f1_baseline: Probability | None = None
    auc: Probability | None = Field(None, description="of two classes the second; else the mean of each against all")
    auc_baseline: Probability | None = None
    average_precision: Probability | None = None
    average_precision_baseline: Probability | None = None
    calibration_error: Probability | None = Field(None, description="expected, in ten equal parts of [0, 1]")
    loss: NonNegativeFloat
    records: PositiveInt


class NumericScore(ReleasedScore):
    """Score of a released regression on public records, in the units of its predictions."""

    mean_absolute_error: NonNegativeFloat
    mean_absolute_error_baseline: NonNegativeFloat | None = Field(None, description="of the median label")
    root_mean_squared_error: NonNegativeFloat | None = None
    root_mean_squared_error_baseline: NonNegativeFloat | None = Field(None, description="of the mean label")
    r2: float | None = None
    r2_baseline: float | None = None
    poisson_deviance: NonNegativeFloat | None = None
    poisson_deviance_baseline: NonNegativeFloat | None = Field(None, description="of the mean label")
    loss: NonNegativeFloat = Field(description="the mean squared error; of counts, the mean Poisson deviance")
    records: PositiveInt


class NameScore(ReleasedScore):
    """Score of one of the names that may apply."""

    name: Word
    share: Probability = Field(description="of these records: what average precision is without a model")
    f1: Probability
    f1_baseline: Probability = Field(description="of always yes")
    auc: Probability | None = Field(None, description="of names with both answers in these records")
    average_precision: Probability | None = None


class SeveralScore(ReleasedScore):
    """Score of a released model with several names, any of which may apply, on public records."""

    accuracy: Probability = Field(description="records whose every answer is right")
    accuracy_baseline: Probability | None = Field(None, description="of the commonest combination of these records")
    f1_macro: Probability = Field(description="mean over the names")
    f1_macro_baseline: Probability | None = Field(None, description="of always yes")
    f1_micro: Probability | None = Field(None, description="of all answers together")
    f1_micro_baseline: Probability | None = Field(None, description="of always yes")
    auc: Probability | None = Field(None, description="mean over the names with both answers in these records")
    auc_baseline: Probability | None = None
    average_precision: Probability | None = Field(None, description="mean over the same names")
    average_precision_baseline: Probability | None = None
    by_name: Annotated[tuple[NameScore, ...], Field(max_length=MAX_NAMES)] = ()
    loss: NonNegativeFloat
    records: PositiveInt


class TextScore(ReleasedScore):
    """Score of a released language model on public texts."""

    perplexity: Annotated[float, Field(ge=0)] = Field(description="of all learned tokens together")
    base_perplexity: Annotated[float, Field(ge=0)] | None = Field(
        None, description="of the weights that training began from, on the same tokens"
    )
    tokens: PositiveInt = Field(description="that are learned")
    loss: NonNegativeFloat = Field(description="the mean over records of their loss by token")
    records: PositiveInt


AnyScore = ClassifierScore | NumericScore | SeveralScore | TextScore


def score_block(target: Target) -> type[AnyScore]:
    """Returns the block that states scores of a model of this label."""
    if isinstance(target, SeveralTarget):
        return SeveralScore
    if isinstance(target, TokenTarget):
        return TextScore
    return ClassifierScore if isinstance(target, ClassTarget) else NumericScore


def state_score(score: PublicScore, target: Target) -> AnyScore:
    """Returns a score as a certificate states it."""
    figures = {"accuracy": score.accuracy, "mean_absolute_error": score.mean_absolute_error}
    known = {name: value for name, value in figures.items() if value is not None}
    block = score_block(target) if score.mean_absolute_error is None else NumericScore
    return block.model_validate({**score.full, **known, "loss": score.loss, "records": score.records})
