"""`report.render_html`: the certificate for people, in one file that needs nothing else. Public things only.

Everything that comes from a recipe or a machine is escaped; the page holds no script and its policy allows none.
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
from dprecipe.release import origins, plots
from dprecipe.release.card import lost_steps
from dprecipe.release.page import (
    OWN_WORD,
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


def render_html(
    plan: Plan,
    made: Predicate,
    charges: Sequence[Charge],
    history: Sequence[Mapping[str, float]],
    draw: Callable[[Figure], str] = lambda figure: plots.render_svg(figure.name, figure.draw),
) -> str:
    """The page. `history` holds public scores only (`step`, `accuracy`).

    Guarantees: but for what `draw` makes of each figure, a function of plan, predicate and whether there is a history.
    """
    drawn = "".join(
        f"<figure>{draw(figure)}<figcaption>{escape_html(figure.caption)}</figcaption></figure>"
        for figure in list_figures(plan, made, charges, history)
    )
    title = "The guarantee" if mechanism_of(plan.mechanism).certificate.hides_iterates else "Over the run"
    sections = [
        _claim(made),
        *_python(made),
        *map(_of_the_mechanism, mechanism_of(plan.mechanism).certificate.list_sections(made.mechanism)),
        render_section(title, f'<div class="plots">{drawn}</div>'),
        _events(made),
        _assumptions(plan, made),
        _checks(made),
        _data(made),
        render_section("What is not protected", render_bullets(made.claim.not_protected)),
        _verify(made),
        _provenance(made),
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
    """The author's words, marked as such."""
    return f"In the words of the recipe's author: {escape_html(plan.description)}" if plan.description else ""


def _claim(made: Predicate) -> str:
    claim, budget, mechanism = made.claim, made.budget, made.mechanism
    part = mechanism_of(mechanism.kind).certificate
    steps = f"{part.format_steps(mechanism, made.sampling.steps_charged)} {part.progress[1]}"
    numbers = [
        (f"ε = {claim.epsilon:g}", f"spent, of a budget of {budget.epsilon:g}"),
        (f"δ = {claim.delta:g}", "the chance that ε does not hold"),
        (claim.unit.name, "is what is protected"),
        (steps, f"{mechanism.kind}, {part.describe_noise(mechanism)}"),
        *part.list_headlines(mechanism),
    ]
    if claim.gdp is not None:
        end = claim.gdp.to_epsilon
        where = "for every ε" if end is None else f"for ε up to {end:g}"
        numbers.append((f"μ = {claim.gdp.mu:g}", f"no worse than Gaussian DP of this μ, {where}"))
    released = made.data_access.evaluation.released
    if released is not None:
        if isinstance(released, ClassifierScore):
            value, what = f"{released.accuracy:.2%}", "accuracy"
        else:
            value, what = f"{released.mean_absolute_error:.4g}", "mean absolute error"
        numbers.append((value, f"{what} on {released.records:,} records declared public"))
    cells = "".join(
        f"<div><b>{escape_html(value)}</b><span>{escape_html(text)}</span></div>" for value, text in numbers
    )
    void = " void" if made.randomness.insecure_seed is not None else ""
    return (
        f'<section class="claim{void}"><h2>The claim</h2><p>{escape_html(claim.sentence)}</p>'
        f'<div class="numbers">{cells}</div></section>'
    )


def _python(made: Predicate) -> list[str]:
    """What came from Python or with a library's model, and is declared to be free of private data, if anything."""
    declared = origins.list_declared(made)
    if not declared:
        return []
    library = any(assumption.id == origins.LIBRARY for assumption in made.assumptions)
    named_too = (
        [t for t in made.tensors if t.made_by != "noisy_steps"] if library else origins.untouched_tensors(made.tensors)
    )
    rows = [(tensor.name, str(list(tensor.shape))) for tensor in named_too]
    named = render_table(("released without noise", "shape"), rows) if rows else ""
    title = "Declared" if library else "Declared by who passed it from Python"
    return [render_section(f"{title}, and checked by nobody", render_bullets(declared) + named)]


def _of_the_mechanism(part: Section) -> str:
    """What the mechanism's room says of the run."""
    cells = "".join(
        f"<div><b>{escape_html(value)}</b><span>{escape_html(text)}</span></div>" for value, text in part.numbers
    )
    body = render_table(("", ""), part.rows)
    body += f'<div class="numbers">{cells}</div>' if cells else ""
    body += f'<p class="small">{escape_html(part.text)}</p>' if part.text else ""
    return render_section(part.title, body)


def list_figures(
    plan: Plan, made: Predicate, charges: Sequence[Charge], history: Sequence[Mapping[str, float]]
) -> list[Figure]:
    """Each figure of a run. Of a run whose iterates are hidden, those of its mechanism alone: nothing along the way."""
    claim, budget, part = made.claim, made.budget, mechanism_of(plan.mechanism).certificate
    profile = [point.epsilon for point in claim.profile]
    own = part.list_figures(plan, made.mechanism, charges, claim.epsilon, profile)
    if part.hides_iterates:
        return [*own]
    each, several = part.progress
    rest = " What was left is charged." if part.is_adaptive(plan) else ""
    results = [
        Figure(
            "epsilon",
            f"What was spent, {each} by {each}; the line is the budget.{rest}",
            lambda axes: plots.draw_spent(axes, plots.spent_over_steps(plan, charges), budget.epsilon, several),
            frozenset({several, "ε spent", f"budget ε = {budget.epsilon:g}"}),
        ),
        *own,
    ]
    if profile:
        results.append(
            Figure(
                "profile",
                "The same release holds for every pair on this curve, not for one only.",
                lambda axes: plots.draw_profile(axes, claim),
                frozenset({"ε", "δ", f"claimed: ε = {claim.epsilon:g}, δ = {claim.delta:g}"}),
            )
        )
    if history:
        results.append(
            Figure(
                "accuracy",
                "Accuracy on records that are declared public.",
                lambda axes: plots.draw_accuracy(axes, history, several),
                frozenset({several, "accuracy, public records"}),
            )
        )
    return results


FEW_PHASES = 4
"""So many events of one kind are told one by one; of more, as a schedule has them, there is a line for all."""


def _events(made: Predicate) -> str:
    head = ("event", "count", "noise multiplier", "sampling rate", "batches", "one unit moves")
    told_apart = groupby(made.events.run_length, lambda run: (run.kind, _event(run).describe_sensitivity()))
    by_kind = [list(runs) for _, runs in told_apart]
    rows = [
        row
        for runs in by_kind
        for row in ([_charged([run]) for run in runs] if len(runs) <= FEW_PHASES else [_charged(runs)])
    ]
    events = render_table(head, rows)
    if len(rows) < len(made.events.run_length):
        each = render_table(head, [_charged([run]) for run in made.events.run_length])
        events += f"<details><summary>Each phase of the schedule</summary>{each}</details>"
    accounting = render_table(
        ("accountant", "version", "kind of bound", "ε"),
        [(row.name, row.version, row.bound, render_number(row.epsilon)) for row in made.accounting],
    )
    unsettled = made.budget.events_reserved_unsettled
    note = (
        f"{made.events.total:,} events were charged in {made.budget.attempts} "
        f"{'attempt' if made.budget.attempts == 1 else 'attempts'}"
        + (
            f"; {unsettled:,} of them were reserved before a crash and are charged as if they had run"
            if unsettled
            else ""
        )
        + (f"; {lost_steps(made)}" if lost_steps(made) else "")
        + f". The run ended because: {made.budget.stop_reason}."
    )
    return render_section("What was spent", f"{events}<p>{escape_html(note)}</p>{accounting}")


def _charged(runs: Sequence[EventRun]) -> tuple[str, ...]:
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


def _assumptions(plan: Plan, made: Predicate) -> str:
    warned = open_warnings(plan.warnings)
    return render_section(
        "What the claim rests on",
        (f"<p>{escape_html('Warnings of the recipe: ' + '; '.join(warned))}.</p>" if warned else "")
        + render_table(("assumption", "checked by"), [(a.text, a.checked_by) for a in made.assumptions]),
    )


def _checks(made: Predicate) -> str:
    rows = "".join(
        f'<tr><td>{escape_html(check.text)}</td><td class="{"yes" if check.passed else "no"}">'
        f"{'passed' if check.passed else 'failed'}</td><td>{escape_html(check.measured)}</td></tr>"
        for check in made.checks
    )
    return render_section(
        "What was tested on this program, before it saw a record",
        f'<p class="small">{escape_html(f"Results and measurements: {OWN_WORD}.")}</p>'
        f'<div class="scroll"><table><thead><tr><th>check</th><th>result</th><th>measured</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>",
    )


def _data(made: Predicate) -> str:
    access = made.data_access
    uses = {
        "training": access.training,
        **({} if access.initial_weights is None else {"initial weights": access.initial_weights}),
        "preprocessing": access.preprocessing,
        "tuning": access.tuning,
        "evaluation": access.evaluation,
    }
    rows = [(name, use.status.replace("_", " "), use.text) for name, use in uses.items()]
    return render_section("Every use of data", render_table(("use", "status", "meaning"), rows))


def _verify(made: Predicate) -> str:
    return render_section(
        "Check it yourself",
        "<p>With this folder and nothing else: no data, no GPU.</p>"
        "<pre>pip install dprecipe\ndprecipe verify .</pre>"
        f'<p class="small">{escape_html(made.what_a_signature_does_not_prove)}</p>',
    )


def _provenance(made: Predicate) -> str:
    provenance, initial = made.provenance, made.provenance.initial_weights
    rows = [
        ("recipe digest", provenance.recipe.digest),
        ("plan digest", provenance.plan),
        ("ledger digest", made.events.ledger),
        ("randomness", f"{made.randomness.generator}, seeded from: {made.randomness.entropy}"),
        ("arithmetic", f"sum {made.numerics.sum_dtype}, noise {made.numerics.noise_dtype}"),
        ("floating point", made.numerics.floating_point),
        *([] if initial is None else [("initial weights", f"{initial.file}, {initial.digest}")]),
        (f"device ({OWN_WORD})", provenance.device),
        (f"time ({OWN_WORD})", f"{provenance.started} to {provenance.finished}"),
        (f"versions ({OWN_WORD})", ", ".join(f"{name} {version}" for name, version in provenance.versions.items())),
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
