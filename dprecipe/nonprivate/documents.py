"""Documents of a run without privacy: of its plan, and beside its weights, which say that nothing is guaranteed.

Beside the weights are `provenance.json`, `README.md` and `report.html`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from dprecipe.contract.document import Document, RecipeName
from dprecipe.contract.facts import Digest
from dprecipe.language.base import PositiveInt
from dprecipe.models.public_record import NO_GUARANTEE, PublicRecord
from dprecipe.page import escape_html, escape_lines, render_bullets, render_page, render_section, render_table
from dprecipe.release import card, scores
from dprecipe.release.scores import AnyScore


class PublicPlanDocument(Document):
    """A plan without privacy: `plan.json`, and what `dprecipe plan --format json` prints."""

    model_config = ConfigDict(title="dprecipe plan without privacy", extra="forbid")

    schema_: Literal["dprecipe.public-plan/v1"] = Field("dprecipe.public-plan/v1", alias="schema")
    recipe: RecipeName
    digest: Digest
    mechanism: Literal["none"] = "none"
    guarantee: None = None
    notice: Annotated[str, Field(json_schema_extra={"const": NO_GUARANTEE})] = NO_GUARANTEE
    steps: PositiveInt
    batch_size: PositiveInt


FOLDER = "weights"
"""Name of the folder of weights in a run's folder; no `release/`, which is for what a certificate covers."""
TITLE = "No privacy guarantee"
MEANING = (
    "These weights may hold any of the records that they were learned from. The recipe declares those records public; "
    "no program has checked that.",
    "There is no privacy certificate, and `dprecipe verify` finds none.",
    "A recipe that starts from these weights (model.init) states their digest and this origin in its own certificate, "
    "as an assumption.",
)


MEASURED = "Measured on records that the recipe declares public; the figures are in metrics.json."


def render_provenance(record: PublicRecord) -> bytes:
    """Writes `provenance.json`: the same as in the metadata of `model.safetensors`, to be read by people."""
    return (json.dumps(record.model_dump(mode="json", by_alias=True), indent=1) + "\n").encode()


def provenance_schema() -> dict[str, Any]:
    """Returns the JSON Schema of `provenance.json`."""
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    body = PublicRecord.model_json_schema(by_alias=True, mode="serialization")
    return {**dialect, **body, "title": "dprecipe provenance of weights without privacy"}


def list_rows(record: PublicRecord, file_digest: str) -> list[tuple[str, str]]:
    """Lists what there is to say of the weights, name and value."""
    rows = [
        ("recipe", f"{record.recipe.name}, {record.recipe.digest}"),
        ("model.safetensors", file_digest),
        ("updates", f"{record.steps:,}, seed {record.seed}"),
        ("began from", record.initial_weights or "weights drawn from the seed"),
    ]
    for used in record.data:
        what = "learned from" if used.role == "train" else "scored on"
        part = "" if used.records is None else f", records {used.records[0]:,} to {used.records[1] - 1:,}"
        rows.append((what, f"{used.count:,} records of source {used.source}{part}: {used.digest}"))
        rows += [(f"file {name}", digest) for name, digest in used.files.items()]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    return [*rows, ("versions", versions), ("device", record.device)]


def render_readme(record: PublicRecord, file_digest: str, score: AnyScore | None, loss: str) -> bytes:
    """Writes `README.md` of the folder. `loss`: what the loss of the score is, in words."""
    rows = [f"| {card.plain_text(name)} | {card.plain_text(value)} |" for name, value in list_rows(record, file_digest)]
    measured = "" if score is None else f"\n## How good the model is\n\n{card.render_scores(score, loss)}\n{MEASURED}\n"
    lines = [f"# {TITLE}", "", f"{NO_GUARANTEE[:1].upper()}{NO_GUARANTEE[1:]}.", "", *(f"- {text}" for text in MEANING)]
    return "\n".join([*lines, "", "| | |", "|---|---|", *rows, "", measured]).encode()


def render_report(record: PublicRecord, file_digest: str, score: AnyScore | None, loss: str, recipe: str) -> bytes:
    """Writes `report.html`."""
    notice = f"{NO_GUARANTEE[:1].upper()}{NO_GUARANTEE[1:]}."
    body = (
        f"<header><h1>{escape_html(record.recipe.name)}</h1><p>weights learned without privacy</p></header>"
        f'<section class="claim void"><h2>{TITLE}</h2><p class="plain">{escape_html(notice)}</p></section>'
        + render_section("What this means", render_bullets(MEANING))
        + ("" if score is None else _render_scores(score, loss))
        + render_section("Where the weights come from", render_table(("", ""), list_rows(record, file_digest)))
        + render_section("The recipe", f"<pre>{escape_lines(recipe)}</pre>")
    )
    return render_page(f"{record.recipe.name}: {TITLE.lower()}", body).encode()


def _render_scores(score: AnyScore, loss: str) -> str:
    text = f"{MEASURED} There are {score.records:,} of them."
    return render_section("How good the model is", f"{scores.render_scores(score, loss)}<p>{escape_html(text)}</p>")
