"""Signatures: Ed25519 in a DSSE envelope.

Source: DSSE v1 (https://github.com/secure-systems-lab/dsse); RFC 8032 (Ed25519).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, StringConstraints

from dprecipe.faults import UsageFault
from dprecipe.language.base import Block
from dprecipe.release.untrusted import (
    NOT_CANONICAL,
    ContentError,
    parse_object,
    read_bytes,
    to_bytes,
    validate_document,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

PAYLOAD_TYPE = "application/vnd.in-toto+json"
HOW_TO_MAKE = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"
HOW_TO_EXPORT = "take it from the private key with: openssl pkey -in key.pem -pubout -out public.pem"


class Signature(Block):
    """One signature; the key id is only a hint."""

    keyid: Annotated[str, StringConstraints(max_length=200)] = ""
    sig: str


class Envelope(Block):
    """A DSSE envelope."""

    payload: str
    payload_type: str = Field(alias="payloadType")
    signatures: Annotated[tuple[Signature, ...], Field(min_length=1, max_length=32)]


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """Returns the key that signs.

    Raises:
        UsageFault: missing, not PEM, encrypted, or not Ed25519.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = read_pem_key(path, HOW_TO_MAKE)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageFault(f"{path}: a private key, but not Ed25519", HOW_TO_MAKE)
    return key


def read_pem_key(path: Path, how_to_make: str) -> PrivateKeyTypes:
    """Returns a private key of any kind. `how_to_make`: the remedy where there is none.

    Raises:
        UsageFault: missing, not PEM, or encrypted.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _read_key_file(path)
    try:
        return load_pem_private_key(content, password=None)
    except TypeError:
        raise UsageFault(
            f"{path}: the private key is encrypted",
            "decrypt it with: openssl pkey -in key.pem -out plain.pem",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageFault(f"{path}: not a private key in PEM", how_to_make) from None


def load_public_key(path: Path) -> Ed25519PublicKey:
    """Returns the key that must have signed.

    Raises:
        UsageFault: missing, not PEM, or not an Ed25519 public key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read_key_file(path)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageFault(f"{path}: not a public key in PEM", HOW_TO_EXPORT) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageFault(f"{path}: a public key, but not Ed25519", HOW_TO_EXPORT)
    return key


def permission_advice(path: Path) -> str | None:
    """Returns advice on a private key that other users of this machine can read; None when they can't."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return None  # using the key reports what is wrong
    if sys.platform == "win32" or not stat.S_IMODE(mode) & 0o077:
        return None
    return f"{path}: other users of this machine can read the private key; run: chmod 600 {path}"


def key_id(key: Ed25519PublicKey) -> str:
    """Returns SHA-256 of the key's SubjectPublicKeyInfo, hexadecimal: a hint for people, never trusted."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Returns what is signed: the pre-authentication encoding, which binds type and length.

    Source: DSSE v1, protocol.md.
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def seal(payload: bytes, key: Ed25519PrivateKey, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Returns the envelope of a document's bytes, a certificate's by default: the text of `certificate.dsse.json`."""
    signature = key.sign(pre_authentication_encoding(payload_type, payload))
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [
            {"keyid": key_id(key.public_key()), "sig": base64.b64encode(signature).decode()},
        ],
    }
    return to_bytes(envelope)


def unseal(
    content: bytes, name: str, key: Ed25519PublicKey | None, payload_type: str = PAYLOAD_TYPE
) -> tuple[bytes, tuple[str, ...]]:
    """Returns the payload of an envelope, and the key ids its signatures name (hints).

    Guarantees: with `key`, the payload is returned only if a signature by `key` is valid.

    Raises:
        ContentError: not the envelope of such a document, or, with `key`, no valid signature by it.
    """
    envelope = validate_document(Envelope, parse_object(content, name), name)
    if envelope.payload_type != payload_type:
        raise ContentError(f"{name}: payloadType: expected {payload_type}")
    payload = _decode_base64(envelope.payload, f"{name}: payload")
    if key is not None:
        signed = pre_authentication_encoding(envelope.payload_type, payload)
        signatures = [_decode_base64(s.sig, f"{name}: signatures") for s in envelope.signatures]
        if not any(_is_valid(key, signature, signed) for signature in signatures):
            raise ContentError(f"{name}: signature: none is valid under the given public key")
    if content != to_bytes(envelope.model_dump(mode="json", by_alias=True)):
        raise ContentError(f"{name}: {NOT_CANONICAL}")
    return payload, tuple(signature.keyid for signature in envelope.signatures)


def _is_valid(key: Ed25519PublicKey, signature: bytes, signed: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, signed)
    except InvalidSignature:
        return False
    return True


def _decode_base64(text: str, what: str) -> bytes:
    try:
        decoded = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ContentError(f"{what}: not base64") from None
    if base64.b64encode(decoded).decode() != text:
        raise ContentError(f"{what}: base64 with unused bits set")
    return decoded


def _read_key_file(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except ContentError as error:
        raise UsageFault(f"{path}: the key can't be used: {error}", "give the path of a PEM file") from None
