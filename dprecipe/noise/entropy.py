"""Secret randomness: keyed ChaCha20 streams for sampling and noise.

Each attempt has one 256-bit root from the operating system, kept in memory only. Each purpose and step has its own
stream, derived by HMAC-SHA256. The model's seed is never used for these streams.

Guarantees: no two draws share key and counter, and a resumed run, which has a new root, can't repeat noise.

| case | what happens |
|---|---|
| no draws are requested | an empty array; the counter does not move |
| a stream is used after it was shared, or shared after it was used | ValueError |
| the same purpose and index are requested twice | the same stream twice: callers request each index once (1) |
| `insecure_seed` | fixed streams, for tests; a release of such a run never verifies |

(1) But for an order of units that all passes keep, and noise that the next step takes back in part.

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

Purpose = Literal["sampling", "noise", "augmentation", "layers", "stages", "tuning", "canaries"]
"""The purposes of draws. `layers`: draws of the model's layers while gradients are computed. `stages`: paid steps of
preprocessing. `tuning`: the number of runs, and their values. `canaries`: the choice of the canaries in a run, made by
the first attempt alone."""


def forbid_core_dumps() -> None:
    """Keeps the memory of this process, and of those that it starts, out of core dumps, as far as the system does so:
    it holds the root of all noise, noise that later steps take back, and records."""
    if not hasattr(os, "fork"):  # Windows has no such limit, and writes no core files
        return
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


@final
class Secrets:
    """The root of one attempt's secret randomness."""

    def __init__(self, insecure_seed: int | None = None, attempt: int = 1) -> None:
        """Draws a root from the operating system; or, for tests only, derives one from a seed and the attempt."""
        if insecure_seed is None:
            root = os.urandom(32)
        else:
            root = hashlib.sha256(f"dprecipe insecure {insecure_seed} {attempt}".encode()).digest()
        self.__setstate__((root, insecure_seed))

    def __getstate__(self) -> tuple[bytes, int | None]:
        """Returns the root: the leader of several processes sends its secrets to the others."""
        return self._root, self.insecure_seed

    def __setstate__(self, state: tuple[bytes, int | None]) -> None:
        self._root, self.insecure_seed = state
        forbid_core_dumps()
        self._keyed = hmac.new(self._root, digestmod="sha256")  # copied for each stream, in a third of the time

    def stream(self, purpose: Purpose, index: int) -> Stream:
        """Returns the stream of one purpose at one step. Asking twice gives the same stream: ask once."""
        derived = self._keyed.copy()
        derived.update(f"{purpose}/{index}".encode())
        return Stream(derived.digest())


@final
class Stream:
    """Uniform draws from one ChaCha20 key of 256 bits, with nonce 0 and a counter from 0."""

    def __init__(self, key: bytes, block: int = 0) -> None:
        """Starts a stream. `block`: the first counter value; a block has 64 bytes."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self.key = key
        """The key, for a device that computes the keystream itself. Use either the key or the stream: both give the
        same draws."""
        self._cipher = Cipher(algorithms.ChaCha20(key, block.to_bytes(8, "little") + bytes(8)), mode=None).encryptor()
        self._started = self._shared = False

    def share(self, blocks: Sequence[int]) -> list[Stream]:
        """Returns streams that start at these blocks of this one, for parallel draws; this one can't be used
        afterwards.

        Raises:
            ValueError: something was drawn from it, or it was shared before.
        """
        if self._started or self._shared:
            raise ValueError("a stream can be shared only before anything is drawn from it")
        self._shared = True
        return [Stream(self.key, block) for block in blocks]

    def fill(self, out_B: NDArray[np.uint8]) -> None:
        """Writes the next bytes of the keystream.

        Raises:
            ValueError: the stream was shared.
        """
        if self._shared:
            raise ValueError("this stream was shared: its draws belong to other streams")
        self._started = True
        for start in range(0, len(out_B), len(_ZEROS)):
            part = out_B[start : start + len(_ZEROS)]
            self._cipher.update_into(_ZEROS[: len(part)], part.data)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Returns `count` uniform 64-bit words."""
        words = np.empty(count, dtype="<u8")
        self.fill(words.view(np.uint8))
        return words.astype(np.uint64, copy=False)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Returns `count` uniforms in (0, 1): odd multiples of 2^-53, which are exact doubles; 0 and 1 are never
        drawn."""
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def seed(self) -> int:
        """Returns a 63-bit seed for a generator of torch."""
        return int(self.words(1)[0] >> np.uint64(1))

    def integers(self, bound: int, count: int) -> NDArray[np.int64]:
        """Returns `count` uniform integers in [0, bound), for 0 < bound < 2^32; each probability is within 2^-64 of
        uniform."""
        if not 0 < bound < 2**32:
            raise ValueError(f"expected 0 < bound < 2^32, got {bound}")
        words, half = self.words(count), np.uint64(32)
        low = ((words & np.uint64(2**32 - 1)) * np.uint64(bound)) >> half
        return (((words >> half) * np.uint64(bound) + low) >> half).astype(np.int64)
