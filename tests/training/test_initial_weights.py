"""Runs that start from learned weights: what of them is recorded, refused, trained and released."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import dprecipe
from dprecipe.data.facts import facts
from dprecipe.faults import CertificateInvalid, Interrupted, UsageFault
from dprecipe.models.build import build
from dprecipe.models.load import load
from dprecipe.planning.model import Plan
from dprecipe.training import stepwise
from dprecipe.training.run import run

Small = Callable[..., Plan]
MODEL = "model={kind: mlp, hidden: [12], activation: relu, init: start/model.safetensors}"


@pytest.fixture
def begun(small: Small, tmp_path: Path) -> Small:
    """Plans that start from a file beside the recipe."""
    plan = small("model={kind: mlp, hidden: [12], activation: relu}", "training.steps=30")
    (tmp_path / "start").mkdir()
    public = facts(plan.data)
    save_file(build(plan.model, public.shape, 10, 77).state_dict(), tmp_path / "start" / "model.safetensors")
    return lambda *overrides: small(MODEL, "training.steps=30", *overrides)


def test_the_file_is_in_certificate_ledger_report_and_card(begun: Small, tmp_path: Path) -> None:
    plan, file = begun(), tmp_path / "start" / "model.safetensors"
    done = run(plan, tmp_path / "run")
    dprecipe.verify(done.release)
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    made = json.loads((done.release / "certificate.json").read_text("utf-8"))["predicate"]
    assert made["provenance"]["initial_weights"] == {
        "file": "model.safetensors",
        "digest": digest,
        "head": "taken over",
    }
    assert made["data_access"]["initial_weights"]["status"] == "declared"
    (assumption,) = [a for a in made["assumptions"] if a["id"] == "initial_weights"]
    assert assumption["checked_by"] == "declaration"
    assert "public data alone" in assumption["text"]
    assert digest in (tmp_path / "run" / "private" / "ledger.jsonl").read_text("utf-8")
    for text in ("report.html", "card.md"):
        assert digest in (done.release / text).read_text("utf-8")
    assert str(tmp_path) not in (done.release / "certificate.json").read_text("utf-8")


def test_a_certificate_can_neither_hide_nor_make_up_initial_weights(begun: Small, small: Small, tmp_path: Path) -> None:
    learned = run(begun(), tmp_path / "learned").release
    drawn = run(small("training.steps=30"), tmp_path / "drawn").release
    facts = json.loads((learned / "certificate.json").read_text("utf-8"))["predicate"]["provenance"]["initial_weights"]
    for release, value in ((learned, None), (drawn, facts)):
        file = release / "certificate.json"
        content = json.loads(file.read_text("utf-8"))
        content["predicate"]["provenance"]["initial_weights"] = value
        file.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(CertificateInvalid, match="initial_weights"):
            dprecipe.verify(release)


def test_a_resumed_run_needs_the_same_file(begun: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out, file = begun(), tmp_path / "run", tmp_path / "start" / "model.safetensors"
    real = stepwise.trainer_of("dpsgd").build

    def stopped(*arguments: object) -> object:
        module = real(*arguments)  # type: ignore[arg-type]
        module.request_stop()
        return module

    monkeypatch.setattr(stepwise.trainer_of("dpsgd"), "build", stopped)
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


def test_a_module_from_python_brings_its_own(begun: Small, tmp_path: Path) -> None:
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with pytest.raises(UsageFault, match="nothing reads the weights"):
        run(begun(), tmp_path / "run", model=own)
    assert not (tmp_path / "run").exists()
