"""The report: the certificate for people, in one file that needs nothing else. It holds public things only.

Everything that comes from a recipe or a machine is escaped. The page has no script, and its policy allows none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from dprecipe.mechanisms.certificate import Section
from dprecipe.mechanisms.drawing import Figure
from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.table import mechanism_of
from dprecipe.planning.accept import open_warnings
from dprecipe.privacy.events import Charge, Event, charge_from_json
from dprecipe.release import origins, plots, tuned
from dprecipe.release.card import describe_lost_steps
from dprecipe.release.no_model import has_no_model
from dprecipe.release.page import (
    NOT_CHECKED,
    POLICY,
    STYLE,
    escape_html,
    escape_lines,
    render_bullets,
    render_number,
    render_section,
    render_table,
)
from dprecipe.release.schema import (
    ClassifierScore,
    EventRun,
    Predicate,
)
from dprecipe.release.stages import render_stages


def render_html(
    plan: Plan,
    predicate: Predicate,
    charges: Sequence[Charge],
    history: Sequence[Mapping[str, float]],
    draw: Callable[[Figure], str] = lambda figure: plots.render_svg(figure.name, figure.draw),
) -> str:
    """The page. `history` has public scores only (`step`, `accuracy`).

    Guarantees: except for the figures that `draw` returns, the page depends only on the plan, the predicate, and
    whether there is a history.
    """
    figures = "".join(
        f"<figure>{draw(figure)}<figcaption>{escape_html(figure.caption)}</figcaption></figure>"
        for figure in list_figures(plan, predicate, charges, history)
    )
    title = "The guarantee" if tuned.hides_iterates(plan) else "Over the run"
    sections = [
        _claim(predicate),
        *_declared(predicate),
        *([] if has_no_model(predicate) else _list_mechanism_sections(plan, predicate)),
        *([render_section(title, f'<div class="plots">{figures}</div>')] if figures else []),
        *render_stages(plan, predicate),
        _events(predicate),
        _assumptions(plan, predicate),
        _checks(predicate),
        _data(predicate),
        render_section("What is not protected", render_bullets(predicate.claim.not_protected)),
        _verify(predicate),
        _provenance(predicate),
    ]
    title = escape_html(plan.name)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape_html(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}: privacy report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1><p>{_description(plan)}</p></header>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _description(plan: Plan) -> str:
    """The author's description, marked as such."""
    return f"In the words of the recipe's author: {escape_html(plan.description)}" if plan.description else ""


def _claim(predicate: Predicate) -> str:
    claim, budget, mechanism = predicate.claim, predicate.budget, predicate.mechanism
    part = mechanism_of(mechanism.kind).certificate
    steps = f"{part.format_steps(mechanism, predicate.sampling.steps_charged)} {part.progress[1]}"
    numbers = [
        (f"ε = {claim.epsilon:g}", f"spent, of a budget of {budget.epsilon:g}"),
        (f"δ = {claim.delta:g}", "the chance that ε does not hold"),
        (claim.unit.name, "is protected"),
        (steps, f"{mechanism.kind}, {part.describe_noise(mechanism)}"),
        *part.list_headlines(mechanism),
    ]
    if claim.gdp is not None:
        end = claim.gdp.to_epsilon
        where = "for every ε" if end is None else f"for ε up to {end:g}"
        numbers.append((f"μ = {claim.gdp.mu:g}", f"no worse than Gaussian DP of this μ, {where}"))
    released = predicate.data_access.evaluation.released
    if released is not None:
        if isinstance(released, ClassifierScore):
            value, what = f"{released.accuracy:.2%}", "accuracy"
        else:
            value, what = f"{released.mean_absolute_error:.4g}", "mean absolute error"
        numbers.append((value, f"{what} on {released.records:,} records declared public"))
    cells = "".join(
        f"<div><b>{escape_html(value)}</b><span>{escape_html(text)}</span></div>" for value, text in numbers
    )
    void = " void" if predicate.randomness.insecure_seed is not None else ""
    return (
        f'<section class="claim{void}"><h2>The claim</h2><p>{escape_html(claim.sentence)}</p>'
        f'<div class="numbers">{cells}</div></section>'
    )


def _declared(predicate: Predicate) -> list[str]:
    """What came from Python or with a library's model, and is declared to hold no private data; may be empty."""
    declared = origins.list_declared(predicate)
    if not declared:
        return []
    library = any(assumption.id == origins.LIBRARY for assumption in predicate.assumptions)
    unchanged = (
        [t for t in predicate.tensors if t.made_by != "noisy_steps"]
        if library
        else origins.list_unchanged(predicate.tensors)
    )
    rows = [(tensor.name, str(list(tensor.shape))) for tensor in unchanged]
    table = render_table(("released without noise", "shape"), rows) if rows else ""
    title = "Declared" if library else "Declared by whoever passed it from Python"
    return [render_section(f"{title}, and checked by nobody", render_bullets(declared) + table)]


def _list_mechanism_sections(plan: Plan, predicate: Predicate) -> list[str]:
    part = mechanism_of(plan.mechanism).certificate
    return [_mechanism_section(section) for section in part.list_sections(predicate.mechanism)]


def _mechanism_section(part: Section) -> str:
    """A section of the mechanism's own."""
    cells = "".join(
        f"<div><b>{escape_html(value)}</b><span>{escape_html(text)}</span></div>" for value, text in part.numbers
    )
    body = render_table(("", ""), part.rows)
    body += f'<div class="numbers">{cells}</div>' if cells else ""
    body += f'<p class="small">{escape_html(part.text)}</p>' if part.text else ""
    return render_section(part.title, body)


def list_figures(
    plan: Plan, predicate: Predicate, charges: Sequence[Charge], history: Sequence[Mapping[str, float]]
) -> list[Figure]:
    """All figures of a run. For a last-iterate release, only those of its mechanism: nothing along the way. None of a
    run that ended without a model."""
    if has_no_model(predicate):
        return []
    claim, budget, part = predicate.claim, predicate.budget, mechanism_of(plan.mechanism).certificate
    profile = [point.epsilon for point in claim.profile]
    mechanism_figures = part.list_figures(plan, predicate.mechanism, charges, claim.epsilon, profile)
    if part.hides_iterates:
        return [*mechanism_figures]
    noun, nouns = part.progress
    remainder = " The rest of the limit is charged at the end." if part.is_adaptive(plan) else ""
    spending = [
        Figure(
            "epsilon",
            f"What was spent, {noun} by {noun}; the line is the budget.{remainder}",
            lambda axes: plots.draw_spending(axes, plots.trace_spending(plan, charges), budget.epsilon, nouns),
            frozenset({nouns, "ε spent", f"budget ε = {budget.epsilon:g}"}),
        )
    ]
    results = [*([] if plan.tuning is not None else spending), *mechanism_figures]
    if profile:
        results.append(
            Figure(
                "profile",
                "The guarantee holds for every pair (ε, δ) on this curve.",
                lambda axes: plots.draw_profile(axes, claim),
                frozenset({"ε", "δ", f"claimed: ε = {claim.epsilon:g}, δ = {claim.delta:g}"}),
            )
        )
    if history:
        results.append(
            Figure(
                "accuracy",
                "Accuracy on records that are declared public.",
                lambda axes: plots.draw_accuracy(axes, history, nouns),
                frozenset({nouns, "accuracy, public records"}),
            )
        )
    return results


MAX_SINGLE_ROWS = 4
"""Up to so many events of one kind have a row each; more, as in a schedule, share one row."""


def _events(predicate: Predicate) -> str:
    head = ("event", "count", "noise multiplier", "sampling rate", "batches", "one unit moves")
    groups = groupby(predicate.events.run_length, lambda run: (run.kind, _event(run).describe_sensitivity()))
    by_kind = [list(runs) for _, runs in groups]
    rows = [
        row
        for runs in by_kind
        for row in ([_event_row([run]) for run in runs] if len(runs) <= MAX_SINGLE_ROWS else [_event_row(runs)])
    ]
    events = render_table(head, rows)
    if len(rows) < len(predicate.events.run_length):
        phases = render_table(head, [_event_row([run]) for run in predicate.events.run_length])
        events += f"<details><summary>Each phase of the schedule</summary>{phases}</details>"
    accounting = render_table(
        ("accountant", "version", "kind of bound", "ε"),
        [(row.name, row.version, row.bound, render_number(row.epsilon)) for row in predicate.accounting],
    )
    unsettled = predicate.budget.events_reserved_unsettled
    note = (
        f"{predicate.events.total:,} events were charged in {predicate.budget.attempts} "
        f"{'attempt' if predicate.budget.attempts == 1 else 'attempts'}"
        + (
            f"; {unsettled:,} of them were reserved before a crash and are charged as if they had run"
            if unsettled
            else ""
        )
        + (f"; {describe_lost_steps(predicate)}" if describe_lost_steps(predicate) else "")
        + f". The run ended because: {predicate.budget.stop_reason.replace('_', ' ')}."
    )
    return render_section("What was spent", f"{events}<p>{escape_html(note)}</p>{accounting}")


def _event_row(runs: Sequence[EventRun]) -> tuple[str, ...]:
    """One row for events of one kind."""
    return (
        runs[0].kind + (f" in {len(runs)} phases" if len(runs) > 1 else ""),
        f"{sum(run.count for run in runs):,}",
        _range([multiplier for run in runs for multiplier in _event(run).multipliers]),
        _range([getattr(run, "sampling_rate", None) for run in runs]),
        _range([getattr(run, "batches", None) for run in runs]),
        _event(runs[0]).describe_sensitivity(),
    )


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or min(known) == max(known):
        return render_number(known[0] if known else None)
    return f"{render_number(min(known))} to {render_number(max(known))}"


def _event(run: EventRun) -> Event:
    return charge_from_json(run.model_dump()).event


def _assumptions(plan: Plan, predicate: Predicate) -> str:
    warnings = open_warnings(plan.warnings)
    return render_section(
        "What the claim rests on",
        (f"<p>{escape_html('Warnings of the recipe: ' + '; '.join(warnings))}.</p>" if warnings else "")
        + render_table(("assumption", "checked by"), [(a.text, a.checked_by) for a in predicate.assumptions]),
    )


def _checks(predicate: Predicate) -> str:
    rows = "".join(
        f'<tr><td>{escape_html(check.text)}</td><td class="{"yes" if check.passed else "no"}">'
        f"{'passed' if check.passed else 'failed'}</td><td>{escape_html(check.measured)}</td></tr>"
        for check in predicate.checks
    )
    return render_section(
        "What was tested on this program before it saw a record",
        f'<p class="small">{escape_html(f"Results and measurements: {NOT_CHECKED}.")}</p>'
        f'<div class="scroll"><table><thead><tr><th>check</th><th>result</th><th>measured</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>",
    )


def _data(predicate: Predicate) -> str:
    access = predicate.data_access
    uses = {
        "training": access.training,
        **({} if access.initial_weights is None else {"initial weights": access.initial_weights}),
        "preprocessing": access.preprocessing,
        "tuning": access.tuning,
        "evaluation": access.evaluation,
    }
    rows = [(name, use.status.replace("_", " "), use.text) for name, use in uses.items()]
    return render_section("Every use of data", render_table(("use", "status", "meaning"), rows))


def _verify(predicate: Predicate) -> str:
    return render_section(
        "Check it yourself",
        "<p>You need this folder only: no data, no GPU.</p>"
        "<pre>pip install dprecipe\ndprecipe verify .</pre>"
        f'<p class="small">{escape_html(predicate.what_a_signature_does_not_prove)}</p>',
    )


def _provenance(predicate: Predicate) -> str:
    provenance, initial = predicate.provenance, predicate.provenance.initial_weights
    rows = [
        ("recipe digest", provenance.recipe.digest),
        ("plan digest", provenance.plan),
        ("ledger digest", predicate.events.ledger),
        ("randomness", f"{predicate.randomness.generator}, seeded from: {predicate.randomness.entropy}"),
        ("arithmetic", f"sum {predicate.numerics.sum_dtype}, noise {predicate.numerics.noise_dtype}"),
        ("floating point", predicate.numerics.floating_point),
        *([] if initial is None else [("initial weights", f"{initial.file}, {initial.digest}")]),
        *([] if initial is None or initial.prior is None else [("images of the prior", initial.prior.images)]),
        *([] if initial is None or initial.learned is None else [("their origin", initial.learned.describe())]),
        (f"device ({NOT_CHECKED})", provenance.device),
        (f"time ({NOT_CHECKED})", f"{provenance.started} to {provenance.finished}"),
        (f"versions ({NOT_CHECKED})", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
    ]
    texts = [(provenance.recipe.file, provenance.recipe.text)]
    texts += [(parent.name, parent.text) for parent in provenance.recipe.parents]
    details = "".join(
        f"<details><summary>{escape_html(name)}</summary><pre>{escape_lines(text)}</pre></details>"
        for name, text in texts
    )
    overrides = "".join(
        f"<li><code>--set {escape_html(override)}</code></li>" for override in provenance.recipe.overrides
    )
    return render_section(
        "Where it comes from", render_table(("", ""), rows) + details + (f"<ul>{overrides}</ul>" if overrides else "")
    )
