"""`verify`: checks everything a certificate says against everything that can be recomputed.

It needs neither data nor torch. The certificate is untrusted input: the answer is always a claim that holds, or a list
of what does not.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dprecipe import __version__, notebook
from dprecipe.contract.table import mechanism_of
from dprecipe.data.tokens import TOKENIZER
from dprecipe.faults import CertificateInvalid, Fault, UsageFault
from dprecipe.models.public_record import NO_GUARANTEE, SCHEMA
from dprecipe.planning.accept import open_warnings
from dprecipe.privacy import ledger as ledgers
from dprecipe.privacy.rounding import write_number
from dprecipe.release import (
    audit,
    certificate,
    charged_account,
    companions,
    endings,
    meaning,
    no_model,
    rebuild,
    recompute,
    scores,
    untrusted,
)
from dprecipe.release.folder import CERTIFICATE, CERTIFICATE_FILES, ENVELOPE, compare_files, list_released_files
from dprecipe.release.rebuild import Rebuilt
from dprecipe.release.schema import Claim, Predicate, Statement
from dprecipe.release.sign import load_public_key, unseal
from dprecipe.release.untrusted import (
    NOT_CANONICAL,
    ContentError,
    one_line,
    parse_object,
    read_bytes,
    validate_document,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

PROVENANCE = "provenance.json"
"""Name of the file that a run without privacy writes instead of a certificate."""
LEDGER = Path("private") / "ledger.jsonl"
MAX_FAILURES = 60
STAGES = ("its text", "its plan", "what its events cost", "what its files say", "its ledger")
"""Parts that are recomputed, in this order."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A valid certificate: the claim, what was checked, and what the checks don't show."""

    claim: Claim
    checked: tuple[str, ...]
    notes: tuple[str, ...]
    statement: Statement

    def __repr__(self) -> str:
        return f"Verified(ε = {self.claim.epsilon!r}, δ = {self.claim.delta!r}: {self.claim.sentence})"

    def _repr_html_(self) -> str:
        return show_verified(self)


def show_verified(verified: Verified) -> str:
    """Renders what was verified, as a card of a notebook."""
    claim, stated = verified.claim, verified.statement.predicate
    protected, more = meaning.describe_protected(claim)
    released = stated.data_access.evaluation.released
    return notebook.render_card(
        f"Verified: {stated.provenance.recipe.name}",
        notebook.render_numbers(
            [
                *(() if released is None else scores.list_headline(released, released.records)),
                (f"ε = {meaning.read_up(claim.epsilon)}", f"spent: {claim.epsilon!r} of {stated.budget.epsilon!r}"),
                (f"δ = {write_number(claim.delta)}", meaning.describe_delta(claim.delta)),
                (protected, more),
            ]
        ),
        notebook.render_text(meaning.describe_attack(claim), "good"),
        notebook.render_text(claim.sentence, "soft"),
        notebook.render_details("checked", verified.checked),
        notebook.render_details(
            "declared, and checked by nobody", (a.text for a in stated.assumptions if a.checked_by == "declaration")
        ),
        notebook.render_details("not shown", (*verified.notes, meaning.NOT_PROVEN)),
    )


@dataclass(slots=True)
class _Case:
    """One verification in progress."""

    folder: Path
    name: str
    checked: list[str]
    notes: list[str]
    failures: list[str]
    remaining: list[str]
    """The stages that are not finished, the current one first."""


def verify(
    path: Path,
    public_key: Path | None = None,
    max_seconds: float | None = untrusted.MAX_SECONDS,
    max_memory: int | None = untrusted.MAX_MEMORY,
) -> Verified:
    """Checks a certificate file, an envelope, or a `release/` folder.

    With `public_key` (PEM, Ed25519) there must be an envelope with a valid signature by that key. Verification may take
    at most `max_seconds` of processor time and `max_memory` bytes (None: no bound), where the system can enforce that:
    see `untrusted.bound_resources`.

    Raises:
        CertificateInvalid: naming each thing that does not hold, or what was not recomputed within those bounds.
        UsageFault: there is nothing at `path`, or the key can't be used.
    """
    key = None if public_key is None else load_public_key(public_key)
    case = _Case(path, path.name, [], [], [], list(STAGES))

    def refuse(message: str) -> CertificateInvalid:
        return CertificateInvalid([f"{message} (not recomputed: {', '.join(case.remaining)})"])

    with untrusted.refusing_beyond(max_seconds, max_memory, refuse):
        return _verify_case(path, key, case)


def _verify_case(path: Path, key: Ed25519PublicKey | None, case: _Case) -> Verified:
    try:
        content = _read_certificate(path, key, case)
        parsed = parse_object(content, case.name)
        if (reason := certificate.explain_unknown_rules(parsed)) is not None:
            raise ContentError(reason)
        stated = validate_document(Statement, parsed, case.name)
    except ContentError as error:
        raise CertificateInvalid([one_line(line) for line in (*case.failures, *error.failures)]) from None
    if content != certificate.to_bytes(expected := certificate.to_json(stated)):
        differing = (line.removeprefix("predicate.") for line in rebuild.compare_json(parsed, expected))
        case.failures += list(differing) or [f"{CERTIFICATE}: {NOT_CANONICAL}"]
    case.checked.append("the certificate is well formed")
    case.remaining.pop(0)
    rebuilt, rendered = _check_predicate(stated.predicate, case)
    readable = stated.model_copy(update={"predicate": rendered})
    _check_files(readable, rebuilt, path.is_dir(), case)
    case.remaining.pop(0)
    _check_ledger(stated.predicate, case)
    if case.failures:
        more = len(case.failures) - MAX_FAILURES
        failures = [*case.failures[:MAX_FAILURES], f"and {more} more"] if more > 0 else case.failures
        raise CertificateInvalid([one_line(line) for line in failures])
    return Verified(rendered.claim, tuple(case.checked), tuple(case.notes), readable)


def _read_certificate(path: Path, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    """Returns the certificate's bytes, from the envelope where there is one. Sets the case's folder."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        raise UsageFault(
            f"{path}: there is no such file or folder", "give a certificate or a release/ folder"
        ) from None
    case.folder = path if is_folder else path.parent
    plain, envelope = case.folder / CERTIFICATE, case.folder / ENVELOPE
    if not is_folder and path.name not in (CERTIFICATE, ENVELOPE):
        # A file of another name: its content shows whether it is an envelope.
        content = read_bytes(path)
        parsed = parse_object(content, path.name)
        if parsed.get("schema") == SCHEMA:
            raise ContentError(explain_no_certificate(path.name))
        if "payloadType" not in parsed:
            return _note_unsigned(content, key, case)
        return _open_envelope(content, path.name, key, case)
    if not plain.exists() and not envelope.exists():
        for folder in (path, path / "weights"):
            if (folder / PROVENANCE).exists():
                raise ContentError(explain_no_certificate(folder.name))
        inner = path / "release"
        remedy = f"verify {inner}" if inner.is_dir() else "give a certificate or a release/ folder"
        raise UsageFault(f"{path}: there is no {CERTIFICATE} in this folder", remedy)
    if not envelope.exists():
        case.name = str(plain)
        return _note_unsigned(read_bytes(plain), key, case)
    content = _open_envelope(read_bytes(envelope), ENVELOPE, key, case)
    if plain.exists() and read_bytes(plain) != content:
        case.failures.append(f"{CERTIFICATE}: not the certificate in {ENVELOPE}")
    return content


def explain_no_certificate(name: str) -> str:
    """Explains why there is nothing to verify where a recipe without privacy was run."""
    return f"{name}: there is no privacy certificate. The run had mechanism none: {NO_GUARANTEE}"


def _open_envelope(content: bytes, name: str, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    payload, key_ids = unseal(content, name, key)
    case.name = name
    if key is not None:
        case.checked.append("the signature holds under the given public key")
    else:
        hint = ascii(key_ids[0][:16]) if key_ids[0] else "no name"
        case.notes.append(
            f"signed (the envelope names the key {hint}), but not checked: give --public-key to see who signed it"
        )
    return payload


def _note_unsigned(content: bytes, key: Ed25519PublicKey | None, case: _Case) -> bytes:
    if key is not None:
        case.failures.append("signature: there is none, but a public key was given")
    else:
        case.notes.append(
            "not signed: anyone could have written this certificate; it shows that its arithmetic holds, not who ran "
            "what"
        )
    return content


def _check_predicate(stated: Predicate, case: _Case) -> tuple[Rebuilt | None, Predicate]:
    """Returns the plan of its recipe with the events, and the predicate with its sentences."""
    failures: list[str] = []
    rendered = stated
    rebuilt = rebuild.rebuild_predicate(stated, failures)
    failures += rebuild.find_contradictions(stated, None if rebuilt is None else rebuilt.plan)
    case.remaining.pop(0)
    if rebuilt is not None:
        # The cost of the events comes first: a changed claim contradicts much else.
        failures += recompute.recompute_numbers(stated, rebuilt, case.notes)
        differences, rendered = rebuild.find_differences(stated, rebuilt)
        failures += differences
        failures += endings.check_budget_stop(stated, rebuilt.plan, rebuilt.charges)
        failures += charged_account.check_costs(stated.account, rebuilt.charges)
        failures += no_model.find_impossible_end(stated, rebuilt.plan, rebuilt.charges)
    case.remaining.pop(0)
    case.failures += list(dict.fromkeys(failures))
    if rebuilt is not None and not failures:
        _record_checked(rendered, rebuilt, case)
    return rebuilt, rendered


def _record_checked(stated: Predicate, rebuilt: Rebuilt, case: _Case) -> None:
    first, second, third = stated.accounting
    part = mechanism_of(rebuilt.plan.mechanism).certificate
    case.checked += [
        "its recipe was planned again, with the defaults and solved values that it states: digest, events, sampling, "
        "noise, clipping, unit and release agree",
        f"ε recomputed from {stated.events.total:,} events with {first.name} does not exceed the claim",
        f"{third.name}, an independent library, was run again: consistent with the stated {third.epsilon!r}",
        f"the alternative accountant, {second.name}, gives {second.epsilon!r}; δ(ε) and the Gaussian bound hold",
        f"ε spent does not exceed the budget of {stated.budget.epsilon!r}",
        *(() if no_model.has_no_model(stated) else part.list_checked(rebuilt.plan)),
        *(
            ["nothing was learned: a run of this recipe can have ended without a model after these events"]
            if no_model.has_no_model(stated)
            else []
        ),
        f"all {len(stated.checks)} checks passed and the randomness was not fixed, as the certificate says",
    ]
    if stated.audit is None:
        case.notes.append(f"{audit.NOT_AUDITED[:1].lower()}{audit.NOT_AUDITED[1:]}")
    else:
        case.checked.append(
            f"its audit: the p-values of {len(stated.audit.tests):,} tests, its lower bounds "
            f"({len(stated.audit.bounds):,}) and what they could see were computed again from its counts; none accuses "
            "the program"
        )
        if stated.audit.specification is not None:
            word = "consistent" if stated.audit.specification.consistent else "inconsistent, which refutes no claim"
            case.checked.append(f"what the scores of its canaries say of the specification, computed again: {word}")
        case.notes.append(audit.describe_note(stated.audit))
    if stated.account is not None:
        case.checked.append(
            "what its account counts for it covers its events, and is within the account's cap with all that the "
            "certificate says the account counts; its ε after this run was computed again"
        )
        case.notes.append(charged_account.NOTE)
    attachments = rebuilt.plan.mechanism_plan.attachments
    if attachments:
        case.notes.append(
            f"what the certificate says about other files ({', '.join(sorted(attachments))}) was not compared "
            "with them: they are not part of a release"
        )
    if warnings := open_warnings(rebuilt.plan.warnings):
        case.notes.append(f"warnings of the recipe that it does not accept: {'; '.join(warnings)}")
    case.notes += part.list_notes(stated.mechanism)
    if not stated.is_own:
        case.notes.insert(0, describe_other_version(stated))
    case.notes.append(
        "taken from the certificate alone: what each check measured, which tensors noisy steps made, how many of the "
        "charged steps the model has, scores, times, device, package versions, and whether Python replaced the model "
        "or the records"
    )


def describe_other_version(stated: Predicate) -> str:
    """Describes what is not checked of a certificate that another version made, or says so."""
    early = ", whether the budget held another event when it stopped the run" if stated.budget.attempts > 1 else ""
    return (
        f"the certificate says that dprecipe {stated.version} made it, and this is {__version__}: the words of card.md "
        "and report.html were compared with nothing but their digests (--export card and --export report give them in "
        f"this version's); nor were the defaults of the recipe's day{early}"
    )


def _check_files(stated: Statement, rebuilt: Rebuilt | None, is_folder: bool, case: _Case) -> None:
    subjects = {subject.name: f"sha256:{subject.digest.sha256}" for subject in stated.subject}
    if len(subjects) != len(stated.subject):
        case.failures.append("subject: a file is named twice")
    if subjects.keys() & CERTIFICATE_FILES:
        case.failures.append("subject: names the certificate itself")
    if rebuilt is not None:
        expected = list_released_files(rebuilt.plan, no_model.has_no_model(stated.predicate))
        extra = sorted(set(subjects) - expected - CERTIFICATE_FILES)
        case.failures += [f"subject: {name!a} is not a file that a run of this recipe releases" for name in extra]
        case.failures += [
            f"subject: {name} is missing, but this recipe releases it" for name in sorted(expected - set(subjects))
        ]
    if not is_folder and not any((case.folder / name).exists() for name in subjects):
        case.notes.append("none of the released files is beside it, so the claim was not compared with any model")
        return
    result = compare_files(case.folder, subjects, named_only=not is_folder)
    case.failures += result
    if not result:
        others = "" if is_folder else "; other files beside it were not checked"
        rest = "; nothing else is in the folder" if is_folder else ""
        case.checked.append(f"the digests of all {len(subjects)} released files match{rest}{others}")
    if result or case.failures or rebuilt is None:
        return
    case.failures += companions.find_differences(
        stated.predicate, rebuilt.plan, rebuilt.charges, case.folder, set(subjects)
    )
    weights = f"the weights have the {len(stated.predicate.tensors):,} tensors that the certificate names, and "
    others = "the other files agree with it"
    without = no_model.has_no_model(stated.predicate) or not rebuilt.plan.has_model
    case.checked.append("there are no weights, and " + others if without else weights + others)
    case.notes += mechanism_of(rebuilt.plan.mechanism).certificate.list_companion_notes(frozenset(subjects))
    if TOKENIZER in subjects:
        case.notes.append(f"{TOKENIZER} is declared to be public, and what it holds was compared with nothing")
    if "report.html" in subjects and stated.predicate.is_own:
        case.notes.append("the text of the report was compared; the curves in its figures were not drawn again")


def _check_ledger(stated: Predicate, case: _Case) -> None:
    path = case.folder.absolute().parent / LEDGER
    if not os.path.lexists(path):
        case.notes.append(
            "the ledger is not here: its events, the number of attempts and why the run stopped "
            f"({stated.budget.stop_reason}) are taken from the certificate"
        )
        return
    try:
        ledger = ledgers.read(path)
    except Fault as fault:
        case.failures.append(f"ledger: {fault.message}")
        return
    pairs = {
        "events.ledger": (stated.events.ledger, ledger.digest),
        "events.run_length": ([_sorted_fields(r.model_dump()) for r in stated.events.run_length],
                              [_sorted_fields(charge.to_json()) for charge in ledger.charges]),
        "provenance.plan": (stated.provenance.plan, ledger.plan_digest),
        "budget.attempts": (stated.budget.attempts, ledger.attempts),
        "budget.stop_reason": (stated.budget.stop_reason, ledger.stop_reason),
        "budget.events_settled": (stated.budget.events_settled, sum(c.count for c in ledger.settled)),
        "budget.events_reserved_unsettled": (
            stated.budget.events_reserved_unsettled, sum(c.count for c in ledger.unsettled)),
        "budget.torn_line": (stated.budget.torn_line, ledger.torn),
        "randomness.insecure_seed": (stated.randomness.insecure_seed, ledger.insecure_seed),
    }  # fmt: skip
    results = [f"{path}: not what the ledger says" for path, (value, recorded) in pairs.items() if value != recorded]
    case.failures += results
    if not results:
        case.checked.append("the ledger beside it has exactly these events")


def _sorted_fields(fields: dict[str, object]) -> list[tuple[str, object]]:
    return sorted(fields.items())
