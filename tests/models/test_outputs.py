"""What is read into [-1, 1] comes back in its own units, whatever the range."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from dprecipe.data.raw import map_labels  # noqa: E402
from dprecipe.data.targets import ClassTarget, CountTarget, NumberTarget, SeveralTarget  # noqa: E402
from dprecipe.models.outputs import in_units, interpret_outputs, label_units, predict_rates  # noqa: E402


def test_reading_and_predicting_are_inverse_within_single_precision_of_the_range() -> None:
    generator = np.random.default_rng(0)
    for _ in range(2000):
        lowest = generator.normal() * 10.0 ** generator.integers(-300, 300)
        highest = lowest + abs(generator.normal()) * 10.0 ** generator.integers(-300, 300)
        if not lowest / 2 < highest / 2:  # a finding: R203
            continue
        half = highest / 2 - lowest / 2
        numbers = lowest / 2 + highest / 2 + half * generator.uniform(-2, 2, 5)
        result = map_labels(numbers, (lowest, highest))
        assert result.dtype == np.float32
        assert np.abs(result).max() <= 1
        back = in_units(torch.from_numpy(result), (lowest, highest)).numpy()
        error = np.abs(back - np.clip(numbers, lowest, highest))
        assert (error <= 6e-8 * half + 4e-16 * max(abs(lowest), abs(highest))).all()


def test_outputs_are_interpreted_in_the_units_of_the_label() -> None:
    outputs = torch.tensor([[-1.0], [0.0], [1.0], [2.0]])
    assert interpret_outputs(outputs, NumberTarget(-3.0, 5.0)).tolist() == [[-3.0], [1.0], [5.0], [9.0]]
    assert interpret_outputs(outputs, ClassTarget(1)) is outputs
    assert label_units(outputs[:, 0], NumberTarget(-3.0, 5.0)).tolist() == [-3.0, 1.0, 5.0, 9.0]
    assert interpret_outputs(outputs, SeveralTarget(("a", "b"))) is outputs
    assert label_units(torch.tensor([3.0]), CountTarget(9)).tolist() == [3.0]


def test_rates_are_exponentials_up_to_the_declared_largest_count() -> None:
    outputs = torch.tensor([[0.0], [1.0], [5.0], [1e30], [-1e30]])
    result = predict_rates(outputs, 20)
    assert result.dtype == torch.float64
    assert result[:2, 0].tolist() == pytest.approx([1, np.e], rel=1e-12)
    assert result[2:, 0].tolist() == [20, 20, 0]
    assert predict_rates(outputs, 1).max() == 1
