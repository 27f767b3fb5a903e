"""`dprecipe audit`: attack the claim of a recipe's program with synthetic records; reads no data, spends nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer
from pydantic import ConfigDict, Field

from dprecipe import __version__, durable
from dprecipe.cli.arguments import Overrides, RecipePath
from dprecipe.cli.completion import complete_words
from dprecipe.contract.document import Document, RecipeName
from dprecipe.contract.facts import Digest
from dprecipe.contract.table import mechanism_of
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.language.words import join_with_or
from dprecipe.libraries import importing_libraries
from dprecipe.privacy.audit.results import Audit
from dprecipe.screen import show_document, write_note, write_output

if TYPE_CHECKING:
    from dprecipe.contract.plan import Plan
    from dprecipe.privacy.audit.results import Depth
    from dprecipe.training.audit.run import Audited

REFUTED = 4
NOTHING_FOUND = "nothing was refuted; an audit can show a fault, never its absence"


class AuditDocument(Document):
    """The document that `--json` and `--out` write."""

    model_config = ConfigDict(title="dprecipe audit", extra="forbid")

    schema_: Literal["dprecipe.audit/v1"] = Field("dprecipe.audit/v1", alias="schema")
    recipe: RecipeName
    plan: Digest
    refuted: bool = Field(description="a test failed, or a lower bound is above its claim")
    audit: Audit
    remarks: tuple[str, ...]


def audit(
    recipe: RecipePath,
    overrides: Overrides = None,
    depths: Annotated[
        list[str] | None,
        typer.Option(
            "--depth",
            metavar="DEPTH",
            help="program, steps or releases; all by default. Repeatable.",
            autocompletion=complete_words("program", "steps", "releases"),
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps for --depth steps.", show_default=False)] = None,
    releases: Annotated[
        int | None, typer.Option(help="Number of runs for --depth releases.", show_default=False)
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Confidence of the lower bounds.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write the results to this JSON file, which is replaced.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> int:
    """Audits and prints; returns 0 where nothing was refuted, 4 where a claim was.

    Raises:
        RecipeError, PlanRefused: the recipe has no plan.
        UsageFault: a depth that is unknown, or that the mechanism has not; a number out of its range.
        RunFailed: the program does not do what the accounting assumes, or the file can't be written.
    """
    write_note(f"dprecipe {__version__}: auditing {recipe}")
    # Imported after the first words: these take most of a second.
    from dprecipe.language.audit import MAX_STEPS, MIN_CONFIDENCE, MIN_STEPS
    from dprecipe.planning.make import plan as make_plan
    from dprecipe.policy.apply import enforce_on_plan
    from dprecipe.recipe.read import read

    plan = enforce_on_plan(make_plan(read(recipe, overrides or ())))
    named = _check_depths(plan, depths or ())
    for option, value in (("--steps", steps), ("--releases", releases)):
        if value is not None and option.removeprefix("--") not in named:
            raise UsageFault(
                f"{option} {value}: this audit does not go to depth {option.removeprefix('--')}",
                f"leave it out: the audit has {join_with_or(named)}",
            )
        if value is not None and not MIN_STEPS <= value <= MAX_STEPS:
            raise UsageFault(f"{option} {value}: expected {MIN_STEPS:,} to {MAX_STEPS:,}", "name another number")
    if confidence is not None and not MIN_CONFIDENCE <= confidence < 1:
        raise UsageFault(
            f"--confidence {confidence}: expected at least {MIN_CONFIDENCE:g}, and less than 1", "0.95 is usual"
        )
    if out is not None and not out.parent.is_dir():
        raise UsageFault(f"{out.parent} is no folder", "make it first, or name another file")
    if out is not None and out.is_dir():
        raise UsageFault(f"{out} is a folder", "name a file in it with --out")
    with importing_libraries("an audit"):
        from dprecipe.training.audit.run import Watcher, audit, make_request

    started = time.monotonic()
    with Watcher() as watcher:
        request = make_request(plan, named, steps, releases, confidence, watcher.show)
        done = audit(plan, request)
    document = _make_document(plan, done)
    if json:
        show_document(document.to_text())
    else:
        write_output(_list_lines(plan, done, time.monotonic() - started))
    if out is not None:  # last: findings are shown even where they can't be written
        _write(out, document.to_text(), is_refuted=bool(done.audit.failed))
    return REFUTED if done.audit.failed else 0


def _check_depths(plan: Plan, depths: Sequence[str]) -> tuple[Depth, ...]:
    from dprecipe.privacy.audit.results import Depth

    known = [depth for depth in mechanism_of(plan.mechanism).audit_depths if depth != "canaries"]
    if not known:
        raise UsageFault(f"mechanism {plan.mechanism} has no audit", "its page says what is tested of it")
    for depth in depths:
        if depth not in known:
            in_run = "is part of a run: set audit.canaries in the recipe"
            why = in_run if depth == "canaries" else "is none of its depths"
            raise UsageFault(f"--depth {depth}: {why}", f"mechanism {plan.mechanism} has {join_with_or(known)}")
    every: tuple[Depth, ...] = get_args(Depth)
    return tuple(depth for depth in every if depth in (depths or known))


def _make_document(plan: Plan, done: Audited) -> AuditDocument:
    return AuditDocument(
        recipe=RecipeName(name=plan.name, digest=plan.source.digest),
        plan=plan.digest,
        refuted=bool(done.audit.failed),
        audit=done.audit,
        remarks=tuple(done.remarks),
    )


def _write(path: Path, document: str, *, is_refuted: bool) -> None:
    try:
        durable.replace_file(path, document.encode())
    except OSError as error:
        fault = RunFailed if is_refuted else UsageFault  # exit code 4 is of what was refuted
        raise fault(f"{path}: can't be written: {error.strerror}", "name another file with --out") from None


def _list_lines(plan: Plan, done: Audited, seconds: float) -> list[str]:
    from dprecipe.training.audit.run import describe

    audit, failed = done.audit, done.audit.failed
    lines = [f"{plan.name}: audit of {plan.mechanism} on synthetic records, {seconds:.0f} s; nothing was spent"]
    for depth in audit.depths:
        tests = [test for test in audit.tests if test.depth == depth]
        bounds = [bound for bound in audit.bounds if bound.depth == depth]
        passed = sum(test.passed for test in tests)
        lines += [f"  {depth}: {passed} of {len(tests)} tests passed"] if tests else [f"  {depth}"]
        lines += [f"    failed {describe(test)}" for test in tests if not test.passed]
        for bound in bounds:
            lines.append(f"    {describe(bound)}")
            if bound.implied_epsilon is not None:
                lines.append(f"    implied, if every step is like these: ε >= {bound.implied_epsilon:.3g} for the run")
            seen = "none" if bound.smallest_fault is None else f"{bound.smallest_fault:.4g}"
            lines.append(f"    smallest {bound.measure} that such an audit calls a fault, with probability 0.8: {seen}")
    lines += [f"  {remark}" for remark in done.remarks]
    return [*lines, "refuted: don't run it, and please report this" if failed else f"  {NOTHING_FOUND}"]
