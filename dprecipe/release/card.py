"""`card.md` and `metrics.json`: a model card in the style of model hubs, and the public numbers, no others."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.planning.accept import open_warnings
from dprecipe.release import origins
from dprecipe.release.schema import ClassifierScore, Predicate

METRICS = "dprecipe.metrics/v1"
FIGURES = frozenset({"accuracy", "loss", "mean_absolute_error", "clip_norm"})
"""What is measured of a model along a run."""


def list_metrics(made: Predicate, history: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The content of `metrics.json`. `history` is kept only where evaluation was public, and of it what such a run can
    have measured: steps that rise, each with its figures. What was spent by a step is not repeated: it follows from the
    events."""
    evaluation = made.data_access.evaluation
    return {
        "schema": METRICS,
        "epsilon": made.claim.epsilon,
        "delta": made.claim.delta,
        "public_evaluation": None if evaluation.released is None else evaluation.released.model_dump(),
        "history": _of_run(history, made) if evaluation.status == "public" else [],
    }


def _of_run(history: Sequence[Any], made: Predicate) -> list[dict[str, float]]:
    """The points that a run can have measured, in rising order of steps; of one step measured twice, the last."""
    released = made.data_access.evaluation.released
    kind = frozenset({"accuracy", "mean_absolute_error"})
    if released is not None:
        kind &= released.model_fields_set
    points = {point["step"]: point for point in history if _measured(point, made, kind)}
    figures = {step: {name: value for name, value in points[step].items() if name in FIGURES} for step in points}
    return [{"step": int(step), **figures[step]} for step in sorted(figures)]


def _measured(point: Any, made: Predicate, kind: Set[str]) -> bool:
    """Whether a point has a step that was charged and figures in their range, one of them of this `kind` of model."""
    if not isinstance(point, dict) or not {"step"} < point.keys() <= FIGURES | {"step", "epsilon"}:
        return False
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in point.values()):
        return False
    scored = point.keys() & {"accuracy", "mean_absolute_error"}
    if len(scored) != 1 or not scored <= kind or not point.get("accuracy", 0) <= 1:
        return False
    most = min(made.sampling.steps_charged, made.sampling.steps_planned)
    return float(point["step"]).is_integer() and point["step"] <= most


def render_markdown(plan: Plan, made: Predicate) -> str:
    """The content of `card.md`."""
    claim, evaluation = made.claim, made.data_access.evaluation
    description = "_The recipe gives no description._"
    if plan.description.strip():
        description = f"In the words of the recipe's author: {plain_text(plan.description)}"
    if evaluation.released is not None:
        score = evaluation.released
        if isinstance(score, ClassifierScore):
            figures = f"| accuracy | {score.accuracy:.4f} |\n| loss | {score.loss:.4f} |"
        else:
            figures = (
                f"| mean absolute error | {score.mean_absolute_error:.6g} |\n| mean squared error | {score.loss:.6g} |"
            )
        results = (
            f"| metric | value |\n|---|---|\n{figures}\n| records | {score.records} |\n\nMeasured {evaluation.text}."
        )
    else:
        results = f"No score is published: evaluation was {evaluation.text}."
    rests = "\n".join(f"- {plain_text(a.text)} ({a.checked_by})" for a in made.assumptions)
    uncovered = "\n".join(f"- {plain_text(text)}" for text in claim.not_protected)
    return f"""{_front_matter(plan, made)}
# {plain_text(plan.name)}

{description}

## Privacy

{plain_text(claim.sentence)}
{_declared(made)}
{_warned(plan)}It rests on:

{rests}

Not protected:

{uncovered}

Check it, with nothing but this folder: `dprecipe verify .`

## Intended use

As described above. The recipe says no more about who this model is for; who publishes it should.

## Limits

Differential privacy bounds what the model tells of any one {plain_text(claim.unit.name)} it was trained on.
It promises nothing about accuracy, fairness, or data unlike the training data.

## Training

{_training(plan, made)}
The whole recipe is in `certificate.json`.

## Evaluation

{results}
"""


def _declared(made: Predicate) -> str:
    """What came from Python, each a paragraph."""
    return "".join(
        f"\n**Declared, and checked by nobody:** {plain_text(text)}.\n" for text in origins.list_declared(made)
    )


def _warned(plan: Plan) -> str:
    """What the compiler warned about and nobody accepted."""
    warned = open_warnings(plan.warnings)
    return f"Warnings of the recipe: {plain_text('; '.join(warned))}.\n\n" if warned else ""


def lost_steps(made: Predicate) -> str:
    """What the released model lacks of the steps that were charged, in words; else nothing."""
    charged, trained = made.sampling.steps_charged, made.sampling.steps_trained
    if trained is None or trained == charged:
        return ""
    what = mechanism_of(made.mechanism.kind).certificate.progress[1]
    return f"the model has {trained:,} of the {charged:,} {what} charged: interruptions took the others"


def _training(plan: Plan, made: Predicate) -> str:
    text, lost = _how(plan, made), lost_steps(made)
    return f"{text}\n{lost[:1].upper()}{lost[1:]}." if lost else text


def _how(plan: Plan, made: Predicate) -> str:
    initial = made.provenance.initial_weights
    start = (
        "" if initial is None else f"\nIt began from the weights in `{plain_text(initial.file)}` ({initial.digest})."
    )
    trained = mechanism_of(plan.mechanism).certificate.describe_run(plan, made.mechanism)
    return f"{_module(plan, made)}{trained}{start}"


def _module(plan: Plan, made: Predicate) -> str:
    """What was trained: the recipe's model, or what took its place."""
    if made.provenance.model == "python":
        return f"A module from Python, in place of the recipe's `{plan.model.kind}`"
    return f"`{plan.model.kind}`"


def plain_text(text: str) -> str:
    """Text of a recipe or certificate, as words and nothing else: no markup, no HTML, one line."""
    one_line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    escaped = one_line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|!~])", r"\\\1", escaped)


def _front_matter(plan: Plan, made: Predicate) -> str:
    """YAML between `---` lines; every value is a JSON string or number, which YAML reads the same way."""
    fields: dict[str, Any] = {
        "model_name": plan.name,
        "library_name": "dprecipe",
        "tags": [
            "differential-privacy",
            plan.mechanism,
            *([] if made.provenance.model == "python" else [plan.model.kind]),
        ],
        "differential_privacy": {
            "epsilon": made.claim.epsilon,
            "delta": made.claim.delta,
            "neighbouring": made.claim.neighbouring,
            "unit": made.claim.unit.name,
        },
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---"])
