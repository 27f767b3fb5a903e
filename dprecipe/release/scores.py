"""Released scores as people read them: each beside the score that takes no model at all.

Scores are read by name from the certificate's block, so a new kind of score needs no line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dprecipe.data.facts import describe_data
from dprecipe.data.schema import Data
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, TokenTarget
from dprecipe.language.base import Block
from dprecipe.page import render_table
from dprecipe.release.score_blocks import AnyScore, SeveralScore

COUNTS = frozenset({"records", "tokens"})
"""Names of the scores' counts: how much was scored."""
SHARES = frozenset({"accuracy", "balanced_accuracy"})
"""Scores that are shares of records, shown in percent."""
ALONG_A_RUN = ("accuracy", "mean_absolute_error", "perplexity")
"""Scores that a history may have; a history has one of them."""
SMALLER_IS_BETTER = frozenset(
    {"loss", "mean_absolute_error", "root_mean_squared_error", "poisson_deviance", "calibration_error", "perplexity"}
)
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
    return {
        key: value
        for key, value in released.model_dump().items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in COUNTS
    }


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
    """Returns the first score as a tile, its baseline first."""
    first = list_rows(released)[0]
    against = f"{first.baseline} without a model; " if first.baseline else ""
    return ((first.value, f"{first.name}{': ' if against else ' '}{against}on {records:,} records declared public"),)


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
