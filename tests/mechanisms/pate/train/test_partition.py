"""Every unit goes to one teacher, by its own identity alone."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dprecipe.faults import RunFailed
from dprecipe.mechanisms.pate.train.partition import deal_parts, load_key

KEY = bytes(range(32))


def test_a_part_is_the_keyed_hash_of_the_identity() -> None:
    names = ["0", "1", "patient-7", "ü"]
    expected = [int.from_bytes(hmac.digest(KEY, name.encode(), hashlib.sha256)[:8], "big") % 250 for name in names]
    assert deal_parts(names, KEY, 250).tolist() == expected


@pytest.mark.parametrize("count", [2, 10, 250])
def test_parts_are_uniform(count: int) -> None:
    # A fixed key: the statistic is one number. Over keys, a uniform partition fails with probability 1e-6.
    sizes = np.bincount(deal_parts(map(str, range(100_000)), KEY, count), minlength=count)
    assert stats.chisquare(sizes).pvalue > 1e-6


def test_parts_of_neighbouring_identities_are_independent() -> None:
    dealt = deal_parts(map(str, range(100_001)), KEY, 10)
    pairs = np.bincount(10 * dealt[:-1] + dealt[1:], minlength=100)
    assert stats.chisquare(pairs).pvalue > 1e-6  # fails with probability 1e-6 over keys


def test_another_key_is_another_partition() -> None:
    one, other = (deal_parts(map(str, range(10_000)), key, 10) for key in (KEY, bytes(32)))
    # Equal parts are binomial with mean 1000 and standard deviation 30: 6 of them, once in 500 million times.
    assert abs((one == other).sum() - 1000) < 180


def test_a_unit_that_is_removed_added_or_renamed_moves_no_other() -> None:
    names = [f"user-{i}" for i in range(500)]
    before = dict(zip(names, deal_parts(names, KEY, 20), strict=True))
    for changed in (names[:100] + names[101:], ["new", *names], names[::-1], [*names[:7], "renamed", *names[8:]]):
        after = dict(zip(changed, deal_parts(changed, KEY, 20), strict=True))
        assert all(before[name] == part for name, part in after.items() if name in before)


def test_the_key_is_drawn_once_and_kept(tmp_path: Path) -> None:
    one, two = tmp_path / "one.key", tmp_path / "two.key"
    assert load_key(one) == load_key(one) == one.read_bytes()
    assert len(one.read_bytes()) == 32
    assert load_key(one) != load_key(two)
    assert oct(one.stat().st_mode)[-3:] == "600"
    assert {entry.name for entry in tmp_path.iterdir()} == {"one.key", "two.key"}


def test_a_fixed_seed_fixes_the_key(tmp_path: Path) -> None:
    assert load_key(tmp_path / "a", 3) == load_key(tmp_path / "b", 3) != load_key(tmp_path / "c", 4)


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(RunFailed, match="not a partition's key"):
        load_key(tmp_path / "key")
