"""The audit of a run in a report, a card and on the screen: lower bounds, beside the claim."""

from __future__ import annotations

from collections.abc import Sequence

from dprecipe.contract.drawing import CAP, SOFT, Axes, Figure
from dprecipe.page import escape_html, render_section, render_table
from dprecipe.privacy.audit.program import digest_sources
from dprecipe.privacy.audit.results import Audit, AuditBound, AuditTest, Depth, Guesses
from dprecipe.privacy.audit.verdicts import describe_chance
from dprecipe.privacy.rounding import round_down
from dprecipe.release import specification
from dprecipe.release.meaning import read_up

TITLE = "The claim attacked"
NOT_AUDITED = (
    "Nobody attacked this claim: the recipe asks for no audit. The claim rests on its mathematics, on the checks and "
    "on what is declared"
)
LIMITS = (
    "An attack can show a fault, never its absence: a lower bound below the claim does not show that the claim holds, "
    "and a fault smaller than the one named beside it would probably not have been seen"
)
DEPTHS: dict[Depth, str] = {
    "program": "the compiled program on synthetic records",
    "steps": "a canary in or out of steps on synthetic records",
    "canaries": "canaries among the records of this run",
    "releases": "whole runs on synthetic records",
}
SYMBOLS = {"mu": "μ", "epsilon": "ε", "rate": "true-positive rate"}
HEAD = ("", "attack on", "counted", "lower bound", "claimed at most", "smallest fault", "implied ε")
AXES = ("lower bound", "share of the claim")
FAULT, CLAIM = "smallest fault", "the claim"
WIDTH = 0.4
"""Width of a bar, where each bound has a place of 1."""
MAX_SHARE = 3.0
"""Largest share of the claim that the figure shows."""


def describe_note(audit: Audit) -> str:
    """Describes what the checks of an audit don't show."""
    small = (
        "; what bounds of whole runs are held against, small runs of their own"
        if any(bound.depth == "releases" for bound in audit.bounds)
        else ""
    )
    here = "are those installed here" if audit.sources == digest_sources() else "are others than those installed here"
    return (
        f"taken from the certificate alone: what the audit counted, and in which words{small}; and that it ran the "
        f"sources that it names, which {here}. An audit can show a fault, never its absence"
    )


def summarise_audit(audit: Audit | None) -> str:
    """Returns one sentence for people, without a full stop."""
    return "; ".join(list_audit_lines(audit)) or NOT_AUDITED


def list_audit_lines(audit: Audit | None) -> list[str]:
    """Lists what was tried and what it showed, line by line; no lines where nothing was tried."""
    if audit is None:
        return []
    return [
        *([f"{len(audit.tests):,} tests of the program found no fault"] if audit.tests else []),
        *(describe_bound(bound) for bound in audit.bounds),
        *([] if audit.specification is None else [specification.describe_test(audit.specification)]),
    ]


def describe_bound(bound: AuditBound) -> str:
    """Returns a bound beside its claim, in words."""
    symbol, fault = SYMBOLS[bound.measure], bound.smallest_fault
    if bound.p_value is not None:
        return (
            f"an attack on {DEPTHS[bound.depth]}: {describe_chance(bound)}; of a program whose curve is a Gaussian's "
            f"it implies {symbol} >= {read_down(bound.lower)}, where at most {read_up(bound.claimed)} is claimed, at a "
            f"confidence of {bound.confidence:g}; it would probably see "
            + ("no fault at all" if fault is None else f"a fault from {symbol} = {read_up(fault)} on")
        )
    implied = "" if bound.implied_epsilon is None else f" (implied ε of the run: {bound.implied_epsilon:g})"
    return (
        f"an attack on {DEPTHS[bound.depth]} shows {symbol} >= {read_down(bound.lower)}{implied}, where at most "
        f"{read_up(bound.claimed)} is claimed, at a confidence of {bound.confidence:g}, and would probably see "
        + ("no fault at all" if fault is None else f"a fault from {symbol} = {read_up(fault)} on")
    )


def read_down(bound: float) -> str:
    """Returns a lower bound in few digits, never above it."""
    return f"{round_down(bound, 3):g}"


def render_audit(audit: Audit | None, figures: str) -> str:
    """Returns the section of a report; `figures`: its figure, drawn."""
    if audit is None:
        return render_section(TITLE, f"<p>{escape_html(NOT_AUDITED)}.</p>")
    body = f"<p>{escape_html(LIMITS)}.</p>{figures}"
    if audit.bounds:
        columns = HEAD if any(bound.implied_epsilon is not None for bound in audit.bounds) else HEAD[:-1]
        rows = [_bound_row(number, bound)[: len(columns)] for number, bound in enumerate(audit.bounds, 1)]
        body += render_table(columns, rows)
        body += f'<p class="small">{escape_html(_explain(audit.bounds))}</p>'
    if audit.specification is not None:
        body += specification.render_test(audit.specification)
    if audit.tests:
        rows = [
            (test.text, "passed" if test.passed else "failed", "" if test.level == 0 else f"{test.p_value:.2g}")
            for test in audit.tests
        ]
        table = render_table(("expected of a sound program", "result", "p-value"), rows)
        body += (
            f"<details><summary>{len(audit.tests):,} tests of the program on synthetic records: a sound program fails "
            f"any of them with probability at most {_error(audit.tests):g}</summary>{table}</details>"
        )
    return render_section(TITLE, body)


def _explain(bounds: Sequence[AuditBound]) -> str:
    levels = sorted({bound.confidence for bound in bounds})
    parts = [
        "A sound program gives a lower bound above its true value with probability at most one minus the confidence "
        f"({', '.join(f'{level:g}' for level in levels)}), for each of them. Smallest fault: the true value that "
        "attacks of these sizes call a fault with probability 0.8, in the case that theory expects."
    ]
    if any(bound.implied_epsilon is not None for bound in bounds):
        parts.append(
            "Implied ε: of the whole run at the claim's δ, if every step were as the bound of one says, and sampled as "
            "planned; it is no bound."
        )
    if any(bound.p_value is not None for bound in bounds):
        parts.append(
            "Canaries of a run: p bounds the probability of as many right names for any program that keeps to the "
            "claimed curve δ(ε), and refutes the claim below one minus the confidence. The lower bound beside it is "
            "implied: it holds of programs whose curve is a Gaussian's."
        )
    return " ".join(parts)


def _bound_row(number: int, bound: AuditBound) -> tuple[str, ...]:
    symbol = SYMBOLS[bound.measure]
    fault = "none" if bound.smallest_fault is None else f"{symbol} = {read_up(bound.smallest_fault)}"
    return (
        f"{number}",
        DEPTHS[bound.depth],
        describe_evidence(bound),
        f"{symbol} >= {read_down(bound.lower)}",
        f"{symbol} <= {read_up(bound.claimed)}",
        fault,
        "none" if bound.implied_epsilon is None else f"{bound.implied_epsilon:g}",
    )


def describe_evidence(bound: AuditBound) -> str:
    """Describes what was counted."""
    seen = bound.evidence
    if isinstance(seen, Guesses):
        named = seen.named_in + seen.named_out
        return f"{seen.correct:,} of {named:,} names right, of {seen.canaries:,} canaries; p <= {bound.p_value:.3g}"
    return (
        f"called in: {seen.positives_in:,} of {seen.trials_in:,} with the canary, {seen.positives_out:,} of "
        f"{seen.trials_out:,} without"
    )


def _error(tests: Sequence[AuditTest]) -> float:
    return float(f"{sum(test.level for test in tests):.3g}")


def list_audit_figures(audit: Audit | None) -> list[Figure]:
    """Draws lower bounds as shares of their claims; none where nothing was bounded."""
    bounds = [] if audit is None else [bound for bound in audit.bounds if bound.claimed > 0]
    if not bounds:
        return []
    shares = ", ".join(f"{bound.lower / bound.claimed:.0%}" for bound in bounds)
    return [
        Figure(
            "audit",
            "What attacks could show, as shares of what is claimed at most (the line), in the order of the table. "
            "Above the line the claim would be refuted."
            + (" A dot is the smallest fault that would probably be seen." if _list_faults(bounds) else ""),
            lambda axes: draw_bounds(axes, bounds),
            frozenset({*AXES, FAULT, CLAIM}),
            f"Lower bounds of {shares} of what is claimed.",
        )
    ]


def _list_faults(bounds: Sequence[AuditBound]) -> list[tuple[int, float]]:
    """Returns the numbers of bounds and their smallest faults, as shares of the claim, where they fit in the figure."""
    shares = ((number, bound, bound.smallest_fault) for number, bound in enumerate(bounds, 1))
    return [(n, fault / b.claimed) for n, b, fault in shares if fault is not None and fault <= MAX_SHARE * b.claimed]


def draw_bounds(axes: Axes, bounds: Sequence[AuditBound]) -> None:
    """Each lower bound, and the smallest fault that would probably have been seen, as shares of the claim."""
    shares = [bound.lower / bound.claimed for bound in bounds]
    faults = _list_faults(bounds)
    for number, share in enumerate(shares, 1):
        axes.draw_bars([number - WIDTH / 2, number + WIDTH / 2], [share])
        axes.write(f"{share:.0%}", (number, share), anchor="middle", shift=(0, -5))
    axes.draw_level(1.0)
    axes.write(CLAIM, (0.5, 1.0), CAP, shift=(4, -5))
    axes.plot([], SOFT, label=FAULT if faults else "")
    for number, share in faults:
        axes.mark(number, share, SOFT)
    axes.add_legend()
    top = max([1.0, *shares, *(share for _, share in faults)])
    axes.set(*AXES, (0.5, len(bounds) + 0.5), (0.0, 1.3 * top), whole_x=True)
