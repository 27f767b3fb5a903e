"""Gradients with respect to weights that are standardised before a convolution takes them.

Legend: R records, O outputs, I inputs of an output, K positions in the window's leading sides, Q numbers of an output
at one of them (I = K Q), P = K O Q.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from dprecipe.models.zoo.layers import MIN_VARIANCE, StandardisedConv2d, standardise_weights
from dprecipe.training.engine.rounding import BLOCK, row_squares

MIN_RUN = 16
"""Fewer numbers are not added up by themselves."""


@final
class Standardisation:
    """The transposed derivative L of standardisation, of one layer's weights.

    With m the mean of an output's weights, c = weight - m, and s the root of the sum of squares of c, a gradient g with
    respect to the standardised weights becomes L(g) = (g - mean(g) - c (c·g) / s²) / s; where s is bounded from below,
    the term with c is omitted.
    """

    def __init__(self, weight: Tensor, unordered: Callable[[Tensor], Tensor]) -> None:
        """`unordered`: from the parameter to (K, O, Q)."""
        flat_OI = weight.flatten(1)
        centred_OI = flat_OI - flat_OI.mean(1, keepdim=True)
        squares_O1 = centred_OI.square().sum(1, keepdim=True)
        self.scales_O1 = torch.rsqrt(squares_O1.clamp_min(MIN_VARIANCE))
        lengths = torch.where(squares_O1 > MIN_VARIANCE, self.scales_O1, 0.0)
        self.units_OI = centred_OI * lengths
        self.units = unordered(self.units_OI.view_as(weight))
        """c / s, (K, O, Q)."""

    def shorten(self, slabs: Tensor) -> None:
        """Turns rows (R, K, O, Q) into the gradients with respect to the weights, in place: on a CPU, whose cache holds
        them."""
        along = torch.einsum("rkoq,koq->ro", slabs, self.units)
        mean = slabs.sum((1, 3)) / self.units_OI.shape[1]
        slabs -= mean[:, None, :, None]
        slabs.addcmul_(self.units, along[:, None, :, None], value=-1.0)
        slabs *= self.scales_O1


@final
class SumStandardisation:
    """The same L, applied once to the sum of all rows, and to the norms of single rows: a GPU has to fetch each row
    from memory again for whatever is done to it.

    Rows are those of g' = g / s, which `scaled` sees to.

    Guarantee: what `squares_of` returns is at least ‖L(g)‖² for the row as it is stored. For each output L removes
    from g' its projections on two orthogonal directions of length 1, a = 1/√I and b = c/s, so ‖L(g)‖² = ‖g'‖² -
    (a·g')² - (b·g')². `row_squares` bounds the first term. A projection is added up in single precision for n numbers
    at a time: with the rounding of products and of the direction, it is off by at most e ‖g'‖, e = (n + 4) 2^-24. So
    what is subtracted exceeds the true amount by at most (2√2 e + 2 e²) ‖g'‖². Added is 4 e ‖g'‖²; the rest of that
    is far more than what double precision rounds, and than the directions lack of length 1 and of being orthogonal.
    Cost of the bound: a norm is raised by 2 e times the square of ‖g'‖ / ‖L(g)‖: 0.015 % where a third is left.

    A record's row may be longer than its gradient: rows are added in double precision.
    """

    def __init__(self, weight: Tensor, unordered: Callable[[Tensor], Tensor]) -> None:
        """`unordered`: from the parameter to (K, O, Q)."""
        if weight.dtype == torch.float64:
            # Centred twice: the rounding of a large mean leaves a part that is not orthogonal to it. For single
            # precision, `squares_of` has slack for that.
            weight = weight - weight.flatten(1).mean(1).view(-1, *[1] * (weight.dim() - 1))
        exact = Standardisation(weight.double(), unordered)
        self._units_OI, self._scales_O1 = exact.units_OI, exact.scales_O1.to(weight)
        root = math.sqrt(self._units_OI.shape[1])
        self._directions_OI2 = torch.stack((torch.full_like(self._units_OI, 1 / root), self._units_OI), 2)
        units_KOQ = exact.units.to(weight)
        _, self._outputs, together = units_KOQ.shape
        run = math.gcd(together, BLOCK)
        self._run = run if run >= MIN_RUN else together
        self._count = together // self._run
        units_Bn = units_KOQ.reshape(-1, self._run)
        even_Bn = torch.full_like(units_Bn, 1 / root)
        self._directions_Bn2 = torch.stack((even_Bn, units_Bn), 2)

    def scaled(self, right_NOT: Tensor) -> Tensor:
        """Returns the gradient with respect to the outputs, by which rows are multiplied out."""
        return right_NOT * self._scales_O1

    def margin(self, rows_RP: Tensor) -> float:
        """Returns 4 e, the share of a row's squared norm that is added to it."""
        in_single = rows_RP.dtype == torch.float32
        return 4 * (self._run + 4) * 2.0**-24 if in_single else 4 * (rows_RP.shape[1] + 4) * 2.0**-53

    def projections(self, rows_RP: Tensor) -> Tensor:
        """Returns (O, R, 2) float64: for each output, the projections on a and on b."""
        rows_BRn = rows_RP.view(len(rows_RP), -1, self._run).transpose(0, 1)
        by_run = torch.unflatten(torch.bmm(rows_BRn, self._directions_Bn2), 0, (-1, self._outputs, self._count))
        return by_run.sum((0, 2), dtype=torch.float64)

    def pulled_back(self, sum_P: Tensor) -> Tensor:
        """Returns L of rows that are summed, in the parameter's order: (…, O·I) float64."""
        values = torch.unflatten(sum_P, -1, self._units_OI.shape)[..., None]
        along = self._directions_OI2.mT @ values
        return (values - self._directions_OI2 @ along).flatten(-3)


def squares_of(members: Sequence[tuple[SumStandardisation, Tensor]], rows_RP: Tensor) -> Tensor:
    """Returns (R,) float64: the squared norms of the gradients that rows become, rounded up. `members`: of each layer,
    its columns of the rows, (R, K O Q); all other columns are zeros.

    The squares of layers add up, and so does what is subtracted: the largest of their margins covers each of them.
    """
    removed_R = torch.cat([each.projections(columns) for each, columns in members]).square_().sum((0, 2))
    margin = max(each.margin(columns) for each, columns in members)
    return (row_squares(rows_RP) * (1 + margin) - removed_R).clamp_min_(0.0)


@final
class BatchWeights:
    """Numbers computed of standardised weights alone: once for all parts of a batch, in which weights do not change."""

    def __init__(self) -> None:
        self._kernels: dict[StandardisedConv2d, Tensor] = {}
        self._pulls: dict[nn.Module, SumStandardisation] = {}

    def convolve(self, layer: StandardisedConv2d, inputs: Tensor) -> Tensor:
        """Returns the layer's output; its weights need no gradient."""
        if layer not in self._kernels:
            self._kernels[layer] = standardise_weights(layer.weight.detach())
        return layer.convolve(inputs, self._kernels[layer])

    def pull(self, layer: nn.Module, make: Callable[[], SumStandardisation]) -> SumStandardisation:
        """Returns the layer's `SumStandardisation`, which `make` makes."""
        if layer not in self._pulls:
            self._pulls[layer] = make()
        return self._pulls[layer]
