"""Secret randomness: keyed ChaCha20 streams for sampling and noise.

One 256-bit root an attempt, from the operating system, kept in memory only. Every purpose and every step has a
stream of its own, derived by HMAC-SHA256, so that no two draws share key and counter and a resumed run, which has
a new root, can't replay noise. The model's seed never comes near these streams.

Source: RFC 8439 (ChaCha20); RFC 2104 (HMAC).
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

_ZEROS = memoryview(bytes(1 << 17))

Purpose = Literal["sampling", "noise", "augmentation", "layers"]
"""`layers`: what they draw while gradients are computed."""


@final
class Secrets:
    """The root of one attempt's secret randomness."""

    def __init__(self, insecure_seed: int | None = None, attempt: int = 1) -> None:
        """Draw a root from the operating system; or, for tests only, derive one from a seed and the attempt."""
        self.insecure_seed = insecure_seed
        if insecure_seed is None:
            self._root = os.urandom(32)
        else:
            self._root = hashlib.sha256(f"dprecipe insecure {insecure_seed} {attempt}".encode()).digest()

    def stream(self, purpose: Purpose, index: int) -> Stream:
        """The stream of one purpose at one step. Asking twice gives the same stream: ask once."""
        return Stream(hmac.digest(self._root, f"{purpose}/{index}".encode(), "sha256"))


@final
class Stream:
    """Uniform draws from one ChaCha20 key, of 256 bits; its nonce is zero, and so is its first counter."""

    def __init__(self, key: bytes, block: int = 0) -> None:
        """`block`: the first counter, of blocks of 64 bytes."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self.key = key
        """For a processor that makes the keystream itself. One or the other: both would draw the same."""
        self._cipher = Cipher(algorithms.ChaCha20(key, block.to_bytes(8, "little") + bytes(8)), mode=None).encryptor()
        self._started = self._shared = False

    def shared(self, blocks: Sequence[int]) -> list[Stream]:
        """The same stream from each of these blocks on, for those who draw side by side; nobody else can then.

        Raises:
            ValueError: something was drawn from it, or it was shared before.
        """
        if self._started or self._shared:
            raise ValueError("a stream can be shared only before anything is drawn from it")
        self._shared = True
        return [Stream(self.key, block) for block in blocks]

    def fill(self, out_B: NDArray[np.uint8]) -> None:
        """Write the next bytes of the keystream.

        Raises:
            ValueError: the stream was shared.
        """
        if self._shared:
            raise ValueError("this stream was shared: what it would draw, others do")
        self._started = True
        for start in range(0, len(out_B), len(_ZEROS)):
            part = out_B[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part.data)

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        words = np.empty(count, dtype="<u8")
        self.fill(words.view(np.uint8))
        return words.astype(np.uint64, copy=False)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """`count` uniforms in (0, 1): odd multiples of 2^-53, which doubles hold exactly, so neither end is drawn."""
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def seed(self) -> int:
        """A seed for a generator of torch, 63 bits."""
        return int(self.words(1)[0] >> np.uint64(1))

    def integers(self, bound: int, count: int) -> NDArray[np.int64]:
        """`count` uniform integers in [0, bound), without modulo bias beyond 2^-32 (bound < 2^32)."""
        if not 0 < bound < 2**32:
            raise ValueError(f"expected 0 < bound < 2^32, got {bound}")
        high = self.words(count) >> np.uint64(32)
        return ((high * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)
