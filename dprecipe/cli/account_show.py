"""`dprecipe account show` and `history`: what is counted, what is left, and by which runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dprecipe.account.books import Books
from dprecipe.account.opening import open_account
from dprecipe.account.standing import AccountState
from dprecipe.account.state import HOLDING, RunState
from dprecipe.account.statement import summarise
from dprecipe.cli.account import describe_terms, tell
from dprecipe.cli.account_plot import draw_account
from dprecipe.cli.arguments import AccountAddress, TextOrJson
from dprecipe.faults import UsageFault
from dprecipe.privacy import gdp
from dprecipe.privacy.filters.cap import round_up_cost
from dprecipe.privacy.filters.filter import affordable_share, count_runs, mixture_epsilon
from dprecipe.privacy.rounding import round_down, round_up_finite
from dprecipe.screen import as_json, make_printable, show_document, write_output

FORMATS = ("text", "json")
LATEST = 10
"""Runs that `show` lists."""
MAX_COUNTED = 10_000
MAX_WORDS = 32


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run, for people. `alone`: ε of what it counts by itself, at the account's δ; `after`: of all once it was last
    heard of."""

    state: RunState
    what: str
    began: str
    claim: dict[str, float] | None
    alone: float
    after: float

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.state.run,
            "what": self.what,
            "began": self.began,
            "attempt": self.state.attempt,
            "status": self.state.status,
            "claim": self.claim,
            "counted": self.state.counted.to_json(),
            "epsilon_alone": round_up_finite(self.alone),
            "epsilon_after": round_up_finite(self.after),
            "entries": [self.state.first, self.state.last],
        }


def show(
    address: AccountAddress,
    output: TextOrJson = "text",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Also draw the ε spent over the runs; the file is replaced.")
    ] = None,
) -> None:
    """Prints an account, and draws it.

    Raises:
        UsageFault: another format, a plot that is no `.svg`, or no account.
        AccountUnavailable: it can't be reached or read.
    """
    _check_format(output)
    if plot is not None and plot.suffix != ".svg":
        raise UsageFault(f"{plot}: a plot is an .svg", "name a file that ends so with --plot")
    with closing(open_account(address, read_only=True)) as account, account.snapshot() as books:
        state = AccountState(books.facts, books.totals)
        rows = [_read_row(books, run) for run in _list_latest(books)]
        runs = list(books.read_runs()) if plot is not None else []
    if plot is not None:
        try:
            plot.write_text(draw_account(state, runs), encoding="utf-8")
        except OSError as error:
            raise UsageFault(f"{plot} can't be written: {error.strerror}", "name another file with --plot") from None
    left = find_left(state, rows)
    if output == "json":
        latest = [row.to_json() for row in rows]
        show_document(
            as_json(
                {
                    "schema": "dprecipe.account-state/v1",
                    "facts": state.facts.to_json(),
                    **summarise(state),
                    "left": left,
                    "latest": latest,
                }
            )
        )
        return
    write_output([*describe(state, left), "", *tabulate(rows)])
    if plot is not None:
        write_output(["", f"wrote {plot}"])


def history(address: AccountAddress, output: TextOrJson = "text") -> None:
    """Prints every run of an account. Raises as `show`."""
    _check_format(output)
    with closing(open_account(address, read_only=True)) as account, account.snapshot() as books:
        state = AccountState(books.facts, books.totals)
        rows = [_read_row(books, run) for run in sorted(books.read_runs(), key=lambda run: run.first)]
    if output == "json":
        runs = [row.to_json() for row in rows]
        document = {"schema": "dprecipe.account-history/v1", "facts": state.facts.to_json(), "runs": runs}
        show_document(as_json(document))
    else:
        write_output([f"account {state.facts.name}", *tabulate(rows)])


def find_left(state: AccountState, rows: Sequence[RunRow]) -> dict[str, Any]:
    """Finds what is left: the ε of the largest Gaussian run that fits, by itself at the account's δ, rounded down, and
    the number of runs like the latest one that counts something."""
    facts, spent = state.facts, state.spent
    unit_gaussian = round_up_cost([order / 2 for order in facts.orders], 0.0)
    squared_mu = affordable_share(spent, unit_gaussian, facts.cap)
    epsilon = gdp.epsilon(math.sqrt(squared_mu), facts.delta) if squared_mu > 0 else 0.0
    latest = next((row for row in rows if not row.state.counted.is_nothing), None)
    fits = None if latest is None else count_runs(spent, latest.state.counted, facts.cap, MAX_COUNTED)
    return {
        "epsilon_of_one_gaussian_run": round_down(epsilon, 4),
        "runs_like_the_latest": fits,
        "latest": None if latest is None else latest.state.run,
    }


def describe(state: AccountState, left: dict[str, Any]) -> list[str]:
    """Returns an account's terms, what is counted and what is left, as lines."""
    totals = state.totals
    held = f", {totals.opened} of them open: they count in full" if totals.opened else ""
    lines = [
        f"account {state.facts.name}",
        *describe_terms(state),
        f"  counted    ε = {tell(state.epsilon)} (what the cap is held against), by {totals.runs} runs{held}",
        f"  odometer   ε = {tell(state.odometer)}: the loss of all that was released, at every moment, with "
        "probability 1 - δ; no (ε, δ) claim",
        f"  left       one run of ε = {left['epsilon_of_one_gaussian_run']:g} at δ = {state.facts.delta:g} by itself "
        "(of Gaussian noise)",
    ]
    if left["runs_like_the_latest"] is not None:
        fits = left["runs_like_the_latest"]
        more = f"{MAX_COUNTED} or more" if fits >= MAX_COUNTED else str(fits)
        lines.append(f"             or {more} runs like {left['latest']}")
    lines.append(f"  entries    {totals.count}, the last of {totals.time}; {totals.head}")
    return lines


def tabulate(rows: Sequence[RunRow]) -> list[str]:
    """Runs as lines of one width."""
    if not rows:
        return ["  no runs"]
    head = ("began", "run", "what", "attempt", "status", "claims", "alone", "all, after it")
    cells = [head, *map(_list_cells, rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _list_cells(row: RunRow) -> tuple[str, ...]:
    what = make_printable(row.what)
    return (
        row.began,
        row.state.run,
        what if len(what) <= MAX_WORDS else f"{what[: MAX_WORDS - 1]}…",
        str(row.state.attempt),
        row.state.status + (" *" if row.state.status in HOLDING else ""),
        "" if row.claim is None else f"ε {row.claim['epsilon']:g}",
        f"ε {tell(row.alone)}",
        f"ε {tell(row.after)}",
    )


def _list_latest(books: Books) -> Iterator[RunState]:
    """Yields the runs of the latest entries, the last one first."""
    seen: dict[str, None] = {}
    for _, line in sorted(books.read_lines(max(0, books.totals.count - 5 * LATEST)), reverse=True):
        run = json.loads(line).get("run")
        if run is not None:
            seen.setdefault(run)
    for run in list(seen)[:LATEST]:
        yield books.get_run(run)


def _read_row(books: Books, run: RunState) -> RunRow:
    first = json.loads(books.read_line(run.first) or "{}")
    cap = books.facts.cap
    return RunRow(
        run,
        str(first.get("what", "")),
        str(first.get("time", "")),
        first.get("claim"),
        mixture_epsilon(run.counted, cap),
        mixture_epsilon(run.after, cap),
    )


def _check_format(output: str) -> None:
    if output not in FORMATS:
        raise UsageFault(f"unknown format {output!r}", f"write --format {' or --format '.join(FORMATS)}")
