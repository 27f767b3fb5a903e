"""The bill of materials keeps to the schema of CycloneDX, and says what the certificate says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from referencing import Registry, Resource

from dprecipe.models.schema import Model
from dprecipe.release.bill import render_sbom
from dprecipe.release.bill_model import FAMILIES, list_hyper_parameters
from dprecipe.release.environment import InstalledPackage
from dprecipe.release.exports import EXPORTS
from dprecipe.release.facts import PublicScore
from dprecipe.release.schema import ChosenValue
from dprecipe.release.verify import Verified, verify
from tests.recipe_texts import SMALL
from tests.release.test_exports import RECIPE, STATEMENT
from tests.release.test_one_answer import release_of as release_of_gallery

SCHEMAS = {
    path.name: json.loads(path.read_text(encoding="utf-8"))
    for path in (Path(__file__).parent / "cyclonedx").glob("*.json")
}
BOM = "bom-1.6.SNAPSHOT.schema.json"
TABLE = """\
recipe: dprecipe/v1
name: ward
data:
  train:
    source: csv
    path: ward.csv
    columns:
      age: {kind: numeric, min: 0, max: 120}
      clinic: {kind: category, values: [north, south]}
    label: {column: stay, range: [0, 30]}
  test: {source: csv, path: held.csv}
  size: 1437
  unit: {column: patient_id, name: patient, max_records: 3}
  preprocess: [{one_hot: {}}]
model: {kind: mlp, hidden: [48, 32]}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: full_batch}
budget: {epsilon: 2.0, delta: 1e-5}
training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}
meta: {license: apache-2.0}
"""


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    jsonschema.Draft7Validator.check_schema(SCHEMAS[BOM])
    others = {name: Resource.from_contents(schema) for name, schema in SCHEMAS.items() if name != BOM}
    base = SCHEMAS[BOM]["$id"].rpartition("/")[0]
    registry: Registry[Any] = Registry().with_resources((f"{base}/{name}", each) for name, each in others.items())
    return jsonschema.Draft7Validator(
        SCHEMAS[BOM], registry=registry, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory, release_of: Callable[..., Path]) -> dict[str, Verified]:
    """Releases of several shapes."""

    def make(text: str, **changes: Any) -> Verified:
        return verify(release_of(text, tmp_path_factory.mktemp("run"), **changes))

    score = PublicScore(0.875, 0.5, 360, full={"accuracy_baseline": 0.125})
    return {
        "stated": make(RECIPE + STATEMENT, score=score),
        "small": make(SMALL),
        "table": make(TABLE),
        "module": make(SMALL, model="python", data="python"),
    }


def read_bill(verified: Verified) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The bill, its model, and the model's properties, of which each name occurs once."""
    bill = json.loads(EXPORTS["sbom"](verified))
    model = bill["metadata"]["component"]
    return bill, model, {each["name"]: each["value"] for each in model["properties"]}


def sheets_of(bill: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["bom-ref"]: each["data"][0] for each in bill["components"] if each["type"] == "data"}


def properties_of(holder: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in holder["properties"]}


@pytest.mark.parametrize("name", ["stated", "small", "table", "module"])
def test_it_keeps_to_the_schema_of_cyclonedx(
    name: str, verified: dict[str, Verified], validator: jsonschema.Draft7Validator
) -> None:
    more = [InstalledPackage("absl-py", "2.0", "a" * 64)]
    for text in (render_sbom(verified[name]), render_sbom(verified[name], more)):
        bill = json.loads(text)
        assert [error.message for error in validator.iter_errors(bill)] == []
        references = [each["bom-ref"] for each in (bill["metadata"]["component"], *bill["components"])]
        assert len(references) == len(set(references))
        named = [each["ref"] for each in bill["metadata"]["component"]["modelCard"]["modelParameters"]["datasets"]]
        assert {*named, *bill["dependencies"][0]["dependsOn"]} <= set(references)


@pytest.mark.parametrize("name", ["paid", "tuned", "encoded", "voted", "last"])
def test_bills_of_all_mechanisms_keep_to_it(name: str, validator: jsonschema.Draft7Validator) -> None:
    bill, _, properties = read_bill(release_of_gallery(name).verified)
    assert [error.message for error in validator.iter_errors(bill)] == []
    assert properties["dprecipe:mechanism"] in ("dpsgd", "encoded", "pate", "pnsgd")
    assert properties["dprecipe:noise"]


def test_of_a_tuned_run_the_card_has_the_chosen_values() -> None:
    stated = release_of_gallery("tuned").verified.statement.predicate
    assert stated.tuning is not None
    chosen = stated.tuning.model_copy(update={"chosen": (ChosenValue(key="training.optimizer.lr", value=0.25),)})
    values = dict(list_hyper_parameters(stated.model_copy(update={"tuning": chosen})))
    assert values["training.optimizer.lr"] == "0.25"
    assert dict(list_hyper_parameters(stated))["training.optimizer.lr"] != "0.25"


def test_a_release_without_a_model_has_no_card_of_one(validator: jsonschema.Draft7Validator) -> None:
    made = release_of_gallery("usual").verified
    stated = made.statement.predicate
    budget = stated.budget.model_copy(update={"stop_reason": "no_model"})
    predicate = stated.model_copy(update={"budget": budget})
    lost = replace(made, statement=made.statement.model_copy(update={"predicate": predicate}))
    bill, component, properties = read_bill(lost)
    assert [error.message for error in validator.iter_errors(bill)] == []
    assert component["type"] == "data"
    assert "modelCard" not in component
    assert float(properties["dprecipe:epsilon"]) == made.claim.epsilon


def test_the_schema_refuses_what_it_should(
    verified: dict[str, Verified], validator: jsonschema.Draft7Validator
) -> None:
    bill = json.loads(render_sbom(verified["small"]))
    bill["metadata"]["component"]["modelCard"]["epsilon"] = 2
    assert not validator.is_valid(bill)


@pytest.mark.parametrize("name", ["stated", "table"])
def test_the_claim_is_that_of_the_certificate(name: str, verified: dict[str, Verified]) -> None:
    claim = verified[name].claim
    _, model, properties = read_bill(verified[name])
    assert model["type"] == "machine-learning-model"
    assert float(properties["dprecipe:epsilon"]) == claim.epsilon
    assert float(properties["dprecipe:delta"]) == claim.delta
    assert properties["dprecipe:neighbouring"] == claim.neighbouring
    assert properties["dprecipe:unit"] == claim.unit.name == {"stated": "record", "table": "patient"}[name]
    assert properties["dprecipe:unit:max_records"] == str(claim.unit.max_records)
    groups = {group.size: group.epsilon for group in claim.groups}
    assert set(groups) == {2, 3, 4}
    for size, epsilon in groups.items():
        assert properties[f"dprecipe:group:{size}:epsilon"] == ("unbounded" if epsilon is None else repr(epsilon))
    (risk,) = model["modelCard"]["considerations"]["ethicalConsiderations"]
    assert "such guesses are right; with it, at most" in risk["mitigationStrategy"]


def test_the_card_of_a_model_of_a_table(verified: dict[str, Verified]) -> None:
    bill, model, _ = read_bill(verified["table"])
    parameters = model["modelCard"]["modelParameters"]
    assert parameters["task"] == "regression"
    assert (parameters["architectureFamily"], parameters["modelArchitecture"]) == ("multilayer perceptron", "mlp")
    assert (parameters["inputs"], parameters["approach"]) == ([{"format": "table"}], {"type": "supervised"})
    assert model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"] == []
    assert model["licenses"] == [{"license": {"name": "apache-2.0"}}]
    values = properties_of(model["modelCard"])
    assert values["dprecipe:training.optimizer.lr"] == "0.5"
    assert values["dprecipe:model.hidden"] == "[48, 32]"
    noise = verified["table"].statement.predicate.mechanism.model_dump()["noise"]
    assert values["dprecipe:mechanism.noise.multiplier"] == repr(noise["multiplier"])
    assert values["dprecipe:sampling.steps_charged"] == "20"
    sheets = sheets_of(bill)
    assert set(sheets) == {"data:train", "data:test"}
    declared = properties_of(sheets["data:train"]["contents"])
    assert declared["dprecipe:data:columns.age.max"] == "120.0"
    assert declared["dprecipe:data:columns.clinic.values"] == '["north", "south"]'
    assert declared["dprecipe:data:unit.column"] == "patient_id"
    assert declared["dprecipe:data:size"] == "1437"
    assert {sheet["classification"] for sheet in sheets.values()} == {"private_internal"}


def test_scores_and_statement_are_in_the_card(verified: dict[str, Verified]) -> None:
    bill, model, properties = read_bill(verified["stated"])
    card = model["modelCard"]
    metrics = {
        each["type"]: (each["value"], each["slice"]) for each in card["quantitativeAnalysis"]["performanceMetrics"]
    }
    where = "360 held-out public records"
    assert metrics == {"accuracy": ("0.875", where), "accuracy_baseline": ("0.125", where), "loss": ("0.5", where)}
    (use,) = card["considerations"]["useCases"]
    assert "](javascript" not in use.replace("\\](", "")
    train = sheets_of(bill)["data:train"]
    assert "Origin, as declared: Admissions." in train["description"]
    names = [owner["organization"]["name"] for owner in train["governance"]["owners"]]
    assert names == ["&lt;b&gt;St Mary&lt;/b&gt; \\| hospital", "The university"]
    assert properties["dprecipe:statement:region"] == "Switzerland"
    assert properties["dprecipe:statement:data_changes"] == "true"
    assert sheets_of(bill)["data:test"]["classification"] == "public"


def test_what_came_from_python_is_called_so(verified: dict[str, Verified]) -> None:
    bill, model, _ = read_bill(verified["module"])
    parameters = model["modelCard"]["modelParameters"]
    assert parameters["modelArchitecture"] == "a module from Python"
    assert "architectureFamily" not in parameters
    assert "passed from Python" in sheets_of(bill)["data:train"]["description"]
    assert any("DECLARED" not in each["value"] for each in model["properties"] if each["name"] == "dprecipe:declared")


def test_every_kind_of_model_has_a_family() -> None:
    kinds = {get_args(block.model_fields["kind"].annotation)[0] for block in get_args(get_args(Model)[0])}
    assert kinds - {"none"} == set(FAMILIES)


def test_it_has_the_versions_and_files_of_the_certificate(finished: Any) -> None:
    verified = verify(finished.release)
    bill, _, _ = read_bill(verified)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert EXPORTS["sbom"](verified) == EXPORTS["sbom"](verified)
    versions = {c["name"]: c["version"] for c in bill["components"] if c["type"] in ("library", "platform")}
    assert versions == verified.statement.predicate.provenance.versions
    urls = {c["name"]: c["purl"] for c in bill["components"] if c["type"] == "library"}
    assert urls["dp-accounting"] == f"pkg:pypi/dp-accounting@{versions['dp-accounting']}"
    assert all("+" not in url for url in urls.values())
    files = {c["name"]: c["hashes"][0]["content"] for c in bill["components"] if c["type"] == "file"}
    assert files == {subject.name: subject.digest.sha256 for subject in verified.statement.subject}
