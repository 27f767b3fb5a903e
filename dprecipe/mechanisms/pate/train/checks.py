"""Checks before a private record is read: the program that deals, trains and answers runs on synthetic records."""

from __future__ import annotations

import secrets

import numpy as np
import torch

from dprecipe.contract.plan import Plan
from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.aggregators import noise
from dprecipe.mechanisms.pate.events import NoisyMax, NoisyThreshold
from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Labels, Lesson, collect_votes
from dprecipe.mechanisms.pate.train.partition import KEY_BYTES, deal_parts
from dprecipe.models.schema import Trees
from dprecipe.noise.distributions import Distribution
from dprecipe.noise.entropy import Secrets
from dprecipe.training.checks.noise import DRAWS, check_lattice
from dprecipe.training.probe.program import Check

NAMES = 2000
TEACHERS, RECORDS, QUERIES = 4, 24, 64
STEPS, TREES = 20, 5
"""Largest number of steps, or trees, of a synthetic teacher."""


def noise_scale(plan: Plan) -> Check:
    """Checks that the noise of every kind of event has the planned distribution, scale and symmetry.

    It is drawn as the ballot draws it.

    Raises:
        RunFailed: it does not have them.
    """
    events = dict.fromkeys(c.event for c in plan.events if isinstance(c.event, NoisyMax | NoisyThreshold))
    root = Secrets()
    return check_lattice(
        (
            noise(event, root.stream("noise", number), DRAWS),
            Distribution(event.family if isinstance(event, NoisyMax) else "gaussian"),
            event.noise_multiplier,
        )
        for number, event in enumerate(events)
    )


def check_parts(teachers: int) -> Check:
    """Checks that each synthetic unit goes to one teacher, and that adding, removing or renaming one moves no other.

    Raises:
        RunFailed: a unit goes to several teachers, or is moved.
    """
    key, names = secrets.token_bytes(KEY_BYTES), [f"unit {number}" for number in range(NAMES)]
    parts = deal_parts(names, key, teachers)
    ensemble = DealtParts.of(parts, teachers)
    assigned = np.concatenate([ensemble[teacher] for teacher in range(teachers)])
    complete = sorted(assigned.tolist()) == list(range(NAMES))
    changed = ["added", *names[: NAMES // 2], "renamed", *names[NAMES // 2 + 2 :]]
    before = dict(zip(names, parts.tolist(), strict=True))
    after = dict(zip(changed, deal_parts(changed, key, teachers).tolist(), strict=True))
    unmoved = all(after[name] == part for name, part in before.items() if name in after)
    if not (complete and unmoved):
        raise RunFailed("a unit goes to several teachers, or to another one", "do not use this installation")
    text = "each unit goes to one teacher, and to the same one after other units are added, removed or renamed"
    return Check("parts_disjoint", text, True, f"{NAMES:,} synthetic units, {teachers} teachers")


def check_vote_sensitivity(lesson: Lesson, device: torch.device) -> Check:
    """Checks that replacing or removing a synthetic record changes only the votes of its own teacher.

    Raises:
        RunFailed: the votes of another teacher changed.
    """
    size = lesson.model.trees if isinstance(lesson.model, Trees) else 0
    short = {"steps": min(lesson.steps, STEPS), "model": lesson.model}
    if size > TREES:
        short["model"] = lesson.model.model_copy(update={"trees": TREES})
    lesson = lesson.model_copy(update=short)
    generator = np.random.default_rng(0)
    features = generator.random((RECORDS, *lesson.shape), dtype=np.float32)
    labels = generator.integers(lesson.classes, size=RECORDS)
    queries = generator.random((QUERIES, *lesson.shape), dtype=np.float32)
    parts = np.arange(RECORDS) % TEACHERS

    def vote(features: Floats, labels: Labels, parts: Labels) -> Labels:
        ensemble = DealtParts.of(parts, TEACHERS)
        return collect_votes(lesson, range(TEACHERS), ensemble, lambda i: (features[i], labels[i]), queries, device)

    before = vote(features, labels, parts)
    other_features, other_labels = features.copy(), labels.copy()
    other_features[0], other_labels[0] = 1 - features[0], (labels[0] + 1) % lesson.classes
    for after in (vote(other_features, other_labels, parts), vote(features[1:], labels[1:], parts[1:])):
        if not np.array_equal(before[1:], after[1:]):
            raise RunFailed("a record of one teacher changed the votes of another", "do not use this installation")
    return Check(
        "vote_sensitivity",
        "replacing or removing a record changes only the votes of its own teacher",
        True,
        f"{TEACHERS} teachers of {RECORDS // TEACHERS} synthetic records, {QUERIES} queries",
    )


def check_votes(queries: int, teachers: int) -> Check:
    """Returns the passed check of votes from a file: the reader has already refused votes that fail it."""
    return Check(
        "vote_counts",
        "each teacher votes once on every query, for one of the declared classes",
        True,
        f"{queries:,} queries, {teachers} teachers",
    )
