"""The account of a run in its report, its card and on the screen."""

from __future__ import annotations

import math

from dprecipe.contract.drawing import CAP, Axes, Figure
from dprecipe.data.names import name_unit, quote_name, read_unit_key
from dprecipe.page import escape_html, render_section, render_table
from dprecipe.privacy.rounding import write_number
from dprecipe.release.charged_account import ChargedAccount, to_spent
from dprecipe.release.meaning import read_up

TITLE = "The account of this data set"
AXES = ("further runs like this", "ε counted")
POINTS, MAX_RUNS = 16, 1000
"""Number of the curve's points, and the largest number of runs that it shows."""


def describe_account(account: ChargedAccount | None) -> list[tuple[str, str]]:
    """Describes the account to a reader, as rows; no rows where there is no account."""
    if account is None:
        return []
    unit = name_unit(read_unit_key(account.unit))
    return [
        (
            "account",
            f"{quote_name(account.name)} ({account.id}), which protects each {unit} under {account.neighbouring}",
        ),
        ("cap of all its runs together", f"ε = {account.epsilon!r} at δ = {account.delta!r}"),
        ("counted against the cap, this run included", f"ε = {_read(account.epsilon_so_far)}"),
        (
            "odometer, ex post",
            f"ε = {_read(account.odometer)}: with probability 1 - δ, what all runs so far have lost; no guarantee "
            "for what comes",
        ),
        ("this run", f"{account.run}, settled by entry {account.position:,} ({account.entries})"),
    ]


def describe_other_runs(account: ChargedAccount | None) -> str:
    """Describes which other runs on the same data are counted, and which are not, in a few sentences."""
    if account is None:
        return (
            "This run is charged to no account. Other runs on the same data are not counted here, and their costs add "
            "up to this one's."
        )
    return (
        f"The claim is this run's alone. The account {quote_name(account.name)} adds up this run and others on the "
        f"same data: ε = {_read(account.epsilon_so_far)} with this run, of a cap of {write_number(account.epsilon)} at "
        f"δ = {write_number(account.delta)}. The account's statement lists them. Runs on the same data that are not "
        "charged to it are not counted."
    )


def _read(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else read_up(epsilon)


def render_account(account: ChargedAccount | None) -> list[str]:
    """Returns the section of a report; may be empty."""
    if account is None:
        return []
    text = (
        "The account refuses what would exceed its cap, so that everything released under it satisfies the cap, "
        "whatever was decided between one run and the next."
    )
    table = render_table(("", ""), describe_account(account))
    return [render_section(TITLE, f"<p>{escape_html(text)}</p>{table}")]


def list_account_figures(account: ChargedAccount | None) -> list[Figure]:
    """Lists figures of where the account stands, and how far its cap reaches."""
    if account is None or account.epsilon_so_far is None:
        return []
    label = f"cap ε = {account.epsilon:g}"
    return [
        Figure(
            "account",
            "What the account would count with further runs like this one, each chosen in view of those before; the "
            "line is its cap.",
            lambda axes: _draw(axes, account, label),
            frozenset({AXES[0], AXES[1], label}),
            "A curve of the ε of all runs that begins after this run, and rises with each further one; "
            f"the cap is {account.epsilon:g}.",
        )
    ]


def _draw(axes: Axes, account: ChargedAccount, label: str) -> None:
    from dprecipe.privacy.filters.filter import affordable_share, mixture_epsilon

    cap, counted, after = account.cap, to_spent(account.counted), to_spent(account.after)
    last = max(1, min(math.ceil(affordable_share(after, counted, cap)), MAX_RUNS))
    numbers = sorted({round(last * share / POINTS) for share in range(POINTS + 1)})
    points = [(float(n), mixture_epsilon(after + counted.times(n), cap)) for n in numbers]
    axes.draw_level(cap.epsilon)
    axes.plot([(n, epsilon) for n, epsilon in points if math.isfinite(epsilon)], dots=True)
    axes.write(label, (0, cap.epsilon), CAP, shift=(4, 13))
    axes.set(*AXES, (0, last), (0, 1.08 * cap.epsilon))
