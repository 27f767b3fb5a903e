"""Schedules as staircases."""

from __future__ import annotations

from itertools import pairwise

from dprecipe.noisy_sum import sampling


def test_a_short_schedule_has_a_stair_for_each_step() -> None:
    assert sampling.piece_starts(5, 100, 62) == {0, 1, 2, 3, 4}
    assert sampling.piece_starts(1, 100, 62) == {0}


def test_a_long_one_has_at_most_one_more_than_asked_for() -> None:
    actual = sorted(sampling.piece_starts(1000, 1000, 10))
    assert len(actual) == 11
    assert (actual[0], actual[-1]) == (0, 999)
    assert max(b - a for a, b in pairwise(actual)) <= 100


def test_a_run_that_ends_first_has_its_stairs_within() -> None:
    assert len([at for at in sampling.piece_starts(1000, 100, 10) if at < 100]) == 10


def test_pieces_cover_the_run() -> None:
    assert list(sampling.split_steps({3, 7, 12, 20}, 12)) == [(0, 3), (3, 7), (7, 12)]
    assert list(sampling.split_steps((), 4)) == [(0, 4)]
