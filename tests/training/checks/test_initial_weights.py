"""Runs that start from learned weights: what of them is recorded, refused, trained and released."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import dprecipe
from dprecipe.api import run
from dprecipe.cli.main import app
from dprecipe.contract.plan import Plan
from dprecipe.data.facts import describe_data
from dprecipe.faults import CertificateInvalid, Interrupted, UsageFault
from dprecipe.models.build import build
from dprecipe.models.load import load
from dprecipe.release.certificate import to_bytes
from dprecipe.training.steps.noisy_steps import NoisySteps

Small = Callable[..., Plan]
MODEL = "model={kind: mlp, hidden: [12], activation: relu, init: start/model.safetensors}"


@pytest.fixture
def begun(small: Small, tmp_path: Path) -> Small:
    """Plans that start from a file beside the recipe."""
    plan = small("model={kind: mlp, hidden: [12], activation: relu}", "training.steps=30")
    (tmp_path / "start").mkdir()
    public = describe_data(plan.data)
    save_file(build(plan.model, public.shape, 10, 77).state_dict(), tmp_path / "start" / "model.safetensors")
    return lambda *overrides: small(MODEL, "training.steps=30", *overrides)


@pytest.mark.slow
def test_the_file_is_in_certificate_ledger_report_and_card(begun: Small, tmp_path: Path) -> None:
    plan, file = begun("release.report=true"), tmp_path / "start" / "model.safetensors"
    done = run(plan, tmp_path / "run")
    dprecipe.verify(done.release)
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    result = json.loads((done.release / "certificate.json").read_text("utf-8"))["predicate"]
    assert result["provenance"]["initial_weights"] == {
        "file": "model.safetensors",
        "digest": digest,
        "head": "taken over",
        "prior": None,
        "learned": None,
    }
    assert result["data_access"]["initial_weights"]["status"] == "declared"
    (assumption,) = [a for a in result["assumptions"] if a["id"] == "initial_weights"]
    assert assumption["checked_by"] == "declaration"
    assert "declares to be learned from public data alone" in (done.release / "report.html").read_text("utf-8")
    assert digest in (tmp_path / "run" / "private" / "ledger.jsonl").read_text("utf-8")
    for text in ("report.html", "card.md"):
        assert digest in (done.release / text).read_text("utf-8")
    assert str(tmp_path) not in (done.release / "certificate.json").read_text("utf-8")


@pytest.mark.slow
def test_a_certificate_can_neither_hide_nor_make_up_initial_weights(begun: Small, small: Small, tmp_path: Path) -> None:
    learned = run(begun(), tmp_path / "learned").release
    drawn = run(small("training.steps=30"), tmp_path / "drawn").release
    facts = json.loads((learned / "certificate.json").read_text("utf-8"))["predicate"]["provenance"]["initial_weights"]
    for release, value in ((learned, None), (drawn, facts)):
        file = release / "certificate.json"
        content = json.loads(file.read_text("utf-8"))
        content["predicate"]["provenance"]["initial_weights"] = value
        file.write_bytes(to_bytes(content))
        with pytest.raises(CertificateInvalid, match="initial_weights"):
            dprecipe.verify(release)


@pytest.mark.slow
def test_a_resumed_run_needs_the_same_file(begun: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, file = begun(), tmp_path / "run", tmp_path / "start" / "model.safetensors"
    monkeypatch.setattr(NoisySteps, "start", lambda steps: steps.request_stop())
    with pytest.raises(Interrupted):
        run(plan, out)
    monkeypatch.undo()
    kept = file.read_bytes()
    save_file({name: tensor + 1e-3 for name, tensor in load_file(file).items()}, file)
    with pytest.raises(UsageFault, match="other initial weights"):
        run(plan, out, resume=True)
    file.write_bytes(kept)
    dprecipe.verify(run(plan, out, resume=True).release)


@pytest.mark.parametrize("train", ["head", pytest.param("all", marks=pytest.mark.slow)])
def test_a_release_starts_another_run(small: Small, tmp_path: Path, train: str) -> None:
    first = run(small("model={kind: mlp, hidden: [12]}", "training.steps=30"), tmp_path / "first").release
    shutil.copytree(first, tmp_path / "start")
    block = f"model={{kind: mlp, hidden: [12], train: {train}, init: start/model.safetensors}}"
    second = run(small(block, "training.steps=30"), tmp_path / "second").release
    dprecipe.verify(second)
    before, after = (load_file(folder / "model.safetensors") for folder in (first, second))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == ({"3.weight", "3.bias"} if train == "head" else set(before))
    load(second)


FROZEN = "model={kind: mlp, hidden: [12], activation: relu, init: start/model.safetensors, train: {only: [1]}}"


@pytest.mark.usefixtures("begun")
def test_frozen_layers_are_released_bit_for_bit(small: Small, tmp_path: Path) -> None:
    """Clip norms by layer count the trained layer alone; an average and weight decay leave the others as they are."""
    plan = small(
        FROZEN,
        "training.steps=30",
        "mechanism.clip={mode: per_layer, norms: [0.7]}",
        "training.average={kind: ema, decay: 0.9}",
        "training.optimizer={kind: sgd, lr: 0.5, weight_decay: 0.1}",
    )
    release = run(plan, tmp_path / "run").release
    dprecipe.verify(release)
    before, after = (load_file(f / "model.safetensors") for f in (tmp_path / "start", release))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {"1.weight", "1.bias"}
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    tensors = content["predicate"]["tensors"]
    assert {t["name"]: t["made_by"] for t in tensors} == {
        "1.bias": "noisy_steps",
        "1.weight": "noisy_steps",
        "3.bias": "file",
        "3.weight": "file",
    }
    next(t for t in tensors if t["name"] == "1.bias")["made_by"] = "file"
    (release / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match=r"'1.bias' is trained by the recipe, but made_by says otherwise"):
        dprecipe.verify(release)


@pytest.mark.usefixtures("begun")
def test_a_certificate_can_not_say_that_a_frozen_last_layer_is_new(small: Small, tmp_path: Path) -> None:
    release = run(small(FROZEN, "training.steps=30"), tmp_path / "run").release
    content = json.loads((release / "certificate.json").read_text("utf-8"))
    content["predicate"]["provenance"]["initial_weights"]["head"] = "new"
    (release / "certificate.json").write_bytes(to_bytes(content))
    with pytest.raises(CertificateInvalid, match="does not train the last layer"):
        dprecipe.verify(release)


def test_a_module_from_python_brings_its_own(begun: Small, tmp_path: Path) -> None:
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(UsageFault, match="nothing reads the weights"):
        run(begun(), tmp_path / "run", model=own)
    assert not (tmp_path / "run").exists()


TRANSFORMER = """\
recipe: dprecipe/v1
name: {name}
data:
  train: {{source: npz, path: texts.npz, features: x, labels: y, shape: [6], classes: 2}}
  size: 200
model: {{kind: transformer, width: 8, layers: 1, heads: 2, vocabulary: 20{more}}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: auto}}
  sampling: {{scheme: poisson, batch_size: 50}}
budget: {{epsilon: 3.0, delta: 1e-4}}
training: {{steps: 5, optimizer: {{kind: adam, lr: 0.01}}}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["train: head", "lora: {rank: 2, alpha: 4}"])
def test_a_transformer_is_adapted_as_a_user_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """From one release to another, by commands alone; adapters are merged in what is released."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "texts.npz", x=rng.integers(1, 20, (200, 6)).astype(np.float32), y=rng.integers(0, 2, 200))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPRECIPE_DATA", str(tmp_path))
    for name, more in (("first", ""), ("second", f", init: first/release/model.safetensors, {how}")):
        Path(f"{name}.yaml").write_text(TRANSFORMER.format(name=name, more=more), encoding="utf-8")
        assert CliRunner().invoke(app, ["run", f"{name}.yaml", "--out", name]).exit_code == 0
        assert CliRunner().invoke(app, ["verify", f"{name}/release"]).exit_code == 0
    before, after = (load_file(tmp_path / name / "release" / "model.safetensors") for name in ("first", "second"))
    assert {name: tensor.shape for name, tensor in before.items()} == {n: tensor.shape for n, tensor in after.items()}
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert 0 < len(moved) < len(before)
    assert load(tmp_path / "second" / "release").predict(np.ones((3, 6), dtype=np.float32)).shape == (3,)
