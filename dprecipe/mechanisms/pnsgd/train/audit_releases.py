"""Attacks for depth `releases`: whole small runs with either version of a record are distinguished by their last
iterates.

The runs are the engine's own, with the plan's loss, set, learning rate, order, stop and kind of noise, on a few
batches of synthetic records; they are compared with the claim of *their* event, computed as the plan's is.
They begin at a point of the set where the gradients of the two records are farthest apart. The other records have no
features.

The attack is fixed before the runs: it asks which of two points the last iterate is closer to along the line between
them, the ends of the two runs without noise. If the loss were linear there and the set unbounded, this would be the
best attack; else it is a weaker one, never an invalid one. It knows the batch of the record, as the claim allows.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from dprecipe.contract.plan import Plan
from dprecipe.data.records import Records
from dprecipe.mechanisms.pnsgd.events import ProjectedDescent
from dprecipe.mechanisms.pnsgd.plan import PlannedDescent, PnsgdPlan
from dprecipe.mechanisms.pnsgd.schedule import Stage
from dprecipe.mechanisms.pnsgd.train.audit_descents import descend
from dprecipe.mechanisms.pnsgd.train.descent import Floats
from dprecipe.mechanisms.pnsgd.train.run import PnsgdProgram
from dprecipe.mechanisms.pnsgd.train.worst_records import WorstPair, find_worst_cases, take_gradients
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.audit.results import AttackTrials
from dprecipe.training.audit.request import Attack, AuditEvidence, AuditRequest

MULTIPLIER = 0.7
"""Noise of a use of the record, relative to the distance that it moves: a step alone is then about 1.4-GDP, where an
attack sees most."""
MAX_NOISE_SHARE = 0.25
"""Largest part of the way to the boundary that the noise of a whole run takes, where batches can be large enough."""
MAX_BATCH = 1 << 12
SHARES = (0.0, 0.1, 0.3, 0.5, 0.75)
"""Distances from the middle of the set at which a run may begin, relative to the boundary's."""
NEARLY = 0.97
EPSILONS = np.concatenate([np.linspace(0, 1, 9), np.linspace(1.25, 8, 28)])
"""Values of ε at which a claimed profile is read."""
SECONDS = 70.0
"""Time limit of one attack: beyond it, there are fewer runs."""
TIMED = 20


@final
@dataclass(frozen=True, slots=True, eq=False)
class SmallProblem:
    """A few batches, and a record with two versions among them."""

    name: str
    planned: PlannedDescent
    stages: tuple[Stage, ...]
    start: Floats
    versions: tuple[Records, Records]
    canary: int
    """Number of this record."""

    @property
    def event(self) -> ProjectedDescent:
        return self.planned.event(self.stages)


def attack_releases(plan: Plan, program: PnsgdProgram, request: AuditRequest) -> AuditEvidence:
    """Returns lower bounds from whole runs: of one step, and of two passes of three batches."""
    cases = find_worst_cases(program.objective)
    replaces = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    pair = cases.pair if replaces else cases.single
    attacks, remarks = [], []
    order = plan.as_plan_of(PnsgdPlan).descent.order
    for name, batches, passes in (("one_step", 1, 1), ("two_passes", 3, 2)):
        if not replaces and batches > 1 and order == "permuted" and program.objective.bias:
            remarks.append("two_passes: left out: no record of a model with a bias has a gradient of 0, in any place")
            continue
        problem = pose_problem(plan, program, pair, name, batches, passes)
        runs = max(1, request.releases // 4)
        attack, remark = _attack(program, problem, runs, request)
        attacks.append(attack)
        remarks += remark
    return AuditEvidence(attacks=tuple(attacks), remarks=tuple(remarks))


def pose_problem(
    plan: Plan, program: PnsgdProgram, pair: WorstPair, name: str, batches: int, passes: int
) -> SmallProblem:
    """Returns the plan with this number of batches and passes, and the noise with which an attack sees most."""
    own, objective = plan.as_plan_of(PnsgdPlan), program.objective
    replaces = plan.budget.neighbouring is Neighbouring.REPLACE_ONE
    middle = objective.within.middle(objective.shape)
    distances = []
    for share in SHARES:
        gradients = take_gradients(objective, middle + share * (pair.point - middle), pair.features, pair.labels)
        distances.append(float(np.linalg.norm(gradients[0] - gradients[1] if replaces else gradients[0])))
    share = next(s for s, d in zip(SHARES, distances, strict=True) if d >= NEARLY * max(distances))
    rate, steps = own.stages[0].learning_rate, batches * passes
    sensitivity = own.descent.proven.gradient_sensitivity
    parameters = math.prod(objective.shape)
    free = (1 - share) * objective.within.distance_to_boundary(parameters)
    wanted = rate * MULTIPLIER * sensitivity * math.sqrt(parameters * steps) / (MAX_NOISE_SHARE * free)
    batch = min(MAX_BATCH, 1 << max(1, math.ceil(math.log2(wanted))))
    planned = replace(own.descent, size=batches * batch, batch_size=batch)
    if batches * passes == 1:  # neither the order nor the stop decides anything
        planned = replace(planned, order="sequential", stop="last")
    stages = (Stage(steps, rate, MULTIPLIER * sensitivity / batch),)
    start = middle + share * (pair.point - middle)
    # In the order of the file the last record is the one with the least noise after it.
    canary = planned.size - 1 if planned.order == "sequential" else 0
    features = np.zeros((planned.size, *program.facts.shape), np.float32)
    labels = np.resize(np.array([0, 1], np.float32), planned.size)
    versions = []
    for side in (0, 1):
        own_features, own_labels = features.copy(), labels.copy()
        if side == 0 or replaces:
            own_labels[canary] = pair.labels[side]
            if objective.width:
                own_features[canary] = pair.features[side].reshape(program.facts.shape)
        elif objective.bias:  # a null record is one that is not there: the last, and the divisor stays
            own_features, own_labels = own_features[:-1], own_labels[:-1]
        versions.append(Records(own_features, own_labels))
    return SmallProblem(name, planned, stages, start, (versions[0], versions[1]), canary)


def _attack(program: PnsgdProgram, problem: SmallProblem, runs: int, request: AuditRequest) -> tuple[Attack, list[str]]:
    """Counts how often the attack says "the first version" of runs with the first, and of runs with the second."""
    between = _ends_without_noise(program, problem)
    clock, done, counts, remarks = time.monotonic(), 0, [0, 0], []
    planned_runs = runs
    while done < runs:
        for side in (0, 1):
            last, batch = descend(
                program, problem.planned, problem.stages, problem.versions[side], problem.start, problem.canary
            )
            middle, direction = between[batch]
            counts[side] += float(np.vdot(last - middle, direction)) > 0
        done += 1
        if done == TIMED:
            runs = max(TIMED, min(runs, int(SECONDS / (time.monotonic() - clock) * TIMED)))
        if done % 50 == 0:
            request.show(f"runs of {problem.name.replace('_', ' ')}", done, runs)
    if runs < planned_runs:
        remarks.append(f"{problem.name}: {2 * runs:,} runs instead of {2 * planned_runs:,}, for time")
    return _compare(problem, counts, runs), remarks


def _ends_without_noise(program: PnsgdProgram, problem: SmallProblem) -> dict[int, tuple[Floats, Floats]]:
    """Returns, for each batch that may have the record, the point half way between the last iterates of the two
    versions without noise, and the direction from the second to the first."""
    quiet = tuple(replace(stage, noise_scale=0.0) for stage in problem.stages)
    planned, canary = replace(problem.planned, order="sequential", stop="last"), problem.canary
    is_known = problem.planned.order == "sequential"
    rows = [canary] if is_known else list(range(0, planned.size, planned.batch_size))
    ends = {}
    for row in rows:
        iterates = []
        for records in problem.versions:
            order = np.arange(len(records))
            if row != canary:
                order[[row, canary]] = order[[canary, row]]
            moved = Records(records.features[order], records.labels[order])
            iterates.append(descend(program, planned, quiet, moved, problem.start, row)[0])
        ends[row // planned.batch_size] = (iterates[0] + iterates[1]) / 2, iterates[0] - iterates[1]
    return ends


def _compare(problem: SmallProblem, counts: list[int], runs: int) -> Attack:
    event, planned = problem.event, problem.planned
    mu = event.profile().mu()
    curve = None
    if mu is None:
        profile = event.profile()
        curve = tuple((float(at), min(1.0, profile.delta(float(at)).value)) for at in EPSILONS)
    trials = AttackTrials(
        form="rate" if mu is None else "mu",
        positives_in=counts[0],
        trials_in=runs,
        positives_out=counts[1],
        trials_out=runs,
    )
    batches = -(-planned.size // planned.batch_size)
    text = (
        f"whole runs of {problem.stages[0].steps} steps on {batches} batches of {planned.batch_size:,} synthetic "
        "records, with the recipe's loss, set, learning rate, order and stop: the last iterate "
        "distinguishes the two versions of a record no better than the event of such a run allows"
    )
    return Attack("releases", f"last_iterate_{problem.name}", text, trials, mu, curve=curve)
