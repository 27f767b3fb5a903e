"""ChaCha20 in whole tensors: a keystream that is made on the device where it is used.

Guarantees: bit for bit the keystream of RFC 8439, section 2.4, with a nonce of zeros and a counter that starts at zero,
on every device with 32-bit integers that wrap around. Making one waits for no device.

A kernel of a GPU takes longer to start than to run, and these operations are small. So they work on four of the
sixteen words of all blocks at a time, and a rotation is three of them. Where `compiled_keystream` has made a program of
a double round, it replaces 42 operations.

Legend: N blocks, C = 16 words of a block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from dprecipe.training.program.prefetch import carry_to_device

BLOCK = 64
"""Bytes of a block."""
WORDS = 16
"""Words of a block."""
PROGRAM_BLOCKS = 1 << 19
"""Blocks of one call of a program: 32 MiB, enough that kernels run for longer than they take to start."""
DoubleRound = Callable[[Tensor], Tensor]
"""(C, `PROGRAM_BLOCKS`) int32 -> the same after a round of columns and one of diagonals."""
PROGRAMS: dict[torch.device, DoubleRound] = {}
"""The program of a device, where it has one: `compiled_keystream` makes them, and only before anything is spent."""
COLUMNS = tuple(tuple(range(i, WORDS, 4)) for i in range(4))
DIAGONALS = tuple(tuple(4 * row + (i + row) % 4 for row in range(4)) for i in range(4))
"""The words of each quarter round."""
TURNS = ((16, 12), (8, 7))
_CONSTANTS = b"expand 32-byte k"
_COUNTER = 12
"""The word that numbers a block."""
_DOUBLE_ROUNDS = 10
_TO_DIAGONALS = [diagonal[row] for row in range(4) for diagonal in DIAGONALS]
_TO_COLUMNS = [_TO_DIAGONALS.index(word) for word in range(WORDS)]


@final
class Keystream:
    """The keystream of one key, of 32 bytes, on a device."""

    def __init__(self, key: bytes, device: torch.device, block: int = 0) -> None:
        """`block`: the first counter, of blocks of 64 bytes."""
        words = struct.unpack("<12i", _CONSTANTS + key)
        numbers = torch.tensor([*words, 0, 0, 0, 0, *_TO_DIAGONALS, *_TO_COLUMNS], dtype=torch.int32)
        self._start_C, self._to_diagonals, self._to_columns = torch.split(carry_to_device(numbers, device), WORDS)
        self._program = PROGRAMS.get(self._start_C.device)
        self._blocks = block

    def next(self, count: int) -> Tensor:
        """Returns the next `count` whole blocks: (16 count,) int32, to be read as little-endian words.

        Raises:
            ValueError: the 32-bit counter would start again.
        """
        if not self._blocks + count <= 2**32:
            raise ValueError("a ChaCha20 stream has 2^32 blocks")
        words_NC = torch.empty(count, WORDS, dtype=torch.int32, device=self._start_C.device)
        for part_NC in torch.split(words_NC, PROGRAM_BLOCKS if self._program else max(1, count)):
            self._fill(part_NC)
        return words_NC.view(-1)

    def _fill(self, words_NC: Tensor) -> None:
        """Fills whole blocks. A program makes a fixed number of them; those that are not asked for are thrown away."""
        count = len(words_NC)
        size = count if self._program is None else PROGRAM_BLOCKS
        numbers_N = torch.arange(size, dtype=torch.int32, device=words_NC.device)
        numbers_N += (self._blocks ^ 2**31) - 2**31  # from 2^31 on, the negative of the same bits
        state_CN = self._start_C[:, None].repeat(1, size)
        state_CN[_COUNTER] = numbers_N
        for _ in range(_DOUBLE_ROUNDS):
            state_CN = (self._program or self._double_round)(state_CN)
        torch.add(state_CN.t()[:count], self._start_C, out=words_NC)
        words_NC[:, _COUNTER] += numbers_N[:count]
        self._blocks += count

    def _double_round(self, state_CN: Tensor) -> Tensor:
        """Overwrites the state."""
        _quarter_rounds(state_CN)
        state_CN = state_CN.index_select(0, self._to_diagonals)
        _quarter_rounds(state_CN)
        return state_CN.index_select(0, self._to_columns)


def _quarter_rounds(state_CN: Tensor) -> None:
    """Computes RFC 8439, section 2.1, in place, on the four columns of each block."""
    a, b, c, d = torch.split(state_CN, 4)
    for turns_d, turns_b in TURNS:
        _turn(d.bitwise_xor_(a.add_(b)), turns_d)
        _turn(b.bitwise_xor_(c.add_(d)), turns_b)


def _turn(words: Tensor, by: int) -> None:
    """Rotates the bits of each word to the left: what falls out at the top, plus 2^by times the word."""
    # A shift to the right fills up with copies of the sign.
    low = words.bitwise_right_shift(32 - by).bitwise_and_((1 << by) - 1)
    torch.add(low, words, alpha=1 << by, out=words)
