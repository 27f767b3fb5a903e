"""`dprecipe prior`: from a recipe to weights, to a run, to a stranger who makes them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import CertificateInvalid
from dprecipe.release.certificate import to_bytes
from dprecipe.release.verify import verify

RECIPE = """\
recipe: dprecipe/v1
name: begun
data:
  train: {source: digits, split: train}
  size: 1438
  preprocess: [{scale: {mean: 0.3, std: 1.0}}]
model:
  kind: mlp
  hidden: [12]
  init: prior.safetensors
  prior: {generator: mixed, images: 64, steps: 3, batch_size: 8}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 3, optimizer: {kind: sgd, lr: 1.0}}
release: {report: true}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def call(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.slow
def test_from_a_recipe_to_a_release_that_a_stranger_checks(recipe: Path) -> None:
    folder, weights = recipe.parent, recipe.parent / "prior.safetensors"
    code, printed = call("prior", recipe)
    assert code == 0, printed
    record = json.loads((folder / "prior.json").read_text("utf-8"))
    assert record["facts"]["images"] in printed
    assert not list(folder.glob("*.part"))

    code, printed = call("prior", "--check", weights, "--retrain")
    assert code == 0, printed
    assert f"images {record['facts']['images']}" in printed
    assert f"weights {record['facts']['weights']}" in printed

    code, printed = call("run", recipe, "--out", folder / "run")
    assert code == 0, printed
    release = folder / "run" / "release"
    predicate = verify(release).statement.predicate
    initial = predicate.provenance.initial_weights
    assert initial is not None
    assert initial.prior is not None
    assert initial.prior.model_dump() == record["facts"]
    (assumption,) = [a for a in predicate.assumptions if a.id == "initial_weights"]
    assert assumption.checked_by == "declaration"
    assert "no real data: made from a seed, from 64 images of generator mixed" in assumption.text
    for name in ("report.html", "card.md"):
        assert record["facts"]["images"] in (release / name).read_text("utf-8")
    weights.unlink()  # a stranger has the release alone
    code, printed = call("prior", "--check", release, "--retrain")
    assert code == 0, printed
    assert "the same weights, learned again" in printed

    file = release / "certificate.json"
    for path, value, words in (
        (("prior",), None, "expected exactly for recipes that declare a prior"),
        (("prior", "images"), "sha256:" + "0" * 64, None),
    ):
        content = json.loads(file.read_text("utf-8"))
        target = content["predicate"]["provenance"]["initial_weights"]
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value
        (folder / "forged.json").write_bytes(to_bytes(content))
        if words is not None:
            with pytest.raises(CertificateInvalid, match=words):
                verify(folder / "forged.json")
        else:  # nothing in the certificate contradicts it: only making the images again shows it
            code, printed = call("prior", "--check", folder / "forged.json")
            assert code == 3
            assert "images: the digest is" in printed


def test_weights_that_were_changed_start_no_run(recipe: Path) -> None:
    weights = recipe.parent / "prior.safetensors"
    assert call("prior", recipe)[0] == 0
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for command in (("run", recipe, "--out", recipe.parent / "run"), ("prior", "--check", weights)):
        code, printed = call(*command)
        assert code == 4
        assert "its tensors are not those that its prior made" in printed
    save_file(load_file(weights), weights)  # without its record
    code, printed = call("prior", "--check", weights)
    assert (code, "says nothing of a prior" in printed) == (2, True)
    weights.write_bytes(content)
    code, printed = call("run", recipe, "--set", "model.prior.seed=1", "--out", recipe.parent / "run")
    assert code == 4
    assert "another prior than the recipe declares: seed differ" in printed
    assert not (recipe.parent / "run" / "private" / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--set", "model.prior=null"), 2, "declares no prior"),
        (("--set", "model={kind: logistic_regression}"), 2, "declares no prior"),
        (("--set", "model.prior.generator=imagenet"), 1, "imagenet"),
        (("--set", "model.init=null"), 3, "R284"),
        (("--out", "absent/prior.safetensors"), 2, "there is no folder"),
        (("--out", "recipe.yaml"), 2, "does not end in .safetensors"),
        (("--set", "model.prior.digest=sha256:" + "0" * 64), 4, "model.prior.digest is another"),
    ],
)
def test_what_cannot_be_made_is_refused(
    recipe: Path, arguments: tuple[str, ...], code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe.parent)
    actual, printed = call("prior", recipe, *arguments)
    assert (actual, words in printed) == (code, True), printed
    assert not (recipe.parent / "prior.safetensors").exists()


def test_a_file_is_replaced_on_demand_alone(recipe: Path) -> None:
    weights = recipe.parent / "prior.safetensors"
    weights.write_bytes(b"mine")
    code, printed = call("prior", recipe)
    assert (code, weights.read_bytes()) == (2, b"mine"), printed
    assert call("prior", recipe, "--force")[0] == 0
    assert len(weights.read_bytes()) > 100


def test_a_run_that_did_not_begin_from_a_prior_has_none_to_check(recipe: Path) -> None:
    out = recipe.parent / "run"
    assert call("run", recipe, "--set", "model={kind: logistic_regression}", "--out", out)[0] == 0
    code, printed = call("prior", "--check", out / "release")
    assert (code, "did not begin from a prior" in printed) == (2, True)
