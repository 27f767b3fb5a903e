"""Audits the program of projected noisy SGD before it sees a private record.

Depth `program`: the proved constants against the worst synthetic records of a search; the steps of a real attempt,
watched (`observed_run`), against the definition; its noise, its order, its stop, its ledger and its files against the
event that is charged. Depth `releases`: `audit_releases`.

Axes: P parameters, T steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.mechanisms.pnsgd.plan import PnsgdPlan
from dprecipe.mechanisms.pnsgd.train.audit_descents import step_without_noise
from dprecipe.mechanisms.pnsgd.train.audit_noise import compare_draws, compare_noise
from dprecipe.mechanisms.pnsgd.train.audit_releases import attack_releases
from dprecipe.mechanisms.pnsgd.train.descent import Floats
from dprecipe.mechanisms.pnsgd.train.observed_run import BATCH, SIZE, SeenAttempt, SeenRun, make_records, observe_run
from dprecipe.mechanisms.pnsgd.train.reference_steps import ReferenceSteps
from dprecipe.mechanisms.pnsgd.train.run import PnsgdProgram, assemble_program
from dprecipe.mechanisms.pnsgd.train.worst_records import WorstCases, WorstPair, find_worst_cases
from dprecipe.privacy import accountants
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import (
    Equality,
    Excess,
    TestEvidence,
)
from dprecipe.progress import silence_progress
from dprecipe.training.audit.request import AuditEvidence, AuditFinding, AuditRequest

SLACK = 1e-9
"""Relative allowance for rounding."""
LARGE = 1e300
"""Substitute for infinity, which no evidence can hold."""
DEVIATION = 1e-9
"""Largest difference of an iterate from the definition's, over the largest norm: the rounding of thousands of
records."""


def audit(plan: Plan, request: AuditRequest) -> AuditEvidence:
    """Audits at the depths that are asked for, and returns the evidence.

    Raises:
        RunFailed: the program refuses to run on synthetic records.
    """
    program, parts = assemble_program(plan), []
    if request.asks("program"):
        with silence_progress():
            tests = tuple(AuditFinding("program", *found) for found in examine_program(plan, program, request))
        parts.append(AuditEvidence(tests))
    if request.asks("releases"):
        parts.append(attack_releases(plan, program, request))
    return AuditEvidence.joined(parts)


Found = tuple[str, str, TestEvidence]
"""The name of a test, the expectation of a sound program, and the evidence."""


def examine_program(plan: Plan, program: PnsgdProgram, request: AuditRequest) -> Iterator[Found]:
    """Runs the tests of depth `program`."""
    yield from _compare_claim(plan)
    request.show("worst records", 0, 3)
    cases = find_worst_cases(program.objective)
    yield from _compare_constants(plan, cases)
    yield from _compare_steps(plan, program, cases)
    request.show("an observed run", 1, 3)
    seen = observe_run(plan, show=lambda: request.show("an observed run", 1, 3))
    yield from _compare_run(plan, program, seen)
    yield from compare_noise(plan, seen)
    request.show("orders", 2, 3)
    yield from compare_draws(plan)


def _compare_claim(plan: Plan) -> Iterator[Found]:
    budget, event, own = plan.budget, plan.as_plan_of(PnsgdPlan).event, plan.as_plan_of(PnsgdPlan)
    epsilon = accountants.epsilon(plan.events, budget.delta, budget.neighbouring, budget.accountant)
    yield (
        "claimed_epsilon",
        "the charged event costs at most the claimed ε at the budget's δ",
        Excess(largest=min(epsilon, LARGE), allowed=plan.guarantee.epsilon * (1 + SLACK)),
    )
    descent = own.descent
    claimed = (event.size, event.batch, event.order, event.stop, event.family, event.neighbouring, event.steps)
    run = (
        descent.size,
        descent.batch_size,
        descent.order,
        descent.stop,
        descent.family,
        plan.budget.neighbouring.value,
    )
    pairs = zip(claimed, (*run, sum(stage.steps for stage in own.stages)), strict=True)
    yield (
        "event_facts",
        "the event has the records, batch size, order, stop, noise, relation and steps of the run",
        Equality(differing=sum(a != b for a, b in pairs), compared=len(claimed)),
    )
    proven, excess = descent.proven, 0.0
    for (steps, multiplier, _, diameter), stage in zip(event.stages, own.stages, strict=True):
        excess = max(excess, multiplier * proven.gradient_sensitivity / (descent.batch_size * stage.noise_scale))
        excess = max(excess, proven.diameter / (stage.learning_rate * stage.noise_scale) / diameter)
        excess = max(excess, steps / stage.steps, stage.steps / steps)
    yield (
        "event_stages",
        "no stage of the event claims more noise, a smaller set or other steps than the run has",
        Excess(largest=excess, allowed=1 + SLACK),
    )


def _compare_constants(plan: Plan, cases: WorstCases) -> Iterator[Found]:
    proven = plan.as_plan_of(PnsgdPlan).descent.proven
    replaces = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    apart = cases.pair.distance if replaces else cases.norm
    for name, text, largest, allowed in (
        ("gradient_norm", "no record's gradient is longer than L", cases.norm, proven.lipschitz),
        ("gradient_distance", "a changed record changes its gradient by at most Δ", apart, proven.gradient_sensitivity),
        ("smoothness", "a gradient changes by at most β times the distance of two points", cases.steepest,
         proven.smoothness),
        ("set_norm", "no point of the set is longer than its largest norm", cases.reach, proven.largest_norm),
        ("set_diameter", "no two points of the set are farther apart than its diameter", cases.across, proven.diameter),
    ):  # fmt: skip
        yield name, text, Excess(largest=largest, allowed=allowed * (1 + SLACK))
    yield (
        "strong_convexity",
        "a gradient rises by at least ρ times the distance of two points",
        Excess(largest=proven.strong_convexity, allowed=max(cases.flattest, 0.0) * (1 + SLACK)),
    )


def _compare_steps(plan: Plan, program: PnsgdProgram, cases: WorstCases) -> Iterator[Found]:
    """Tests steps of the engine, without noise, on the worst records: full batches of the plan's size, and short
    ones."""
    own = plan.as_plan_of(PnsgdPlan)
    batch, rates = own.descent.batch_size, {stage.learning_rate for stage in own.stages}
    replaces = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    moved = 0.0
    for rate, place in itertools.product({min(rates), max(rates)}, (0, -1)):
        if replaces:
            for number in (0, 1):
                moved = max(moved, _move_replaced(program, cases.pair, batch, rate, place, number) * batch / rate)
        else:
            moved = max(moved, _move_removed(program, cases.single, batch, rate, place) * batch / rate)
    yield (
        "step_move",
        "a changed record moves a step by at most η Δ over the batch size, wherever it is in its batch",
        Excess(largest=moved, allowed=own.descent.proven.gradient_sensitivity * (1 + 1e-6)),
    )
    yield (
        "contraction",
        "a step without noise brings two points no farther apart than the event says",
        Excess(largest=_stretch(plan, program, cases), allowed=1 + SLACK),
    )
    yield (
        "projection",
        "a step leads to the nearest point of the set, from wherever it comes",
        Excess(largest=_miss(plan, program), allowed=DEVIATION),
    )


def _move_replaced(program: PnsgdProgram, pair: WorstPair, batch: int, rate: float, place: int, number: int) -> float:
    """Returns the distance between the ends of a step with one of two records or the other, first or last in its batch.
    The batch with number 1 is short, where batches have several records."""
    size = batch + max(1, batch // 2)
    row = place % batch if number == 0 else batch + place % (size - batch)
    after = [
        step_without_noise(program, _place(program, pair, side, row, size), batch, rate, _inside(program, pair), number)
        for side in (0, 1)
    ]
    return float(np.linalg.norm(after[0] - after[1]))


def _move_removed(program: PnsgdProgram, pair: WorstPair, batch: int, rate: float, place: int) -> float:
    """Returns the distance between the ends of a step with a record and with a null record in its place, whose gradient
    is 0: a batch without it, whose divisor stays."""
    w, records = _inside(program, pair), _place(program, pair, 0, place % batch, batch)
    kept = np.arange(batch) != place % batch
    without = w * (1 - rate * program.objective.l2)
    program.objective.project(without)
    if batch > 1:
        rest = Records(records.features[kept], records.labels[kept])
        without = step_without_noise(program, rest, batch, rate, w)
    return float(np.linalg.norm(step_without_noise(program, records, batch, rate, w) - without))


def _inside(program: PnsgdProgram, pair: WorstPair) -> Floats:
    """Returns the point of a pair, a little inside the set: a projection would hide what moves."""
    middle = program.objective.within.middle(pair.point.shape)
    return np.asarray(middle + 0.98 * (pair.point - middle))


def _place(program: PnsgdProgram, pair: WorstPair, side: int, row: int, size: int) -> Records:
    """Returns records without features, and one of a pair among them."""
    shape = program.facts.shape
    features, labels = np.zeros((size, *shape), np.float32), np.zeros(size, np.float32)
    labels[row] = pair.labels[side]
    if program.objective.width:
        features[row] = pair.features[side].reshape(shape)
    return Records(features, labels)


def _stretch(plan: Plan, program: PnsgdProgram, cases: WorstCases) -> float:
    """Returns the largest distance of two points after a step over their distance before, over what the event
    allows."""
    own, largest = plan.as_plan_of(PnsgdPlan), 0.0
    within, shape = program.objective.within, cases.pair.point.shape
    middle = within.middle(shape)
    for stage, (_, _, contraction, _) in {s.learning_rate: (s, e) for s, e in
                                          zip(own.stages, own.event.stages, strict=True)}.values():  # fmt: skip
        for pair, side, part in itertools.product((cases.pair, cases.single), (0, 1), (0.3, 0.01)):
            records = _place(program, pair, side, 0, 1)
            for sign in (1.0, -1.0):
                points = [middle + sign * part * (pair.point - middle), middle - sign * part * (pair.point - middle)]
                gap = float(np.linalg.norm(points[0] - points[1]))
                if gap == 0:
                    continue
                after = [step_without_noise(program, records, 1, stage.learning_rate, w) for w in points]
                ratio = float(np.linalg.norm(after[0] - after[1])) / gap
                largest = max(largest, ratio / max(contraction, 1e-300))
    return largest


def _miss(plan: Plan, program: PnsgdProgram) -> float:
    """Returns the largest error of steps from outside the set, over the largest norm: on full batches of one record and
    of several, and on short ones."""
    own, reference, worst = plan.as_plan_of(PnsgdPlan), ReferenceSteps(plan), 0.0
    records = make_records(program.objective, program.facts.shape, SIZE, seed=1)
    rate = own.stages[0].learning_rate
    generator = np.random.default_rng(2)
    middle = program.objective.within.middle(program.objective.shape)
    for batch, number in ((1, 0), (BATCH, 0), (BATCH, SIZE // BATCH), (SIZE, 0)):
        way = generator.standard_normal(middle.shape)
        outside = middle + 3 * (program.objective.within.place(way, 1.0) - middle) + 0.1 * way
        after = step_without_noise(program, records, batch, rate, outside, number)
        features, labels = records.batch(slice(number * batch, min((number + 1) * batch, SIZE)))
        expected = reference.step(outside, features, labels, batch, rate, np.zeros(middle.size))
        worst = max(worst, float(np.linalg.norm(after - expected)) / own.descent.proven.largest_norm)
    return worst


def _compare_run(plan: Plan, program: PnsgdProgram, seen: SeenRun) -> Iterator[Found]:
    """Tests the steps, the ledger and the files of an attempt that crashed and was resumed."""
    own = seen.own
    deviation, outside = 0.0, 0.0
    for attempt in seen.attempts:
        deviation = max(deviation, _replay(seen, attempt))
        for w in attempt.iterates.values():
            outside = max(outside, float(np.linalg.norm(w)))
    yield (
        "steps_replayed",
        "every iterate of a run is what the definition of a step makes of the one before, its records and its noise",
        Excess(largest=deviation, allowed=DEVIATION),
    )
    yield (
        "iterates_norm",
        "every iterate is in the set",
        Excess(largest=outside, allowed=plan.as_plan_of(PnsgdPlan).descent.proven.largest_norm * (1 + SLACK)),
    )
    differing, compared = _count_misread(seen)
    yield (
        "records_read",
        "each pass reads every record once, in the one order of the run: that of the file, if it is sequential",
        Equality(differing=differing, compared=compared),
    )
    attempt = seen.attempts[-1]
    made, most = max(attempt.iterates), seen.plan.length.steps
    late = made != most if own.descent.stop == "last" else not 1 <= made <= most
    jumped = sum(attempt.first < 0 for attempt in seen.attempts)
    yield (
        "steps_made",
        "the run takes the steps that are charged, and goes on where the interrupted attempt was or starts over",
        Equality(differing=late + jumped, compared=1 + len(seen.attempts)),
    )
    yield (
        "ledger",
        "the one event of the run is on disk before the first noise of each attempt, and settled once",
        Equality(differing=seen.unpaid + seen.wrong_charges, compared=len(seen.attempts) + 1),
    )
    yield (
        "files",
        "no file of the run holds an iterate before the last, or the loss at one"
        if not own.private_log and own.checkpoint != "plain"
        else "no file of the run but those that the recipe asks for holds an iterate before the last",
        Equality(differing=seen.held, compared=max(seen.compared, 1)),
    )


def _replay(seen: SeenRun, attempt: SeenAttempt) -> float:
    """Returns the largest distance of an iterate from the definition's, over the largest norm of the set."""
    own, reference = seen.own, ReferenceSteps(seen.plan)
    ends = np.cumsum([stage.steps for stage in own.stages])
    w, worst = attempt.start, 0.0
    for step in attempt.steps:
        stage = own.stages[int(np.searchsorted(ends, step.number, side="right"))]
        features, labels = seen.records.batch(np.array([max(n, 0) for n in step.records], np.int64))
        w = reference.step(w, features, labels, own.descent.batch_size, stage.learning_rate, step.noise)
        found = attempt.iterates.get(step.number + 1)
        if found is not None:  # otherwise it was inside a block of steps, or lost in the crash
            worst = max(worst, float(np.nan_to_num(np.linalg.norm(found - w), nan=LARGE, posinf=LARGE)))
            w = found
    return min(LARGE, worst / own.descent.proven.largest_norm)


def _count_misread(seen: SeenRun) -> tuple[int, int]:
    """Counts batches that have other records than the order says, and all batches."""
    descent = seen.own.descent
    batches, wrong, count = -(-descent.size // descent.batch_size), 0, 0
    expected: dict[int, tuple[int, ...]] = {}
    for attempt in seen.attempts:
        if attempt.first == 0:
            expected = {}
        if descent.order == "sequential":
            everyone = range(descent.size)
            expected = {
                b: tuple(everyone[b * descent.batch_size : (b + 1) * descent.batch_size]) for b in range(batches)
            }
        for step in attempt.steps:
            count += 1
            wrong += expected.setdefault(step.number % batches, step.records) != step.records
    used = sorted(record for records in expected.values() for record in records)
    whole = len(expected) == batches
    return wrong + (whole and used != list(range(descent.size))), count + 1
