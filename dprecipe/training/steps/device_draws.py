"""Draws of the families of noise other than the normal one, made where the keystream is: on a GPU.

The transformations are those of `dprecipe.noise.draws`, of as many bits: a draw needs one word of 64 bits (student_t:
two, variance_gamma: λ), and no word serves two draws. A device's logarithms, sines and tangents differ from the CPU's
in their last bits, and so may draws.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from dprecipe.noise.distributions import Distribution
from dprecipe.training.steps.chacha import BLOCK, Keystream

_BELOW = 2**63 - 1


def draw_from(distribution: Distribution, blocks: Keystream, count: int) -> Tensor:
    """Returns (count,) float64: independent draws of a distribution of scale 1, on the device of the keystream.

    Guarantees: each draw has words of its own; what is left of the last block is never used.

    Raises:
        ValueError: the family is the normal one, which has a module of its own, or the keystream is used up.
    """
    if distribution.family == "gaussian":
        raise ValueError("normal noise is not made here")
    if distribution.family == "student_t":
        return _student_t(cast(float, distribution.shape), _words(blocks, count), _words(blocks, count))
    if distribution.family == "variance_gamma":
        total = _inverted("laplace", _words(blocks, count))
        for _ in range(1, int(cast(float, distribution.shape))):
            total += _inverted("laplace", _words(blocks, count))
        return total
    return _inverted(distribution.family, _words(blocks, count))


def _words(blocks: Keystream, count: int) -> Tensor:
    """Returns (count,) int64, of the next whole blocks."""
    return blocks.next(math.ceil(8 * count / BLOCK)).view(torch.int64)[:count]


def _fine(words: Tensor) -> Tensor:
    """Uniforms in (0, 1] of the lower 63 bits, (k + 1/2) 2^-63."""
    return words.bitwise_and(_BELOW).double().add_(0.5).mul_(2.0**-63)


def _inverted(family: str, words: Tensor) -> Tensor:
    """Returns draws by inversion: the highest bit is the sign, the others are P(|X| > x)."""
    beyond = _fine(words)
    if family == "laplace":
        magnitude = beyond.log_()
    elif family == "cauchy":
        magnitude = beyond.mul_(math.pi / 2).tan_().reciprocal_()
    else:  # sech
        magnitude = beyond.mul_(math.pi / 4).tan_().log_()
    magnitude.abs_()
    return torch.where(words < 0, magnitude, -magnitude)


def _student_t(df: float, words: Tensor, angles: Tensor) -> Tensor:
    """Returns one coordinate of the bivariate t, of a radius and an angle."""
    radius = _fine(words).log_().mul_(-2.0 / df).expm1_().mul_(df).sqrt_()
    # A shift to the right fills up with copies of the sign. 52 bits: odd multiples of 2^-53, which doubles hold.
    uniform = angles.bitwise_right_shift(12).bitwise_and_((1 << 52) - 1).double().add_(0.5).mul_(2.0**-52)
    return uniform.mul_(2.0 * math.pi).cos_().mul_(radius)
