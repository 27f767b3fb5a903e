"""ChaCha20 in whole tensors: a keystream that is made on the device where it is used.

Guarantees: bit for bit the keystream of RFC 8439, section 2.4, with a nonce of zeros and a counter that starts at zero,
on every device with 32-bit integers that wrap around.
"""

from __future__ import annotations

import struct
from typing import final

import torch
from torch import Tensor

BLOCK = 64
"""Bytes of a block."""
_CONSTANTS = b"expand 32-byte k"
_DOUBLE_ROUNDS = 10


@final
class Keystream:
    """The keystream of one key, of 32 bytes, on a device."""

    def __init__(self, key: bytes, device: torch.device, block: int = 0) -> None:
        """`block`: the first counter, of blocks of 64 bytes."""
        words = struct.unpack("<12i", _CONSTANTS + key)
        self._start_C1 = torch.tensor([*words, 0, 0, 0, 0], dtype=torch.int32, device=device)[:, None]
        self._blocks = block

    def next(self, count: int) -> Tensor:
        """The next `count` whole blocks: (16 count,) int32, to be read as little-endian words.

        Raises:
            ValueError: the 32-bit counter would start anew.
        """
        if not self._blocks + count <= 2**32:
            raise ValueError("a ChaCha20 stream has 2^32 blocks")
        start_CN = self._start_C1.repeat(1, count)
        numbers_N = torch.arange(self._blocks, self._blocks + count, dtype=torch.int64, device=start_CN.device)
        start_CN[12] = ((numbers_N ^ 2**31) - 2**31).to(torch.int32)  # from 2^31 on, the negative of the same bits
        self._blocks += count
        # The four rows of the state: a quarter round works on a column of them, and all columns at once.
        a_KN, b_KN, c_KN, d_KN = (row.clone() for row in torch.split(start_CN, 4))
        for _ in range(_DOUBLE_ROUNDS):
            _quarter_rounds(a_KN, b_KN, c_KN, d_KN)
            b_KN, c_KN, d_KN = b_KN.roll(-1, 0), c_KN.roll(-2, 0), d_KN.roll(-3, 0)
            _quarter_rounds(a_KN, b_KN, c_KN, d_KN)
            b_KN, c_KN, d_KN = b_KN.roll(1, 0), c_KN.roll(2, 0), d_KN.roll(3, 0)
        return torch.cat((a_KN, b_KN, c_KN, d_KN)).add_(start_CN).t().reshape(-1)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """RFC 8439, section 2.1, in place, on each place of four tensors."""
    for turns_d, turns_b in ((16, 12), (8, 7)):
        _turn(d.bitwise_xor_(a.add_(b)), turns_d)
        _turn(b.bitwise_xor_(c.add_(d)), turns_b)


def _turn(words: Tensor, by: int) -> None:
    """Rotate the bits of each word to the left."""
    # A shift to the right fills up with copies of the sign.
    low = words.bitwise_right_shift(32 - by).bitwise_and_((1 << by) - 1)
    words.bitwise_left_shift_(by).bitwise_or_(low)
