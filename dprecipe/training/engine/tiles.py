"""Sums of large products on sequences, a tile of the parameter at a time: no record's whole gradient is ever in memory.

Norms are computed from pairs of positions, or from tiles. What is then added is measured: the rows of a tile may use up
no more of a record's squared norm than was stated for it, and are shrunk where they would. So what a record adds has at
most the stated norm times its weight, however rows and norms were rounded: pairs need only single precision.

Legend: N records, R some of them, T positions, I inputs, O outputs, P numbers of a tile, V tokens, H width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import final

import torch
from torch import Tensor

from dprecipe.training.engine.full_precision import before_norms
from dprecipe.training.engine.fused import Fused
from dprecipe.training.engine.rounding import row_squares
from dprecipe.training.engine.strategies import CACHE, Weights, chunk_size, weighted_sum
from dprecipe.training.engine.terms import Lookups, Products, TokenErrors

TOGETHER = 8
"""Records of a tile on a CPU: their rows are added up while they are in its cache."""
OUTPUTS = 128
"""The least number of outputs in a tile, where its product would otherwise be slow."""
ROUNDING = 2.0**-24
"""The rounding of single precision. A norm is raised by this much of the sum of its terms' lengths, times the root of
the number of terms: the usual rounding of rows, so that a tile is hardly ever shrunk."""
PAIRS = 4.0
"""A squared norm is raised by this many times the standard error of its pairs, computed in single precision."""
MEASURED = 1 + 2.0**-16
"""Squared norms are raised by more than `row_squares` raises what it measures."""


@final
class Allowance:
    """The remainder of each record's squared norm while its gradient is added tile by tile. All tiles have the same
    parts. A tile takes the lesser of its square and of what is left, so no rounding leaves more than there is."""

    def __init__(self, squares_N: Tensor) -> None:
        self._squares_N = squares_N
        self._taken: dict[int, tuple[Tensor, Tensor]] = {}
        """By the first record of a part: the remainder before its last tile, and what that took."""

    def take(self, part: slice, rows_RP: Tensor) -> Tensor:
        """Returns (R,) float64: factors, at most 1, by which these rows stay within what is left, which they then use
        up."""
        before = self._taken.get(part.start)
        left_R = self._squares_N[part] if before is None else before[0] - before[1]
        squares_R = row_squares(rows_RP)
        taken_R = torch.minimum(squares_R, left_R)
        self._taken[part.start] = left_R, taken_R
        # Zeros take nothing. Where a number is not finite the record has weight zero.
        return (taken_R / squares_R).nan_to_num_(1.0).sqrt_()


@final
class TileSum:
    """Adds the weighted rows of a tile to `total_P` (P,) float64: in single precision as many records as may be."""

    def __init__(self, total_P: Tensor, weights: Weights, allowance: Allowance) -> None:
        self._total_P, self._weights, self._allowance = total_P, weights, allowance
        self._sum_P: Tensor | None = None
        self._added = 0

    def add(self, part: slice, rows_RP: Tensor) -> None:
        """Adds rows that the caller no longer needs."""
        exact_R = self._weights.exact[part] * self._allowance.take(part, rows_RP)
        count = len(rows_RP)
        if count > self._weights.block_size or rows_RP.dtype != torch.float32:
            weights = Weights(exact_R, self._weights.sound, self._weights.block_size)
            self._total_P += weighted_sum(rows_RP, weights, owned=True)
            return
        if self._added + count > self._weights.block_size:
            self.flush()
        transposed_PR = self._weights.clean(rows_RP, part, owned=True).T
        if self._sum_P is None:
            self._sum_P = transposed_PR @ exact_R.float()
        else:
            self._sum_P.addmv_(transposed_PR, exact_R.float())
        self._added += count

    def flush(self) -> None:
        if self._sum_P is not None:
            self._total_P += self._sum_P
        self._sum_P, self._added = None, 0


@final
class TiledProducts:
    """A product on sequences: tiles are some of its outputs. Norms come from pairs of positions, or from tiles too.

    Source of norms by pairs of positions: X. Li et al., "Large Language Models Can Be Strong Differentially Private
    Learners", ICLR 2022.
    """

    def __init__(self, term: Products, count: int, *, by_pairs: bool) -> None:
        self._term, self._count, self._by_pairs = term, count, by_pairs
        self._squares_N = torch.empty(0)

    def squares(self) -> Tensor:
        term = self._term
        found: dict[int, Tensor] = {}  # by the first record
        if self._by_pairs:
            per_record = term.positions * (term.inputs + term.outputs + 2 * term.positions)
            device = term.right.device
            together = TOGETHER if device.type == "cpu" else chunk_size(per_record, device)
            for part in _parts(self._count, together):
                left_RTI, right_ROT = term.left(part)[:, 0], term.right[part, 0]
                pairs = left_RTI @ left_RTI.mT, right_ROT.mT @ right_ROT
                found[part.start] = squares_of_pairs(*pairs, max(term.inputs, term.outputs))
        else:
            for part, _, rows_RP in self._tiles():
                squares_R, before = row_squares(rows_RP), found.get(part.start)
                found[part.start] = squares_R if before is None else before + squares_R
        self._squares_N = torch.cat([*found.values()]) if len(found) > 1 else found[0]
        return self._squares_N

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        total_OI, allowance = totals[0].view(self._term.outputs, -1), Allowance(self._squares_N)
        tile_sum = None
        for part, tile, rows_RP in self._tiles():
            if tile_sum is None or part.start == 0:
                tile_sum = TileSum(total_OI[tile].view(-1), weights, allowance)
            tile_sum.add(part, rows_RP)
            if part.stop == self._count:
                tile_sum.flush()

    def _tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Yields the records, the outputs and the rows of each tile; each overwrites the one before."""
        term = self._term
        together, outputs = tile_shape(self._count, term.outputs, term.inputs, term.right.device)
        buffer = term.right.new_empty(together * outputs * term.inputs)
        for tile in _parts(term.outputs, outputs):
            right_NoT = term.right[:, 0, tile]
            for part in _parts(self._count, together):
                left_RTI, right_RoT = term.left(part)[:, 0], right_NoT[part]
                shape = len(right_RoT), right_RoT.shape[1], term.inputs
                with before_norms(buffer.device):  # the rows of a tile are measured as they are added
                    rows_RoI = torch.bmm(right_RoT, left_RTI, out=buffer[: math.prod(shape)].view(shape))
                yield part, tile, rows_RoI.flatten(1)


@final
class TiledTokens:
    """The head of a language model, whose weight may be the table of a lookup as well: tiles are some of the tokens.

    Logits are computed twice more, in pieces: once for the norms, for a few records at a time, and once for the sum.
    Where the weight is a table too, a record's gradient is the sum of both parts, and so are norms and tiles:
    ‖a + b‖² = ‖a‖² + 2 a·b + ‖b‖².
    """

    def __init__(self, term: TokenErrors, lookups: Lookups | None, count: int) -> None:
        self._term, self._lookups, self._count = term, lookups, count
        self._squares_N = torch.empty(0)
        self._normalisers_NT = torch.empty(0)

    def squares(self) -> Tensor:
        found = [self._squares(part) for part in _parts(self._count, self._term.at_once)]
        self._normalisers_NT = torch.cat([normalisers for _, normalisers in found])
        self._squares_N = torch.cat([squares for squares, _ in found])
        return self._squares_N

    def _squares(self, part: slice) -> tuple[Tensor, Tensor]:
        term, lookups = self._term, self._lookups
        states_RTH = term.states[part]
        errors_RTV, normalisers_RT = term.errors(part)
        if lookups is None:
            pairs = states_RTH @ states_RTH.mT, errors_RTV @ errors_RTV.mT
            return squares_of_pairs(*pairs, len(term.weight)), normalisers_RT
        states_RTH, errors_RTV = states_RTH.double(), errors_RTV.double()
        pairs_RTT, states_RTT = errors_RTV @ errors_RTV.mT, states_RTH @ states_RTH.mT
        indices_RL, gradients_RLH = lookups.indices[part], lookups.gradients[part].double()
        same_RLL = indices_RL[:, :, None] == indices_RL[:, None, :]
        looked_up_RLL = gradients_RLH @ gradients_RLH.mT
        at_lookups_RTL = errors_RTV.gather(2, indices_RL[:, None].expand(-1, errors_RTV.shape[1], -1))
        crossed_R = _products(at_lookups_RTL, states_RTH @ gradients_RLH.mT)
        lengths_R = _lengths(pairs_RTT, states_RTT) + _lengths(looked_up_RLL, torch.ones_like(looked_up_RLL))
        squares_R = _products(pairs_RTT, states_RTT) + 2 * crossed_R + _products(looked_up_RLL, same_RLL)
        return _raised(squares_R, lengths_R, states_RTH.shape[1] + indices_RL.shape[1]), normalisers_RT

    def add(self, totals: Sequence[Tensor], weights: Weights) -> None:
        term, lookups = self._term, self._lookups
        width, vocabulary = term.states.shape[2], len(term.weight)
        total_VH, allowance = totals[0].view(vocabulary, width), Allowance(self._squares_N)
        beside = self._count * term.states.shape[1]
        together, size = tile_shape(self._count, vocabulary, width, term.states.device, beside)
        for tile in _parts(vocabulary, size):
            errors_NTv = term.errors_of(tile, self._normalisers_NT)
            tile_sum = TileSum(total_VH[tile].view(-1), weights, allowance)
            for part in _parts(self._count, together):
                rows_RvH = errors_NTv[part].mT @ term.states[part]
                if lookups is not None:
                    places_RL, counted = lookups.indices[part] - tile.start, rows_RvH.device.type == "cpu"
                    add_lookups(rows_RvH, places_RL, lookups.gradients[part], counted=counted)
                tile_sum.add(part, rows_RvH.flatten(1))
            tile_sum.flush()


def _squares_of_pairs(left_RTT: Tensor, right_RTT: Tensor, terms: int = 1) -> Tensor:
    """Returns (R,) float64: the squared norms of sums of outer products, from the products of their factors at each two
    positions; raised by what rounding usually adds. `terms`: numbers that were added for each, in single precision."""
    products_RTT = left_RTT.double() * right_RTT
    squares_RT = products_RTT.diagonal(dim1=1, dim2=2).clamp(min=0.0)
    # Errors of pairs are independent, in the root of their number; those of one pair and its mirror are the same.
    pairs_R = PAIRS * math.sqrt(terms) * ROUNDING * squares_RT.sum(1)
    return _raised(products_RTT.sum((1, 2)) + pairs_R, squares_RT.sqrt().sum(1), left_RTT.shape[1])


squares_of_pairs = Fused(_squares_of_pairs)


def _products(left_RTL: Tensor, right_RTL: Tensor) -> Tensor:
    return (left_RTL * right_RTL).sum((1, 2))


def _lengths(left_RTT: Tensor, right_RTT: Tensor) -> Tensor:
    """Returns (R,): the sum over positions of the lengths of their outer products."""
    return (left_RTT.diagonal(dim1=1, dim2=2) * right_RTT.diagonal(dim1=1, dim2=2)).sqrt().sum(1)


def _raised(squares_R: Tensor, lengths_R: Tensor, terms: int) -> Tensor:
    lengths = torch.add(squares_R.clamp(min=0.0).sqrt_(), lengths_R, alpha=math.sqrt(terms) * ROUNDING)
    return lengths.square_().mul_(MEASURED)


def add_lookups(rows_RvH: Tensor, places_RL: Tensor, gradients_RLH: Tensor, *, counted: bool) -> None:
    """Adds gradients of what was looked up to the rows of a tile, in place; places outside of it count for nothing.

    `counted`: only the few places inside are picked out. On a GPU their number would have to be waited for: there
    zeros are added for the others.
    """
    tokens = rows_RvH.shape[1]
    inside_RL = (places_RL >= 0) & (places_RL < tokens)
    if counted:
        record_K, place_K = inside_RL.nonzero(as_tuple=True)
        cells_K, added_KH = record_K * tokens + places_RL[record_K, place_K], gradients_RLH[record_K, place_K]
    else:
        firsts_R1 = tokens * torch.arange(len(places_RL), device=places_RL.device)[:, None]
        cells_K = (firsts_R1 + torch.where(inside_RL, places_RL, 0)).flatten()
        added_KH = torch.where(inside_RL[:, :, None], gradients_RLH, 0.0).flatten(0, 1)
    rows_RvH.flatten(0, 1).index_add_(0, cells_K, added_KH.to(rows_RvH))


def tile_shape(count: int, outputs: int, inputs: int, device: torch.device, beside: int = 0) -> tuple[int, int]:
    """Returns the numbers of records and of outputs, with `inputs` numbers each, in a tile. It has as few records as
    let it have `OUTPUTS`, since products of few outputs are slow. On a CPU it has few records; elsewhere tiles are
    large, as kernels take long to start. Each output may have `beside` numbers of its own there, which count."""
    on_cpu = device.type == "cpu"
    numbers = CACHE if on_cpu else CACHE << 9
    together = max(1, min(TOGETHER if on_cpu else count, count, numbers // (OUTPUTS * inputs)))
    size = numbers // max(together * inputs, 0 if on_cpu else beside)
    return together, max(1, min(outputs, size))


def _parts(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
