"""`release/`: written completely or not at all, and compared file by file."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe import screen
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.data.facts import has_tokenizer
from dprecipe.data.tokens import TOKENIZER
from dprecipe.durable import sync_folder
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.models.file import parse_description
from dprecipe.models.library_files import list_library_files, name_weights, render_library_files
from dprecipe.privacy.ledger import Ledger
from dprecipe.release import card, certificate, sign, tuned
from dprecipe.release.facts import RunFacts
from dprecipe.release.schema import Predicate
from dprecipe.release.tensors import read_header, releases_adapters, weights_file
from dprecipe.release.untrusted import sha256_of, to_bytes
from dprecipe.timeline import phase

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

CERTIFICATE = "certificate.json"
ENVELOPE = "certificate.dsse.json"
CERTIFICATE_FILES = frozenset({CERTIFICATE, ENVELOPE})
"""The certificate's own files: the only ones that a certificate can't name."""

METRICS = "metrics.json"
REPORT_FILES = frozenset({"report.html", "card.md"})


def list_model_files(plan: Plan) -> frozenset[str]:
    """Returns the names of the weights file and of its description; none where labels alone are released."""
    if not plan.has_model:
        return frozenset()
    return frozenset({weights_file(plan), "model.json"})


def digest_made(files: Mapping[str, str]) -> str:
    """Returns one digest of the files that a run made, from the digest of each (`sha256:…`): what describes them is
    left out (scores, report, card, certificate). For a release without a model, it is the digest of no files."""
    described = {METRICS} | REPORT_FILES | CERTIFICATE_FILES
    made = {name: digest for name, digest in files.items() if name not in described}
    return "sha256:" + hashlib.sha256(b"dprecipe release\0" + to_bytes(dict(sorted(made.items())))).hexdigest()


def publish_draft(
    target: Path,
    plan: Plan,
    ledger: Ledger,
    run: RunFacts,
    history: Sequence[Mapping[str, float]],
    write: Callable[[Path], None],
    check: Callable[[Path], None] = lambda draft: None,
    settle: Callable[[RunFacts, str], RunFacts] = lambda run, release: run,
) -> float:
    """Writes the release of a finished run; returns the ε it claims, computed from the ledger.

    `history`: public scores along the run (`step`, `epsilon`, `accuracy`, `loss`). `write` puts the model's
    files into the folder it is given. `settle` gets the digest of these (`digest_made`) before anything states the run,
    and gives what was recorded of it. `check` gets the complete draft; if it raises, nothing is published.

    Guarantees: `target` appears complete, with its content on disk, or not at all. A `target` that exists is not
    changed.

    Raises:
        UsageFault: `target` exists, or the signing key can't be used.
        RunFailed: the ledger supports no certificate, or writing fails; nothing is left behind.
    """
    key = load_signing_key(plan)
    with open_draft(target) as draft:
        write(draft)
        run = settle(run, digest_made(_list_digests(draft)) if plan.budget.account is not None else "")
        result = certificate.make_run_predicate(plan, ledger, run)
        metrics = card.list_metrics(result, select_history(plan, history))
        _write_new(draft / METRICS, to_bytes(metrics))
        if plan.release.report:
            with phase("report"):
                _write_report(draft, plan, ledger, result, metrics["history"])
        content = certificate.to_bytes(certificate.make_statement(result, _list_digests(draft)))
        _write_new(draft / CERTIFICATE, content)
        if key is not None:
            _write_new(draft / ENVELOPE, sign.seal(content, key))
        check(draft)
    return result.claim.epsilon


def _list_digests(folder: Path) -> dict[str, str]:
    return {entry.name: sha256_of(Path(entry.path)) for entry in os.scandir(folder)}


def _write_report(
    draft: Path, plan: Plan, ledger: Ledger, result: Predicate, history: Sequence[Mapping[str, float]]
) -> None:
    from dprecipe.release import report

    _write_new(draft / "report.html", report.render_html(plan, result, ledger.charges, history).encode())
    _write_new(draft / "card.md", card.render_markdown(plan, result).encode())


def list_released_files(plan: Plan, has_no_model: bool = False) -> frozenset[str]:
    """Returns the names of all files that a run of the plan releases, without the certificate's own. `has_no_model`: it
    ended without a model."""
    names = frozenset({METRICS})
    if plan.release.report:
        names |= REPORT_FILES
    if has_no_model:
        return names
    names |= {TOKENIZER} if plan.has_model and has_tokenizer(plan.data.preprocess) else frozenset()
    names |= list_library_files(plan.model, adapters=releases_adapters(plan)) | list_model_files(plan)
    return names | mechanism_of(plan.mechanism).certificate.list_companions(plan)


def copy_tokenizer(plan: Plan, private: Path, release: Path) -> None:
    """Puts the plan's tokeniser, if it has one, beside the model: raw texts can't be prepared without it. Raises
    `OSError`."""
    if has_tokenizer(plan.data.preprocess):
        shutil.copyfile(private / TOKENIZER, release / TOKENIZER)


def write_library_files(plan: Plan, release: Path) -> None:
    """Writes the files of other libraries, where the model has any, beside `model.json`, the weights and the tokeniser.
    Raises `OSError`."""
    weights, metadata = name_weights(plan.model, adapters=releases_adapters(plan))
    if list_library_files(plan.model, adapters=releases_adapters(plan)):
        file = parse_description((release / "model.json").read_bytes())
        tensors = read_header(release / weights, metadata)
        for name, content in render_library_files(file, (release / TOKENIZER).read_bytes(), tensors).items():
            _write_new(release / name, content)


def load_signing_key(plan: Plan) -> Ed25519PrivateKey | None:
    """Returns the key that signs the release; None where the recipe names none. Call it before training, not after.

    Raises:
        UsageFault: it can't be used.
    """
    signer = plan.release.sign
    return None if signer is None else sign.load_private_key(Path(plan.source.file).parent / signer.key)


def select_history(plan: Plan, history: Sequence[Mapping[str, float]]) -> Sequence[Mapping[str, float]]:
    """Returns the part of the history that may be published: nothing where the claim covers the last iterate alone.
    Elsewhere the events pay for every iterate, so public scores along the way are post-processing."""
    return () if tuned.hides_iterates(plan) else history


@contextmanager
def open_draft(target: Path) -> Iterator[Path]:
    """Yields a folder to write into. It becomes `target` when the block succeeds, and is deleted otherwise.

    Raises:
        UsageFault: `target` exists.
        RunFailed: writing fails.
    """
    if os.path.lexists(target):
        raise UsageFault(f"{target} exists; a release is never overwritten", "choose another folder")
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        for stale in target.parent.glob(f".{target.name}.*"):  # of a run that was killed
            shutil.rmtree(stale, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        for entry in sorted(draft.iterdir()):
            entry.chmod(0o644)  # to be published; some libraries make files that only their owner can read
            sync_folder(entry)
        sync_folder(draft)
        os.rename(draft, target)
    except OSError as error:
        raise RunFailed(
            f"{target}: the release can't be written: {error.strerror}",
            "free space on the disk, then continue with --resume: nothing more is spent",
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    try:
        sync_folder(target.parent)
    except OSError as error:
        # It is complete and in place. If a power failure removes its name, a resumed run writes it again.
        screen.write_note(
            f"warning: {target}: the disk did not confirm its name ({error.strerror}); check the disk. If the release "
            "is missing after a power failure, --resume writes it again and spends nothing"
        )


def compare_files(folder: Path, subjects: Mapping[str, str], named_only: bool = False) -> list[str]:
    """Lists where `folder` differs from exactly the subjects and the certificate's own files.

    `named_only`: ignore files that the certificate does not name, as for a certificate given without its folder.
    """
    failures = []
    for name, digest in sorted(subjects.items()):
        path = folder / name
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                failures.append(f"{name}: not a regular file")
            elif sha256_of(path) != digest:
                failures.append(f"{name}: its content is not what the certificate names")
        except OSError:
            failures.append(f"{name}: named by the certificate, but missing")
    if named_only:
        return failures
    named = CERTIFICATE_FILES | set(subjects)
    try:
        result = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        return [*failures, f"{folder.name}: can't be listed: {error.strerror}"]
    failures += [f"{name}: in the folder, but not named by the certificate" for name in result if name not in named]
    return failures


def _write_new(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
