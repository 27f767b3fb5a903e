"""The box of a codebook: it bounds every codeword, and its summary is untrusted."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dprecipe.mechanisms.encoded.box import GradientBox
from dprecipe.mechanisms.encoded.codebook import draw_gaussian_codebook


@pytest.mark.parametrize("sizes", [[5], [1000], [300, 7, 26]])
def test_the_box_bounds_every_codeword_rank_by_rank(sizes: list[int]) -> None:
    codebook = draw_gaussian_codebook(sizes, 200, 1e-5, 0)
    for group, (size, table) in zip(codebook.groups, codebook.box.groups, strict=True):
        levels = np.repeat(group.levels, group.counts, axis=1)
        envelope = np.repeat([bound for bound, _ in table], [count for _, count in table])
        assert len(envelope) == size
        assert (levels <= envelope).all()
        assert (envelope <= levels.max(axis=0) * (1 + 2e-6)).all()


def test_the_box_of_one_codeword_is_that_codeword() -> None:
    box = draw_gaussian_codebook([1000], 1, 1e-5, 0).box
    norm, shifts = box.shifts()
    assert norm == 1.0
    assert 1 <= sum(count * bound**2 for bound, count in shifts) < 1 + 2e-6


def test_relative_noise_scales_divide_the_box() -> None:
    """By hand, in fractions: bounds over their group's scale, then over the norm of them all."""
    table = ((3, ((0.25, 2), (0.5, 1))), (2, ((0.75, 2),)))
    norm, shifts = GradientBox("sha256:" + "0" * 64, 1, table).shifts([2.0, 0.5])
    exact = 2 * Fraction(1, 8) ** 2 + Fraction(1, 4) ** 2 + 2 * Fraction(3, 2) ** 2
    assert norm >= math.sqrt(exact)
    assert norm == pytest.approx(math.sqrt(exact), rel=2e-5)
    assert [count for _, count in shifts] == [2, 1, 2]
    for (bound, _), value in zip(shifts, (0.125, 0.25, 1.5), strict=True):
        assert value / norm <= bound <= value / norm * (1 + 2e-6)


def test_a_summary_is_read_again() -> None:
    box = draw_gaussian_codebook([300, 7], 20, 1e-5, 0).box
    assert GradientBox.from_json(json.loads(json.dumps(box.to_json()))) == box


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"digest": "x", "words": 1, "groups": []},
        {"digest": "x", "words": 1, "groups": [{"size": 2, "bounds": [[1.0, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[0.1, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[float("nan"), 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 2, "bounds": [[1.0, 1], [0.5, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [[2.0, 1]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": [["1", None]]}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1, "bounds": 7}]},
        {"digest": "x", "words": 1, "groups": [{"size": 1e999, "bounds": [[1.0, 1]]}]},
    ],
)
def test_a_summary_that_does_not_add_up_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="codebook"):
        GradientBox.from_json(content)
