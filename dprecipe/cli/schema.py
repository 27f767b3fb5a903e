"""`dprecipe schema`: the JSON Schemas of the files that dprecipe reads and writes, for editors and other tools.

Draft 2020-12.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter

from dprecipe.account.schema import statement_schema
from dprecipe.cli.audit import AuditDocument
from dprecipe.cli.files import write_documents
from dprecipe.cli.recipe_schema import recipe_schema
from dprecipe.cli.render import Findings
from dprecipe.contract.document import DIALECT, schema_of
from dprecipe.contract.mechanism import MechanismPlan
from dprecipe.contract.plan import Assumption, PolicyRecord, plan_adapter
from dprecipe.contract.stages import TRAINING
from dprecipe.contract.table import MECHANISMS
from dprecipe.data.paid.schema import PAID
from dprecipe.nonprivate.documents import PublicPlanDocument, provenance_schema
from dprecipe.planning.compare_samplings import SamplingRow
from dprecipe.policy.read import policy_schema
from dprecipe.privacy.charge_shapes import charge_schemas
from dprecipe.privacy.comparison import AccountantRow
from dprecipe.release.schema import certificate_schema
from dprecipe.screen import write_output


def schema(
    out: Annotated[Path | None, typer.Option(help="The folder; `schemas` by default.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> int:
    """Writes every schema into a folder (`schemas` by default); returns the exit code.

    With `check` nothing is written, and a missing or outdated file makes the exit code 1.

    Raises:
        UsageFault: the folder can't be written.
    """
    folder = out if out is not None else Path("schemas")
    stale = [name for name in SCHEMAS if check and _text(folder / name) != schema_text(name)]
    if check:
        for name in stale:
            write_output([f"{folder / name} is out of date: run `dprecipe schema --out {shlex.quote(str(folder))}`"])
        write_output([f"{len(SCHEMAS)} schemas, {len(stale)} out of date"])
        return int(bool(stale))
    write_documents(folder, {name: schema_text(name) for name in SCHEMAS})
    write_output([f"wrote {len(SCHEMAS)} schemas into {folder}"])
    return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


Schema = dict[str, Any]

DIGEST: Schema = {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 1}


def plan_schema() -> Schema:
    """Returns the schema of the document `dprecipe.plan/v1`. Additions are allowed; what is here keeps its name and
    meaning."""
    point = _object(epsilon={"type": "number", "minimum": 0}, delta={"type": "number", "minimum": 0, "maximum": 1})
    at = _object(position=COUNT, **point["properties"])
    guarantee = _object(
        epsilon=NUMBER,
        delta=NUMBER,
        neighbouring={"enum": ["add_or_remove_one", "replace_one", "zero_out_one"]},
        unit=TEXT,
        accountant=TEXT,
        alternative=_object(accountant=TEXT, epsilon=NUMBER),
        profile={"type": "array", "items": point},
    )
    guarantee["properties"]["by_position"] = {"type": "array", "items": at, "minItems": 1, "maxItems": 1000}
    kinds, definitions = _details()
    document = _object(
        schema={"const": "dprecipe.plan/v1"},
        recipe=_object(name=TEXT, digest=DIGEST),
        digest=DIGEST,
        mechanism=TEXT,
        solved={"type": "object", "additionalProperties": NUMBER},
        steps=COUNT,
        sampling_rate={"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
        events={"type": "array", "items": {"oneOf": charge_schemas()}, "minItems": 1},
        guarantee=guarantee,
        budget=_object(epsilon=NUMBER, delta=NUMBER),
        released={"type": "array", "items": TEXT},
        assumptions={"type": "array", "items": _written(Assumption)},
        details={"type": "object", "description": "the mechanism's own constants"},
    )
    document["properties"]["comparison"] = {
        "type": "array",
        "items": _written(AccountantRow),
        "description": "with --compare-accountants: what others say of the same events; never the claim",
    }
    document["properties"]["sampling_comparison"] = {
        "type": "array",
        "items": _written(SamplingRow),
        "description": "with --compare-sampling: what other schemes would cost; never the claim",
    }
    document["properties"] |= {"stages": _stages(), "spending": _spending()}
    document["properties"]["policies"] = {
        "type": "array",
        "items": _written(PolicyRecord),
        "description": "the policies that the recipe was checked against, if there are any",
    }
    one_run = _object(epsilon=NUMBER)
    document["properties"]["one_run"] = {**one_run, "description": "of a tuned run: what one of its runs costs"}
    return {
        "$schema": DIALECT,
        "title": "dprecipe plan",
        **document,
        "allOf": kinds,
        "$defs": definitions,
    }


def _stages() -> Schema:
    """Returns the schema of the paid steps of preprocessing, for recipes that have any."""
    step: Schema = {"type": "integer", "minimum": 0, "description": "its number in data.preprocess, from 0"}
    place: Schema = {"type": "integer", "minimum": 0, "description": "its place in `events`, from 0"}
    events = {"type": "array", "items": _object(count=COUNT, event=place), "minItems": 1}
    stage = _object(step=step, kind={"enum": list(PAID)}, noise_multiplier=NUMBER, events=events)
    return {"type": "array", "items": stage, "minItems": 1}


def _spending() -> Schema:
    """Returns the schema of the cost that each of them, and the mechanism by itself, would have alone."""
    step: Schema = {"type": ["integer", "null"], "minimum": 0, "description": "null: of the mechanism"}
    part = _object(kind={"enum": [*PAID, TRAINING]}, step=step, epsilon={"type": "number", "minimum": 0})
    return {"type": "array", "items": part, "minItems": 2}


def _details() -> tuple[list[Schema], Schema]:
    """Returns the schema of `details` for each mechanism, by the fields of its plans, and the definitions that this
    refers to."""
    kinds: list[tuple[str, TypeAdapter[MechanismPlan]]] = [
        (mechanism.kind, plan_adapter(mechanism.plan_type)) for mechanism in MECHANISMS.values()
    ]
    result, combined = TypeAdapter.json_schemas([(kind, "serialization", result) for kind, result in kinds])
    rules = [
        {
            "if": {"properties": {"mechanism": {"const": kind}}},
            "then": {"properties": {"details": result[kind, "serialization"]}},
        }
        for kind, _ in kinds
    ]
    return rules, combined["$defs"]


def _written(kind: type) -> Schema:
    """Returns the schema of what `asdict` makes of a dataclass."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    return {**schema, "required": list(schema["properties"])}


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "recipe.schema.json": recipe_schema,
    "findings.schema.json": lambda: schema_of(Findings),
    "plan.schema.json": plan_schema,
    **{name: make for m in MECHANISMS.values() if m.commands for name, make in m.commands.SCHEMAS.items()},
    "certificate.schema.json": certificate_schema,
    "audit.schema.json": lambda: schema_of(AuditDocument),
    "policy.schema.json": policy_schema,
    "public-plan.schema.json": lambda: schema_of(PublicPlanDocument),
    "provenance.schema.json": provenance_schema,
    "account-statement.schema.json": statement_schema,
}
"""The generators by file name. A mechanism's commands define their own."""


def schema_text(name: str) -> str:
    """Returns the file's content; one version of dprecipe always gives the same."""
    return json.dumps(SCHEMAS[name](), indent=2, ensure_ascii=False) + "\n"
