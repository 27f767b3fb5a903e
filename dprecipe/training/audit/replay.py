"""Replay of the optimiser: its momentum, averages and adapted constants follow from noisy sums, and nothing else.

Two programs see different records, in batches of different sizes, and are given the same noisy sums: a gate hands the
second what the first released. Their states must then be equal, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast, final

import numpy as np
import torch
from torch import Tensor

from dprecipe.privacy.audit.results import Equality
from dprecipe.privacy.events import Charge, Event
from dprecipe.training.audit.request import AuditFinding
from dprecipe.training.audit.rig import Rig
from dprecipe.training.engine.clipped_sum import ClippedSum
from dprecipe.training.program.records import Store
from dprecipe.training.run.gate import Gate, Ticket

SIZES = ((1, 4), (3, 0), (2, 7), (0, 2))
"""Units in each batch of the two programs."""


@final
class ReplayGate:
    """A gate that hands out recorded noisy sums, in order."""

    def __init__(self, noisy: Sequence[Tensor]) -> None:
        self._noisy = iter(noisy)
        self.done = 0

    def admit(self) -> Ticket | None:
        return None

    def release(self, ticket: Ticket, clipped: ClippedSum) -> Tensor:
        return next(self._noisy).clone().to(clipped.value.device)


def examine_replay(
    open_rig: Callable[[Store, str, Charge], Rig], stores: Sequence[Store], event: Event, start: int
) -> Iterator[AuditFinding]:
    """Yields the test of states. `stores`: of two data sets that differ in every record. `start`: the number of the
    step."""
    states: list[dict[str, Any]] = []
    recorded: list[Tensor] = []
    for number, store in enumerate(stores):
        with open_rig(store, f"replay{number}", Charge(event, len(SIZES))) as rig:
            rig.module.steps_done = start
            if number:
                rig.module.gate = cast(Gate, ReplayGate(recorded))
            for sizes in SIZES:
                rig.module.step_on(rig.ticket(), rig.number, np.arange(min(sizes[number], store.units)))
                rig.number += 1
            recorded = recorded or [noisy for _, _, noisy in rig.gate.seen]
            states.append({**_flatten(rig.module.state()), **_flatten(dict(rig.module.released_state()), "released.")})
    first, second = states
    names = sorted(first.keys() | second.keys())
    differing = sum(not _same(first.get(name), second.get(name)) for name in names)
    text = "weights, momentum, averages and adapted constants follow from noisy sums alone, bit for bit"
    yield AuditFinding("program", "post_processing", text, Equality(differing=differing, compared=len(names)))


def _flatten(state: Any, name: str = "") -> dict[str, Any]:
    """Returns the tensors and numbers of a state, by their path."""
    if isinstance(state, dict):
        return {key: value for part, inner in state.items() for key, value in _flatten(inner, f"{name}{part}.").items()}
    if isinstance(state, list | tuple):
        return {key: value for at, inner in enumerate(state) for key, value in _flatten(inner, f"{name}{at}.").items()}
    return {name: state}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and torch.equal(one.detach().cpu().nan_to_num(), other.detach().cpu().nan_to_num())
        )
    return bool(one == other)
