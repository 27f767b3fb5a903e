"""A folder for the Hugging Face hub: what the certificate covers stays as it is, and the front matter is public."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dprecipe.faults import UsageFault
from dprecipe.models.file import describe_file, parse_description
from dprecipe.recipe.read import read_source
from dprecipe.release.distribution import find_task, render_readme, write_hub_folder
from dprecipe.release.facts import PublicScore
from dprecipe.release.rebuild import stated_source
from dprecipe.release.schema import Statement
from dprecipe.release.verify import verify
from tests.languages import config_of, data_block, model_block
from tests.recipe_texts import FULL_BATCH

RECIPE = (
    """\
recipe: dprecipe/v1
name: digits
description: "Reads digits: 0 to 9"
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
"""
    + FULL_BATCH
    + """\
training: {steps: 5, optimizer: {kind: sgd, lr: 0.5}}
release: {report: false}
meta: {license: apache-2.0, ticket: DS-118}
"""
)


@pytest.fixture(scope="module")
def publish(tmp_path_factory: pytest.TempPathFactory, release_of: Any) -> Callable[[str], Path]:
    def make(text: str) -> Path:
        score = PublicScore(0.875, 0.5, 359) if "access: public" in text else None
        return release_of(text, tmp_path_factory.mktemp("run"), score=score)

    return make


@pytest.fixture(scope="module")
def release(publish: Callable[[str], Path]) -> tuple[Path, Statement]:
    folder = publish(RECIPE)
    return folder, verify(folder).statement


def export(release: tuple[Path, Statement], target: Path, license_name: str | None = None) -> dict[str, Any]:
    folder, statement = release
    model = parse_description((folder / "model.json").read_bytes())
    recipe = read_source(stated_source(statement.predicate)).recipe
    write_hub_folder(folder, target, statement, model, recipe.name, license_name or recipe.meta.get("license"))
    _, front, _ = (target / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    content: dict[str, Any] = yaml.safe_load(front)
    return content


def test_the_release_inside_is_the_same_and_verifies(release: tuple[Path, Statement], tmp_path: Path) -> None:
    export(release, tmp_path / "hub")
    names = {path.name for path in release[0].iterdir()}
    inside = tmp_path / "hub" / "release"
    assert {path.name for path in inside.iterdir()} == names
    assert all((inside / name).read_bytes() == (release[0] / name).read_bytes() for name in names)
    assert verify(inside).statement == release[1]
    assert {path.name for path in (tmp_path / "hub").iterdir()} == {"README.md", "release", ".gitattributes"}
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


def test_the_front_matter(release: tuple[Path, Statement], tmp_path: Path) -> None:
    front = export(release, tmp_path / "hub")
    assert front["license"] == "apache-2.0"
    assert front["library_name"] == "dprecipe"
    assert front["pipeline_tag"] == "image-classification"
    assert front["tags"] == ["differential-privacy", "dprecipe", "dpsgd", "logistic_regression"]
    assert front["differential_privacy"]["epsilon"] == release[1].predicate.claim.epsilon
    (model,) = front["model-index"]
    (result,) = model["results"]
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == {"accuracy": 0.875, "loss": 0.5}
    text = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert text.count("\n---\n") == 1
    assert "# digits" in text
    assert "dprecipe.load_model(folder)" in text


def test_the_library_of_the_hub_reads_it(release: tuple[Path, Statement], tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    export(release, tmp_path / "hub")
    card = hub.ModelCard.load(tmp_path / "hub" / "README.md")
    assert (card.data.license, card.data.pipeline_tag) == ("apache-2.0", "image-classification")
    results = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert results == {"accuracy": 0.875, "loss": 0.5}
    assert card.data.model_name == "digits"
    assert hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()


@pytest.mark.slow
def test_no_private_score_no_licence_and_the_text_of_the_card(publish: Callable[[str], Path], tmp_path: Path) -> None:
    text = RECIPE.replace(", access: public", "").replace("meta: {license: apache-2.0, ticket: DS-118}\n", "")
    folder = publish(text.replace("release: {report: false}\n", ""))
    front = export((folder, verify(folder).statement), tmp_path / "hub")
    assert front["model-index"] == [{"name": "digits", "results": []}]
    assert "license" not in front
    readme = (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    assert "# digits" in readme
    assert "## Intended use" in readme
    assert readme.count("library_name") == 1


def test_what_is_refused(release: tuple[Path, Statement], tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="no identifier of a licence"):
        export(release, tmp_path / "hub", "Apache 2.0\nx: y")
    assert list(tmp_path.iterdir()) == []
    export(release, tmp_path / "hub", "mit")
    with pytest.raises(UsageFault, match="overwrites nothing"):
        export(release, tmp_path / "hub")


@pytest.mark.parametrize(
    ("change", "task"),
    [
        ({}, "image-classification"),
        ({"source_shape": [64]}, "tabular-classification"),
        ({"source_shape": [64], "classes": None, "target": [0, 1]}, "tabular-regression"),
    ],
)
def test_the_task(release: tuple[Path, Statement], change: dict[str, Any], task: str) -> None:
    content = json.loads((release[0] / "model.json").read_text())
    file = parse_description(json.dumps(content)).model_copy(update=change)
    assert find_task(file) == task


def test_a_language_model_writes_text(release: tuple[Path, Statement]) -> None:
    description = describe_file(model_block(), data_block(), config_of("gpt2"), ())
    file = parse_description(json.dumps(description))
    assert find_task(file) == "text-generation"
    readme = render_readme(release[1], file, "texts")
    assert 'dprecipe.load_language_model(f"{folder}/release")' in readme
    assert "load_model(" not in readme
