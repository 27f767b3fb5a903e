"""A second computation of a pass's energy, for the cross-check accountant: sums by doubling, no logarithm."""

from __future__ import annotations


def compute_pass_energy(previous: float, batches: int, number: int) -> float:
    """Returns Q_e of `PreviousStep.pass_energy`, not rounded up."""
    return _sum_powers(previous, 2, batches) * _sum_powers(previous, batches, number + 1) ** 2


def _sum_powers(base: float, stride: int, count: int) -> float:
    """Returns Σ base^(stride i), i = 0 … `count` - 1, for 0 <= base <= 1: the sum of 2 k terms is that of k times
    1 + base^(stride k)."""
    total, done = 1.0, 1
    for bit in bin(count)[3:]:
        total, done = total * (1 + base ** (stride * done)), 2 * done
        if bit == "1":
            total, done = total + base ** (stride * done), done + 1
    return total
