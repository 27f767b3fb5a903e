"""The release and its data in a bill of materials: the model card of CycloneDX 1.6, and a data sheet for each source.

A data sheet has what the recipe declares, and nothing measured: a verified certificate carries the recipe's text
already. What was spent, and by which mechanism, is the certificate's own statement. Properties have names of their own,
`dprecipe:epsilon` and so on, since CycloneDX has none for privacy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import DataFacts, describe_data
from dprecipe.data.schema import Data
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget, TokenTarget
from dprecipe.language.statement import ReleaseStatement, join_lines
from dprecipe.release import meaning, scores
from dprecipe.release.card import plain_text
from dprecipe.release.no_model import has_no_model
from dprecipe.release.schema import Predicate
from dprecipe.release.verify import Verified

Component = dict[str, Any]
"""A component of a bill, as values of JSON's types."""
IMAGE_AXES = 2
FAMILIES = {
    "logistic_regression": "linear model",
    "softmax_regression": "linear model",
    "linear": "linear model",
    "huber_svm": "linear model",
    "least_squares": "linear model",
    "huber_regression": "linear model",
    "location": "constant",
    "mlp": "multilayer perceptron",
    "cnn": "convolutional neural network",
    "wide_resnet": "residual neural network",
    "transformer": "transformer network",
    "transformers": "transformer network",
    "causal_lm": "transformer network",
    "timm": "neural network",
    "random_forest": "decision trees",
    "gradient_boosting": "decision trees",
}
"""Family of each kind of model."""
SHEETS = {"train": "training records", "public": "public records", "test": "held-out records"}
"""Name of each source of the block `data`."""
FROM_PYTHON = "The records were passed from Python; that they are what the recipe declares is declared."


def describe_release(verified: Verified) -> Component:
    """Returns the release as a component: a model with its card, or data where no model was released."""
    predicate = verified.statement.predicate
    provenance = predicate.provenance
    recipe = _read_declared(predicate)
    has_model = not has_no_model(predicate) and recipe["model"]["kind"] in FAMILIES
    licence = recipe["meta"].get("license")
    return {
        "type": "machine-learning-model" if has_model else "data",
        "bom-ref": "release",
        "name": provenance.recipe.name,
        "version": provenance.plan,
        "description": plain_text(verified.claim.sentence),
        **({"licenses": [{"license": {"name": plain_text(licence)}}]} if isinstance(licence, str) and licence else {}),
        "externalReferences": [{"type": "attestation", "url": "certificate.json"}],
        **({"modelCard": _describe_card(predicate, recipe)} if has_model else {}),
        "properties": [{"name": f"dprecipe:{name}", "value": value} for name, value in list_properties(predicate)],
    }


def _read_declared(predicate: Predicate) -> Mapping[str, Any]:
    """Returns the recipe as its author declares it, each block as values of JSON's types."""
    return predicate.provenance.recipe.resolved


def list_properties(predicate: Predicate) -> Iterator[tuple[str, str]]:
    """Yields the claim, what it rests on, and what the recipe's author declares, by name. Numbers are upper bounds."""
    claim, mechanism = predicate.claim, predicate.mechanism
    yield "epsilon", repr(claim.epsilon)
    yield "delta", repr(claim.delta)
    yield "neighbouring", claim.neighbouring
    yield "unit", claim.unit.name
    yield "unit:max_records", str(claim.unit.max_records)
    for group in claim.groups:
        yield f"group:{group.size}:epsilon", "unbounded" if group.epsilon is None else repr(group.epsilon)
    if claim.gdp is not None and claim.gdp.to_epsilon is None:
        yield "gdp:mu", repr(claim.gdp.mu)
    yield "mechanism", mechanism.kind
    yield "noise", mechanism_of(mechanism.kind).certificate.describe_noise(mechanism)
    for row in predicate.accounting:
        yield f"accountant:{row.role}", row.name
    yield "recipe", predicate.provenance.recipe.digest
    for assumption in predicate.assumptions:
        if assumption.checked_by == "declaration":
            yield "declared", assumption.text
    if predicate.statement is not None:
        for key, value in predicate.statement.model_dump(mode="json").items():
            yield f"statement:{key}", _write(value)


def describe_data_sheets(predicate: Predicate) -> list[Component]:
    """Returns what the recipe declares about each of its sources, as a component of the type `data`."""
    data = _read_declared(predicate)["data"]
    common = {key: value for key, value in data.items() if key not in SHEETS}
    return [_describe_sheet(predicate, role, data[role], common) for role in SHEETS if data.get(role) is not None]


def _describe_sheet(predicate: Predicate, role: str, source: Mapping[str, Any], common: Mapping[str, Any]) -> Component:
    declared = {**source, **common} if role == "train" else source
    stated = predicate.statement or ReleaseStatement()
    texts = {
        "train": predicate.data_access.training.text,
        "public": "" if predicate.data_access.public is None else predicate.data_access.public.text,
        "test": predicate.data_access.evaluation.text,
    }
    words = [
        "What the recipe declares; nothing here was measured.",
        *([f"Use: {texts[role]}."] if texts[role] else []),
        *([FROM_PYTHON] if predicate.provenance.data == "python" else []),
        *([f"Origin, as declared: {stated.data_source}"] if role == "train" and stated.data_source else []),
    ]
    sheet = {
        "type": "dataset",
        "name": SHEETS[role],
        "description": plain_text(" ".join(words)),
        "classification": str(source.get("access", "private_internal")),
        "contents": {"properties": [{"name": f"dprecipe:data:{n}", "value": v} for n, v in list_leaves(declared)]},
    }
    if role == "train" and stated.curators:
        sheet["governance"] = {"owners": [{"organization": {"name": plain_text(name)}} for name in stated.curators]}
    return {"type": "data", "bom-ref": f"data:{role}", "name": SHEETS[role], "data": [sheet]}


def _describe_card(predicate: Predicate, recipe: Mapping[str, Any]) -> dict[str, Any]:
    data, model, claim = Data.model_validate_json(json.dumps(recipe["data"])), recipe["model"], predicate.claim
    facts = describe_data(data)
    stated = predicate.statement or ReleaseStatement()
    from_python = predicate.provenance.model == "python"
    own = {"architectureFamily": FAMILIES[model["kind"]]} if not from_python else {}
    risk = {
        "name": plain_text(f"An attacker finds out {meaning.ask_question(claim)}"),
        "mitigationStrategy": plain_text(meaning.describe_attack(claim)),
    }
    uses = [plain_text(stated.intended_use)] if stated.intended_use else []
    return {
        "modelParameters": {
            "approach": {"type": _name_approach(recipe["training"], facts)},
            "task": name_task(facts),
            **own,
            "modelArchitecture": "a module from Python" if from_python else name_architecture(model),
            "datasets": [{"ref": sheet["bom-ref"]} for sheet in describe_data_sheets(predicate)],
            "inputs": [{"format": _name_input(data, facts)}],
            "outputs": [{"format": plain_text(facts.target.describe())}],
        },
        "quantitativeAnalysis": {"performanceMetrics": _list_metrics(predicate)},
        "considerations": {
            **({"useCases": uses} if uses else {}),
            "technicalLimitations": [plain_text(text) for text in claim.not_protected],
            "ethicalConsiderations": [risk],
        },
        "properties": [{"name": f"dprecipe:{n}", "value": v} for n, v in list_hyper_parameters(predicate)],
    }


def name_task(facts: DataFacts) -> str:
    """Returns what the model does, in the words of CycloneDX."""
    match facts.target:
        case ClassTarget():
            return "classification"
        case SeveralTarget():
            return "multi-label classification"
        case NumberTarget() | CountTarget():
            return "regression"
        case TokenTarget():
            return "text generation"


def name_architecture(model: Mapping[str, Any]) -> str:
    """Returns the kind of a block `model`; of models of other libraries, the name that they have there."""
    kind, hub = str(model["kind"]), model.get("hub")
    if hub is not None:
        return f"{hub['name']} at {hub['revision']}"
    return f"timm {model['name']}" if kind == "timm" else kind


def _name_approach(training: Mapping[str, Any], facts: DataFacts) -> str:
    if training.get("semi_supervised") is not None:
        return "semi-supervised"
    return "self-supervised" if isinstance(facts.target, TokenTarget) else "supervised"


def _name_input(data: Data, facts: DataFacts) -> str:
    if facts.vocabulary is not None:
        return "string"
    if data.train.table_columns is not None:
        return "table"
    return "image" if len(facts.source_shape) >= IMAGE_AXES else "array"


def _list_metrics(predicate: Predicate) -> list[dict[str, str]]:
    """Returns the released scores and their baselines, by the certificate's keys; none where none was released."""
    released = predicate.data_access.evaluation.released
    if released is None:
        return []
    where = f"{released.records} held-out public records"
    return [{"type": key, "value": repr(value), "slice": where} for key, value in scores.read_numbers(released).items()]


def list_hyper_parameters(predicate: Predicate) -> Iterator[tuple[str, str]]:
    """Yields the values of the recipe's blocks `model` and `training`, those that tuning chose, and the certificate's
    blocks `mechanism` and `sampling`, by path."""
    recipe = _read_declared(predicate)
    declared = dict(list_leaves({"model": recipe["model"], "training": recipe["training"]}))
    chosen = () if predicate.tuning is None else predicate.tuning.chosen
    yield from (declared | {value.key: _write(value.value) for value in chosen}).items()
    yield from list_leaves(predicate.model_dump(mode="json", include={"mechanism", "sampling"}))


def list_leaves(block: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the values of a block by dotted path, lists as JSON; what is null is left out."""
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from list_leaves(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", _write(value)


def _write(value: object) -> str:
    return join_lines(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
