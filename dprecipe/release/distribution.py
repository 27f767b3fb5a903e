"""A verified release for other programs: a folder for the Hugging Face hub, and OpenSSF's model signing.

The folder has `README.md`, whose front matter the hub reads, and `release/`, byte by byte as the certificate names it.
The signature is a Sigstore bundle with a key, which `model_signing verify key` checks unchanged. It lies beside the
release, not in it, and says nothing of privacy.

Source: OpenSSF Model Signing 1.0 (manifest `https://model_signing/signature/v1.0`); Sigstore bundle 0.3; DSSE v1.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprecipe.faults import RunFailed, UsageFault
from dprecipe.models.file import ModelFile
from dprecipe.models.schema import CausalLm, Transformers
from dprecipe.release.card import plain_text
from dprecipe.release.folder import CERTIFICATE_FILES
from dprecipe.release.schema import Predicate, Statement
from dprecipe.release.sign import PAYLOAD_TYPE, pre_authentication_encoding, read_pem_key
from dprecipe.release.untrusted import sha256_of, to_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

FOLDER = "release"
ATTRIBUTES = "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
METRIC_TYPES = {"mean_absolute_error": "mae", "root_mean_squared_error": "rmse", "auc": "roc_auc", "r2": "r_squared"}
"""The hub's words for metrics that it calls otherwise."""
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,49}")
IMAGE_AXES = 2


def write_hub_folder(
    source: Path, target: Path, statement: Statement, model: ModelFile, name: str, license_name: object = None
) -> None:
    """Writes the folder, whole or not at all. `source` is a release that has been verified as `statement`.

    `name`: of the model. `license_name`: the hub's identifier (`apache-2.0`); left out when None.

    Raises:
        UsageFault: `target` exists, or the licence is no identifier.
        RunFailed: writing fails.
    """
    if os.path.lexists(target):
        raise UsageFault(f"{target} exists; an export overwrites nothing", "choose another folder with --out")
    readme = render_readme(statement, model, name, _read_card(source), license_name)
    names = [*(subject.name for subject in statement.subject), *sorted(CERTIFICATE_FILES)]
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        (draft / FOLDER).mkdir(parents=True)
        for name in names:
            if (source / name).is_file():
                shutil.copyfile(source / name, draft / FOLDER / name)
        (draft / "README.md").write_text(readme, encoding="utf-8")
        (draft / ".gitattributes").write_text(ATTRIBUTES, encoding="utf-8")
        draft.rename(target)
    except OSError as error:
        raise RunFailed(f"{target}: can't be written: {error.strerror}", "choose another folder with --out") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def render_readme(
    statement: Statement, model: ModelFile, name: str, card: str | None = None, license_name: object = None
) -> str:
    """Writes `README.md`: front matter, how to use it, and the text of `card.md` (or the claim, where there is none).

    Every value of the front matter is JSON, which YAML reads the same way; scores are those on public records alone.
    """
    predicate = statement.predicate
    lines = [f"{key}: {json.dumps(value)}" for key, value in _metadata(predicate, model, name, license_name).items()]
    body = card
    if body is None:
        body = f"# {plain_text(name)}\n\n{plain_text(predicate.claim.sentence)}\n"
    call = _WRITES if isinstance(model.model, CausalLm) else _PREDICTS
    return "\n".join(["---", *lines, "---", "", body.strip(), "", _USE.replace(_CALL, call)])


_CALL = "CALL"
_PREDICTS = "model = dprecipe.load_model(folder)  # model.predict(records), model.predict_proba(records)"
_WRITES = 'model = dprecipe.load_language_model(f"{folder}/release")  # model.generate(prompt); base=… for adapters'
_USE = f"""## Use

```python
import dprecipe
from huggingface_hub import snapshot_download

folder = snapshot_download("OWNER/NAME", local_dir="model")
print(dprecipe.verify(f"{{folder}}/release").claim.sentence)
{_CALL}
```

`release/` is what the certificate covers; this page and the other files beside it are not.
"""


def _metadata(predicate: Predicate, model: ModelFile, name: str, license_name: object) -> dict[str, Any]:
    task = find_task(model)
    if license_name is not None and not (isinstance(license_name, str) and LICENSE.fullmatch(license_name)):
        raise UsageFault(
            f"{str(license_name)[:50]!r} is no identifier of a licence",
            "write it as the hub does: --license apache-2.0",
        )
    kind = None if model.model is None else model.model.kind
    base = model.model.hub if isinstance(model.model, Transformers | CausalLm) else None
    claim = predicate.claim
    groups = {str(group.size): group.epsilon for group in claim.groups if group.epsilon is not None}
    privacy = {
        "epsilon": claim.epsilon,
        "delta": claim.delta,
        "neighbouring": claim.neighbouring,
        "unit": claim.unit.name,
        **({"epsilon_of_groups": groups} if groups else {}),
    }
    results = _results(predicate, task)
    return {
        **({} if license_name is None else {"license": license_name}),
        "library_name": "dprecipe",
        "pipeline_tag": task,
        **({} if base is None else {"base_model": base.name, "base_model_relation": _name_relation(model)}),
        "tags": ["differential-privacy", "dprecipe", predicate.mechanism.kind, *([] if kind is None else [kind])],
        "differential_privacy": privacy,
        **({"model-index": [{"name": name, "results": results}]} if results else {}),
    }


def _name_relation(model: ModelFile) -> str:
    """Returns the hub's word for what was made of a base: `base` is stated where adapters are released alone."""
    return "finetune" if model.base is None else "adapter"


def _results(predicate: Predicate, task: str) -> list[dict[str, Any]]:
    """Returns the released score, as the hub lists results; none where evaluation was not on public records."""
    evaluation = predicate.data_access.evaluation
    if evaluation.released is None:
        return []
    figures: Mapping[str, Any] = evaluation.released.model_dump()
    metrics = [
        {"type": METRIC_TYPES.get(name, name), "name": name.replace("_", " "), "value": value}
        for name, value in figures.items()
        if name != "records" and isinstance(value, int | float) and not isinstance(value, bool)
    ]
    dataset = {"name": f"{figures['records']} held-out public records", "type": "held-out"}
    return [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}]


def find_task(model: ModelFile) -> str:
    """Returns the hub's word for what a model does."""
    if isinstance(model.model, CausalLm):
        return "text-generation"
    if model.facts.vocabulary is not None or isinstance(model.model, Transformers):
        return "text-classification"
    chooses = model.facts.target.is_choice
    if model.columns is None and len(model.source_shape or ()) >= IMAGE_AXES:
        return "image-classification" if chooses else "other"
    return "tabular-classification" if chooses else "tabular-regression"


def _read_card(source: Path) -> str | None:
    """Returns the text of `card.md` without its own front matter."""
    path = source / "card.md"
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    return text.split("\n---\n", 1)[1] if text.startswith("---\n") and "\n---\n" in text else text


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
