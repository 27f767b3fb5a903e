"""The scores that a certificate states, one block for each kind of label, and how documents show them.

What was not measured is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dprecipe.contract.facts import Probability, Word
from dprecipe.data.facts import describe_data
from dprecipe.data.schema import Data
from dprecipe.data.targets import MAX_NAMES, ClassTarget, CountTarget, NumberTarget, SeveralTarget, Target, TokenTarget
from dprecipe.language.base import Block, NonNegativeFloat, PositiveInt, SparseBlock
from dprecipe.page import render_table
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


class KeptFacts(Block):
    """The iterate that was released, where it is the best by a public score; all steps are charged."""

    by: Word = Field(description="the score")
    step: PositiveInt = Field(description="its steps")
    looked_at: PositiveInt = Field(description="iterates that were scored")


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


COUNTS = frozenset({"records", "tokens"})
"""Names of the scores' counts: how much was scored."""
SHARES = frozenset({"accuracy", "balanced_accuracy"})
"""Scores that are shares of records, shown in percent."""
ALONG_A_RUN = ("accuracy", "mean_absolute_error", "perplexity")
"""Scores that a history may have; a history has one of them."""
SMALLER_IS_BETTER = frozenset(
    {"loss", "mean_absolute_error", "root_mean_squared_error", "poisson_deviance", "calibration_error", "perplexity"}
)
UNEQUAL = 0.75
"""The share of the commonest class from which accuracy alone says little."""
NEAR_CHANCE = 0.1
"""Part of the way from a constant answer to a perfect one, up to which a score is near chance."""
SPELT = {"auc": "AUC", "f1": "F1", "r2": "R²"}
"""Names of scores that are no words."""
EVERY_ANSWER = "records with every answer right"
"""Meaning of accuracy where any of several names may apply."""
BASELINE = "_baseline"
"""Ending of a baseline's key; before it is the score's own key."""


@dataclass(frozen=True, slots=True)
class Row:
    """One score as text. `baseline` is empty where there is none."""

    name: str
    baseline: str
    value: str


def read_numbers(released: Block) -> dict[str, float]:
    """Returns the scores of a block and their baselines by key, in its order; what was counted is none of them."""
    return select_numbers(released.model_dump())


def select_numbers(content: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores and baselines among `content`, in its order; what was counted is none of them."""
    return {
        key: value
        for key, value in content.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in COUNTS
    }


def list_leading(numbers: Mapping[str, float]) -> list[str]:
    """Returns the scores that say most: the first; but where classes are unequal, those that a constant answer does not
    reach, and accuracy after them."""
    first = next((key for key in numbers if not key.endswith(BASELINE)), None)
    if first != "accuracy" or numbers.get("accuracy" + BASELINE, 0.0) < UNEQUAL:
        return [] if first is None else [first]
    fair = ("balanced_accuracy", "auc") if "balanced_accuracy" in numbers else ("auc", "average_precision")
    return [*(key for key in fair if key in numbers), "accuracy"]


def hint_at_classes(numbers: Mapping[str, float]) -> list[str]:
    """Returns what may help a model that answers little but the commonest class; nothing of others."""
    value, chance = (numbers.get(key, 0.0) for key in ("balanced_accuracy", "balanced_accuracy" + BASELINE))
    if "balanced_accuracy" not in list_leading(numbers) or value > chance + NEAR_CHANCE * (1 - chance):
        return []
    return ["rarer classes are hardly found: docs/how-to/imbalance.md says what helps, such as training.class_weights"]


def spell_score(key: str) -> str:
    """Returns the name of a score in words."""
    return SPELT.get(key, key.replace("_", " "))


def describe_scores(numbers: Mapping[str, float], keys: Sequence[str]) -> str:
    """Returns scores in words, each beside the score that takes no model."""
    shown, what = [], " without a model"
    for key in keys:
        against = ""
        if key + BASELINE in numbers:
            against, what = f" ({format_score(key, numbers[key + BASELINE])}{what})", ""
        shown.append(f"{spell_score(key)} {format_score(key, numbers[key])}{against}")
    return ", ".join(shown)


def make_tile(key: str, numbers: Mapping[str, float], where: str, name: str = "") -> tuple[str, str]:
    """Returns a score as a tile, its baseline first. `where`: the records that were scored; `name`: of the score, where
    it has another."""
    name, baseline = name or spell_score(key), numbers.get(key + BASELINE)
    against = " " if baseline is None else f": {format_score(key, baseline)} without a model; "
    return format_score(key, numbers[key]), f"{name}{against}on {where}"


def list_rows(released: Block, loss: str = "loss") -> list[Row]:
    """Returns the scores of a block, in its order; `records` is none of them. `loss`: what its loss is, in words."""
    numbers = read_numbers(released)
    spelt = {"loss": loss, **({"accuracy": EVERY_ANSWER} if isinstance(released, SeveralScore) else {})}
    return [
        Row(
            spelt.get(key, key.replace("_", " ")),
            format_score(key, numbers[key + BASELINE]) if key + BASELINE in numbers else "",
            format_score(key, value),
        )
        for key, value in numbers.items()
        if not key.endswith(BASELINE)
    ]


BY_NAME = ("name", "share", "F1", "F1 of always yes", "AUC", "average precision")
"""The columns of `list_names`."""


def list_names(released: Block) -> list[tuple[str, ...]]:
    """Returns the scores of each name that may apply, as `BY_NAME` says; empty of other models."""
    if not isinstance(released, SeveralScore):
        return []
    return [
        (
            each.name,
            f"{each.share:.2%}",
            *("–" if value is None else f"{value:.4g}" for value in figures),
        )
        for each in released.by_name
        for figures in [(each.f1, each.f1_baseline, each.auc, each.average_precision)]
    ]


def list_headline(released: Block, records: int) -> Sequence[tuple[str, str]]:
    """Returns the scores that say most as tiles."""
    numbers, where = read_numbers(released), f"{records:,} records declared public"
    own = {"accuracy": EVERY_ANSWER} if isinstance(released, SeveralScore) else {}
    return tuple(make_tile(key, numbers, where, own.get(key, "")) for key in list_leading(numbers))


def render_scores(released: AnyScore, loss: str) -> str:
    """Returns the scores as tables of a page, each beside its baseline; those of each name that may apply by
    themselves."""
    rows = list_rows(released, loss)
    table = render_table(("score", "this model"), [(row.name, row.value) for row in rows])
    if any(row.baseline for row in rows):
        head = ("score", "without a model", "this model")
        table = render_table(head, [(row.name, row.baseline or "–", row.value) for row in rows])
    by_name = list_names(released)
    return table + (render_table(BY_NAME, by_name) if by_name else "")


def read_baseline(released: Block | None, key: str) -> float | None:
    """Returns the score that takes no model, beside the score `key`; None where the block has none."""
    value = None if released is None else released.model_dump().get(key + BASELINE)
    return float(value) if isinstance(value, int | float) else None


def format_score(key: str, value: float) -> str:
    """Returns a score as text."""
    return f"{value:.2%}" if key in SHARES else f"{value:.4g}"


def name_loss(data: Data) -> str:
    """Describes the `loss` of a score, by what is learned."""
    match describe_data(data).target:
        case ClassTarget():
            return "mean loss"
        case NumberTarget():
            return "mean squared error"
        case CountTarget():
            return "mean Poisson deviance"
        case SeveralTarget():
            return "mean binary cross entropy"
        case TokenTarget():
            return "mean over records of their loss by token"
