"""Keys and envelopes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dprecipe.faults import UsageFault
from dprecipe.release import sign
from dprecipe.release.untrusted import ContentError


def test_pae_is_the_one_of_the_specification() -> None:
    """The example of DSSE v1, protocol.md."""
    assert sign.pre_authentication_encoding("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_what_was_sealed_opens_under_its_key_only() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    envelope = sign.seal(b"{}", key)
    payload, hints = sign.unseal(envelope, "e", key.public_key())
    assert payload == b"{}"
    assert hints == (sign.key_id(key.public_key()),)
    assert sign.unseal(envelope, "e", None)[0] == b"{}"
    with pytest.raises(ContentError, match="none is valid"):
        sign.unseal(envelope, "e", other.public_key())


def test_a_key_id_that_lies_helps_nobody() -> None:
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    hint = sign.key_id(key.public_key()).encode()
    envelope = sign.seal(b"{}", key).replace(hint, sign.key_id(other.public_key()).encode())
    assert sign.unseal(envelope, "e", key.public_key())[0] == b"{}"
    with pytest.raises(ContentError):
        sign.unseal(envelope, "e", other.public_key())


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def private_pem(key: object, encryption: s.KeySerializationEncryption | None = None) -> bytes:
    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, encryption or s.NoEncryption())  # type: ignore[attr-defined]


def test_keys_that_can_not_be_used_are_explained(tmp_path: Path) -> None:
    ed = Ed25519PrivateKey.generate()
    public = ed.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    rsa_key = private_pem(rsa.generate_private_key(65537, 2048))
    cases = [
        (sign.load_private_key, tmp_path / "absent", "No such file"),
        (sign.load_private_key, tmp_path, "not a regular file"),
        (sign.load_private_key, write(tmp_path / "a", b"junk"), "not a private key in PEM"),
        (sign.load_private_key, write(tmp_path / "b", public), "not a private key in PEM"),
        (sign.load_private_key, write(tmp_path / "c", rsa_key), "not Ed25519"),
        (sign.load_private_key, write(tmp_path / "d", private_pem(ed, s.BestAvailableEncryption(b"x"))), "encrypted"),
        (sign.load_public_key, write(tmp_path / "e", private_pem(ed)), "not a public key in PEM"),
        (sign.load_public_key, write(tmp_path / "f", b""), "not a public key in PEM"),
    ]
    for load, path, message in cases:
        with pytest.raises(UsageFault, match=message) as caught:
            load(path)
        assert caught.value.remedy
    assert sign.load_public_key(write(tmp_path / "g", public)) == ed.public_key()


@pytest.mark.skipif(os.name == "nt", reason="no such permissions there")
def test_a_key_that_others_can_read_is_mentioned(tmp_path: Path) -> None:
    path = write(tmp_path / "key.pem", private_pem(Ed25519PrivateKey.generate()))
    path.chmod(0o644)
    assert "chmod 600" in (sign.permission_advice(path) or "")
    path.chmod(0o600)
    assert sign.permission_advice(path) is None
