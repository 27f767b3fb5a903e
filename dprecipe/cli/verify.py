"""`dprecipe verify`: the claim of a certificate, and what was checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dprecipe.cli.arguments import ExportForm, MaxMemory, MaxSeconds, PolicyPath, PublicKey
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import UsageFault
from dprecipe.language.statement import ReleaseStatement
from dprecipe.policy.apply import hold_certificate
from dprecipe.release.account_report import describe_other_runs
from dprecipe.release.account_statement import hold_statement
from dprecipe.release.audit import list_audit_lines
from dprecipe.release.bill import render_sbom
from dprecipe.release.card import describe_lost_steps
from dprecipe.release.environment import find_environment
from dprecipe.release.exports import EXPORTS, render_report
from dprecipe.release.folder import METRICS
from dprecipe.release.meaning import NOT_PROVEN, describe_attack, describe_scale, list_risk
from dprecipe.release.origins import list_declared
from dprecipe.release.untrusted import parse_object, read_bytes
from dprecipe.release.verify import Verified, describe_other_version
from dprecipe.release.verify import verify as check
from dprecipe.screen import show_document, write_output


def verify(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A certificate, or a release/ folder.")],
    public_key: PublicKey = None,
    max_seconds: MaxSeconds = 120,
    max_memory: MaxMemory = 4,
    form: ExportForm = None,
    policy: PolicyPath = None,
    account_statement: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare the run's account with its public statement.")
    ] = None,
) -> None:
    """Checks a certificate and prints its claim, or one of the documents of `EXPORTS` about it; `max_memory` is in GiB.

    Raises:
        CertificateInvalid, UsageFault: see `release.verify.verify`; there is no such form; or it does not keep to
            `policy`, or is not what its account says (`release.account_statement`).
        RecipeError: the policy is wrong.
    """
    if form is not None and form not in EXPORTS:
        raise UsageFault(f"unknown form {form}", f"choose one of {', '.join(EXPORTS)}")
    memory = int(max_memory * 2**30)
    verified = check(path, public_key, max_seconds, memory)
    if account_statement is not None:
        verified = hold_statement(verified, account_statement, max_seconds, memory)
    if policy is not None:
        kept = hold_certificate(verified, policy, public_key)
        verified = replace(verified, checked=(*verified.checked, kept))
    if form is None:
        write_output(verified_lines(verified))
    else:
        show_document(_render(form, verified, path))


def _render(form: str, verified: Verified, path: Path) -> str:
    """Returns a form of `EXPORTS`; the software of a run in whole, where its folder is there to tell, and the curves of
    a report, where the metrics are."""
    if form == "sbom":
        return render_sbom(verified, find_environment(path, verified.statement.predicate.provenance.plan))
    if form == "report" and path.is_dir():
        return render_report(verified, parse_object(read_bytes(path / METRICS), METRICS)["history"])
    return EXPORTS[form](verified)


def verified_lines(verified: Verified) -> list[str]:
    """Returns a verified certificate as lines of text, which include texts of the recipe."""
    claim, predicate = verified.claim, verified.statement.predicate
    mechanism = predicate.mechanism
    part = mechanism_of(mechanism.kind).certificate
    missing = describe_lost_steps(predicate)
    return [
        "verified",
        "",
        *([] if predicate.is_own else [f"NOT COMPARED: {describe_other_version(predicate)}", ""]),
        claim.sentence,
        "",
        describe_attack(claim),
        describe_scale(claim),
        "",
        f"  ε spent       {claim.epsilon!r} of {predicate.budget.epsilon!r} at δ = {claim.delta!r}",
        f"  protects      {claim.unit.name}: {claim.unit.enforced_by}",
        f"  mechanism     {mechanism.kind}, {predicate.sampling.steps_charged:,} {part.progress[1]} charged, "
        f"{part.describe_noise(mechanism)}",
        *([f"  lacks         {missing}"] if missing else []),
        f"  released      {', '.join(claim.released) or 'nothing that was learned'}; files: "
        f"{', '.join(subject.name for subject in verified.statement.subject)}",
        *(f"  attack        {name}: {text}" for name, text in list_risk(claim)),
        f"  other runs    {describe_other_runs(predicate.account)}",
        *(f"  attacked      {line}" for line in list_audit_lines(predicate.audit)),
        *(f"  DECLARED      {text}" for text in list_declared(predicate)),
        *(f"  {name:<13} {text}" for name, text in part.list_statements(mechanism)),
        *_statement_lines(predicate.statement),
        "",
        "checked",
        *(f"  - {text}" for text in verified.checked),
        "rests on, not checked here",
        *(f"  - {a.text}" for a in predicate.assumptions if a.checked_by == "declaration"),
        "not shown",
        *(f"  - {text}" for text in verified.notes),
        f"  - {NOT_PROVEN}",
    ]


def _statement_lines(stated: ReleaseStatement | None) -> list[str]:
    """Returns the declarations of the recipe's author."""
    if stated is None:
        return []
    rows = (f"  - {name}: {text}" for name, text in stated.list_rows())
    return ["", "stated by the recipe's author, checked by nobody", *rows]
