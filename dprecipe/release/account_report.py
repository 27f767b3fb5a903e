"""The account of a run in its report, its card and on the screen."""

from __future__ import annotations

from typing import Any

from dprecipe.mechanisms.drawing import CAP, MARK, Figure
from dprecipe.page import escape_html, render_section, render_table
from dprecipe.release.charged_account import ChargedAccount
from dprecipe.release.meaning import read_up

TITLE = "The account of this data set"


def describe_account(account: ChargedAccount | None) -> list[tuple[str, str]]:
    """What a reader needs to know of it, as rows; none where there is no account."""
    if account is None:
        return []
    return [
        ("account", f"{account.name} ({account.id}), which protects each {account.unit} under {account.neighbouring}"),
        ("cap of all its runs together", f"ε = {account.epsilon!r} at δ = {account.delta!r}"),
        ("counted against the cap, this run included", f"ε = {_read(account.epsilon_so_far)}"),
        (
            "odometer, ex post",
            f"ε = {_read(account.odometer)}: with probability 1 - δ, what all runs so far have lost; no guarantee "
            "for what comes",
        ),
        ("this run", f"{account.run}, settled by entry {account.position:,} ({account.entries})"),
    ]


def summarise_account(account: ChargedAccount) -> str:
    """One line: which account, where it stands, and its cap."""
    return (
        f"{account.name}: with this run ε = {_read(account.epsilon_so_far)} counts against a cap of "
        f"{account.epsilon:g} at δ = {account.delta:g}; odometer, ex post: {_read(account.odometer)}"
    )


def _read(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else read_up(epsilon)


def render_account(account: ChargedAccount | None) -> list[str]:
    """The section of a report; may be empty."""
    if account is None:
        return []
    text = (
        "The claim above is this run's alone. Other runs were made, or will be, on the same data; the account refuses "
        "what would exceed its cap, so that everything released under it satisfies the cap, whatever was decided "
        "between one run and the next."
    )
    table = render_table(("", ""), describe_account(account))
    return [render_section(TITLE, f"<p>{escape_html(text)}</p>{table}")]


def list_account_figures(account: ChargedAccount | None) -> list[Figure]:
    """Where the account stands, against its cap."""
    if account is None or account.epsilon_so_far is None:
        return []
    after = account.epsilon_so_far
    label = f"cap ε = {account.epsilon:g}"
    return [
        Figure(
            "account",
            "What all runs of the account count against its cap, this one included; the line is the cap.",
            lambda axes: _draw(axes, after, account.epsilon, label),
            frozenset({"ε counted", label}),
            f"A bar of ε = {_read(after)} after this run; the cap is {account.epsilon:g}.",
        )
    ]


def _draw(axes: Any, after: float, cap: float, label: str) -> None:
    axes.barh([0], [after], height=0.4, color=MARK)
    axes.axvline(cap, color=CAP, linewidth=1.4, linestyle=(0, (5, 3)))
    axes.annotate(label, (cap, 0.5), (-4, 0), textcoords="offset points", color=CAP, ha="right", va="top", size=10)
    axes.set(xlabel="ε counted", xlim=(0, max(cap, after) * 1.05), ylim=(-0.6, 0.6), yticks=[])


def render_card_paragraph(account: ChargedAccount | None) -> str:
    """The account in a model card, before escaping; empty where there is none."""
    if account is None:
        return ""
    return (
        f"This run is one of several that are charged to one account of their data, {summarise_account(account)}. The "
        "cap holds for everything released under the account."
    )
