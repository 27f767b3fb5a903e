"""Runs without privacy: what they learn, write and never claim, and how a private run starts from them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dprecipe
from dprecipe.api import run
from dprecipe.cli.main import app
from dprecipe.cli.schema import SCHEMAS
from dprecipe.faults import CertificateInvalid, DataFault, Interrupted, RunFailed, UsageFault
from dprecipe.models.load import load
from dprecipe.models.public_record import NO_GUARANTEE, InitialWeights
from dprecipe.nonprivate.documents import provenance_schema
from dprecipe.nonprivate.plan import make_plan
from dprecipe.planning.make import plan as private_plan
from dprecipe.recipe.read import LoadedPublic, read, read_any
from dprecipe.release.certificate import to_bytes
from dprecipe.training.program.file_digests import check_initial_weights
from dprecipe.training.run.nonprivate import PublicRun, draw_batches, train
from dprecipe.training.steps.optimise import apply_weight_decay
from tests.schemas import validator_of

PUBLIC = """\
recipe: dprecipe/v1
name: public
data:
  train: {source: digits, split: test, access: public}
  size: 359
  preprocess: [{clip_features: {norm: 4.0}}]
model: {kind: mlp, hidden: [12]}
mechanism: {kind: none}
training:
  steps: 30
  batch_size: 100
  optimizer: {kind: adam, lr: 0.01}
"""
PRIVATE = """\
extends: public.yaml
name: private
data:
  train: {split: train, access: private_internal}
  size: 1438
model: {init: public/weights/model.safetensors, train: head}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {batch_size: null, optimizer: {kind: sgd, lr: 0.5}}
release: {report: true}
"""


def write_recipes(folder: Path) -> None:
    (folder / "public.yaml").write_text(PUBLIC, encoding="utf-8")
    (folder / "private.yaml").write_text(PRIVATE, encoding="utf-8")


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    """A folder with both recipes."""
    write_recipes(tmp_path)
    return tmp_path


def learn(folder: Path, *overrides: str, out: str = "public", resume: bool = False) -> PublicRun:
    loaded = read_any(folder / "public.yaml", overrides)
    assert isinstance(loaded, LoadedPublic)
    return train(make_plan(loaded), folder, folder / out, resume)


def test_weights_provenance_and_the_words(recipes: Path) -> None:
    done = learn(recipes, "data.test={source: digits, split: train, access: public}", "training.steps=150")
    assert done.score is not None
    assert done.score.accuracy is not None
    assert done.score.accuracy > 0.7
    assert {path.name for path in done.folder.iterdir()} == {"weights", "recipe.yaml", "resolved.yaml", "plan.json"}
    names = {"model.safetensors", "model.json", "provenance.json", "README.md", "report.html", "metrics.json"}
    assert {path.name for path in done.weights.iterdir()} == names
    scores = json.loads((done.weights / "metrics.json").read_text("utf-8"))
    assert (scores["schema"], scores["records"]) == ("dprecipe.public-metrics/v1", 1438)
    assert scores["accuracy"] == pytest.approx(done.score.accuracy)
    assert np.array(scores["confusion"]).sum() == 1438
    shown = f"| accuracy | {scores['accuracy']:.2%} | {scores['accuracy_baseline']:.2%} |"
    assert shown in (done.weights / "README.md").read_text("utf-8")
    assert f">{scores['accuracy_baseline']:.2%}</td>" in (done.weights / "report.html").read_text("utf-8")
    record = json.loads((done.weights / "provenance.json").read_text("utf-8"))
    assert record["guarantee"] == NO_GUARANTEE
    validator_of(provenance_schema).validate(record)
    validator_of(SCHEMAS["public-plan.schema.json"]).validate(
        json.loads((done.folder / "plan.json").read_text("utf-8"))
    )
    for change in ({"guarantee": "private"}, {"steps": 0}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validator_of(provenance_schema).validate({**record, **change})
    assert [(used["role"], used["part"], used["count"]) for used in record["data"]] == [
        ("train", "test", 359),
        ("test", "train", 1438),
    ]
    digest = "sha256:" + hashlib.sha256((done.weights / "model.safetensors").read_bytes()).hexdigest()
    for name in ("README.md", "report.html"):
        text = (done.weights / name).read_text("utf-8")
        assert "No privacy guarantee" in text
        assert digest == done.digest
        assert digest in text
        assert record["data"][0]["digest"] in text
        assert "ε" not in text
    assert load(done.weights).predict(np.zeros((2, 8, 8), dtype=np.float32)).shape == (2,)


def test_the_same_recipe_gives_the_same_weights(recipes: Path) -> None:
    state = torch.random.get_rng_state()
    one, two, other = learn(recipes), learn(recipes, out="again"), learn(recipes, "runtime.seed=1", out="other")
    assert one.digest == two.digest != other.digest
    assert torch.equal(torch.random.get_rng_state(), state)


def test_every_record_is_seen_once_an_epoch() -> None:
    batches = draw_batches(10, 4, 0)
    epochs = [[next(batches) for _ in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(np.concatenate(epoch)) == list(range(10))
    assert [list(batch) for batch in epochs[0]] != [list(batch) for batch in epochs[1]]


def test_files_are_named_by_their_digests(recipes: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(recipes / "a.npz", x=rng.random((40, 5), dtype=np.float32), y=rng.integers(0, 2, 40))
    source = "data.train={source: npz, path: a.npz, features: x, labels: y, shape: [5], classes: 2, access: public"
    done = learn(recipes, f"{source}, records: [10, 40]}}", "data.size=30")
    (used,) = done.record.data
    assert used.files == {"a.npz": "sha256:" + hashlib.sha256((recipes / "a.npz").read_bytes()).hexdigest()}
    assert (used.records, used.part, used.count) == ((10, 40), "x", 30)


def test_an_average_is_what_is_written_and_frozen_layers_stay(recipes: Path) -> None:
    first = learn(recipes)
    second = learn(
        recipes,
        "model={kind: mlp, hidden: [12], init: public/weights/model.safetensors, train: {from: 3}}",
        "training.average={kind: tail, fraction: 0.5}",
        out="second",
    )
    before, after = (load_file(done.weights / "model.safetensors") for done in (first, second))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"3.weight", "3.bias"}
    assert second.record.initial_weights == first.digest
    plain = learn(
        recipes,
        "model={kind: mlp, hidden: [12], init: public/weights/model.safetensors, train: {from: 3}}",
        out="third",
    )
    assert plain.record.weights != second.record.weights


def test_refusals_leave_nothing(recipes: Path) -> None:
    with pytest.raises(RunFailed, match="not finite"):
        learn(recipes, "training.optimizer={kind: sgd, lr: 1e20}", "model.activation=relu")
    with pytest.raises(DataFault):
        learn(recipes, "data.size=300")
    assert {path.name for path in recipes.iterdir()} == {"public.yaml", "private.yaml"}
    (recipes / "public").mkdir()
    with pytest.raises(UsageFault, match="never overwritten"):
        learn(recipes)


MOVING = (
    "training.average={kind: ema, decay: 0.9}",
    "data.preprocess=[{clip_features: {norm: 4.0}}, {crop: {padding: 1}}, {flip: {}}]",
)
"""What a state has to hold beside weights: an average, and augmentation."""


def stop_at(patch: pytest.MonkeyPatch, steps: int, how: Callable[[], None]) -> None:
    """Let something happen in the step after so many."""
    calls = itertools.count()

    def weight_decay(*arguments: Any) -> None:
        if next(calls) == steps:
            how()
        apply_weight_decay(*arguments)

    patch.setattr("dprecipe.training.run.nonprivate.apply_weight_decay", weight_decay)


def test_an_interrupted_run_goes_on_to_the_same_weights(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learn(recipes, *MOVING, out="whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 7, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Interrupted, match="after 8 of 30 steps") as caught:
            learn(recipes, *MOVING, out="part")
    assert "--resume" in (caught.value.remedy or "")
    state = recipes / "part.interrupted"
    assert sorted(path.name for path in recipes.iterdir() if path.name.startswith("part")) == [state.name]
    with pytest.raises(UsageFault, match="was interrupted"):
        learn(recipes, *MOVING, out="part")
    with pytest.raises(UsageFault, match="another recipe"):
        learn(recipes, out="part", resume=True)
    done = learn(recipes, *MOVING, out="part", resume=True)
    assert done.digest == whole.digest
    assert not state.exists()
    with pytest.raises(UsageFault, match="no interrupted run"):
        learn(recipes, *MOVING, out="other", resume=True)


def test_a_killed_run_goes_on_from_its_last_state(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        raise Killed

    whole = learn(recipes, *MOVING, out="whole")
    with monkeypatch.context() as patch:
        patch.setattr("dprecipe.training.run.nonprivate.SAVE_SECONDS", 0.0)
        stop_at(patch, 11, die)
        with pytest.raises(Killed):
            learn(recipes, *MOVING, out="part")
    assert learn(recipes, *MOVING, out="part", resume=True).digest == whole.digest


def test_a_damaged_state_is_told(recipes: Path) -> None:
    (recipes / "public.interrupted").write_bytes(b"no state")
    with pytest.raises(RunFailed, match=r"public\.interrupted"):
        learn(recipes, resume=True)


@pytest.mark.parametrize("option", ["--rehearse", "--accept-lost-steps"])
def test_options_of_a_budget_are_refused(recipes: Path, option: str) -> None:
    assert CliRunner().invoke(app, ["run", str(recipes / "public.yaml"), option]).exit_code == 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which both recipes have run, into `public` and `private`."""
    folder = tmp_path_factory.mktemp("pair")
    write_recipes(folder)
    learn(folder)
    run(private_plan(read(folder / "private.yaml")), folder / "private")
    return folder


def copy_release(pair: Path, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The private release, to be tampered with, and its certificate."""
    shutil.copytree(pair / "private" / "release", folder / "release")
    return folder / "release", json.loads((folder / "release" / "certificate.json").read_text("utf-8"))


def test_there_is_no_certificate_by_any_road(pair: Path, tmp_path: Path) -> None:
    """`verify` of the folder, its run and its record says so; a certificate from elsewhere does not fit."""
    public = tmp_path / "public"
    shutil.copytree(pair / "public", public)
    for path in (public, public / "weights", public / "weights" / "provenance.json"):
        with pytest.raises(CertificateInvalid, match="there is no privacy certificate") as refused:
            dprecipe.verify(path)
        assert refused.value.exit_code == 3
    release, content = copy_release(pair, tmp_path)
    shutil.copy(release / "certificate.json", public / "weights")
    with pytest.raises(CertificateInvalid, match=r"model\.safetensors: its content is not what the certificate names"):
        dprecipe.verify(public / "weights")
    # A certificate that carries the recipe without privacy, and calls it its own.
    recipe = content["predicate"]["provenance"]["recipe"]
    recipe["text"], recipe["parents"] = PUBLIC, []
    (release / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match=r"can't be planned again: R309 mechanism\.kind"):
        dprecipe.verify(release)


def test_a_private_run_states_where_its_weights_come_from(pair: Path, tmp_path: Path) -> None:
    release, content = copy_release(pair, tmp_path)
    told = dprecipe.verify(release).statement.predicate
    written = json.loads((pair / "public" / "weights" / "provenance.json").read_text("utf-8"))
    predicate = content["predicate"]
    initial = predicate["provenance"]["initial_weights"]
    digest = "sha256:" + hashlib.sha256((pair / "public/weights/model.safetensors").read_bytes()).hexdigest()
    assert (initial["digest"], initial["learned"]) == (digest, written)
    (origin,) = [a for a in told.assumptions if a.id == "initial_weights_origin"]
    assert origin.checked_by == "declaration"
    for part in (digest, "the recipe public", written["recipe"]["digest"], written["data"][0]["digest"]):
        assert part in origin.text
    for name in ("card.md", "report.html"):
        assert written["recipe"]["digest"] in (release / name).read_text("utf-8")
    before, after = (load_file(f / "model.safetensors") for f in (pair / "public" / "weights", release))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"3.weight", "3.bias"}


@pytest.mark.parametrize("change", ["name", "none", "extra"])
def test_a_changed_origin_does_not_verify(pair: Path, tmp_path: Path, change: str) -> None:
    release, content = copy_release(pair, tmp_path)
    initial = content["predicate"]["provenance"]["initial_weights"]
    if change == "none":
        initial["learned"] = None
    else:
        initial["learned"]["recipe"]["name" if change == "name" else "epsilon"] = "0"
    (release / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match="no such field" if change == "extra" else r"assumptions|card\.md"):
        dprecipe.verify(release)


def test_a_run_on_records_that_its_weights_have_seen_is_refused_before_it_spends(pair: Path, tmp_path: Path) -> None:
    plan = private_plan(read(pair / "private.yaml", ["data.train={split: test}", "data.size=359"]))
    with pytest.raises(DataFault, match=r"has seen the records of data\.train"):
        run(plan, tmp_path / "seen")
    assert not (tmp_path / "seen").exists()


def check_seen(folder: Path, done: PublicRun, *overrides: str) -> bool:
    """Whether a private run from these weights would be refused."""
    given = ["budget.neighbouring=zero_out_one", "mechanism.sampling.batch_size=20", "budget.epsilon=8"]
    plan = private_plan(read(folder / "private.yaml", [*given, *overrides]))
    try:
        check_initial_weights(plan, folder, InitialWeights("w", done.digest, "taken over", learned=done.record))
    except DataFault:
        return True
    return False


def test_which_records_are_the_same(recipes: Path) -> None:
    done = learn(recipes)
    assert check_seen(recipes, done, "data.train={split: test, records: [200, 359]}", "data.size=159")
    assert not check_seen(recipes, done)


@pytest.mark.slow
def test_the_same_file_elsewhere_holds_the_same_records(recipes: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(recipes / "a.npz", x=rng.random((400, 5), dtype=np.float32), y=rng.integers(0, 2, 400))
    shutil.copy(recipes / "a.npz", recipes / "b.npz")
    np.savez(recipes / "c.npz", x=rng.random((400, 5), dtype=np.float32), y=rng.integers(0, 2, 400))
    block = "source: npz, features: x, labels: y, shape: [5], classes: 2, path: "
    public = f"data.train={{{block}a.npz, access: public, records: [0, 100]}}"
    done = learn(recipes, public, "data.size=100", "data.preprocess=[]")
    for path, first, seen in (("b", 100, False), ("b", 99, True), ("a", 0, True), ("c", 0, False)):
        private = f"data.train={{{block}{path}.npz, access: private_internal, records: [{first}, 400]}}"
        size = f"data.size={400 - first}"
        assert check_seen(recipes, done, private, size, "data.preprocess=[]") == seen, (path, first)


def test_weights_that_were_changed_behind_their_record_are_refused(recipes: Path) -> None:
    done = learn(recipes)
    file = done.weights / "model.safetensors"
    from safetensors import safe_open

    with safe_open(file, "pt") as archive:
        metadata = archive.metadata()
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, metadata)
    with pytest.raises(DataFault, match="not those that its record speaks of"):
        run(private_plan(read(recipes / "private.yaml")), recipes / "private")
