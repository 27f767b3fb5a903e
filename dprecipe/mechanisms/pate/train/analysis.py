"""The cost of the votes: a private report, and the part of it that the recipe publishes.

`private/analysis.json` and `private/consensus.svg` are functions of the votes, and are never published: no run stops
and nothing is chosen because of them. Everything published goes through `release_sanitised_cost` alone, and is paid
for.

Axes: Q queries, M classes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dprecipe import durable
from dprecipe.contract.drawing import Axes
from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.aggregators import Counts, list_rounds
from dprecipe.mechanisms.pate.cost_statement import sanitiser_of
from dprecipe.mechanisms.pate.events import SanitisedCost
from dprecipe.mechanisms.pate.plan import PatePlan, PlannedRound
from dprecipe.mechanisms.pate.theory import sanitise, vote_analysis, vote_sensitivity, votes
from dprecipe.mechanisms.pate.theory.sanitise import Sanitised
from dprecipe.mechanisms.pate.theory.votes import VoteSelection, Voting
from dprecipe.mechanisms.pate.train.answers import UNASKED
from dprecipe.mechanisms.pate.train.ballot import Ballot, RemainingBudget
from dprecipe.noise.draws import draw_gaussian
from dprecipe.noise.entropy import Stream
from dprecipe.privacy import conversion, rounding
from dprecipe.privacy.events import Charge
from dprecipe.privacy.ledger import Ledger
from dprecipe.release.figures import render_svg_file

NOTE = "a function of the private votes: never publish it, and choose nothing by it"
EXACT = 10**7
"""Largest product of queries and squared classes for which answers are analysed exactly: takes a minute or two."""


def voting_of_round(plan: Plan, planned: PlannedRound) -> Voting:
    """Returns the voting of one round: its noise, threshold and check."""
    check, answer = planned.multipliers
    return replace(voting_of(plan), multiplier=answer, selection=VoteSelection(planned.threshold, check))


def voting_of(plan: Plan) -> Voting:
    """Returns the voting of a plan: its noise, threshold and check; of an interactive plan, that of the first round."""
    planned, selection = plan.as_plan_of(PatePlan), None
    if planned.threshold is not None and planned.check is not None:
        selection = VoteSelection(planned.threshold, planned.check.noise_multiplier)
    answer = planned.answer
    family: Literal["gaussian", "laplace"] = "laplace" if answer.family == "laplace" else "gaussian"
    return Voting(planned.ensemble.count, planned.classes, family, answer.noise_multiplier, selection)


def write_analysis(plan: Plan, counts_QM: Counts, ballot: Ballot, private: Path) -> None:
    """Writes the private report, `analysis.json` and `consensus.svg`, to the folder `private`.

    Raises:
        RunFailed: the files can't be written.
    """
    interactive = plan.as_plan_of(PatePlan).interaction is not None
    costs = _realised_costs(plan, counts_QM, ballot) if interactive else _costs(plan, counts_QM, ballot)
    content = {
        "schema": "dprecipe.pate-analysis/v1",
        "note": NOTE,
        "queries": {"planned": len(counts_QM), "put": ballot.queries_put, "answered": ballot.answered},
        "delta": plan.budget.delta,
        **costs,
    }
    try:
        text = json.dumps(_drop_infinities(content), indent=1, allow_nan=False) + "\n"
        durable.replace_file(private / "analysis.json", text.encode())
        durable.replace_file(private / "consensus.svg", plot_consensus(plan, counts_QM).encode())
    except OSError as error:
        raise RunFailed(
            f"{private}: the analysis can't be written: {error.strerror}",
            "make room on the disk, then continue with --resume",
        ) from None


def plot_consensus(plan: Plan, counts_QM: Counts) -> str:
    """Draws a histogram, as SVG, of the number of teachers that agree on each query."""
    planned = plan.as_plan_of(PatePlan)
    teachers, threshold = planned.ensemble.count, planned.threshold

    def draw(axes: Axes) -> None:
        counts, edges = np.histogram(counts_QM.max(axis=1), min(50, teachers), (0, teachers))
        axes.draw_bars(edges.tolist(), counts.tolist())
        if threshold is not None:
            axes.draw_upright(threshold)
        axes.set(f"largest count of {teachers:,} votes", "queries", (0, teachers), (0, None))

    return render_svg_file("consensus", draw)


def release_sanitised_cost(
    plan: Plan,
    counts_QM: Counts,
    ballot: Ballot,
    remaining_budget: RemainingBudget,
    streams: Iterator[Stream],
    path: Path,
    before: Ledger | None,
) -> Sanitised | None:
    """Returns the published cost of the votes: drawn once, rounded up to six digits and kept in the file `path`.

    None if the recipe publishes nothing, or if a crash lost an outcome: noise that was drawn and lost is in no sum over
    the queries. The sum runs over all planned queries, put or not: a run that stops early is post-processing of one
    that does not.

    Raises:
        RunFailed: the file does not belong to this ledger, or can't be read or written.
    """
    if plan.as_plan_of(PatePlan).publication is None:
        return None
    saved = _read_saved(path, before)
    if saved is not None:
        return saved
    chosen, voting = sanitiser_of(plan), voting_of(plan)
    event = SanitisedCost(chosen.smoothness, chosen.value_multiplier, chosen.sensitivity_multiplier)
    if not remaining_budget.holds([Charge(event, 1)]):
        return None
    pairs = vote_sensitivity.two_largest(counts_QM)
    value = float(vote_sensitivity.query_cost(*pairs, voting, chosen.order).sum())
    table_ST = vote_sensitivity.local_sensitivities(vote_sensitivity.query_costs(voting, chosen.order))
    log_smooth = vote_sensitivity.log_smooth(vote_sensitivity.at_distances(table_ST, *pairs), chosen.smoothness)
    paid, published = remaining_budget.reserve(event, 1), None
    if not ballot.lost:
        noisy = sanitise.release_cost(value, log_smooth, chosen, *draw_gaussian(next(streams), 2).tolist())
        # The last digits of a double can reveal the cost: publish far fewer digits than the noise fills.
        published = Sanitised(rounding.round_up(noisy.value), rounding.round_up(noisy.log_sensitivity))
        _save(path, published, paid)
    remaining_budget.settle(event, 1)
    return published


def _costs(plan: Plan, counts_QM: Counts, ballot: Ballot) -> dict[str, Any]:
    """Analyses the votes on a list of queries that was fixed in advance."""
    exact = len(counts_QM) * counts_QM.shape[1] ** 2 <= EXACT
    delta = plan.budget.delta
    analysis = vote_analysis.analyse_votes(counts_QM, voting_of(plan), delta, answers=ballot.answered, exact=exact)
    return {"list": "fixed in advance", "costs": asdict(analysis)}


def _realised_costs(plan: Plan, counts_QM: Counts, ballot: Ballot) -> dict[str, Any]:
    """Returns the realised cost of a list of queries that depends on earlier answers.

    The Rényi order is the best one for the data-independent cost of the plan, so it is fixed before the run. Each check
    is charged the most that it can cost.
    """
    planned = plan.as_plan_of(PatePlan)
    parts = [(part, voting_of(plan)) for part, _ in list_rounds(planned)]
    if planned.interaction is not None:
        rounds = zip(parts, planned.interaction.rounds, strict=True)
        parts = [(part, voting_of_round(plan, planned)) for (part, _), planned in rounds]
    planned_A = sum(
        vote_analysis.independent_rdp(voting, len(part), min(len(part), planned.answers), votes.ORDERS)
        for part, voting in parts
    )
    order = conversion.epsilon(votes.ORDERS, np.asarray(planned_A), plan.budget.delta, "classic").order
    charged_A = np.zeros(1)
    for part, voting in parts:
        of_round = slice(part.start, part.stop)
        counts_KM, put = counts_QM[of_round], ballot.outcomes[of_round] != UNASKED
        answers_KA = votes.answer_rdp(counts_KM[ballot.answered_queries[of_round]], voting, [order])
        charged_A = charged_A + answers_KA.sum(axis=0)
        if voting.selection is not None:
            charged_A = charged_A + int(put.sum()) * votes.independent_check(voting.selection, [order])
    epsilon = conversion.epsilon([order], charged_A, plan.budget.delta, "classic")
    return {"list": "depends on earlier answers", "costs": {"order": order, "realised": epsilon.value}}


def _read_saved(path: Path, before: Ledger | None) -> Sanitised | None:
    if not os.path.lexists(path):
        return None
    try:
        content = json.loads(durable.read_bytes(path))
        head, result = content["ledger"], Sanitised(float(content["value"]), float(content["log_sensitivity"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunFailed(f"{path}: damaged", "start the run again in another folder") from None
    if before is None or head not in before.heads:
        raise RunFailed(f"{path}: not of this ledger", "put the run's own ledger back, or start again")
    return result


def _save(path: Path, published: Sanitised, paid: str) -> None:
    with durable.writing(path, "make room on the disk, then continue with --resume"):
        durable.replace_file(path, json.dumps({"ledger": paid, **asdict(published)}).encode())


def _drop_infinities(value: Any) -> Any:
    """Replaces infinities and NaN, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {name: _drop_infinities(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
