"""Comparison of a certificate with the public statement of the account that its run was charged to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dprecipe.account.canonical import digest_of, to_line
from dprecipe.account.check import Recount
from dprecipe.account.entries import SettleAct, parse_entry
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.statement import MAX_BYTES, verify_statement
from dprecipe.faults import CertificateInvalid, UsageFault
from dprecipe.privacy.events import charge_from_json, count_by_event
from dprecipe.release import untrusted
from dprecipe.release.charged_account import NOTE, ChargedAccount, to_curve
from dprecipe.release.folder import digest_made
from dprecipe.release.verify import Verified

CHECKED = (
    "the account's own statement was recomputed from its entries: it settles this run with these events and files "
    "at this place, and counts as much as the certificate says"
)


def hold_statement(
    verified: Verified,
    path: Path,
    max_seconds: float | None = untrusted.MAX_SECONDS,
    max_memory: int | None = untrusted.MAX_MEMORY,
) -> Verified:
    """Returns the verified certificate, whose `account` is compared with the account's public statement in `path`. What
    may be spent on that is bounded as in `verify`.

    Guarantees: the statement's entries are a chain that its cap held at every moment; the certificate's run, its
    events, its files and its place are in it, and the numbers of `account` follow from the entries up to there. No
    other release has that settlement, since it names the files that the run made.

    Raises:
        CertificateInvalid: the statement does not hold, or says otherwise; names each thing.
        UsageFault: the certificate names no account, or there is no such file.
    """
    stated = verified.statement.predicate.account
    if stated is None:
        raise UsageFault("this run was charged to no account", "leave out --account-statement")
    with untrusted.refusing_beyond(max_seconds, max_memory, _refuse):
        return _compare_statement(verified, stated, path)


def _refuse(message: str) -> CertificateInvalid:
    return CertificateInvalid([f"account statement: {message}"])


def _compare_statement(verified: Verified, stated: ChargedAccount, path: Path) -> Verified:
    content, there = _read(path), list[Recount]()

    def keep(count: Recount) -> None:
        if count.totals.count == stated.position:
            there.append(count.copy())

    try:
        count = verify_statement(content, keep)
        facts, upto = count.facts, there[0] if there else count
        lines = [to_line(entry) for entry in content["entries"]]
    except AccountInvalid as invalid:
        raise CertificateInvalid([f"account statement: {failure}" for failure in invalid.failures]) from None
    failures = []
    same = {
        "name": facts.name,
        "id": facts.id,
        "epsilon": facts.epsilon,
        "delta": facts.delta,
        "unit": facts.unit,
        "neighbouring": facts.neighbouring.value,
    }
    failures += [
        f"account.{name}: the statement says otherwise" for name, v in same.items() if getattr(stated, name) != v
    ]
    line = lines[stated.position - 1] if stated.position <= len(lines) else b"{}"
    act = parse_entry(line, len(facts.orders)).act if stated.position <= len(lines) else None
    if not isinstance(act, SettleAct) or act.run != stated.run or digest_of(line) != stated.entries:
        failures.append("account.position: no settlement of this run at this place of the statement")
    else:
        events = count_by_event(
            charge_from_json(run.model_dump()) for run in verified.statement.predicate.events.run_length
        )
        if count_by_event(act.charges) != events:
            failures.append("events.run_length: not the events that the account was told of")
        run = upto.runs[act.run]
        held = (to_curve(run.reserved), to_curve(run.counted), to_curve(upto.state.spent))
        if held != (stated.reserved, stated.counted, stated.after):
            failures.append("account: not what the statement's entries come to at this place")
        failures += _compare_release(verified, act.release, count.runs[act.run].release)
    if failures:
        raise CertificateInvalid(failures)
    notes = tuple(note for note in verified.notes if note != NOTE)
    return replace(verified, checked=(*verified.checked, CHECKED), notes=notes)


def _compare_release(verified: Verified, settled: str | None, last: str | None) -> list[str]:
    """Returns a settlement names the files of one release; if its run was released again, the last one counts."""
    own = digest_made({s.name: f"sha256:{s.digest.sha256}" for s in verified.statement.subject})
    if settled != own:
        return ["subject: not the files that the account's settlement names: it is of another release"]
    if last != own:
        return ["subject: the account has settled another release of this run since, which replaces this one"]
    return []


def _read(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CertificateInvalid([f"account statement: more than {MAX_BYTES >> 20} MiB"])
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageFault(f"{path}: can't be read: {error.strerror}", "give the statement of the account") from None
    except (ValueError, RecursionError):
        raise CertificateInvalid(["account statement: no JSON"]) from None
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise CertificateInvalid(["account statement: not a statement of an account"])
    return content
