"""Signatures as OpenSSF's model signing makes them, checked here by their specification and, where it is installed, by
the project's own verifier."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.faults import UsageFault
from dprecipe.release.distribution import load_curve_key, sign_folder
from dprecipe.release.exports import EXPORTS
from dprecipe.release.verify import verify

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


def test_the_bill_of_materials_has_the_versions_of_the_certificate(finished: Any) -> None:
    verified = verify(finished.release)
    text = EXPORTS["sbom"](verified)
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert EXPORTS["sbom"](verified) == text
    versions = {c["name"]: c["version"] for c in bill["components"] if c["type"] in ("library", "platform")}
    assert versions == verified.statement.predicate.provenance.versions
    urls = {c["name"]: c["purl"] for c in bill["components"] if c["type"] == "library"}
    assert urls["dp-accounting"] == f"pkg:pypi/dp-accounting@{versions['dp-accounting']}"
    assert all("+" not in url for url in urls.values())
    files = {c["name"]: c["hashes"][0]["content"] for c in bill["components"] if c["type"] == "file"}
    assert files == {subject.name: subject.digest.sha256 for subject in verified.statement.subject}
    references = [c["bom-ref"] for c in bill["components"]]
    assert len(references) == len(set(references))
    assert {ref for each in bill["dependencies"] for ref in each["dependsOn"]} <= set(references)
