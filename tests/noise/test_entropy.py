"""Secret streams: from the operating system, never the same twice, uniform."""

from __future__ import annotations

import hashlib
import math
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dprecipe.noise.entropy import Secrets, Stream


def test_a_stream_is_the_chacha20_keystream_of_its_key() -> None:
    key = bytes(range(32))
    expected = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(64))
    assert Stream(key).words(8).astype("<u8").tobytes() == expected


def test_keys_of_streams_are_those_of_hmac_sha256() -> None:
    """In any order and for the same index again."""
    root, secrets = hashlib.sha256(b"dprecipe insecure 7 2").digest(), Secrets(7, attempt=2)
    for purpose, index in (("noise", 1), ("sampling", 1), ("noise", (5 << 32) + 3), ("noise", 1)):
        inner = hashlib.sha256(bytes(b ^ 0x36 for b in root.ljust(64, b"\0")) + f"{purpose}/{index}".encode())
        outer = hashlib.sha256(bytes(b ^ 0x5C for b in root.ljust(64, b"\0")) + inner.digest())
        assert secrets.stream(purpose, index).key == outer.digest()  # type: ignore[arg-type]


def test_a_stream_goes_on_where_it_was_left() -> None:
    """In any mixture of ways to read it, and over more than is encrypted at once."""
    expected = Cipher(algorithms.ChaCha20(b"g" * 32, bytes(16)), mode=None).encryptor().update(bytes(400_000))
    stream, rest = Stream(b"g" * 32), np.empty(400_000 - 24 - 1, dtype=np.uint8)
    words = stream.words(3).tobytes()
    one = np.empty(1, dtype=np.uint8)
    for part in (one, rest[:0], rest):
        stream.fill(part)
    assert words + one.tobytes() + rest.tobytes() == expected


def test_a_stream_is_shared_block_by_block_and_by_nobody_else() -> None:
    key = bytes(range(32))
    expected = Stream(key).words(8 * 1000).tobytes()
    stream = Stream(key)
    blocks = (0, 1, 300, 999)
    for block, part in zip(blocks, stream.share(blocks), strict=True):
        assert part.words(8).tobytes() == expected[64 * block : 64 * (block + 1)]
    with pytest.raises(ValueError, match="was shared"):
        stream.words(1)
    with pytest.raises(ValueError, match="only before anything"):
        stream.share((0,))
    begun = Stream(key)
    begun.words(1)
    with pytest.raises(ValueError, match="only before anything"):
        begun.share((0,))


def test_t12_two_attempts_never_share_noise() -> None:
    one, two = Secrets(), Secrets()
    draws = [s.stream("noise", 1).words(4).tobytes() for s in (one, two)]
    assert len(set(draws)) == 2


@pytest.mark.parametrize("seed", [None, 5])
def test_secrets_that_are_sent_to_another_process_are_the_same(seed: int | None) -> None:
    secrets = Secrets(seed, attempt=3)
    received = pickle.loads(pickle.dumps(secrets))
    assert received.insecure_seed == seed
    assert np.array_equal(received.stream("noise", 7).words(9), secrets.stream("noise", 7).words(9))


def test_t12_purposes_and_steps_have_streams_of_their_own() -> None:
    secrets = Secrets()
    draws = {secrets.stream(p, i).words(4).tobytes() for p in ("noise", "sampling") for i in range(500)}  # type: ignore[arg-type]
    assert len(draws) == 1000


def test_t12_an_insecure_seed_differs_between_attempts() -> None:
    first, again, resumed = (Secrets(7, attempt).stream("noise", 1).words(4).tobytes() for attempt in (1, 1, 2))
    assert first == again != resumed


def test_no_numpy_or_torch_seed_reaches_the_noise() -> None:
    np.random.seed(0)
    one = Secrets().stream("noise", 1).words(4).tobytes()
    np.random.seed(0)
    assert Secrets().stream("noise", 1).words(4).tobytes() != one


def test_uniforms_are_uniform() -> None:
    """Kolmogorov–Smirnov at 2e-6: fails one run in 500,000 by chance."""
    u = np.sort(Stream(b"k" * 32).uniform(100_000))
    n = len(u)
    assert u[0] > 0
    assert u[-1] < 1
    distance = max(np.max(np.arange(1, n + 1) / n - u), np.max(u - np.arange(n) / n))
    assert distance < math.sqrt(math.log(2 / 2e-6) / 2 / n)


def test_integers_are_even() -> None:
    """Chi-squared with 9 degrees of freedom beyond 53.3: 2.5e-8 by chance."""
    counts = np.bincount(Stream(b"i" * 32).integers(10, 100_000), minlength=10)
    assert len(counts) == 10
    assert ((counts - 10_000) ** 2 / 10_000).sum() < 53.3
    with pytest.raises(ValueError, match="bound"):
        Stream(b"i" * 32).integers(0, 1)


@pytest.mark.parametrize("bound", [1, 3, 48_829, 2**32 - 1])
def test_integers_use_all_bits_of_a_word(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    words = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1, -(-(2**64) // 3), -(-(2**64) * 7 // 48_829)]
    monkeypatch.setattr(Stream, "words", lambda self, count: np.array(words, dtype=np.uint64))
    assert Stream(bytes(32)).integers(bound, len(words)).tolist() == [word * bound >> 64 for word in words]


@pytest.mark.parametrize(("word", "low", "high"), [(0, 0.0, 1e-15), (2**64 - 1, 1 - 1e-15, 1.0)])
def test_neither_end_of_the_interval_is_ever_drawn(
    monkeypatch: pytest.MonkeyPatch, word: int, low: float, high: float
) -> None:
    monkeypatch.setattr(Stream, "words", lambda self, count: np.full(count, word, dtype=np.uint64))
    assert low < Stream(bytes(32)).uniform(1)[0] < high


def test_a_process_with_secrets_leaves_no_core_dump(tmp_path: Path) -> None:
    """Also one that was told to leave some; so does a process that it starts."""
    resource = pytest.importorskip("resource")
    program = (
        "import os, resource, subprocess, sys; from dprecipe.noise.entropy import Secrets; "
        "most = resource.getrlimit(resource.RLIMIT_CORE)[1]; resource.setrlimit(resource.RLIMIT_CORE, (most, most)); "
        "Secrets() if sys.argv[1] == 'secret' else None; "
        "print(resource.getrlimit(resource.RLIMIT_CORE)[0]); sys.stdout.flush(); os.abort()"
    )
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("the system forbids core dumps already")
    limits = {}
    for kind in ("secret", "plain"):
        folder = tmp_path / kind
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", program, kind], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGABRT, done.stderr
        limits[kind] = int(done.stdout)
        if kind == "secret":
            assert list(folder.iterdir()) == []
    assert limits["secret"] == 0 != limits["plain"]
