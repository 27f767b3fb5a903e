"""Ways to the norms of single records' gradients, and to their weighted sum, for one parameter.

Guarantee, of each way: let g be the gradients whose norms `squares` answers. `add` adds the sum of w·g, and nothing of
records of weight zero, and both are computed in double precision from numbers that belong to one record each. So a
record that is added to the others moves the sum by w·g and by no more than double precision rounds; single precision
is used only for what is a record's own, before its norm is taken.

Legend: N records, R some of them, T positions, I inputs, O outputs, G groups, P numbers of the parameter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, final

import torch
from torch import Tensor

from dprecipe.training.engine.terms import Lookups, Products, Rows, Term

CACHE = 3 << 17
"""Numbers that are worked on at a time on a CPU, so that they stay in its cache: 1.5 MiB in single precision."""
WIDE = 1 << 20
"""Numbers that are widened at a time for a product."""
KEPT = 1 << 25
"""Numbers of gradients of single records that are kept from their norms to their sum, in all: 128 MiB."""
BLOCK = 64
"""Numbers whose squares are added in single precision."""
BLOCKED = 1 + 2.0**-17
"""Above what that and a root may lose, in any order: (64 + 6) 2^-24 of the sum."""
TINY = 2.0**-125
"""Above what may be lost of a square that is too small for single precision."""
MARGIN = 2.0**-53


class Way(Protocol):
    def squares(self) -> Tensor:
        """(N,) float64: the squared norm of each record's gradient, or more by what rounding may take from it."""

    def add(self, total_P: Tensor, weights_N: Tensor) -> None:
        """Add the weighted sum to `total_P`, float64. Call after `squares`."""


@final
class Store:
    """Memory that is used again by the next sum: fresh pages cost as much as what is written to them."""

    def __init__(self) -> None:
        self._numbers = torch.empty(0)

    def like(self, rows_RP: Tensor, count: int) -> Tensor:
        """(count, P), of any content; what was given before is overwritten."""
        needed, held = count * rows_RP.shape[1], self._numbers
        if held.numel() < needed or held.dtype != rows_RP.dtype or held.device != rows_RP.device:
            self._numbers = rows_RP.new_empty(needed)
        return self._numbers[:needed].view(count, -1)


@final
class Kept:
    """Rows of all records, held from the norms to the sum: in `store`, where there is one that fits and is free."""

    def __init__(self, terms: Sequence[Term], count: int, device: torch.device, store: Store | None = None) -> None:
        self._terms = terms
        self._store = Store() if store is None else store
        self._parts = list(_parts(count, at_once(sum(term.per_record for term in terms), device)))
        self._rows_NP = terms[0].values if len(terms) == 1 and isinstance(terms[0], Rows) else None

    def squares(self) -> Tensor:
        if self._rows_NP is not None:
            return torch.cat([_squares(self._rows_NP[part]) for part in self._parts])
        squares = []
        for part in self._parts:
            rows_RP = _rows(self._terms, part)
            squares.append(_squares(rows_RP))
            if self._rows_NP is None:
                self._rows_NP = self._store.like(rows_RP, self._parts[-1].stop)
            self._rows_NP[part] = rows_RP
        return torch.cat(squares)

    def add(self, total_P: Tensor, weights_N: Tensor) -> None:
        rows_NP = self._rows_NP
        if rows_NP is None:
            raise ValueError("the sum comes after the norms")
        step = at_once(2 * rows_NP.shape[1], rows_NP.device)
        sound = _all_sound(weights_N)
        with _in_order(self._terms, total_P) as sum_P:
            for rows_RP, weights_R in zip(torch.split(rows_NP, step), torch.split(weights_N, step), strict=True):
                sum_P.addmv_(_sound(rows_RP.double(), weights_R, sound).T, weights_R)


@final
class Twice:
    """Rows of a few records at a time, dropped after their norms and computed again for the sum."""

    def __init__(self, terms: Sequence[Term], count: int, device: torch.device) -> None:
        self._terms = terms
        self._parts = list(_parts(count, at_once(sum(term.per_record for term in terms), device)))
        self._squares_N = torch.empty(0)

    def squares(self) -> Tensor:
        self._squares_N = torch.cat([_squares(_rows(self._terms, part)) for part in self._parts])
        return self._squares_N

    def add(self, total_P: Tensor, weights_N: Tensor) -> None:
        sound = _all_sound(weights_N)
        with _in_order(self._terms, total_P) as sum_P:
            for part in self._parts:
                weights_R = weights_N[part]
                rows_RP = _sound(_rows(self._terms, part), weights_R, sound)
                # Nothing promises that a product computed again has the same bits: its norm may not have grown.
                grown_R = (self._squares_N[part] / _squares(rows_RP)).sqrt().nan_to_num(1.0).clamp(max=1.0)
                sum_P.addmv_(rows_RP.double().T, weights_R * grown_R)


@final
class Ghost:
    """Norms from the products of inputs, and of gradients, at pairs of positions; one product of matrices for the sum.

    Source: I. Goodfellow, "Efficient Per-Example Gradient Computations", 2015; X. Li et al., "Large Language Models Can
    Be Strong Differentially Private Learners", ICLR 2022 (pairs of positions).
    """

    def __init__(self, term: Products, count: int) -> None:
        self._term = term
        self._count = count

    def squares(self) -> Tensor:
        term = self._term
        taken = term.positions * (term.inputs + term.outputs + 2 * term.positions)
        return torch.cat([self._squares(part) for part in _parts(self._count, at_once(taken, term.right.device))])

    def _squares(self, part: slice) -> Tensor:
        term = self._term
        left_RTI, right_ROT = term.left(part)[:, 0].double(), term.right[part, 0].double()
        if term.positions == 1:
            return _squares(left_RTI[:, 0]) * _squares(right_ROT[:, :, 0])
        left_RTT, right_RTT = left_RTI @ left_RTI.mT, right_ROT.mT @ right_ROT
        lengths_R = (left_RTT.diagonal(dim1=1, dim2=2) * right_RTT.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
        # Positions can cancel: what their products were rounded by is added.
        operations = term.inputs + term.outputs + term.positions**2 + 8
        return left_RTT.mul_(right_RTT).sum((1, 2)).clamp(min=0.0) + 2 * operations * MARGIN * lengths_R.square()

    def add(self, total_P: Tensor, weights_N: Tensor) -> None:
        term = self._term
        sum_P = total_P if term.order is None else total_P.new_zeros(len(total_P))
        step = at_once(term.positions * (term.inputs + term.outputs), total_P.device, WIDE)
        sound = _all_sound(weights_N)
        for part in _parts(self._count, step):
            weights_R = weights_N[part]
            left = _sound(term.left(part)[:, 0].double(), weights_R, sound).flatten(0, 1)
            right = _sound(term.right[part, 0].double(), weights_R, sound) * weights_R[:, None, None]
            sum_P.view(term.outputs, -1).addmm_(right.movedim(0, 1).flatten(1), left)
        if term.order is not None:
            total_P += term.order(sum_P)


@final
class Sparse:
    """Lookups in a table: of each record only the rows that it looked up are ever held."""

    def __init__(self, term: Lookups, count: int) -> None:
        self._term = term

    def squares(self) -> Tensor:
        indices_NT, gradients = self._term.indices, self._term.gradients.double()
        count = len(indices_NT)
        records_N1 = torch.arange(count, device=indices_NT.device)[:, None]
        cells, inverse = torch.unique(records_N1 * self._term.entries + indices_NT, return_inverse=True)
        sums = gradients.new_zeros(len(cells), gradients.shape[2]).index_add_(
            0, inverse.flatten(), gradients.flatten(0, 1)
        )
        return gradients.new_zeros(count).index_add_(0, cells // self._term.entries, _squares(sums))

    def add(self, total_P: Tensor, weights_N: Tensor) -> None:
        rows = _sound(self._term.gradients.double(), weights_N, _all_sound(weights_N)) * weights_N[:, None, None]
        total_P.view(self._term.entries, -1).index_add_(0, self._term.indices.flatten(), rows.flatten(0, 1))


Making = Callable[[], Way]


def candidates(
    terms: Sequence[Term], count: int, size: int, device: torch.device, room: int, store: Store
) -> dict[str, Making]:
    """Ways by name, the one to take by rule first, and only those that may be the cheapest.

    `room`: how many numbers of gradients of single records may be kept; `store`: where.
    """
    term = terms[0] if len(terms) == 1 else None
    if isinstance(term, Rows):
        return {"rows": lambda: Kept(terms, count, device)}
    if isinstance(term, Lookups):
        return {"sparse": lambda: Sparse(term, count)}
    rows: dict[str, Making] = (
        {"kept": lambda: Kept(terms, count, device, store)}
        if count * size <= room
        else {"twice": lambda: Twice(terms, count, device)}
    )
    if not isinstance(term, Products) or term.groups > 1:
        return rows
    ghost: dict[str, Making] = {"ghost": lambda: Ghost(term, count)}
    if term.positions == 1:
        return ghost
    by_rows = term.positions * size * (1 if "kept" in rows else 2) + 16 * size
    by_ghost = 2 * term.positions**2 * (term.inputs + term.outputs) + 2 * term.positions * size
    likely = ghost | rows if by_ghost < by_rows else rows | ghost
    return likely if max(by_ghost, by_rows) < LIKELY * min(by_ghost, by_rows) else dict([next(iter(likely.items()))])


LIKELY = 6
"""What is estimated to cost this many times as much is not tried."""


def cheapest(ways: dict[str, Making], weights_N: Tensor, size: int) -> str:
    """The name of the way that takes the least time, each run twice; the first where torch has to be deterministic."""
    if len(ways) == 1 or torch.are_deterministic_algorithms_enabled():
        return next(iter(ways))
    total_P = weights_N.new_zeros(size)
    times = dict.fromkeys(ways, float("inf"))
    for name, making in [*ways.items()] * 2:
        start = time.perf_counter()
        way = making()
        way.squares()
        way.add(total_P, weights_N)
        if total_P.device.type != "cpu":
            total_P.sum().item()  # waits for the device
        times[name] = min(times[name], time.perf_counter() - start)
    return min(times, key=times.__getitem__)


def _rows(terms: Sequence[Term], part: slice) -> Tensor:
    if len(terms) == 1:
        return terms[0].rows(part)
    rows_RP = terms[0].ordered(terms[0].rows(part))
    for term in terms[1:]:
        rows_RP = rows_RP + term.ordered(term.rows(part))
    return rows_RP


def _squares(rows_RP: Tensor) -> Tensor:
    """(R,) float64: squared norms, rounded up where they were added in single precision."""
    if rows_RP.dtype == torch.float32 and rows_RP.shape[1] >= BLOCK:
        whole = rows_RP.shape[1] // BLOCK * BLOCK
        norms_RB: Tensor = torch.linalg.vector_norm(torch.unflatten(rows_RP[:, :whole], 1, (-1, BLOCK)), dim=2)
        squares_R = norms_RB.double().square().sum(1) + _squares(rows_RP[:, whole:].double())
        if bool(torch.isfinite(squares_R).all()):
            return squares_R * BLOCKED + rows_RP.shape[1] * TINY
    # In double precision what is large in single has a square.
    norms_R: Tensor = torch.linalg.vector_norm(rows_RP.double(), dim=1)
    return norms_R.square()


@contextmanager
def _in_order(terms: Sequence[Term], total_P: Tensor) -> Iterator[Tensor]:
    """What sums of `_rows` are added to, so that they arrive in `total_P` in the parameter's order."""
    if len(terms) > 1 or isinstance(terms[0], Rows):
        yield total_P
        return
    sum_P = torch.zeros_like(total_P)
    yield sum_P
    total_P += terms[0].ordered(sum_P)


def _all_sound(weights_N: Tensor) -> bool:
    return bool((weights_N > 0).all())


def _sound(rows: Tensor, weights_R: Tensor, all_sound: bool) -> Tensor:
    """The rows, with zeros for the records of weight zero: theirs may not be finite."""
    return rows if all_sound else torch.where((weights_R > 0).view(-1, *[1] * (rows.dim() - 1)), rows, 0.0)


def at_once(per_record: int, device: torch.device, numbers: int = CACHE) -> int:
    """How many records to work on at a time, given the numbers that each one takes."""
    return max(1, (numbers if device.type == "cpu" else numbers << 8) // max(1, per_record))


def _parts(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
