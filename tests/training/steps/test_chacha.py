"""The keystream of tensors is that of RFC 8439, and of another implementation, bit for bit."""

from __future__ import annotations

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dprecipe.training.steps.chacha import BLOCK, Keystream

CPU = torch.device("cpu")


def keystream(key: bytes, *counts: int) -> bytes:
    stream = Keystream(key, CPU)
    return b"".join(stream.next(count).numpy().astype("<i4").tobytes() for count in counts)


def test_the_vectors_of_the_standard() -> None:
    """RFC 8439, appendix A.1: test vectors 1, 2 (the second block of a key of zeros) and 3."""
    first, second = (bytes.fromhex(text) for text in (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ))  # fmt: skip
    assert keystream(bytes(32), 2) == first + second
    third = "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    assert keystream(bytes(31) + b"\x01", 2)[BLOCK:].hex().startswith(third)


@pytest.mark.parametrize("key", [bytes(range(32)), b"\xff" * 32, b"a key of the tests, of 256 bits.", b"\x80" * 32])
def test_bit_for_bit_the_keystream_of_another_implementation(key: bytes) -> None:
    expected = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(BLOCK * 1105))
    assert keystream(key, 1105) == expected
    assert keystream(key, 1, 0, 3, 100, 1001) == expected  # however it is cut


def test_the_second_half_of_the_counter() -> None:
    """From 2^31 on a signed word holds it; at its end there is no next block."""
    key, last = b"n" * 32, 2**32 - 2
    for start, count in ((2**31 - 1, 3), (last, 2)):
        stream = Keystream(key, CPU)
        stream._blocks = start
        nonce = start.to_bytes(4, "little") + bytes(12)
        expected = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(BLOCK * count))
        assert stream.next(count).numpy().tobytes() == expected
    with pytest.raises(ValueError, match="2\\^32 blocks"):
        stream.next(1)
