"""`report.html`: the certificate for people, in one file that needs nothing else. Public things only.

Everything that comes from a recipe or a machine is escaped; the page holds no script and its policy allows none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from dprecipe.mechanisms.plan import Plan
from dprecipe.mechanisms.pnsgd import certificate as hiding
from dprecipe.planning.accept import open_warnings
from dprecipe.privacy.events import Charge
from dprecipe.release import origins, plots
from dprecipe.release.card import lost_steps
from dprecipe.release.page import OWN_WORD, POLICY, STYLE, bullets, escape, escape_lines, given, section, table
from dprecipe.release.schema import (
    EncodedRun,
    EventRun,
    FilterRestRun,
    FixedSizeGaussianRun,
    NoisyMaxRun,
    NoisyThresholdRun,
    PoissonLaplaceRun,
    Predicate,
    ProjectedDescentRun,
    SanitisedCostRun,
    Score,
    TruncatedPoissonGaussianRun,
)

Figure = Callable[[], str]
"""Draws an SVG."""


def html(
    plan: Plan,
    made: Predicate,
    charges: Sequence[Charge],
    history: Sequence[Mapping[str, float]],
    draw: Callable[[Figure], str] = lambda figure: figure(),
) -> str:
    """The page. `history` holds public scores only (`step`, `accuracy`).

    Guarantees: but for what `draw` makes of each figure, a function of plan, predicate and whether there is a history.
    """
    figures = _plots(plan, made, charges, history)
    if made.mechanism.projection is not None:
        figures = _hidden_plots(plan, made, charges)
    drawn = "".join(f"<figure>{draw(svg)}<figcaption>{escape(text)}</figcaption></figure>" for svg, text in figures)
    title = "Over the run" if made.mechanism.projection is None else "The guarantee"
    sections = [
        _claim(made),
        *_python(made),
        *_votes(made),
        section(title, f'<div class="plots">{drawn}</div>'),
        _events(made),
        _assumptions(plan, made),
        _checks(made),
        _data(made),
        section("What is not protected", bullets(made.claim.not_protected)),
        _verify(made),
        _provenance(made),
    ]
    title = escape(plan.name)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}: privacy report</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1><p>{_description(plan)}</p></header>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _description(plan: Plan) -> str:
    """The author's words, marked as such."""
    return f"In the words of the recipe's author: {escape(plan.description)}" if plan.description else ""


def _claim(made: Predicate) -> str:
    claim, budget, mechanism = made.claim, made.budget, made.mechanism
    numbers = [
        (f"ε = {claim.epsilon:g}", f"spent, of a budget of {budget.epsilon:g}"),
        (f"δ = {claim.delta:g}", "the chance that ε does not hold"),
        (claim.unit.name, "is what is protected"),
        (f"{hiding.fewest(made)}{made.sampling.steps_charged:,} {_what(made)}", f"{mechanism.kind}, {_noise(made)}"),
    ]
    if mechanism.voting is not None:
        votes = mechanism.voting
        numbers.append((f"{votes.answers_charged:,} answers", f"by {votes.teachers:,} teachers"))
    if claim.gdp is not None:
        end = claim.gdp.to_epsilon
        where = "for every ε" if end is None else f"for ε up to {end:g}"
        numbers.append((f"μ = {claim.gdp.mu:g}", f"no worse than Gaussian DP of this μ, {where}"))
    released = made.data_access.evaluation.released
    if released is not None:
        if isinstance(released, Score):
            value, what = f"{released.accuracy:.2%}", "accuracy"
        else:
            value, what = f"{released.mean_absolute_error:.4g}", "mean absolute error"
        numbers.append((value, f"{what} on {released.records:,} records declared public"))
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>" for value, text in numbers)
    void = " void" if made.randomness.insecure_seed is not None else ""
    return (
        f'<section class="claim{void}"><h2>The claim</h2><p>{escape(claim.sentence)}</p>'
        f'<div class="numbers">{cells}</div></section>'
    )


def _python(made: Predicate) -> list[str]:
    """What came from Python or with a library's model, and is declared to be free of private data, if anything."""
    declared = origins.declared(made)
    if not declared:
        return []
    library = any(assumption.id == origins.LIBRARY for assumption in made.assumptions)
    named_too = [t for t in made.tensors if t.made_by != "noisy_steps"] if library else origins.untouched(made.tensors)
    rows = [(tensor.name, str(list(tensor.shape))) for tensor in named_too]
    named = table(("released without noise", "shape"), rows) if rows else ""
    title = "Declared" if library else "Declared by who passed it from Python"
    return [section(f"{title}, and checked by nobody", bullets(declared) + named)]


def _what(made: Predicate) -> str:
    """What a run goes through one by one."""
    return "steps" if made.mechanism.voting is None else "queries"


def _noise(made: Predicate) -> str:
    noise = made.mechanism.noise
    if made.mechanism.voting is None:
        return f"noise multiplier {noise.multiplier:g}"
    return f"{noise.family} noise of {noise.multiplier:g} votes"


def _votes(made: Predicate) -> list[str]:
    """What decided which queries were answered, and what these very votes cost, where that is published."""
    votes, own = made.mechanism.voting, made.data_dependent
    if votes is None:
        return []
    rows = [
        ("teachers", f"{votes.teachers:,}: {votes.partition}"),
        ("answers", f"{votes.aggregator}, one of {votes.classes:,} classes, {_noise(made)} on each count"),
    ]
    if votes.threshold is not None and votes.selection_multiplier is not None:
        check = f"where the largest count reaches {votes.threshold:g}, gaussian noise of {votes.selection_multiplier:g}"
        rows.append(("which", f"{check} votes on it"))
    if votes.interaction is not None:
        asked = votes.interaction
        rows.append(
            (
                "student",
                f"from the second of {asked.rounds} rounds on, where votes exceed what it expects by "
                f"{asked.threshold:g}; its own label stands above a confidence of {asked.confidence:g}",
            )
        )
    rows.append(("queries", f"{votes.queries_charged:,}, of {votes.queries_planned:,} at most"))
    rows.append(("answered", f"{votes.answers_charged:,}, of {votes.answers_planned:,} at most"))
    if votes.filter is not None:
        rows.append(("charged", "all that the plan allowed, whatever was answered: the claim is the worst case"))
    body = table(("", ""), rows)
    if own is not None:
        cells = [
            (f"ε = {own.epsilon:g}", f"what these votes cost, at δ = {own.delta:g}"),
            (f"ε = {own.worst_case_epsilon:g}", "the worst case, at the same δ"),
            (own.smaller.replace("_", " "), "is the smaller"),
        ]
        numbers = "".join(f"<div><b>{escape(value)}</b><span>{escape(text)}</span></div>" for value, text in cells)
        body += f'<div class="numbers">{numbers}</div><p class="small">{escape(own.sentence)}</p>'
    return [section("The vote", body)]


def _plots(
    plan: Plan, made: Predicate, charges: Sequence[Charge], history: Sequence[Mapping[str, float]]
) -> list[tuple[Figure, str]]:
    """Each figure of a run, with its caption."""
    what = _what(made)
    each = what.removesuffix("s") if made.mechanism.voting is None else "query"
    rest = "" if made.mechanism.voting is None or made.mechanism.voting.filter is None else " What was left is charged."
    figures: list[tuple[Figure, str]] = [
        (
            lambda: plots.epsilon_plot(plots.spent_over_steps(plan, charges), made.budget.epsilon, what),
            f"What was spent, {each} by {each}; the line is the budget.{rest}",
        ),
    ]
    if made.mechanism.voting is not None:
        figures.append(
            (
                lambda: plots.answered_plot(plots.answered_over_queries(charges)),
                "How much the teachers answered: answers are released anyway.",
            )
        )
    if made.claim.profile:
        figures.append(
            (
                lambda: plots.profile_plot(made.claim),
                "The same release holds for every pair on this curve, not for one only.",
            )
        )
    if history:
        figures.append((lambda: plots.accuracy_plot(history, what), "Accuracy on records that are declared public."))
    return figures


def _hidden_plots(plan: Plan, made: Predicate, charges: Sequence[Charge]) -> list[tuple[Figure, str]]:
    """Of a run whose iterates are hidden: nothing along the way, but how good the guarantee is."""
    claim, figures = made.claim, list[tuple[Figure, str]]()
    if claim.by_position:
        figures.append(
            (lambda: plots.position_plot(claim), "Every place in the file has a guarantee; the claim is the worst.")
        )
    if claim.profile:
        figures.append(
            (
                lambda: plots.bounds_plot(plots.bounds_over_epsilon(plan, charges, claim), claim),
                "Each bound holds; the least, at the claimed δ, is claimed.",
            )
        )
    return figures


FEW_PHASES = 4
"""So many events of one kind are told one by one; of more, as a schedule has them, there is a line for all."""


def _events(made: Predicate) -> str:
    head = ("event", "count", "noise multiplier", "sampling rate", "lots", "one unit moves")
    by_kind = [list(runs) for _, runs in groupby(made.events.run_length, lambda run: (run.kind, _box(run)))]
    rows = [
        row
        for runs in by_kind
        for row in ([_charged([run]) for run in runs] if len(runs) <= FEW_PHASES else [_charged(runs)])
    ]
    events = table(head, rows)
    if len(rows) < len(made.events.run_length):
        each = table(head, [_charged([run]) for run in made.events.run_length])
        events += f"<details><summary>Each phase of the schedule</summary>{each}</details>"
    accounting = table(
        ("accountant", "version", "kind of bound", "ε"),
        [(row.name, row.version, row.bound, given(row.epsilon)) for row in made.accounting],
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
    return section("What was spent", f"{events}<p>{escape(note)}</p>{accounting}")


def _charged(runs: Sequence[EventRun]) -> tuple[str, ...]:
    """One row for events of one kind."""
    return (
        runs[0].kind + (f" in {len(runs)} phases" if len(runs) > 1 else ""),
        f"{sum(run.count for run in runs):,}",
        _range([multiplier for run in runs for multiplier in _multipliers(run)]),
        _range([getattr(run, "sampling_rate", None) for run in runs]),
        _range([getattr(run, "lots", None) for run in runs]),
        _box(runs[0]),
    )


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known or min(known) == max(known):
        return given(known[0] if known else None)
    return f"{given(min(known))} to {given(max(known))}"


def _multipliers(run: EventRun) -> list[float]:
    return [row[1] for row in run.stages] if isinstance(run, ProjectedDescentRun) else [run.noise_multiplier]


def _box(run: EventRun) -> str:
    match run:
        case NoisyMaxRun():
            return f"one vote: two counts by 1 each; {run.family} noise"
        case NoisyThresholdRun():
            return "one vote: the largest count by at most 1"
        case FilterRestRun():
            return "whatever the filter still allowed: as much as this noise, by 1"
        case SanitisedCostRun():
            return f"one vote: the cost by its smooth sensitivity (β = {run.beta:g}), its logarithm by β"
        case ProjectedDescentRun():
            return f"one step of a pass, by 1; {run.family} noise; {run.order} order, all but the end hidden"
        case PoissonLaplaceRun():
            return "the sum by 1 in L1 norm; laplace noise"
        case TruncatedPoissonGaussianRun():
            return f"the sum by 1 in L2 norm, by 2 where a lot has {run.most:,} units, which is all it may have"
        case FixedSizeGaussianRun():
            return f"the sum by 2 in L2 norm, replaced; lots of {run.lot:,} of {run.size:,} units"
        case EncodedRun():
            pass
        case _:
            return "the sum by 1 in L2 norm"
    coordinates, most = sum(count for _, count in run.shifts), run.shifts[-1][0]
    law = run.family if run.shape is None else f"{run.family} ({run.shape:g})"
    return f"{coordinates:,} coordinates by at most {most:.3g} each, rank by rank; {law} noise"


def _assumptions(plan: Plan, made: Predicate) -> str:
    warned = open_warnings(plan.warnings)
    return section(
        "What the claim rests on",
        (f"<p>{escape('Warnings of the recipe: ' + '; '.join(warned))}.</p>" if warned else "")
        + table(("assumption", "checked by"), [(a.text, a.checked_by) for a in made.assumptions]),
    )


def _checks(made: Predicate) -> str:
    rows = "".join(
        f'<tr><td>{escape(check.text)}</td><td class="{"yes" if check.passed else "no"}">'
        f"{'passed' if check.passed else 'failed'}</td><td>{escape(check.measured)}</td></tr>"
        for check in made.checks
    )
    return section(
        "What was tested on this program, before it saw a record",
        f'<p class="small">{escape(f"Results and measurements: {OWN_WORD}.")}</p>'
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
    return section("Every use of data", table(("use", "status", "meaning"), rows))


def _verify(made: Predicate) -> str:
    return section(
        "Check it yourself",
        "<p>With this folder and nothing else: no data, no GPU.</p>"
        "<pre>pip install dprecipe\ndprecipe verify .</pre>"
        f'<p class="small">{escape(made.what_a_signature_does_not_prove)}</p>',
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
        f"<details><summary>{escape(name)}</summary><pre>{escape_lines(text)}</pre></details>" for name, text in texts
    )
    overrides = "".join(f"<li><code>--set {escape(override)}</code></li>" for override in provenance.recipe.overrides)
    return section(
        "Where it comes from", table(("", ""), rows) + details + (f"<ul>{overrides}</ul>" if overrides else "")
    )
