from __future__ import annotations

import hashlib

import numpy as np

from dprecipe.data.columns import Category, Numeric, TextColumn
from dprecipe.data.counts import SourceCounts
from dprecipe.data.problems import Problems
from dprecipe.data.schema import Hash, Step, Tokenize
from dprecipe.data.table import TableEncoder
from dprecipe.data.values import hash_bucket


def encoder_of(columns, steps) -> TableEncoder:
    return TableEncoder(columns, steps, Problems(private=True), SourceCounts())


def test_the_hash_is_the_same_everywhere_and_needs_no_vocabulary() -> None:
    # By the definition in docs/reference/data.md: the first 8 bytes of BLAKE2b-64 of the UTF-8 text, big-endian, mod
    # buckets.
    for token in ("", "spam", "Österreich", "日本"):
        digest = hashlib.blake2b(token.encode(), digest_size=8).hexdigest()
        assert hash_bucket(token, 1000) == int(digest, 16) % 1000
    # A known answer, so that released models keep their meaning over versions.
    assert hash_bucket("spam", 2**20) == 849325


def test_value_hashes_the_whole_text_and_words_each_lower_cased_word() -> None:
    columns = {"t": TextColumn(kind="text")}
    rows = {"t": ["Win a WIN", None, "win"]}
    whole = encoder_of(columns, [Step(hash=Hash(columns=("t",), buckets=512))]).encode(rows, 3, str)
    words = encoder_of(columns, [Step(hash=Hash(columns=("t",), buckets=512, tokens="words"))]).encode(rows, 3, str)
    assert whole.sum(1).tolist() == [1, 1, 1]  # an empty text is a value like another
    assert whole[1, hash_bucket("", 512)] == 1
    assert words.sum(1).tolist() == [3, 0, 1]
    assert words[0, hash_bucket("win", 512)] == 2


def test_each_row_is_encoded_on_its_own() -> None:
    columns = {
        "n": Numeric(kind="numeric", min=0, max=1),
        "c": Category(kind="category", values=("a", "b")),
        "t": TextColumn(kind="text"),
    }
    encoder = encoder_of(columns, [Step(hash=Hash(columns=("t",), buckets=16))])
    one = encoder.encode({"n": [0.1, 0.2], "c": ["a", "b"], "t": ["x", "y"]}, 2, str)
    other = encoder.encode({"n": [0.1, 9e9], "c": ["a", "new"], "t": ["x", "brand new"]}, 2, str)
    np.testing.assert_array_equal(one[0], other[0])
    assert one.shape == other.shape == (2, 1 + 3 + 16)


def test_tokens_are_the_buckets_of_the_first_words_in_order_and_0_is_padding() -> None:
    step = Step(tokenize=Tokenize(column="t", buckets=512, length=4))
    encoder = encoder_of({"t": TextColumn(kind="text")}, [step])
    result = encoder.encode({"t": ["Win a WIN", None, "one, two: three four five", b"a"]}, 4, str)
    win, a = 1 + hash_bucket("win", 512), 1 + hash_bucket("a", 512)
    first_four = [1 + hash_bucket(word, 512) for word in ("one", "two", "three", "four")]
    assert result.tolist() == [[win, a, win, 0], [0] * 4, first_four, [a, 0, 0, 0]]
    assert result.dtype == np.float32


def test_tokens_are_whole_numbers_below_the_vocabulary() -> None:
    step = Tokenize(column="t", buckets=2**20, length=300)
    text = " ".join(f"w{i}" for i in range(300))
    result = encoder_of({"t": TextColumn(kind="text")}, [Step(tokenize=step)]).encode({"t": [text]}, 1, str)
    # each of 2^20 tokens is a float32 of its own
    assert result[0].tolist() == [1 + hash_bucket(f"w{i}", 2**20) for i in range(300)]
    assert result.max() <= 2**20
