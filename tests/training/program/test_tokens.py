"""A run on the tokens of a tokeniser, from texts to a release that predicts texts."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
from torch import nn

import dprecipe
from dprecipe.api import run
from dprecipe.data.facts import DataFacts
from dprecipe.data.schema import TokenizerFile
from dprecipe.data.targets import ClassTarget
from dprecipe.faults import CertificateInvalid, DataFault
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read
from dprecipe.release.certificate import to_bytes
from dprecipe.training.program.program import check_tokens
from tests.data.test_tokens import write_tokenizer

RECIPE = """\
recipe: dprecipe/v1
name: tokens
data:
  train:
    source: csv
    path: texts.csv
    columns: {text: {kind: text}}
    label: {column: kind, values: [ham, spam]}
  size: 40
  preprocess:
    - tokenize: {column: text, tokenizer: {path: tokenizer.json, vocabulary: 8}, length: 6}
model: {kind: transformer, width: 8, layers: 1, heads: 2}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: 1.0}
  sampling: {scheme: poisson, batch_size: 8}
budget: {epsilon: auto, delta: 1e-3}
training: {steps: 3, optimizer: {kind: sgd, lr: 0.5}}
runtime: {device: cpu}
release: {report: false}
"""


@pytest.mark.slow
def test_a_release_holds_its_tokeniser_and_predicts_texts(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    lines = [f"{'free prize' if row % 2 else 'call now'},{'spam' if row % 2 else 'ham'}" for row in range(40)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,kind", *lines]) + "\n", encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    plan = make_plan(read(tmp_path / "recipe.yaml"))
    assert [a.checked_by for a in plan.assumptions if a.id == "tokenizer"] == ["declaration"]
    done = run(plan, tmp_path / "run", data_root=tmp_path)
    assert any("tokenizer.json is declared to be public" in note for note in dprecipe.verify(done.release).notes)
    assert (done.release / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").unlink()
    model = dprecipe.load_model(done.release)
    expected = model.decide(model.outputs(np.array([[2, 5, 6, 3, 0, 0], [2, 4, 7, 3, 0, 0]], np.float32)))
    assert list(model.predict({"text": ["call now", "free prize"]})) == list(expected)

    changed = tmp_path / "changed"
    shutil.copytree(done.release, changed)
    content = json.loads((changed / "tokenizer.json").read_text("utf-8"))
    content["model"]["vocab"] |= {"free": 5, "call": 4}
    (changed / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CertificateInvalid, match=r"tokenizer\.json"):
        dprecipe.verify(changed)
    (changed / "tokenizer.json").unlink()
    with pytest.raises(CertificateInvalid, match=r"tokenizer\.json"):
        dprecipe.verify(changed)
    for other in (b'{"records": ["SECRET"]}', b"\x00SECRET", b"[" * 100_000):  # with a certificate that names it
        (changed / "tokenizer.json").write_bytes(other)
        stated = json.loads((done.release / "certificate.json").read_bytes())
        (subject,) = [one for one in stated["subject"] if one["name"] == "tokenizer.json"]
        subject["digest"]["sha256"] = hashlib.sha256(other).hexdigest()
        (changed / "certificate.json").write_bytes(to_bytes(stated))
        with pytest.raises(CertificateInvalid, match=r"tokenizer\.json: is no tokeniser") as caught:
            dprecipe.verify(changed)
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("vocabulary", "padding", "words"), [(31, 0, "vocabulary: 30"), (30, 1, "padding: 0"), (30, 0, None), (20, 0, None)]
)
def test_a_checkpoint_takes_its_own_tokens_alone(vocabulary: int, padding: int, words: str | None) -> None:
    network = nn.Module()
    network.config = SimpleNamespace(vocab_size=30, pad_token_id=0)  # type: ignore[assignment]
    built = SimpleNamespace(network=network)
    own = TokenizerFile(path="t", vocabulary=vocabulary, padding=padding)
    facts = DataFacts((6,), ClassTarget(2), (6,), vocabulary=vocabulary, tokenizer=own)
    if words is None:
        check_tokens(built, facts)  # type: ignore[arg-type]
        return
    with pytest.raises(DataFault) as caught:
        check_tokens(built, facts)  # type: ignore[arg-type]
    assert words in (caught.value.remedy or "")
