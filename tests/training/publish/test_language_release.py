"""A recipe of a language model to its release: what verifies, what other libraries read, and what tampering does."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from dprecipe import api  # noqa: E402
from dprecipe.cli.main import app  # noqa: E402
from dprecipe.faults import CertificateInvalid  # noqa: E402
from dprecipe.models.language_model import LanguageModel, WrittenText  # noqa: E402
from dprecipe.nonprivate.plan import make_plan  # noqa: E402
from dprecipe.recipe.read import LoadedPublic, read_any  # noqa: E402
from dprecipe.release.verify import verify  # noqa: E402
from dprecipe.training.run.nonprivate import train  # noqa: E402
from tests.languages import LETTERS, tokens_of, write_decoder  # noqa: E402

pytestmark = pytest.mark.slow

RECIPE = """\
recipe: dprecipe/v1
name: messages
data:
  train:
    source: csv
    path: messages.csv
    columns: {{label: {{kind: category, values: [ham, spam]}}, text: {{kind: text}}}}
    label: next_token
  size: 40
  preprocess:
    - sequences:
        row: [label, text]
        tokenizer: {{path: base/tokenizer.json, vocabulary: {vocabulary}}}
        end: 0
        max_length: 30
model: {{kind: causal_lm, init: base, lora: {{rank: 2, alpha: 4}}}}
mechanism:
  kind: dpsgd
  clip: {{norm: 1.0}}
  noise: {{family: gaussian, multiplier: 1.0}}
  sampling: {{scheme: full_batch}}
budget: {{epsilon: 50, delta: 1e-3}}
training: {{steps: 3, optimizer: {{kind: adam, lr: 0.01}}}}
runtime: {{device: cpu}}
release: {{report: false{release}}}
"""


def make_run(folder: Path, family: str, release: str = "") -> Path:
    """Train three steps on forty messages; the folder of the release."""
    write_decoder(folder, family)
    (folder / "recipe.yaml").write_text(RECIPE.format(vocabulary=len(LETTERS), release=release))
    done = api.run(api.plan(api.load(folder / "recipe.yaml")), folder / "run", data_root=folder)
    return Path(done.release)


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("merged"), "gpt2")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("adapters"), "llama", ", weights: adapters")


def test_a_merged_release_verifies_and_loads_elsewhere(merged: Path) -> None:
    verified = verify(merged)
    made = {t.name: t.made_by for t in verified.statement.predicate.tensors}
    assert "lm_head.weight" not in made  # tied: stored once
    assert made["transformer.wte.weight"] == "file"
    assert made["transformer.h.0.attn.c_attn.weight"] == "noisy_steps"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(merged, local_files_only=True).eval()
    model = api.load_language_model(merged)
    tokens = torch.tensor([tokens_of("label: ham")])
    with torch.no_grad():
        torch.testing.assert_close(
            theirs(tokens).logits[:, -1], model.module.next_logits(tokens)[0], atol=1e-5, rtol=1e-5
        )
    before = load_file(merged.parents[1] / "base" / "model.safetensors")
    after = load_file(merged / "model.safetensors")
    assert not torch.equal(before["transformer.h.0.attn.c_attn.weight"], after["transformer.h.0.attn.c_attn.weight"])


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about a name in transformers
def test_released_adapters_verify_and_belong_to_their_base(adapters: Path) -> None:
    verified = verify(adapters)
    assert {t.made_by for t in verified.statement.predicate.tensors} == {"noisy_steps"}
    base = adapters.parents[1] / "base"
    texts = api.load_language_model(adapters, base).generate("label:", 2, seed=1)
    assert len(texts) == 2
    initial = verified.statement.predicate.provenance.initial_weights
    assert initial is not None
    named = json.loads((adapters / "adapter_config.json").read_text())
    assert named["base_model_name_or_path"] == initial.digest
    peft = pytest.importorskip("peft", reason="peft is not installed")
    theirs = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base, local_files_only=True), adapters
    ).eval()
    tokens = torch.tensor([tokens_of("label: ham")])
    with torch.no_grad():
        ours = api.load_language_model(adapters, base).module.next_logits(tokens)[0]
        torch.testing.assert_close(theirs(tokens).logits[:, -1], ours, atol=1e-5, rtol=1e-5)


def _change(name: str, before: bytes, after: bytes) -> Callable[[Path], None]:
    def act(release: Path) -> None:
        content = (release / name).read_bytes()
        assert before in content
        (release / name).write_bytes(content.replace(before, after, 1))

    return act


def _rename_metadata(release: Path) -> None:
    file = next(release.glob("*.safetensors"))
    save_file(load_file(file), file, {"format": "pt", "note": "a private record"})


TAMPERED = {
    "code in config.json": (
        "merged",
        "config.json",
        _change("config.json", b"{", b'{"auto_map": {"AutoModel": "x.y"},'),
    ),
    "another size": ("merged", "config.json", _change("config.json", b'"n_layer": 2', b'"n_layer": 1')),
    "blanks": ("merged", "generation_config.json", _change("generation_config.json", b"\n}", b"\n\n}")),
    "a template": (
        "merged",
        "tokenizer_config.json",
        _change("tokenizer_config.json", b"{", b'{"chat_template": "x",'),
    ),
    "metadata": ("merged", "model.safetensors", _rename_metadata),
    "another base": ("adapters", "adapter_config.json", _change("adapter_config.json", b"sha256:", b"sha256:0")),
    "another rank": ("adapters", "adapter_config.json", _change("adapter_config.json", b'"r": 2', b'"r": 4')),
    "another base in model.json": (
        "adapters",
        "model.json",
        _change("model.json", b'"base": "sha256:', b'"base": "sha512:'),
    ),
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_what_is_changed_is_named_even_where_the_digests_follow(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whoever forges an unsigned release writes its digests, too."""
    which, name, act = TAMPERED[kind]
    release = tmp_path / "release"
    shutil.copytree(request.getfixturevalue(which), release)
    act(release)
    with pytest.raises(CertificateInvalid, match=name.replace(".", r"\.")):
        verify(release)
    certificate = release / "certificate.json"
    content = json.loads(certificate.read_text())
    for subject in content["subject"]:
        subject["digest"]["sha256"] = hashlib.sha256((release / subject["name"]).read_bytes()).hexdigest()
    certificate.write_bytes((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    with pytest.raises(CertificateInvalid) as caught:
        verify(release)
    assert name in str(caught.value)


def test_a_file_more_or_less_is_named(merged: Path, tmp_path: Path) -> None:
    shutil.copytree(merged, tmp_path / "release")
    (tmp_path / "release" / "modeling_x.py").write_text("import os")
    with pytest.raises(CertificateInvalid, match=r"modeling_x\.py: in the folder"):
        verify(tmp_path / "release")
    (tmp_path / "release" / "modeling_x.py").unlink()
    (tmp_path / "release" / "config.json").unlink()
    with pytest.raises(CertificateInvalid, match=r"config\.json: named by the certificate, but missing"):
        verify(tmp_path / "release")


def test_synthetic_records_carry_the_certificate(merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModel, "write", lambda *_: [WrittenText(" ham\ntext: ok", 9, True)])
    out = tmp_path / "made.csv"
    done = CliRunner().invoke(app, ["synthesize", str(merged), "--rows", "3", "--out", str(out)])
    assert done.exit_code == 0, done.output
    said = json.loads((tmp_path / "made.csv.synthetic.json").read_text())
    claim = verify(merged).claim
    assert said["claim"] == {"epsilon": claim.epsilon, "delta": claim.delta, "sentence": claim.sentence}
    copy = tmp_path / "made.csv.certificate.json"
    assert copy.read_bytes() == (merged / "certificate.json").read_bytes()
    assert verify(copy).claim == claim


def test_what_is_trained_without_privacy_loads_elsewhere_too(tmp_path: Path) -> None:
    text = RECIPE.format(vocabulary=len(LETTERS), release="")
    public = text[: text.index("mechanism:")].replace("path: messages.csv", "path: messages.csv\n    access: public")
    public += "mechanism: {kind: none}\ntraining: {steps: 2, batch_size: 8, optimizer: {kind: adam, lr: 0.01}}\n"
    write_decoder(tmp_path, "gpt2")
    (tmp_path / "public.yaml").write_text(public)
    loaded = read_any(tmp_path / "public.yaml")
    assert isinstance(loaded, LoadedPublic)
    done = train(make_plan(loaded), tmp_path, tmp_path / "run")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(done.weights, local_files_only=True).eval()
    tokens = torch.tensor([tokens_of("label: ham")])
    with torch.no_grad():
        ours = api.load_language_model(done.weights).module.next_logits(tokens)[0]
        torch.testing.assert_close(theirs(tokens).logits[:, -1], ours, atol=1e-5, rtol=1e-5)
