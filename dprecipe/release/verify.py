"""`verify`: everything a certificate says, held against everything it can be held against.

No data and no torch are needed. The certificate is untrusted input: whatever it is, the answer is a claim that
holds or a list of what does not.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe.faults import CertificateInvalid, Fault, UsageFault
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.planning.accept import open_warnings
from dprecipe.privacy import ledger as ledgers
from dprecipe.release import certificate, companions, endings, limits, rebuild, recompute, versions
from dprecipe.release.folder import CERTIFICATE, ENVELOPE, OWN, compare_files, released_files
from dprecipe.release.rebuild import Rebuilt
from dprecipe.release.schema import Claim, Predicate, Statement
from dprecipe.release.sign import load_public_key, unseal
from dprecipe.release.untrusted import NOT_WRITTEN, ContentError, one_line, parse_object, read_bytes, validate_document

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

LEDGER = Path("private") / "ledger.jsonl"
MAX_FAILURES = 60
MAX_SECONDS = 120.0
"""Of processor time, that a stranger's certificate may cost. Those of this repository's recipes take some seconds."""
MAX_MEMORY = 4 << 30
"""Bytes beyond what the process has."""
STAGES = ("its text", "its plan", "what its events cost", "what its files say", "its ledger")
"""What is recomputed, in this order."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A certificate that holds: the claim, what was checked, and what that does not show."""

    claim: Claim
    checked: tuple[str, ...]
    notes: tuple[str, ...]
    statement: Statement


@dataclass(slots=True)
class _Case:
    """One verification under way."""

    folder: Path
    name: str
    checked: list[str]
    notes: list[str]
    failures: list[str]
    left: list[str]
    """What is still to be recomputed, the one under way first."""


def verify(
    path: Path,
    public_key: Path | None = None,
    max_seconds: float | None = MAX_SECONDS,
    max_memory: int | None = MAX_MEMORY,
) -> Verified:
    """Check a certificate file, an envelope, or a `release/` folder.

    With `public_key` (PEM, Ed25519) the envelope must be there and a signature by that key must hold. `max_seconds` of
    processor time and `max_memory` bytes are all that it may take (None: without a bound), where the system can hold it
    to that: see `limits.bound_resources`.

    Raises:
        CertificateInvalid: naming each thing that does not hold, or what was not recomputed within those bounds.
        UsageFault: there is nothing at `path`, or the key can't be used.
    """
    key = None if public_key is None else load_public_key(public_key)
    case = _Case(path, path.name, [], [], [], list(STAGES))
    try:
        with limits.bound_resources(max_seconds, max_memory):
            return _verified(path, key, case)
    except (limits.Exceeded, MemoryError) as error:
        spent = "memory" if isinstance(error, MemoryError) else f"{max_seconds:g} s of processor time"
        flag = "--max-memory" if isinstance(error, MemoryError) else "--max-seconds"
        raise CertificateInvalid(
            [
                f"recomputing it takes more than the {spent} that it may take, so nothing of it is verified; not "
                f"recomputed: {', '.join(case.left)}. If you trust where it comes from, allow more with {flag}"
            ]
        ) from None


def _verified(path: Path, key: Ed25519PublicKey | None, case: _Case) -> Verified:
    try:
        content = _content(path, key, case)
        parsed = parse_object(content, case.name)
        if (reason := versions.unknown_version(parsed)) is not None:
            raise ContentError(reason)
        stated = validate_document(Statement, parsed, case.name)
    except ContentError as error:
        raise CertificateInvalid([one_line(line) for line in (*case.failures, *error.failures)]) from None
    if content != certificate.to_bytes(certificate.to_json(stated)):
        case.failures.append(f"{CERTIFICATE}: {NOT_WRITTEN}")
    case.checked.append("the certificate is well formed")
    case.left.pop(0)
    rebuilt = _check_predicate(stated.predicate, case)
    _check_files(stated, rebuilt, path.is_dir(), case)
    case.left.pop(0)
    _check_ledger(stated.predicate, case)
    if case.failures:
        more = len(case.failures) - MAX_FAILURES
        shown = [*case.failures[:MAX_FAILURES], f"and {more} more"] if more > 0 else case.failures
        raise CertificateInvalid([one_line(line) for line in shown])
    return Verified(stated.predicate.claim, tuple(case.checked), tuple(case.notes), stated)


def _content(path: Path, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    """The certificate's bytes, taken from the envelope where there is one. Sets the case's folder."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        raise UsageFault(
            f"{path}: there is no such file or folder", "give a certificate or a release/ folder"
        ) from None
    case.folder = path if is_folder else path.parent
    plain, envelope = case.folder / CERTIFICATE, case.folder / ENVELOPE
    if not is_folder and path.name not in (CERTIFICATE, ENVELOPE):
        # A file by another name speaks for itself; what it is shows in its content.
        content = read_bytes(path)
        if "payloadType" not in parse_object(content, path.name):
            return _unsigned(content, key, case)
        return _opened(content, path.name, key, case)
    if not plain.exists() and not envelope.exists():
        inner = path / "release"
        remedy = f"give {inner}" if inner.is_dir() else "give a certificate or a release/ folder"
        raise UsageFault(f"{path}: holds no {CERTIFICATE}", remedy)
    if not envelope.exists():
        case.name = str(plain)
        return _unsigned(read_bytes(plain), key, case)
    content = _opened(read_bytes(envelope), ENVELOPE, key, case)
    if plain.exists() and read_bytes(plain) != content:
        case.failures.append(f"{CERTIFICATE}: not the certificate in {ENVELOPE}")
    return content


def _opened(content: bytes, name: str, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    payload, key_ids = unseal(content, name, key)
    case.name = name
    if key is not None:
        case.checked.append("the signature holds under the given public key")
    else:
        hint = ascii(key_ids[0][:16]) if key_ids[0] else "no name"
        case.notes.append(
            f"signed (the envelope names the key {hint}), but without --public-key nobody is shown to have signed it"
        )
    return payload


def _unsigned(content: bytes, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    if key is not None:
        case.failures.append("signature: there is none, and a public key was given")
    else:
        case.notes.append(
            "not signed: whoever could write this certificate could have written another; it shows that its "
            "own arithmetic holds, not who ran what"
        )
    return content


def _check_predicate(stated: Predicate, case: _Case) -> Rebuilt | None:
    """The plan of its recipe, and the events."""
    failures: list[str] = []
    rebuilt = rebuild.rebuild_predicate(stated, failures)
    failures += rebuild.find_contradictions(stated, None if rebuilt is None else rebuilt.plan)
    case.left.pop(0)
    if rebuilt is not None:
        # What the events cost first: a claim that was changed contradicts much else.
        failures += recompute.recompute_numbers(stated, rebuilt, case.notes)
        failures += rebuild.find_differences(stated, rebuilt)
        failures += endings.early_stop(stated, rebuilt.plan, rebuilt.charges)
    case.left.pop(0)
    case.failures += list(dict.fromkeys(failures))
    if rebuilt is not None and not failures:
        _say_what_was_checked(stated, rebuilt, case)
    return rebuilt


def _say_what_was_checked(stated: Predicate, rebuilt: Rebuilt, case: _Case) -> None:
    first, second, third = stated.accounting
    part = mechanism_of(rebuilt.plan.mechanism).certificate
    case.checked += [
        "its recipe was planned again: its digest, the events, sampling, noise, clipping, unit and release agree",
        f"ε recomputed from {stated.events.total:,} events with {first.name} does not exceed the claim",
        f"{third.name}, an independent library, was asked again: consistent with the {third.epsilon!r} stated",
        f"the alternative accountant, {second.name}, gives {second.epsilon!r}; δ(ε) and the Gaussian bound hold",
        f"ε spent does not exceed the budget of {stated.budget.epsilon!r}",
        *part.list_checked(rebuilt.plan),
        f"all {len(stated.checks)} checks passed and the randomness was not fixed, as the certificate says",
    ]
    read = rebuilt.plan.room.attachments
    if read:
        case.notes.append(
            f"what the certificate says of other files ({', '.join(sorted(read))}) is taken as stated: "
            "they are not part of a release, so they were not held against it"
        )
    if warned := open_warnings(rebuilt.plan.warnings):
        case.notes.append(f"the recipe's own warnings, which it does not accept: {'; '.join(warned)}")
    case.notes += part.list_notes(stated.mechanism)
    case.notes.append(
        "what the certificate alone says: what each check measured, which tensors noisy steps made, how many of the "
        "steps charged the model has, scores, times, device, package versions, and whether Python replaced the model "
        "or the records"
    )


def _check_files(stated: Statement, rebuilt: Rebuilt | None, is_folder: bool, case: _Case) -> None:
    subjects = {subject.name: f"sha256:{subject.digest.sha256}" for subject in stated.subject}
    if len(subjects) != len(stated.subject):
        case.failures.append("subject: a file is named twice")
    if subjects.keys() & OWN:
        case.failures.append("subject: names the certificate itself")
    if rebuilt is not None:
        due = released_files(rebuilt.plan)
        others = sorted(set(subjects) - due - OWN)
        case.failures += [f"subject: {name!a} is nothing that a run of this recipe releases" for name in others]
        case.failures += [
            f"subject: {name} is missing, which this recipe releases" for name in sorted(due - set(subjects))
        ]
    if not is_folder and not any((case.folder / name).exists() for name in subjects):
        case.notes.append("none of the released files lies beside it: the claim was not held against any model")
        return
    result = compare_files(case.folder, subjects, alone=not is_folder)
    case.failures += result
    if not result:
        alone = "" if is_folder else "; other files beside it were not looked at"
        whole = "; nothing else is in the folder" if is_folder else ""
        case.checked.append(f"the digests of all {len(subjects)} released files match{whole}{alone}")
    if result or case.failures or rebuilt is None:
        return
    case.failures += companions.find_differences(
        stated.predicate, rebuilt.plan, rebuilt.charges, case.folder, set(subjects)
    )
    case.checked.append(
        f"the weights hold the {len(stated.predicate.tensors):,} tensors that the certificate names, and the other "
        "files say what it says"
    )
    case.notes += mechanism_of(rebuilt.plan.mechanism).certificate.list_companion_notes(frozenset(subjects))
    if "report.html" in subjects:
        case.notes.append("the lines in the report's figures were not drawn again; its words were compared")


def _check_ledger(stated: Predicate, case: _Case) -> None:
    path = case.folder.absolute().parent / LEDGER
    if not os.path.lexists(path):
        case.notes.append(
            "the ledger is not here: that it holds these events, in how many attempts, and why the run stopped "
            f"({stated.budget.stop_reason}) is what the certificate says"
        )
        return
    try:
        ledger = ledgers.read(path)
    except Fault as fault:
        case.failures.append(f"ledger: {fault.message}")
        return
    text = {
        "events.ledger": (stated.events.ledger, ledger.digest),
        "events.run_length": ([_event(r.model_dump()) for r in stated.events.run_length],
                              [_event(charge.to_json()) for charge in ledger.charges]),
        "provenance.plan": (stated.provenance.plan, ledger.plan_digest),
        "budget.attempts": (stated.budget.attempts, ledger.attempts),
        "budget.stop_reason": (stated.budget.stop_reason, ledger.stop_reason),
        "budget.events_settled": (stated.budget.events_settled, sum(c.count for c in ledger.settled)),
        "budget.events_reserved_unsettled": (
            stated.budget.events_reserved_unsettled, sum(c.count for c in ledger.unsettled)),
        "budget.torn_line": (stated.budget.torn_line, ledger.torn),
        "randomness.insecure_seed": (stated.randomness.insecure_seed, ledger.insecure_seed),
    }  # fmt: skip
    results = [f"{path}: not what the ledger holds" for path, (left, right) in text.items() if left != right]
    case.failures += results
    if not results:
        case.checked.append("the ledger beside it holds exactly these events")


def _event(fields: dict[str, object]) -> list[tuple[str, object]]:
    return sorted(fields.items())
