"""`dprecipe account create | export | verify | test`."""

from __future__ import annotations

import json
import math
import shlex
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe import durable
from dprecipe.account.address import FileAddress, parse_address
from dprecipe.account.check import Recount
from dprecipe.account.facts import new_facts
from dprecipe.account.faults import AccountInvalid
from dprecipe.account.head import Head, find_rollback, make_head, read_head
from dprecipe.account.opening import create_account, open_account
from dprecipe.account.sqlite_store import is_sqlite
from dprecipe.account.standing import AccountState
from dprecipe.account.statement import MAX_BYTES, export_statement, verify_statement
from dprecipe.cli.arguments import AccountAddress, MaxMemory, MaxSeconds
from dprecipe.cli.files import check_absent, writing_new
from dprecipe.data.names import name_unit, read_unit_key
from dprecipe.faults import UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.rounding import round_up
from dprecipe.release import sign as signing
from dprecipe.release import untrusted
from dprecipe.release.untrusted import ContentError, to_bytes
from dprecipe.screen import as_json, write_note, write_output

HEAD_TYPE = "application/vnd.dprecipe.account-head+json"


def create(
    address: AccountAddress,
    epsilon: Annotated[float, typer.Option(help="The cap on everything ever released, together.")],
    delta: Annotated[float, typer.Option(help="The cap's δ.")],
    unit: Annotated[str, typer.Option(help="Who is protected, as in recipes: record, or a column of names.")],
    neighbouring: Annotated[
        str, typer.Option(help="add_or_remove_one, replace_one or zero_out_one")
    ] = "add_or_remove_one",
    max_per_run: Annotated[float | None, typer.Option(help="The largest ε that one run may claim.")] = None,
    name: Annotated[str | None, typer.Option(help="The account's name; by default that of the file.")] = None,
) -> None:
    """Makes an account, and says what it is.

    Raises:
        UsageFault: terms that no account can have, or one of this name.
        AccountUnavailable: the database can't be reached or written.
    """
    known = [relation.value for relation in Neighbouring]
    if neighbouring not in known:
        raise UsageFault(f"--neighbouring: unknown relation {neighbouring!r}", f"write {join_with_or(known)}")
    parsed = parse_address(address)
    own = parsed.path.stem if isinstance(parsed, FileAddress) else parsed.name
    if own is None and name is None:
        raise UsageFault("the account has no name", "write postgresql://…/DATABASE#NAME, or --name NAME")
    if name is not None and not isinstance(parsed, FileAddress) and parsed.name not in (None, name):
        raise UsageFault(f"the address names account {parsed.name}, and --name {name}", "leave out --name")
    facts = new_facts(name or str(own), epsilon, delta, unit, Neighbouring(neighbouring), max_per_run)
    with closing(create_account(address, facts)) as account:
        write_output([f"created account {facts.name}: {account.place}", *describe_terms(account.state())])
    write_output(
        [
            f"  next: budget: {{epsilon: …, delta: …, account: {address}}} in recipes on these data",
            "  keep its head where who writes the database can't: "
            f"dprecipe account export {shlex.quote(address)} --head FILE",
        ]
    )


def describe_terms(state: AccountState) -> list[str]:
    """Returns an account's terms, as lines."""
    facts = state.facts
    unit = name_unit(read_unit_key(facts.unit))
    limit = f"; a run claims at most ε = {facts.max_epsilon_per_run:g}" if facts.max_epsilon_per_run else ""
    return [
        f"  cap        ε = {facts.epsilon:g} at δ = {facts.delta:g}, of everything that is ever released, together",
        f"  protects   each {unit}: {facts.neighbouring.words.format(unit=unit)}{limit}",
    ]


def export(
    address: AccountAddress,
    public: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the public statement to this new file.")
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the account's head to this file; an older head is replaced."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--sign", metavar="KEY", help="Sign the head with this Ed25519 private key.")
    ] = None,
) -> None:
    """Writes the public statement and the head of an account.

    Raises:
        UsageFault: no file is named, or it can't be written.
        AccountInvalid: the account does not go on from the head that would be replaced.
    """
    if public is None and head is None:
        raise UsageFault("nothing to export is named", "add --public FILE, or --head FILE")
    if key is not None and head is None:
        raise UsageFault("--sign is of a head", "add --head FILE")
    if public is not None:
        check_absent(public)
    private = None if key is None else signing.load_private_key(key)
    with closing(open_account(address, read_only=True)) as account:
        earlier = None if head is None or not head.exists() else _read_head(head, None)
        with account.snapshot() as books:
            content = as_json(export_statement(books)) if public is not None else ""
            state = AccountState(books.facts, books.totals)
        if earlier is not None:
            account.check_head(earlier)
    if public is not None:
        with writing_new(public) as draft:
            draft.write_text(content, encoding="utf-8")
        check = f"check it with: dprecipe account verify {shlex.quote(str(public))}"
        write_output([f"wrote {public}: {state.totals.count} entries; {check}"])
    if head is not None:
        made = make_head(state.facts, state.totals)
        document = to_bytes(made.to_json())
        try:
            durable.replace_file(
                head,
                document if private is None else signing.seal(document, private, HEAD_TYPE),
                durable.PUBLIC_MODE,
            )
        except OSError as error:
            raise UsageFault(f"{head} can't be written: {error.strerror}", "name another file with --head") from None
        write_output([f"wrote {head}: {made.count} entries, {made.head}"])


def verify(
    subject: Annotated[str, typer.Argument(metavar="ACCOUNT|STATEMENT", show_default=False)],
    head: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Require that the account extends this head.")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="Require the head's signature by this Ed25519 public key.")
    ] = None,
    max_seconds: MaxSeconds = 120,
    max_memory: MaxMemory = 4,
) -> None:
    """Recomputes an account or a statement, and says what it comes to; `max_memory` is in GiB.

    Raises:
        AccountInvalid: naming each thing that does not hold, or it needs more than these bounds.
        UsageFault: it can't be read.
    """
    if public_key is not None and head is None:
        raise UsageFault("--public-key is of a head", "add --head FILE")
    known = None if head is None else _read_head(head, public_key)
    with untrusted.refusing_beyond(max_seconds, int(max_memory * 2**30), lambda why: AccountInvalid(subject, [why])):
        count = _recount(subject, known)
    state = count.state
    write_output(
        [
            "verified",
            f"  account    {state.facts.name} ({state.facts.id})",
            *describe_terms(state),
            f"  entries    {state.totals.count}, of {state.totals.runs} runs; {state.totals.head}",
            f"  counted    ε = {tell(state.epsilon)}, {state.totals.opened} open reservations in full",
        ]
    )
    if head is None:
        write_note(
            "entries that are missing at the end (a restored backup) are seen with a head kept elsewhere: --head FILE"
        )


def _recount(subject: str, known: Head | None) -> Recount:
    parsed = parse_address(subject)
    if isinstance(parsed, FileAddress) and parsed.path.is_file() and not is_sqlite(parsed.path):
        count = verify_statement(_read_json(parsed.path))
        if known is not None:
            _check_statement_head(count, known)
        return count
    with closing(open_account(subject, read_only=True)) as account:
        return account.verify(known)


def test_connection(address: AccountAddress) -> None:
    """Reads, locks, writes and takes back. Raises as `open_account`."""
    with closing(open_account(address)) as account:
        lines = [f"account {account.facts.name}: {account.place}"]
        begin = time.perf_counter()
        state = account.state()
        lines.append(f"  read       {1000 * (time.perf_counter() - begin):.1f} ms; {state.totals.count} entries")
        begin = time.perf_counter()
        account.try_writing()
        lines.append(f"  write      {1000 * (time.perf_counter() - begin):.1f} ms, and taken back")
    write_output([*lines, "  it can be used"])


def tell(epsilon: float) -> str:
    """Writes four digits, rounded up."""
    return f"{round_up(epsilon, 4):g}" if math.isfinite(epsilon) else "infinite"


def _check_statement_head(count: Recount, head: Head) -> None:
    failure = find_rollback(count.facts, count.totals.count, count.digests.__getitem__, head)
    if failure is not None:
        raise AccountInvalid("the statement", [failure])


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageFault(f"{path} is larger than {MAX_BYTES // 2**20} MiB", "name a statement of an account")
        return json.loads(durable.read_bytes(path))
    except OSError as error:
        raise UsageFault(f"{path}: can't be read: {error.strerror}", "check its path and permissions") from None
    except (ValueError, RecursionError):
        raise UsageFault(f"{path} is neither an account nor a statement", "name one of the two") from None


def _read_head(path: Path, public_key: Path | None) -> Head:
    """Returns the head in a file: bare, or in an envelope, whose signature counts only if a key is given."""
    content = _read_json(path)
    key = None if public_key is None else signing.load_public_key(public_key)
    try:
        if key is not None or (isinstance(content, dict) and "payload" in content):
            payload, _ = signing.unseal(durable.read_bytes(path), path.name, key, HEAD_TYPE)
            content = json.loads(payload)
        return read_head(content)
    except ContentError as error:
        raise AccountInvalid(str(path), error.failures) from None
    except ValueError as error:
        raise UsageFault(f"{path}: not a head of an account: {error}", "export one: --head FILE") from None
