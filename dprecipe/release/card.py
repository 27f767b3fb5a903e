"""`card.md` and `metrics.json`: a model card in the style of model hubs, and the public numbers alone."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.language.statement import QUESTIONS, ReleaseStatement, quote_words
from dprecipe.planning.accept import open_warnings
from dprecipe.release import audit, meaning, origins
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.no_model import SENTENCE, has_no_model
from dprecipe.release.schema import Predicate
from dprecipe.release.scores import ALONG_A_RUN, BY_NAME, AnyScore, list_names, list_rows, name_loss

METRICS = "dprecipe.metrics/v1"
METRIC_NAMES = frozenset({"accuracy", "loss", "mean_absolute_error", "perplexity", "clip_norm"})
"""The metrics that a run measures of its model."""


def list_metrics(predicate: Predicate, history: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Returns the content of `metrics.json`.

    `history` is published only where evaluation was public, and only the points that the run can have measured: steps
    in increasing order, each with its metrics. The ε spent up to a step is left out: it follows from the events.
    """
    evaluation = predicate.data_access.evaluation
    return {
        "schema": METRICS,
        "epsilon": predicate.claim.epsilon,
        "delta": predicate.claim.delta,
        "public_evaluation": None if evaluation.released is None else evaluation.released.model_dump(mode="json"),
        "history": _select_points(history, predicate) if evaluation.status == "public" else [],
    }


def _select_points(history: Sequence[Any], predicate: Predicate) -> list[dict[str, float]]:
    """Returns the points that the run can have measured, in increasing order of steps; for a step measured twice, the
    last."""
    released = predicate.data_access.evaluation.released
    scores = frozenset(ALONG_A_RUN)
    if released is not None:
        scores &= released.model_fields_set
    points = {point["step"]: point for point in history if _is_possible(point, predicate, scores)}
    rows = {step: {name: value for name, value in points[step].items() if name in METRIC_NAMES} for step in points}
    return [{"step": int(step), **rows[step]} for step in sorted(rows)]


def _is_possible(point: Any, predicate: Predicate, scores: Set[str]) -> bool:
    """Returns True if a point has a step that was charged, metrics in range, and one of this model's `scores`."""
    if not isinstance(point, dict) or not {"step"} < point.keys() <= METRIC_NAMES | {"step", "epsilon"}:
        return False
    if not all(type(value) in (int, float) and 0 <= value < math.inf for value in point.values()):
        return False
    scored = point.keys() & set(ALONG_A_RUN)
    if len(scored) != 1 or not scored <= scores or not point.get("accuracy", 0) <= 1:
        return False
    max_step = min(predicate.sampling.steps_charged, predicate.sampling.steps_planned)
    return float(point["step"]).is_integer() and point["step"] <= max_step


def render_markdown(plan: Plan, predicate: Predicate) -> str:
    """Returns the content of `card.md`."""
    claim, evaluation = predicate.claim, predicate.data_access.evaluation
    description = "_The recipe gives no description._"
    if plan.description.strip():
        description = f"In the words of the recipe's author: {plain_text(plan.description)}"
    if evaluation.released is not None:
        results = f"{render_scores(evaluation.released, name_loss(plan.data))}\nMeasured {evaluation.text}."
    else:
        results = f"No score is published. Evaluation: {evaluation.text}."
    assumptions = "\n".join(f"- {plain_text(a.text)} ({a.checked_by})" for a in predicate.assumptions)
    reveals = "the model reveals" if plan.has_model else "the labels reveal"
    uncovered = "\n".join(f"- {plain_text(text)}" for text in claim.not_protected)
    return f"""{_front_matter(plan, predicate)}
# {plain_text(plan.name)}

{description}

{_lost_paragraph(predicate)}## Privacy

{_attack_paragraphs(predicate)}{plain_text(claim.sentence)}
{_declared_paragraphs(predicate)}
{_context_list(predicate)}
{_audit_paragraph(predicate)}{_warnings_paragraph(plan)}It rests on:

{assumptions}

Not protected:

{uncovered}

Check it, with nothing but this folder: `dprecipe verify .`

{_statement_section(predicate)}
## Limits

Differential privacy bounds what {reveals} about any one {plain_text(claim.unit.name)}.
It promises nothing about accuracy, fairness, or data unlike the training data.

## Training

{_training_section(plan, predicate)}
The whole recipe is in `certificate.json`.

## Evaluation

{results}
"""


def _statement_section(predicate: Predicate) -> str:
    """Returns the section of what the recipe's author declares about the release."""
    stated = predicate.statement
    if stated is None:
        return (
            "## Intended use\n\nSee the description above. The recipe says no more about intended use "
            "(`release.statement`); whoever publishes the model should.\n"
        )
    rows = "".join(f"| {name} | {plain_text(text)} |\n" for name, text in stated.list_rows())
    head = "In the words of the recipe's author; declared, and checked by nobody."
    return f"## Statement of the curator\n\n{head}\n\n| | |\n|---|---|\n{rows}"


def render_scores(score: AnyScore, loss: str) -> str:
    """Returns the scores as tables, each beside its baseline; those of each name that may apply by themselves."""
    rows = "\n".join(f"| {row.name} | {row.value} | {row.baseline} |" for row in list_rows(score, loss))
    table = f"| metric | value | without a model |\n|---|---|---|\n{rows}\n| records | {score.records} | |\n"
    names = list_names(score)
    lines = [BY_NAME, tuple("---" for _ in BY_NAME), *(tuple(map(plain_text, row)) for row in names)]
    return table + ("\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) if names else "")


def _lost_paragraph(predicate: Predicate) -> str:
    """Returns what a reader has to know first of a release without a model."""
    return f"**{plain_text(SENTENCE)}.**\n\n" if has_no_model(predicate) else ""


def _declared_paragraphs(predicate: Predicate) -> str:
    """Returns one paragraph for each assumption about what came from Python."""
    return "".join(
        f"\n**Declared, and checked by nobody:** {plain_text(text)}.\n" for text in origins.list_declared(predicate)
    )


def _attack_paragraphs(predicate: Predicate) -> str:
    """Returns the meaning of the claim; empty where the run protects no one."""
    if predicate.randomness.insecure_seed is not None:
        return ""
    texts = (meaning.describe_attack(predicate.claim), meaning.describe_scale(predicate.claim))
    return "".join(f"{plain_text(text)}\n\n" for text in texts)


def _context_list(predicate: Predicate) -> str:
    return "".join(f"- {question}: {plain_text(text)}\n" for question, text in list_context(predicate))


def _audit_paragraph(predicate: Predicate) -> str:
    limits = "" if predicate.audit is None else f" {plain_text(audit.LIMITS)}."
    text = plain_text(audit.summarise_audit(predicate.audit))
    return f"{text[:1].upper()}{text[1:]}.{limits}\n\n"


def _warnings_paragraph(plan: Plan) -> str:
    """Returns the warnings that the recipe does not accept."""
    warnings = open_warnings(plan.warnings)
    return f"Warnings of the recipe: {plain_text('; '.join(warnings))}.\n\n" if warnings else ""


def describe_lost_steps(predicate: Predicate) -> str:
    """Describes how many of the charged steps the model has; empty where it has all, or there is no model."""
    charged, trained = predicate.sampling.steps_charged, predicate.sampling.steps_trained
    if trained is None or trained == charged or has_no_model(predicate):
        return ""
    noun = mechanism_of(predicate.mechanism.kind).certificate.progress[1]
    return f"the model has {trained:,} of the {charged:,} {noun} charged; interruptions lost the others"


def describe_kept(predicate: Predicate) -> str:
    """Describes which iterate was released; empty where it is the last."""
    kept = predicate.data_access.evaluation.kept
    if kept is None:
        return ""
    seen = (
        f"of {kept.looked_at:,} iterates that were scored along the run"
        if kept.looked_at > 1
        else "the only one scored"
    )
    return (
        f"the model is that after step {kept.step:,}, the best by {kept.by.replace('_', ' ')} {seen}; all steps are "
        "charged, and the choice, by public records, costs nothing"
    )


def _training_section(plan: Plan, predicate: Predicate) -> str:
    if has_no_model(predicate):
        return f"There is no model: `{plan.model.kind}` was not trained, or all of it was lost."
    notes = (describe_lost_steps(predicate), describe_kept(predicate))
    return "\n".join([_describe_training(plan, predicate), *(f"{n[:1].upper()}{n[1:]}." for n in notes if n)])


def _describe_training(plan: Plan, predicate: Predicate) -> str:
    initial = predicate.provenance.initial_weights
    start = (
        ""
        if initial is None
        else f"\nTraining started from the weights in `{plain_text(initial.file)}` ({initial.digest})."
    )
    if initial is not None and initial.prior is not None:
        start += f"\nThey were learned from images made from a seed, and from no real data: {initial.prior.images}."
    if initial is not None and initial.learned is not None:
        start += f"\nOf them their file says: {plain_text(initial.learned.describe())}."
    trained = mechanism_of(plan.mechanism).certificate.describe_run(plan, predicate.mechanism)
    return f"{_describe_model(plan, predicate)}{trained}{start}"


def _describe_model(plan: Plan, predicate: Predicate) -> str:
    """Describes the trained model: the recipe's, or the module that replaced it; empty where there is none."""
    if not plan.has_model:
        return ""
    if predicate.provenance.model == "python":
        return f"A module from Python, in place of the recipe's `{plan.model.kind}`"
    return f"`{plan.model.kind}`"


def plain_text(text: str) -> str:
    """Puts text of a recipe or certificate on one line, with Markdown and HTML escaped."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|!~])", r"\\\1", escaped)


def _front_matter(plan: Plan, predicate: Predicate) -> str:
    """Writes YAML between `---` lines; every value is a JSON string or number, which YAML reads the same way."""
    fields: dict[str, Any] = {
        "model_name": plan.name,
        "library_name": "dprecipe",
        "tags": [
            "differential-privacy",
            plan.mechanism,
            *([plan.model.kind] if plan.has_model and predicate.provenance.model != "python" else []),
        ],
        "differential_privacy": {
            "epsilon": predicate.claim.epsilon,
            "delta": predicate.claim.delta,
            "neighbouring": predicate.claim.neighbouring,
            "unit": predicate.claim.unit.name,
        },
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---"])


def list_context(predicate: Predicate) -> list[tuple[str, str]]:
    """Returns each question, and its answer by the recipe or the account; or that the recipe names nobody."""
    stated = dict((predicate.statement or ReleaseStatement()).list_rows())
    rows = []
    for key in ("curators", "contact"):
        question = QUESTIONS[key]
        if question in stated:
            rows.append((question, f"{quote_words(stated[question])} (declared)"))
        else:
            rows.append((question, f"no one is named (the recipe has no release.statement.{key})"))
    return [*rows, ("other runs on the same data", describe_other_runs(predicate.account))]
