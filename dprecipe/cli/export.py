"""`dprecipe export`: a released model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import NoVerify, PublicKey, ReleaseForm, ReleasePath
from dprecipe.cli.files import check_absent, verify_release, writing_new
from dprecipe.faults import UsageFault
from dprecipe.libraries import check_libraries, importing_libraries
from dprecipe.models.file import find_model_folder, parse_description
from dprecipe.recipe.read import read_source
from dprecipe.release.folder import CERTIFICATE, ENVELOPE
from dprecipe.release.rebuild import stated_source
from dprecipe.release.untrusted import sha256_of
from dprecipe.screen import write_note

NAMED = ("model.json", "model.safetensors", CERTIFICATE, ENVELOPE)
"""The files whose digests an exported file states."""


def export(
    release: ReleasePath,
    form: ReleaseForm,
    out: Annotated[Path, typer.Option(help="A new file, or a new folder.", show_default=False)],
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license", help="License in README.md, as the hub spells it; by default the recipe's meta.license."
        ),
    ] = None,
    no_verify: NoVerify = False,
    public_key: PublicKey = None,
    key: Annotated[Path | None, typer.Option(help="Private key for model-signing, P-256 in PEM.")] = None,
) -> None:
    """Verifies the release, then writes it as `form`: `onnx`, a file, `huggingface`, a folder, or `model-signing`, a
    signature by `key` that lies beside it.

    Raises:
        UsageFault: another form, `out` exists, or a flag does not belong to the form.
        CertificateInvalid: the release does not verify.
        DataFault, RunFailed: see `dprecipe.models.onnx.export_onnx` and `release.distribution.write_hub_folder`.
    """
    release = find_model_folder(release)
    check_absent(out)
    if license_name is not None and form != "huggingface":
        raise UsageFault("a licence stands in README.md of --format huggingface alone", "remove --license")
    if (key is not None) != (form == "model-signing"):
        raise UsageFault("--key signs for --format model-signing, which needs one", "give both, or neither")
    if form == "onnx":
        check_libraries("exporting", "torch")  # before seconds of verifying
        if not no_verify:
            verify_release(release, public_key)
        _export_onnx(release, out)
    elif form == "huggingface":
        from dprecipe.release.distribution import write_hub_folder

        if no_verify:
            raise UsageFault("a release is verified before it becomes a folder to upload", "remove --no-verify")
        verified = verify_release(release, public_key)
        model = parse_description((release / "model.json").read_bytes())
        recipe = read_source(stated_source(verified.statement.predicate)).recipe
        declared = license_name or recipe.meta.get("license")
        write_hub_folder(release, out, verified.statement, model, recipe.name, declared)
        write_note(f"wrote {out}: README.md, and release/ unchanged; upload it with: hf upload OWNER/NAME {out}")
    elif form == "model-signing" and key is not None:
        _sign(release, out, key, public_key, check=not no_verify)
    else:
        raise UsageFault(f"{form!r} is no format", "choose onnx, huggingface or model-signing with --format")


def _sign(release: Path, out: Path, key: Path, public_key: Path | None, *, check: bool) -> None:
    from dprecipe.release.distribution import load_curve_key, sign_folder

    if not check:
        raise UsageFault("a release is verified before it is signed", "remove --no-verify")
    if release.resolve() in out.absolute().resolve().parents:
        raise UsageFault(f"{out} is in the release, which holds nothing but what it names", "name a file beside it")
    signer = load_curve_key(key)
    verified = verify_release(release, public_key)
    with writing_new(out) as draft:
        draft.write_bytes(sign_folder(release, verified.statement, signer))
    write_note(f"wrote {out}; check it with: model_signing verify key --public_key PEM --signature {out} {release}")


def _export_onnx(release: Path, out: Path) -> None:
    with importing_libraries("exporting"):
        from dprecipe.models.load import load
        from dprecipe.models.onnx import export_onnx

    files = [name for name in NAMED if (release / name).is_file()]
    metadata = {f"dprecipe:{name}": sha256_of(release / name) for name in files}
    with writing_new(out) as draft:
        exported = export_onnx(load(release), draft, metadata)
    write_note(
        f"wrote {out}: on {exported.records} records its outputs differ from torch's by at most "
        f"{exported.difference:.1e} of the largest ({exported.edge_difference:.1e} on constant and very large ones)",
        "it takes prepared features: dprecipe.models.prepare prepares records, without torch",
    )
