"""The report: the certificate for people, in one file that needs nothing else. It holds public things only.

Everything that comes from a recipe or a machine is escaped. The page has no script, and its policy allows none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from dprecipe.contract.certificate import Section
from dprecipe.contract.drawing import Figure
from dprecipe.contract.plan import Plan
from dprecipe.contract.table import mechanism_of
from dprecipe.language.statement import join_lines
from dprecipe.page import (
    NOT_CHECKED,
    escape_html,
    escape_lines,
    render_bullets,
    render_figures,
    render_number,
    render_page,
    render_section,
    render_table,
    render_tiles,
)
from dprecipe.planning.accept import open_warnings
from dprecipe.privacy.events import Charge, Event, charge_from_json
from dprecipe.privacy.rounding import write_number
from dprecipe.release import account_report, audit, figures, meaning, origins, scores, summary, tuned
from dprecipe.release.card import describe_kept, describe_lost_steps
from dprecipe.release.no_model import has_no_model
from dprecipe.release.schema import EventRun, Predicate
from dprecipe.release.stages import render_stages


def render_html(
    plan: Plan,
    predicate: Predicate,
    charges: Sequence[Charge],
    history: Sequence[Mapping[str, float]],
    draw: Callable[[Figure], str] = lambda figure: figures.render_svg(figure.name, figure.draw),
) -> str:
    """Returns the page. `history` has public scores only (`step`, `accuracy`).

    Guarantees: except for the figures that `draw` returns, the page depends only on the plan, the predicate, and
    whether the history has several points.
    """
    drawn = {
        figure.name: (draw(figure), figure.alt or figure.caption, figure.caption)
        for figure in list_figures(plan, predicate, charges, history)
    }
    attacked = render_figures(drawn.pop(name) for name in ("audit",) if name in drawn)
    shown = render_figures(drawn.values())
    over = "The guarantee" if tuned.hides_iterates(plan) else "Over the run"
    sections = [
        *summary.render_summary(predicate),
        _claim(predicate),
        _glance(predicate),
        *_risk(predicate),
        audit.render_audit(predicate.audit, attacked),
        _declared(predicate),
        *_statement(predicate),
        *([] if has_no_model(predicate) else _list_mechanism_sections(plan, predicate)),
        *([render_section(over, shown)] if shown else []),
        *_scores(plan, predicate),
        *render_stages(plan, predicate),
        *account_report.render_account(predicate.account),
        _events(predicate),
        _assumptions(plan, predicate),
        _checks(predicate),
        _data(predicate),
        _verify(predicate),
        _provenance(predicate),
    ]
    header = f"<header><h1>{escape_html(plan.name)}</h1><p>{_description(plan)}</p></header>\n"
    return render_page(f"{plan.name}: privacy report", header + "\n".join(sections))


def _description(plan: Plan) -> str:
    """Returns the author's description, marked as such."""
    return (
        f"In the words of the recipe's author: {escape_html(join_lines(plan.description))}" if plan.description else ""
    )


def _glance(predicate: Predicate) -> str:
    """Returns the numbers that a reader looks for first."""
    claim, budget, mechanism = predicate.claim, predicate.budget, predicate.mechanism
    part = mechanism_of(mechanism.kind).certificate
    steps = f"{part.format_steps(mechanism, predicate.sampling.steps_charged)} {part.progress[1]}"
    released = predicate.data_access.evaluation.released
    tiles = [
        *(() if released is None else scores.list_headline(released, released.records)),
        (
            f"ε = {meaning.read_up(claim.epsilon)}",
            f"spent: {claim.epsilon!r} of a budget of {write_number(budget.epsilon)}",
        ),
        (
            f"δ = {write_number(claim.delta)}",
            f"{meaning.describe_delta(claim.delta)}: a margin that the claim allows beyond ε",
        ),
        *([] if has_no_model(predicate) else [(steps, f"{mechanism.kind}, {part.describe_noise(mechanism)}")]),
        *part.list_headlines(mechanism),
    ]
    if claim.gdp is not None:
        end = claim.gdp.to_epsilon
        where = "for every ε" if end is None else f"for ε up to {end:g}"
        text = (
            f"no weaker than normal noise of deviation 1 on one number that one {claim.unit.name} moves by μ; {where}"
        )
        tiles.append((f"μ = {meaning.read_up(claim.gdp.mu)}", f"to compare releases with one number: {text}"))
    return render_section("At a glance", render_tiles(tiles))


def _claim(predicate: Predicate) -> str:
    """Returns the claim as mathematics, unless it was said first, and how it is enforced."""
    texts = [] if summary.leads_with_claim(predicate) else [predicate.claim.sentence]
    texts.append(f"How that is enforced: {predicate.claim.unit.enforced_by}.")
    return render_section("The claim", "".join(f"<p>{escape_html(text)}</p>" for text in texts))


def _risk(predicate: Predicate) -> list[str]:
    """Renders what attacks attain at most; nothing where no one is protected."""
    claim = predicate.claim
    if summary.is_void(predicate):
        return []
    text = f"An attacker wants to find out {meaning.ask_question(claim)}, and knows everything else."
    table = render_table(("", ""), meaning.list_risk(claim))
    body = f'<p class="small">{escape_html(text)} All numbers are upper bounds.</p>{table}'
    if several := meaning.list_group(claim):
        together = "What holds for several of them who change together, such as a household, at the same δ:"
        body += f'<p class="small">{escape_html(together)}</p>{render_table(("", ""), several)}'
    return [render_section("What an attack can attain", body)]


def _declared(predicate: Predicate) -> str:
    """Renders what no one has proved: assumptions that are declared, with the tensors that came without noise."""
    first = origins.list_declared(predicate)
    others = [a.text for a in predicate.assumptions if a.checked_by == "declaration" and a.text not in first]
    unchanged = origins.list_unchanged(predicate.tensors)
    if any(assumption.id == origins.LIBRARY for assumption in predicate.assumptions):
        unchanged = [t for t in predicate.tensors if t.made_by != "noisy_steps"]
    rows = [(tensor.name, str(list(tensor.shape))) for tensor in unchanged]
    table = render_table(("released without noise", "shape"), rows) if rows else ""
    text = "The claim holds if these hold. Whoever wrote the recipe says so; no program can know."
    return render_section(
        "Declared, and checked by nobody", f'<p class="small">{text}</p>{render_bullets([*first, *others])}{table}'
    )


def _statement(predicate: Predicate) -> list[str]:
    """Renders what the recipe's author states beyond the first screen; may be empty."""
    if predicate.statement is None:
        return []
    rows = predicate.statement.model_copy(update=dict.fromkeys(summary.DECLARED)).list_rows()
    if not rows:
        return []
    text = "In the words of the recipe's author; not checked."
    table = render_table(("", ""), rows)
    return [render_section("Statement of the curator", f'<p class="small">{escape_html(text)}</p>{table}')]


def _scores(plan: Plan, predicate: Predicate) -> list[str]:
    """Returns the released scores, each beside its baseline; may be empty."""
    released = predicate.data_access.evaluation.released
    if released is None:
        return []
    table = scores.render_scores(released, scores.name_loss(plan.data))
    text = f"Measured {predicate.data_access.evaluation.text}. There are {released.records:,} of them."
    kept = describe_kept(predicate)
    text += f" {kept[:1].upper()}{kept[1:]}." if kept else ""
    return [render_section("How good the model is", f"{table}<p>{escape_html(text)}</p>")]


def _list_mechanism_sections(plan: Plan, predicate: Predicate) -> list[str]:
    part = mechanism_of(plan.mechanism).certificate
    return [_mechanism_section(section) for section in part.list_sections(predicate.mechanism)]


def _mechanism_section(part: Section) -> str:
    """Returns a section of the mechanism's own."""
    body = render_table(("", ""), part.rows) + render_tiles(part.numbers)
    body += f'<p class="small">{escape_html(part.text)}</p>' if part.text else ""
    return render_section(part.title, body)


def list_figures(
    plan: Plan, predicate: Predicate, charges: Sequence[Charge], history: Sequence[Mapping[str, float]]
) -> list[Figure]:
    """Returns all figures of a run, in the order of the page. For a last-iterate release, only those of its mechanism:
    nothing along the way. Of a run that ended without a model, only that of its audit."""
    attacked = audit.list_audit_figures(predicate.audit)
    if has_no_model(predicate):
        return attacked
    claim, budget, part = predicate.claim, predicate.budget, mechanism_of(plan.mechanism).certificate
    profile = [point.epsilon for point in claim.profile]
    mechanism_figures = part.list_figures(plan, predicate.mechanism, charges, claim.epsilon, profile)
    if part.hides_iterates:
        return [*attacked, *mechanism_figures, *account_report.list_account_figures(predicate.account)]
    noun, nouns = part.progress
    remainder = " The rest of the limit is charged at the end." if part.is_adaptive(plan) else ""
    spending = [
        Figure(
            "epsilon",
            f"What was spent, {noun} by {noun}; the dashed line is the budget.{remainder}",
            lambda axes: figures.draw_spending(axes, figures.trace_spending(plan, charges), budget.epsilon, nouns),
            frozenset({nouns, "ε spent", figures.label_budget(budget.epsilon)}),
            f"A curve of the ε spent, which rises to {claim.epsilon:g} over "
            f"{predicate.sampling.steps_charged:,} {nouns}; the budget is {write_number(budget.epsilon)}.",
        )
    ]
    results = [*attacked, *([] if plan.tuning is not None else spending), *mechanism_figures]
    if profile:
        results.append(
            Figure(
                "profile",
                "The guarantee holds for every pair (ε, δ) on this curve.",
                lambda axes: figures.draw_profile(axes, claim),
                frozenset({"ε", "δ", figures.label_claim(claim)}),
                f"A curve of δ, which falls from {claim.profile[0].delta:g} at ε = {claim.profile[0].epsilon:g} to "
                f"{claim.profile[-1].delta:g} at ε = {claim.profile[-1].epsilon:g}.",
            )
        )
    results += account_report.list_account_figures(predicate.account)
    if len(history) > 1:
        results.append(_history_figure(predicate, history, nouns))
    return results


def _history_figure(predicate: Predicate, history: Sequence[Mapping[str, float]], nouns: str) -> Figure:
    """Draws public scores along the run, with the score that takes no model where the certificate has it."""
    key = next(key for key in scores.ALONG_A_RUN if key in history[-1])
    baseline = scores.read_baseline(predicate.data_access.evaluation.released, key)
    name = key.replace("_", " ")
    return Figure(
        "accuracy",
        f"{name[:1].upper()}{name[1:]} on records that are declared public."
        + ("" if baseline is None else " The dashed line is the score without a model."),
        lambda axes: figures.draw_scores(axes, history, key, baseline, nouns),
        frozenset({nouns, name}),
        f"A curve of {name} over {nouns}; its points are in metrics.json."
        + ("" if baseline is None else f" Without a model it is {scores.format_score(key, baseline)}."),
    )


MAX_SINGLE_ROWS = 4
"""Largest number of events of one kind that have a row each; more, as in a schedule, share one row."""


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
    note = _describe_spending(predicate)
    return render_section("What was spent", f"{events}<p>{escape_html(note)}</p>{accounting}")


def _describe_spending(predicate: Predicate) -> str:
    total, budget = predicate.events.total, predicate.budget
    parts = [
        f"{_count(total, 'event')} {'was' if total == 1 else 'were'} charged in {_count(budget.attempts, 'attempt')}"
    ]
    unsettled = budget.events_reserved_unsettled
    if unsettled:
        verb = "was" if unsettled == 1 else "were"
        parts.append(f"{unsettled:,} of them {verb} reserved before a crash, and charged as if run")
    if describe_lost_steps(predicate):
        parts.append(describe_lost_steps(predicate))
    return f"{'; '.join(parts)}. The run ended because: {budget.stop_reason.replace('_', ' ')}."


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _event_row(runs: Sequence[EventRun]) -> tuple[str, ...]:
    """Returns one row for events of one kind."""
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
        "What the claim rests on, beyond what is declared",
        (f"<p>{escape_html('Warnings of the recipe: ' + '; '.join(warnings))}.</p>" if warnings else "")
        + render_table(
            ("assumption", "checked by"),
            [(a.text, a.checked_by) for a in predicate.assumptions if a.checked_by != "declaration"],
        ),
    )


def _checks(predicate: Predicate) -> str:
    rows = [(check.text, "passed" if check.passed else "failed", check.measured) for check in predicate.checks]
    return render_section(
        "What was tested on this program before it saw a record",
        f'<p class="small">{escape_html(f"Results and measurements: {NOT_CHECKED}.")}</p>'
        + render_table(("check", "result", "measured"), rows),
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
        "<p>You need this folder and the program: no data, no GPU. Take dprecipe from a place that you trust, a "
        "release of it or its repository (<code>pip install .</code> there), and not from the sender of this "
        "folder.</p>"
        "<pre>dprecipe verify .</pre>"
        f'<p class="small">{escape_html(meaning.NOT_PROVEN)}</p>',
    )


def _provenance(predicate: Predicate) -> str:
    provenance, initial = predicate.provenance, predicate.provenance.initial_weights
    rows = [
        ("recipe digest", provenance.recipe.digest),
        ("plan digest", provenance.plan),
        ("ledger digest", predicate.events.ledger),
        ("randomness", meaning.describe_randomness(predicate.randomness)),
        ("arithmetic", f"sum {predicate.numerics.sum_dtype}, noise {predicate.numerics.noise_dtype}"),
        ("floating point", meaning.FLOATING_POINT[predicate.numerics.floating_point]),
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
