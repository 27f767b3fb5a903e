"""The cross-check accountant: Google's dp-accounting, behind one function.

Each event states itself as a question (`questions`); no kind of event is named here. dp-accounting is slow to import
and prints many warnings, so it is imported, and silenced, inside the call. It gets floats only: version 0.6.0 misreads
integer multipliers of a composition.

| questions | how the library answers |
|---|---|
| one release that is assessed as a whole | the event's second bound |
| the same beside others | the library's distribution of the event's second bound at each ε |
| noisy counts only | distributions of the noise on the counts |
| batches with a maximum or fixed size; the library's own distributions | its distributions, composed |
| sums within a box; events with only a Rényi curve | divergences computed a second time (`box.recheck`, events) |
| choices of bounded range | its distributions, or divergences where they give less |
| items that a unit may have alone | some cases, each as all others; the largest ε |
| all others | its accountants |
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dprecipe.libraries import ignoring_warnings
from dprecipe.privacy import library_sums as sums
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.privacy.box import recheck
from dprecipe.privacy.events import Charge
from dprecipe.privacy.library_caps import find_full_chance
from dprecipe.privacy.library_query import Query, choose_orders, collect_query, compute_curve
from dprecipe.privacy.library_steps import double_epsilon, epsilon_of_two_steps, split_whole
from dprecipe.privacy.questions import (
    BoundedRange,
    CappedSum,
    FixedSizeSum,
    LibraryLoss,
    NoisyBox,
    NoisyCounts,
    RenyiCurve,
    SelectedRuns,
    UniqueItems,
    WholeRun,
)
from dprecipe.privacy.workload import unamplify_charges, uncap_charges

Array = NDArray[np.floating[Any]]

_MAX_WORK = 2e5
"""The limit on `recheck.estimate_effort` over all boxes: about ten seconds of convolutions."""
_MAX_CELLS = 400_000
_MIN_DELTA = 1e-12
"""The δ below which rounding and truncation of the FFT would decide the library's answer."""
_TOLERANCE = 2e-4
"""The share of ε that the grid of the composition may add."""

Charges = tuple[Charge, ...]
Named = tuple[str, float]


@dataclass(frozen=True, slots=True)
class LibraryAnswer:
    """The library's ε, its version, and the accountant that gave it."""

    name: str
    version: str
    epsilon: float


def ask_library(
    charges: Iterable[Charge], delta: float, neighbouring: Neighbouring, or_renyi: bool = True
) -> LibraryAnswer:
    """Returns ε at δ of all charges by dp-accounting: its PLD accountant, or its RDP accountant if that fails.
    `or_renyi`: fall back to RDP also when memory runs out; otherwise raise.

    Guarantees: an upper bound to the extent that dp-accounting's are. It shares no arithmetic with this package, except
    that 1/σ² of unsampled Gaussians are added and the event says how much farther a replaced unit moves them. For
    sums in a box it is a bound up to quadrature error, about 1e-5 of ε. Rényi divergences are used where vectors are
    exchanged, where an event has only a Rényi curve, and where distributions would take more than about ten seconds.
    Infinity where the library can't express the events.

    Raises:
        MemoryError: memory runs out, and `or_renyi` is false.
        ValueError: δ outside (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"expected 0 < delta < 1, got {delta}")
    question = (tuple(charges), delta, neighbouring)
    try:
        return _ask_once(*question, False)  # the same key for every caller: a run that verifies its release asks again
    except MemoryError:
        if not or_renyi:
            raise
        return _ask_once(*question, True)


@lru_cache(maxsize=4)
def _ask_once(charges: tuple[Charge, ...], delta: float, neighbouring: Neighbouring, or_renyi: bool) -> LibraryAnswer:
    work = sums.summarise_by_questions(charges, neighbouring)
    version = importlib.metadata.version("dp-accounting")
    questions = [(charge.event.cross_check(), charge.count) for charge in charges if charge.count]
    blanked = Neighbouring(neighbouring) is Neighbouring.ZERO_OUT_ONE
    if blanked and any(isinstance(question, CappedSum) for question, _ in questions):
        replaced = ask_library(charges, delta, Neighbouring.REPLACE_ONE, or_renyi)
        return _ask_without_caps(charges, questions, delta, neighbouring, or_renyi, replaced)
    items = [(question, count) for question, count in questions if isinstance(question, UniqueItems)]
    if items and not work.whole:
        return _ask_for_items(charges, items, delta, neighbouring, or_renyi)
    if work.empty:
        return LibraryAnswer("dp_accounting.pld", version, 0.0)
    if not work.bounded:
        return LibraryAnswer("dp_accounting", version, math.inf)
    if work.whole:  # the only event
        (whole,) = work.whole
        run = whole.event.cross_check()
        if not isinstance(run, WholeRun):
            return LibraryAnswer("dp_accounting", version, math.inf)
        with _silence():
            return LibraryAnswer("dp_accounting.pld", version, whole.count * run.epsilon(delta / whole.count))
    counts = [(question, count) for question, count in questions if isinstance(question, NoisyCounts)]
    curved = any(isinstance(question, RenyiCurve) for question, _ in questions)
    if len(counts) == len(questions) and delta >= _MIN_DELTA:
        with _silence():
            result = sums.epsilon_of_counts(counts, delta)
        if math.isfinite(result):
            return LibraryAnswer("dp_accounting.pld", version, result)
    laplace = any(isinstance(q, NoisyCounts) and q.family != "gaussian" for q, _ in questions)
    boxed = any(isinstance(q, NoisyBox) for q, _ in questions)
    if work.needs_group_privacy and any(isinstance(question, LibraryLoss) for question, _ in questions):
        name, bound = _ask_for_replacement(charges, questions, delta, Neighbouring(neighbouring))
        in_two = LibraryAnswer(name, version, bound)
        return _ask_without_caps(charges, questions, delta, neighbouring, or_renyi, in_two)
    if delta < _MIN_DELTA and any(isinstance(question, LibraryLoss) for question, _ in questions):
        name, bound = _ask_unamplified(charges, delta, Neighbouring(neighbouring))
        return LibraryAnswer(name, version, bound)
    by_losses = CappedSum | FixedSizeSum | BoundedRange | LibraryLoss | SelectedRuns | WholeRun
    beside = laplace and len(counts) < len(questions)
    if (beside or any(isinstance(q, by_losses) for q, _ in questions)) and not (boxed or curved):
        with _silence():
            step = sums.grid_step(work.steps, len(work.parts))
            ask = partial(sums.epsilon_of_batches, questions, work.mu, work.neighbouring, delta)
            name, value = ask(step)
            finer = sums.ask_finer(lambda h: value if h == step else ask(h)[1], questions, delta, step)
            return LibraryAnswer(name, version, value if finer is None else finer)
    if boxed or laplace or curved or len(counts) == len(questions):
        twice = work.neighbouring is Neighbouring.REPLACE_ONE
        with _silence():
            name, bound = _ask_by_divergences(collect_query(charges, Neighbouring.ADD_OR_REMOVE_ONE), delta, twice)
        return LibraryAnswer(name, version, bound)
    with _silence():
        name, bound = _ask_accountants(collect_query(charges, neighbouring), delta, blanked, or_renyi)
    return LibraryAnswer(name, version, bound)


def _ask_without_caps(
    charges: Charges, asked: sums.Asked, delta: float, relation: Neighbouring, or_renyi: bool, result: LibraryAnswer
) -> LibraryAnswer:
    """Returns `result`, of a unit that is zeroed out or replaced where batches have a maximum size; or ε without such a
    size, with the probability of a full batch taken from δ. Both are bounds; the smaller counts."""
    rest, full = uncap_charges(charges), math.fsum(count * find_full_chance(question) for question, count in asked)
    if rest == charges or full >= delta:
        return result
    return min(result, ask_library(rest, delta - full, relation, or_renyi), key=lambda answer: answer.epsilon)


def _ask_for_replacement(charges: Charges, asked: sums.Asked, delta: float, relation: Neighbouring) -> Named:
    """Returns name and ε of removing a unit and adding another; or where everyone knows who takes part, if less."""
    work = sums.summarise_by_questions(charges, Neighbouring.ADD_OR_REMOVE_ONE)
    known = ask_library(unamplify_charges(charges, relation), delta, relation).epsilon
    step = sums.grid_step(work.steps, len(work.parts)) / 4 * max(1.0, known / 10)
    null = [(charge.event.of_null_unit().cross_check(), charge.count) for charge in charges if charge.count]
    empty = null if relation is Neighbouring.ZERO_OUT_ONE else asked
    with _silence():
        name, value = epsilon_of_two_steps(asked, empty, work, delta, known, step)
    return (name, value) if name == "dp_accounting.pld" else _ask_unamplified(charges, delta, relation)


def _ask_unamplified(charges: Charges, delta: float, relation: Neighbouring) -> Named:
    """Returns name and ε by Rényi curves, where everyone knows who takes part: at a δ that rounding would decide."""
    query = collect_query(unamplify_charges(charges, relation), relation)
    if query.boxes or query.curves or query.unknown:
        return "dp_accounting", math.inf
    with _silence():
        return _ask_accountants(query, delta, relation is Neighbouring.ZERO_OUT_ONE, True, renyi=True)


def _ask_for_items(
    charges: Charges, asked: list[tuple[UniqueItems, int]], delta: float, relation: Neighbouring, renyi: bool
) -> LibraryAnswer:
    """Returns the largest ε of some pairs of neighbouring data sets, by the number of items that only one has."""
    work = sums.summarise_by_questions(charges, relation)
    value, name = sums.largest_of_cases(
        charges, asked, delta, work, lambda rest, at: ask_library(rest, at, relation, renyi)
    )
    return LibraryAnswer(name, importlib.metadata.version("dp-accounting"), value)


def _ask_accountants(query: Query, delta: float, blanked: bool, or_renyi: bool, renyi: bool = False) -> Named:
    """Returns the accountant's name and ε of Gaussians, sampled or not, by the library's accountants; `renyi`: by the
    second alone."""
    import dp_accounting
    from dp_accounting import pld, rdp

    relations = dp_accounting.NeighboringRelation
    relation = relations.REPLACE_SPECIAL if blanked else relations.ADD_OR_REMOVE_ONE
    if query.relation is Neighbouring.REPLACE_ONE:
        relation = relations.REPLACE_ONE
    # under replace-one their PLD accountant doubles a Gaussian's sensitivity itself, their RDP one does not
    moved = 2.0 if query.relation is Neighbouring.REPLACE_ONE else 1.0
    step = sums.grid_step(query.steps, len(query.sampled)) * max(1.0, query.mu**2 / 100)
    accountants: list[tuple[str, Any, float]] = [
        ("dp_accounting.pld", lambda h: pld.PLDAccountant(relation, h), moved),
        ("dp_accounting.rdp", lambda h: rdp.RdpAccountant(neighboring_relation=relation), 1.0),
    ]
    for name, make, doubled in accountants[1:] if renyi or delta < _MIN_DELTA else accountants:
        try:
            ask = partial(_run_accountant, dp_accounting, make, query, delta, doubled)
            value = sums.ask_finer(ask, query.sampled, delta, step)
        except MemoryError:
            if not or_renyi:
                raise
            continue
        if value is not None:
            return name, value
    return "dp_accounting", math.inf


def _run_accountant(
    library: Any, make: Callable[[float], Any], query: Query, delta: float, doubled: float, step: float
) -> float | None:
    """Returns ε, or None if the accountant that `make` makes on a grid of `step` has no answer; `doubled`: the factor
    by which it multiplies a sensitivity itself. If memory runs out, the caller decides whether to ask another one.
    """
    accountant = make(step)
    try:
        if query.mu > 0:
            accountant.compose(library.GaussianDpEvent(float(doubled / query.mu)))
        for question, count in query.sampled:
            gaussian = library.GaussianDpEvent(float(question.sigma))
            accountant.compose(library.PoissonSampledDpEvent(float(question.rate), gaussian), int(count))
        value = float(accountant.get_epsilon(float(delta)))
    except (library.UnsupportedEventError, ArithmeticError, ValueError):
        return None
    return value if math.isfinite(value) else None


def _ask_by_divergences(query: Query, delta: float, twice: bool) -> Named:
    """Returns the accountant's name and ε under add-or-remove-one; `twice`: of removing a unit and adding another."""
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    if query.unknown:
        return "dp_accounting", math.inf
    orders = choose_orders(query)
    curve = compute_curve(query, orders)
    if not all(map(math.isfinite, curve)):
        return "dp_accounting.rdp", math.inf
    high, order = (float(value) for value in rdp.compute_epsilon(orders, curve, delta))
    high = min(high, _max_loss(query))
    # Half of a replacement is asked for at a smaller δ.
    at = delta / (1 + math.exp(min(high, 300.0))) if twice else delta
    if at >= _MIN_DELTA and 0 < high < math.inf and not query.curves:
        finest = math.sqrt(_TOLERANCE * 12 * high / ((query.steps + 1) * order))
        whole = _compose_losses(query, delta, finest)
        if whole is not None:
            result = float(whole.get_epsilon_for_delta(delta))
            name, result = split_whole(whole, whole, delta, result) if twice else ("dp_accounting.pld", result)
            if name == "dp_accounting.pld" and result < math.inf:
                return name, result
    if twice:
        max_loss = _max_loss(query)
        high = double_epsilon(
            lambda half: 0.0 if half >= max_loss else rdp.compute_delta(orders, curve, half)[0], high, delta
        )
    return "dp_accounting.rdp", high


def _max_loss(query: Query) -> float:
    if query.mu or query.sampled or query.curves:
        return math.inf
    return math.fsum(count * recheck.max_loss(box) for box, count in query.boxes)


def _compose_losses(query: Query, delta: float, finest: float) -> Any:
    """Returns the library's loss distribution of the whole query, in both directions; None if there is none, or if it
    would take too long. `finest` is the step of the grid, unless that would need too many points.
    """
    from dp_accounting.pld import privacy_loss_distribution as library

    boxes = [box for box, _ in query.boxes]
    if sum(map(recheck.estimate_effort, boxes)) > _MAX_WORK or any(
        box.exchanged or not recheck.is_mild(box) for box in boxes
    ):
        return None
    products = [recheck.product_masses(box) for box in boxes]
    pairs = [product for product in products if product is not None]
    if len(pairs) < len(products):
        return None
    reach = max(step * len(masses) for step, masses in pairs)
    step, tail = max(min(1e-4, finest), 1e-6, reach / _MAX_CELLS), min(1e-15, 1e-6 * delta)
    parts = []
    for question, count in query.sampled:
        one = library.from_gaussian_mechanism(
            float(question.sigma), value_discretization_interval=step, sampling_prob=float(question.rate)
        )
        parts.append(one.self_compose(int(count), tail))
    if query.mu > 0:
        parts.append(library.from_gaussian_mechanism(float(1 / query.mu), value_discretization_interval=step))
    for (own, masses), (box, count) in zip(pairs, query.boxes, strict=True):
        one = library.PrivacyLossDistribution(*recheck.sampled_pair(own, masses, box.sampling_rate, step))
        parts.append(one.self_compose(int(count), tail))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part, tail)
    return whole


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with ignoring_warnings():
            yield
    finally:
        logging.disable(previous)
