"""Clipping: from the norms of a unit's gradient to its weight in the sum.

Legend: G groups of parameters, N units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import torch
from torch import Tensor, nn

from dprecipe.training.engine.sizes import widest_type

Norm = Literal["l1", "l2"]


@final
@dataclass(frozen=True, slots=True)
class Clipping:
    """The bounds on a unit's gradient: `thresholds[g]` for the parameters of group g.

    `groups`: the group of each trained parameter, in the model's order; `None`: all of them are one.
    `stability`: γ of automatic clipping, which scales every gradient to threshold × ‖g‖ / (‖g‖ + γ); `None`: a gradient
    is shrunk to the threshold where it is longer, and else left alone.
    `counted`: add one coordinate to the sum, ½ for each unit that is left alone and -½ for each that is shrunk, with
    noise of this many times the noise multiplier; only where there is one group.
    `shares`: of several groups, the part of the noise multiplier's bound that a unit may take up in each (L2); their
    squares add up to 1. `None`: the same part in each.

    Source: Abadi et al. 2016 (one group, or several); Bu et al. 2023, "Automatic Clipping", AUTO-S (`stability`);
    Andrew et al. 2021 (`counted`).
    """

    thresholds: tuple[float, ...]
    groups: tuple[int, ...] | None = None
    stability: float | None = None
    norm: Norm = "l2"
    counted: float | None = None
    shares: tuple[float, ...] | None = None

    @staticmethod
    def flat(threshold: float, norm: Norm = "l2") -> Clipping:
        """Returns one threshold for all parameters."""
        return Clipping((threshold,), norm=norm)

    def weights(self, norms_GN: Tensor) -> Tensor:
        """Returns (G, N) float64: the factor of a unit's gradient, given norms that are no smaller than the real ones.

        A unit with a norm that is not finite has weight zero in every group.
        """
        if len(self.thresholds) == 1:
            denominators_1N = norms_GN if self.stability is None else norms_GN + self.stability
            # Divided by, an infinite norm gives zero, and a zero norm one, or as much as `stability` lets it.
            weights_1N = self.thresholds[0] / denominators_1N
            return (weights_1N if self.stability is not None else weights_1N.clamp_(max=1.0)).nan_to_num_(0.0)
        thresholds_G1 = norms_GN.new_tensor(self.thresholds)[:, None]
        if self.stability is None:
            weights_GN = (thresholds_G1 / norms_GN).clamp(max=1.0)  # a zero norm gives an infinite ratio
        else:
            weights_GN = thresholds_G1 / (norms_GN + self.stability)
        return torch.where(torch.isfinite(norms_GN).all(0), weights_GN, 0.0)

    def bits(self, norms_GN: Tensor) -> Tensor:
        """Returns the coordinate that `counted` adds: (1,) float64."""
        within_N = norms_GN[0] <= self.thresholds[0]  # not so for NaN
        return (within_N.double() - 0.5).sum()[None]

    def bounds(self, parameters: Sequence[Tensor]) -> float | Tensor:
        """Returns scales s, a number or one for each coordinate of the sum: one unit moves sum / s by at most 1 in
        `norm`.

        The scale of a group is its threshold over its share. Without given shares all groups have the same one: the
        scale is
        the threshold times the root of the number of groups (`l1`: times their number).

        Raises:
            ValueError: the shares are not of these groups, their squares don't add up to 1, or the norm is not L2; or
                the count's noise leaves nothing for the gradients.
        """
        if self.counted is not None:
            # 1/z² = 1/z_Δ² + 1/(2 σ_b)², both over z: Andrew et al. 2021, Theorem 1.
            gradient_share = 1 - 1 / (2 * self.counted) ** 2
            if not gradient_share > 0:
                raise ValueError(f"noise of {self.counted} on the count leaves nothing for the gradients")
            return _coordinate_scales(
                parameters, [self.thresholds[0] / math.sqrt(gradient_share)] * len(parameters), [self.counted]
            )
        count = len(self.thresholds)
        if self.groups is None or count == 1:
            return self.thresholds[0]
        factor = count if self.norm == "l1" else math.sqrt(count)
        factors = (factor,) * count if self.shares is None else self._factors(self.shares)
        return _coordinate_scales(parameters, [factors[group] * self.thresholds[group] for group in self.groups], [])

    def _factors(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        whole = math.fsum(share**2 for share in shares)
        if len(shares) != len(self.thresholds) or self.norm != "l2" or not abs(whole - 1) <= 1e-12:
            raise ValueError(f"shares whose squares add up to {whole}, for {len(self.thresholds)} groups")
        return tuple(1 / share for share in shares)


def layer_numbers(model: nn.Module) -> tuple[int, ...]:
    """Returns the layer of each trained parameter, numbered from 0: parameters of one module are one layer."""
    owners = [name.rpartition(".")[0] for name, p in model.named_parameters() if p.requires_grad]
    numbers = {owner: number for number, owner in enumerate(dict.fromkeys(owners))}
    return tuple(numbers[owner] for owner in owners)


def _coordinate_scales(parameters: Sequence[Tensor], scales: Sequence[float], more: Sequence[float]) -> Tensor:
    device = widest_type(parameters[0].device) if parameters else torch.device("cpu")
    return _scales(tuple(p.numel() for p in parameters), tuple(scales), tuple(more), device)


@lru_cache(maxsize=1)
def _scales(sizes: tuple[int, ...], scales: tuple[float, ...], more: tuple[float, ...], device: torch.device) -> Tensor:
    """Makes the scales on the sum's device and keeps them for further calls: the result must not be written to."""
    parts = [torch.full((n,), s, dtype=torch.float64, device=device) for n, s in zip(sizes, scales, strict=True)]
    return torch.cat([*parts, torch.tensor(more, dtype=torch.float64, device=device)])
