"""The independent accountant: Google's dp-accounting, behind one function.

Its imports are slow and its warnings noisy, so both happen inside the call. It is given floats only: 0.6.0
reads integer multipliers of a composition wrongly.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.events import Charge
from dprecipe.privacy.workload import Workload, workload


@dataclass(frozen=True, slots=True)
class Opinion:
    """What the other library says, and which of its accountants said it."""

    name: str
    version: str
    epsilon: float


def epsilon(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring) -> float:
    """`opinion(...).epsilon`.

    Raises:
        ValueError: δ outside (0, 1).
    """
    return opinion(charges, delta, neighbouring).epsilon


def opinion(charges: Iterable[Charge], delta: float, neighbouring: Neighbouring) -> Opinion:
    """ε at δ of all charges together by dp-accounting: its PLD accountant, or its RDP accountant where that
    fails.

    Guarantees: an upper bound as far as dp-accounting's are; no line of it runs this package's arithmetic
    beyond adding up 1/σ² of unsampled Gaussians and doubling their sensitivity under replace-one.

    Raises:
        ValueError: δ outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    work = workload(charges, neighbouring)
    version = importlib.metadata.version("dp-accounting")
    if work.empty:
        return Opinion("dp_accounting.pld", version, 0.0)
    with _silence():
        import dp_accounting
        from dp_accounting import pld, rdp

        relation = (
            dp_accounting.NeighboringRelation.REPLACE_ONE
            if work.neighbouring is Neighbouring.REPLACE_ONE
            else dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        )
        # under replace-one their PLD accountant doubles a Gaussian's sensitivity itself, their RDP one does not
        moved = 2.0 if work.neighbouring is Neighbouring.REPLACE_ONE else 1.0
        accountants: list[tuple[str, Any, float]] = [
            ("dp_accounting.pld", lambda: pld.PLDAccountant(relation, _interval(work)), moved),
            ("dp_accounting.rdp", lambda: rdp.RdpAccountant(neighboring_relation=relation), 1.0),
        ]
        for name, make, doubled in accountants:
            value = _ask(dp_accounting, make, work, delta, doubled)
            if value is not None:
                return Opinion(name, version, value)
    return Opinion("dp_accounting", version, math.inf)


def _ask(library: Any, make: Any, work: Workload, delta: float, doubled: float) -> float | None:
    """ε, or None when this accountant has no answer; `doubled`: what it multiplies a sensitivity by itself."""
    try:
        accountant = make()
        if work.mu > 0:
            accountant.compose(library.GaussianDpEvent(float(doubled / work.mu)))
        for phase in work.sampled:
            gaussian = library.GaussianDpEvent(float(phase.sigma))
            accountant.compose(library.PoissonSampledDpEvent(float(phase.q), gaussian), int(phase.count))
        value = float(accountant.get_epsilon(float(delta)))
    except (library.UnsupportedEventError, ArithmeticError, MemoryError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _interval(work: Workload) -> float:
    """Grid step: 1e-4, finer for long runs so that n h² stays small, never so fine that it takes minutes."""
    return max(1e-6, min(1e-4, 1e-2 / math.sqrt(work.steps + 1)))


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
