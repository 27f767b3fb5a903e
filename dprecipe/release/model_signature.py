"""A signature of a release as OpenSSF's model signing makes them: a Sigstore bundle with a key, which `model_signing
verify key` checks unchanged. It lies beside the release, not in it, and says nothing of privacy.

Source: OpenSSF Model Signing 1.0 (manifest `https://model_signing/signature/v1.0`); Sigstore bundle 0.3; DSSE v1.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.faults import UsageFault
from dprecipe.release.folder import CERTIFICATE_FILES
from dprecipe.release.schema import Statement
from dprecipe.release.sign import PAYLOAD_TYPE, pre_authentication_encoding, read_pem_key
from dprecipe.release.untrusted import sha256_of, to_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PREDICATE = "https://model_signing/signature/v1.0"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""Names that model signing leaves out by itself."""
CURVES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""The curves that its verifiers take, and the hash that each signs with. They take no Ed25519."""
HOW_TO_MAKE = "make one with: openssl ecparam -name prime256v1 -genkey -noout -out model-key.pem"


def load_curve_key(path: Path) -> EllipticCurvePrivateKey:
    """Returns the key that signs.

    Raises:
        UsageFault: missing, not PEM, encrypted, or of no curve that model signing takes.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    key = read_pem_key(path, HOW_TO_MAKE)
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name not in CURVES:
        raise UsageFault(f"{path}: model signing takes keys of the curves P-256, P-384 and P-521 alone", HOW_TO_MAKE)
    return key


def sign_folder(release: Path, statement: Statement, key: EllipticCurvePrivateKey) -> bytes:
    """Returns the bundle for a release that has been verified as `statement`.

    Guarantees: it names each file that the certificate names, with the certificate's digest, and the certificate's own
    files, and no others.

    Raises:
        UsageFault: a file of the certificate can't be read.
    """
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    payload = write_manifest(release, statement)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = key.sign(
        pre_authentication_encoding(PAYLOAD_TYPE, payload), ECDSA(getattr(hashes, CURVES[key.curve.name])())
    )
    return to_bytes(
        {
            "mediaType": BUNDLE,
            "verificationMaterial": {
                "publicKey": {"hint": hashlib.sha256(public).hexdigest()},
                "tlogEntries": [],
            },
            "dsseEnvelope": {
                "payload": base64.b64encode(payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
            },
        }
    )


def write_manifest(release: Path, statement: Statement) -> bytes:
    """Writes what is signed: an in-toto statement with the digest of every file, in the order of their names.

    Raises:
        UsageFault: a file of the certificate can't be read.
    """
    digests = {subject.name: subject.digest.sha256 for subject in statement.subject}
    try:
        for name in CERTIFICATE_FILES:
            if (release / name).is_file():
                digests[name] = sha256_of(release / name).removeprefix("sha256:")
    except OSError as error:
        raise UsageFault(f"{release}: can't be read: {error.strerror}", "check its permissions") from None
    whole = hashlib.sha256(b"".join(bytes.fromhex(digests[name]) for name in sorted(digests)))
    return to_bytes(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": release.resolve().name, "digest": {"sha256": whole.hexdigest()}}],
            "predicateType": PREDICATE,
            "predicate": {
                "serialization": {
                    "method": "files",
                    "hash_type": "sha256",
                    "allow_symlinks": False,
                    "ignore_paths": list(IGNORED),
                },
                "resources": [
                    {"name": name, "algorithm": "sha256", "digest": digests[name]} for name in sorted(digests)
                ],
            },
        }
    )
