"""Teachers that are trained on a cluster: each task trains a few of them; votes and ledger stay on this machine.

A task gets the parts of its teachers and the public inputs, and answers with their votes. A task that is lost with its
machine is submitted again. Unlike for runs that add noise, that is sound: a teacher's votes are a function of its part,
its number and the lesson, so each try gives the same votes and there is nothing to choose between. This requires that
all machines round alike: they are compared before anything is spent, and each task compares again.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dprecipe import __version__
from dprecipe.faults import RunFailed, UsageFault
from dprecipe.libraries import ignoring_warnings
from dprecipe.mechanisms.pate.train.learn import DealtParts, Floats, Labels, Lesson, Take, collect_votes
from dprecipe.mechanisms.pate.train.machine import describe_machine
from dprecipe.mechanisms.pate.train.shards import VoteStore, save_votes, vote_type
from dprecipe.training.processes.cluster import Cluster, Task

POLL = 0.2
LATEST = 600.0
"""Seconds that a machine has to describe itself."""
MAX_LOSSES = 3
"""Number of times that the task of the same teachers may be lost."""
FITTED_TOGETHER = 16
"""Teachers per task if their models are fitted at once, not by steps: each is too quick for a task of its own."""
DIGEST_BYTES = 32
MAX_TEXT = 2_000
VOTES, FAULT = b"v", b"f"


@dataclass(frozen=True, slots=True)
class TeacherTerms:
    """Terms that all tasks of a run share."""

    key: bytes
    """Key of the digests of answers, used in this run alone."""
    lesson: str
    """The lesson, as JSON."""
    teachers: int
    device: str
    machine: str
    version: str = __version__


@dataclass(frozen=True, slots=True, eq=False)
class TeacherOrder:
    """Order for the votes of some teachers. The token is in the answer's digest, so no answer passes for another."""

    token: str
    teachers: tuple[int, ...]
    sizes: tuple[int, ...]
    """Number of records in the part of each teacher."""
    features: Floats
    labels: Labels


@ignoring_warnings()
def answer_votes(terms: TeacherTerms, queries: Floats, order: TeacherOrder) -> bytes:
    """Trains the teachers of an order and asks them; runs on the cluster. Every fault is returned as an answer."""
    try:
        device = torch.device(terms.device)
        _check_here(terms, device)
        torch.set_num_threads(1)
        counts = np.zeros(terms.teachers, np.int64)
        counts[list(order.teachers)] = order.sizes
        parts = DealtParts(np.arange(len(order.labels)), np.concatenate([[0], np.cumsum(counts)]))
        lesson = Lesson.model_validate_json(terms.lesson)
        # The arrays that a task receives are read-only.
        features, labels = np.array(order.features), np.array(order.labels)
        take: Take = lambda numbers: (features[numbers], labels[numbers])  # noqa: E731
        votes_TQ = collect_votes(lesson, order.teachers, parts, take, np.array(queries), device)
        return _seal(terms.key, order.token, VOTES + votes_TQ.astype(vote_type(lesson.classes)).tobytes())
    except Exception as error:
        return _seal(terms.key, order.token, FAULT + f"{type(error).__name__}: {error}".encode()[:MAX_TEXT])


@ignoring_warnings()
def answer_machine(key: bytes, token: str, device: str) -> bytes:
    """Describes the kind of this machine; runs on the cluster."""
    text = f"dprecipe {__version__}, {describe_machine(torch.device(device))}"
    return _seal(key, token, VOTES + text.encode())


@dataclass(frozen=True, slots=True)
class TeacherMachines:
    """A cluster whose machines are all of one kind."""

    cluster: Cluster
    kind: str


def check_machines(cluster: Cluster, device: torch.device) -> TeacherMachines:
    """Checks that all machines of the cluster are of one kind and run this version.

    Raises:
        UsageFault: a machine can't train teachers, or is of another kind or version; nothing was spent.
    """
    key, kinds = secrets.token_bytes(32), set()
    for node in cluster.nodes:
        token = secrets.token_hex(16)
        task = cluster.submit(answer_machine, key, token, device.type, node=node)
        body = _open(key, token, cluster.fetch(task) if cluster.wait([task], LATEST) else None)
        if body is None:
            raise UsageFault(
                "nothing was spent: a machine of the cluster can't train teachers",
                "install dprecipe[train] in the same version on every machine, and see the logs of the cluster",
            )
        kinds.add(body[1:].decode(errors="replace")[:MAX_TEXT])
    if len(kinds) != 1:
        raise UsageFault(
            f"nothing was spent: the cluster has machines of several kinds, which round differently: "
            f"{'; '.join(sorted(kinds)) or 'none takes tasks'}",
            "train teachers on machines of one kind, with the same versions",
        )
    here = f"dprecipe {__version__}, "
    kind = kinds.pop()
    if not kind.startswith(here):
        raise UsageFault(
            f"nothing was spent: another version than {__version__} is installed on the cluster: {kind}",
            "install the same version on every machine",
        )
    return TeacherMachines(cluster, kind.removeprefix(here))


def train_on_cluster(
    machines: TeacherMachines,
    lesson: Lesson,
    groups: Sequence[Sequence[int]],
    parts: DealtParts,
    take: Take,
    queries: Floats,
    store: VoteStore,
    device: torch.device,
    stop: Callable[[], bool],
) -> Iterator[Sequence[int]]:
    """Trains the groups; yields the teachers of each task once their votes are in the store, in order of completion.

    Ends when `stop` says so.

    Raises:
        RunFailed: a machine failed, or tasks were lost again and again.
    """
    cluster, content = machines.cluster, lesson.model_dump_json(by_alias=True)
    terms = TeacherTerms(secrets.token_bytes(32), content, len(parts), device.type, machines.kind)
    shared = cluster.share(queries)
    left = _list_tasks(lesson, groups)[::-1]
    losses = dict.fromkeys(left, 0)
    waiting: dict[Task, TeacherOrder] = {}
    try:
        while (left or waiting) and not stop():
            while left and len(waiting) < 2 * cluster.cpus:  # for each CPU, one task that runs and one that waits
                order = _make_order(left.pop(), parts, take)
                waiting[cluster.submit(answer_votes, terms, shared, order)] = order
            for task in cluster.wait(list(waiting), POLL):
                order = waiting.pop(task)
                body = _open(terms.key, order.token, cluster.fetch(task))
                if body is None:
                    losses[order.teachers] += 1
                    if losses[order.teachers] > MAX_LOSSES:
                        raise RunFailed(
                            "machines that train teachers were lost again and again",
                            "see the logs of the cluster, then continue with --resume; no query was put",
                        )
                    left.append(order.teachers)
                    continue
                save_votes(store, order.teachers, _read(body, order, len(queries), lesson.classes))
                yield order.teachers
    finally:
        cluster.cancel(list(waiting))


def _list_tasks(lesson: Lesson, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Lists the teachers of each task."""
    if lesson.training is not None:
        return [tuple(group) for group in groups]
    teachers = [teacher for group in groups for teacher in group]
    return [tuple(teachers[first : first + FITTED_TOGETHER]) for first in range(0, len(teachers), FITTED_TOGETHER)]


def _make_order(teachers: tuple[int, ...], parts: DealtParts, take: Take) -> TeacherOrder:
    numbers = [parts[teacher] for teacher in teachers]
    features, labels = take(np.concatenate(numbers))
    return TeacherOrder(secrets.token_hex(16), teachers, tuple(map(len, numbers)), features, labels)


def _read(body: bytes, order: TeacherOrder, queries: int, classes: int) -> NDArray[Any]:
    """Reads the votes of an answer, (T, Q).

    Raises:
        RunFailed: the answer is a fault, or does not hold the votes of the order.
    """
    if body[:1] == FAULT:
        raise RunFailed(
            f"a machine of the cluster can't train teachers: {body[1:].decode(errors='replace')}",
            "see the logs of the cluster, then continue with --resume; no query was put",
        )
    kind, shape = vote_type(classes), (len(order.teachers), queries)
    if len(body) == 1 + shape[0] * shape[1] * kind.itemsize:
        votes_TQ = np.frombuffer(body, kind, offset=1).reshape(shape)
        if bool((votes_TQ < classes).all()):
            return votes_TQ
    raise RunFailed("a machine of the cluster answered without votes", "install the same version on every machine")


def _check_here(terms: TeacherTerms, device: torch.device) -> None:
    if (terms.version, terms.machine) != (__version__, describe_machine(device)):
        raise UsageFault(
            f"its kind differs from that of the others: dprecipe {__version__}, {describe_machine(device)}"
        )


def _seal(key: bytes, token: str, body: bytes) -> bytes:
    return hmac.digest(key, token.encode() + body, "sha256") + body


def _open(key: bytes, token: str, content: object) -> bytes | None:
    """Returns the body of an answer; None if it is no answer, or that of another task."""
    if not isinstance(content, bytes) or len(content) <= DIGEST_BYTES:
        return None
    digest, body = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
    return body if hmac.compare_digest(digest, hmac.digest(key, token.encode() + body, "sha256")) else None
