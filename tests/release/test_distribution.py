"""A folder for the Hugging Face hub, and signatures as OpenSSF's model signing makes them.

In the folder, what the certificate covers stays as it is, and the front matter is public. Signatures are checked by
their specification and, where it is installed, by the project's own verifier.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import UsageFault
from dprecipe.models.file import describe_file, parse_description
from dprecipe.recipe.read import read_source
from dprecipe.release.distribution import find_task, load_curve_key, render_readme, sign_folder, write_hub_folder
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
    claim, privacy = release[1].predicate.claim, front["differential_privacy"]
    assert (privacy["epsilon"], privacy["unit"]) == (claim.epsilon, "record")
    assert privacy["epsilon_of_groups"] == {str(group.size): group.epsilon for group in claim.groups}
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
    assert card.data.to_dict()["differential_privacy"]["unit"] == "record"
    assert hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()


def test_the_library_of_the_hub_reads_the_card_of_a_release(finished: Any) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    data = hub.ModelCard.load(finished.release / "card.md").data
    assert isinstance(data, hub.ModelCardData)
    assert (data.library_name, data.model_name) == ("dprecipe", "tampered")
    assert data.tags == ["differential-privacy", "dpsgd", "logistic_regression"]
    assert data.to_dict()["differential_privacy"]["epsilon"] == verify(finished.release).claim.epsilon


@pytest.mark.slow
def test_no_private_score_no_licence_and_the_text_of_the_card(publish: Callable[[str], Path], tmp_path: Path) -> None:
    text = RECIPE.replace(", access: public", "").replace("meta: {license: apache-2.0, ticket: DS-118}\n", "")
    folder = publish(text.replace("release: {report: false}\n", ""))
    front = export((folder, verify(folder).statement), tmp_path / "hub")
    assert "model-index" not in front
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


@pytest.mark.parametrize(("base", "relation"), [(None, "finetune"), (f"sha256:{'0' * 64}", "adapter")])
def test_the_hub_learns_what_was_made_of_a_base(
    base: str | None, relation: str, release: tuple[Path, Statement]
) -> None:
    block = model_block(init=None, hub={"name": "owner/base", "revision": "0" * 40}, lora={"rank": 2})
    description = describe_file(block, data_block(), config_of("gpt2"), (), base)
    readme = render_readme(release[1], parse_description(json.dumps(description)), "texts")
    front = yaml.safe_load(readme.split("---\n", 2)[1])
    assert (front["base_model"], front["base_model_relation"]) == ("owner/base", relation)


PEM, PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()
RESTS = ("certificate.json", "metrics.json", "model.json", "model.safetensors")


def write_key(path: Path, key: Any, encryption: Any = PLAIN) -> Path:
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption))
    return path


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_the_bundle_is_a_valid_signature_of_every_file(curve: ec.EllipticCurve, finished: Any, tmp_path: Path) -> None:
    key = load_curve_key(write_key(tmp_path / "key.pem", ec.generate_private_key(curve)))
    bundle = json.loads(sign_folder(finished.release, verify(finished.release).statement, key))
    envelope = bundle["dsseEnvelope"]
    payload = base64.b64decode(envelope["payload"], validate=True)
    kind = envelope["payloadType"]
    # DSSE v1: "DSSEv1" SP len(type) SP type SP len(body) SP body
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    (signature,) = envelope["signatures"]
    algorithm = {256: hashes.SHA256(), 384: hashes.SHA384(), 521: hashes.SHA512()}[curve.key_size]
    public = key.public_key()
    public.verify(base64.b64decode(signature["sig"]), signed, ec.ECDSA(algorithm))
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature["sig"]), signed + b" ", ec.ECDSA(algorithm))
    pem = public.public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert bundle["verificationMaterial"]["publicKey"]["hint"] == hashlib.sha256(pem).hexdigest()
    statement = json.loads(payload)
    resources = statement["predicate"]["resources"]
    files = {path.name: hashlib.sha256(path.read_bytes()) for path in finished.release.iterdir()}
    assert {each["name"]: each["digest"] for each in resources} == {n: d.hexdigest() for n, d in files.items()}
    assert set(RESTS) <= files.keys()
    assert [each["name"] for each in resources] == sorted(files)
    whole = hashlib.sha256(b"".join(files[name].digest() for name in sorted(files))).hexdigest()
    assert statement["subject"] == [{"name": "release", "digest": {"sha256": whole}}]


def test_it_is_written_beside_the_release_and_only_of_one_that_verifies(copy: Any, tmp_path: Path) -> None:
    key = write_key(tmp_path / "key.pem", ec.generate_private_key(ec.SECP256R1()))
    inside = call(copy.release, "--format", "model-signing", "--key", key, "--out", copy.release / "model.sig")
    assert inside.exit_code == 2
    assert "is a release" in inside.stderr
    out = tmp_path / "model.sig"
    assert call(copy.release, "--format", "model-signing", "--key", key, "--out", out).exit_code == 0
    assert json.loads(out.read_text(encoding="utf-8"))["mediaType"].startswith("application/vnd.dev.sigstore.bundle")
    assert call(copy.release, "--format", "model-signing", "--out", tmp_path / "b.sig").exit_code == 2
    assert call(copy.release, "--format", "onnx", "--key", key, "--out", tmp_path / "b.onnx").exit_code == 2
    (copy.release / "card.md").write_text("changed", encoding="utf-8")
    broken = call(copy.release, "--format", "model-signing", "--key", key, "--out", tmp_path / "b.sig")
    assert broken.exit_code == 3
    assert not (tmp_path / "b.sig").exists()


def test_a_key_that_cannot_sign_is_refused_with_what_does(tmp_path: Path) -> None:
    curve = ec.generate_private_key(ec.SECP256R1())
    encrypted = serialization.BestAvailableEncryption(b"secret")
    (tmp_path / "text.pem").write_text("no key", encoding="utf-8")
    for path, words in (
        (write_key(tmp_path / "other.pem", ed25519.Ed25519PrivateKey.generate()), "P-256"),
        (write_key(tmp_path / "koblitz.pem", ec.generate_private_key(ec.SECP256K1())), "P-256"),
        (write_key(tmp_path / "locked.pem", curve, encrypted), "encrypted"),
        (tmp_path / "text.pem", "not a private key"),
        (tmp_path / "gone.pem", "can't be used"),
    ):
        with pytest.raises(UsageFault, match=words) as caught:
            load_curve_key(path)
        assert "openssl" in caught.value.remedy or "PEM" in caught.value.remedy


@pytest.mark.slow
def test_the_verifier_of_the_project_accepts_it(copy: Any, tmp_path: Path) -> None:
    pytest.importorskip("model_signing")
    key = ec.generate_private_key(ec.SECP256R1())
    out, public = tmp_path / "model.sig", tmp_path / "public.pem"
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    private = write_key(tmp_path / "key.pem", key)
    assert call(copy.release, "--format", "model-signing", "--key", private, "--out", out).exit_code == 0
    command = [sys.executable, "-m", "model_signing", "verify", "key", "--public_key", str(public)]
    command += ["--signature", str(out), str(copy.release)]
    assert subprocess.run(command, check=False).returncode == 0
    (copy.release / "card.md").write_text("changed", encoding="utf-8")
    assert subprocess.run(command, check=False).returncode != 0
