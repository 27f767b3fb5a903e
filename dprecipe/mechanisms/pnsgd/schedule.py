"""Cuts a run into stages of whole steps, each with one learning rate and one scale of noise.

The account charges these stages and the engine runs them, so what runs is what was accounted. A learning rate schedule
becomes piecewise constant (`dprecipe.noisy_sum.sampling`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dprecipe.language.training import LearningRateSchedule
from dprecipe.noisy_sum.sampling import piece_starts, split_steps

MAX_STAGES = 256
MAX_PHASES = MAX_STAGES // 2
"""Largest number of noise phases, which leaves the other stages for the learning rate."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps with one learning rate and one noise."""

    steps: int
    learning_rate: float
    noise_scale: float
    """σ: the scale of the noise on a step's mean gradient (of `gaussian`, its standard deviation)."""


def cut_stages(
    learning_rate: float | LearningRateSchedule, noise: Sequence[tuple[int, float]], steps: int, batches: int
) -> tuple[Stage, ...]:
    """Returns at most `MAX_STAGES` stages that together take `steps` steps; a pass takes `batches`.

    `noise` has at most `MAX_PHASES` phases: (steps, scale). The last phase lasts to the end, whatever its number of
    steps.
    """
    begins, scales, at = [], [], 0
    for length, scale in noise:
        begins.append(at)
        scales.append(scale)
        at += length
    cuts = {0, *begins}
    if isinstance(learning_rate, LearningRateSchedule):
        cuts |= piece_starts(_length(learning_rate, steps, batches), steps, MAX_STAGES - len(noise))
    results: list[Stage] = []
    for first, end in split_steps(cuts, steps):
        phase = max(index for index, start in enumerate(begins) if start <= first)
        rate = _rate(learning_rate, first, steps, batches)
        if results and (results[-1].learning_rate, results[-1].noise_scale) == (rate, scales[phase]):
            first -= results.pop().steps
        results.append(Stage(end - first, rate, scales[phase]))
    return tuple(results)


def convert_to_steps(epochs: float | None, steps: int | None, batches: int) -> int:
    """Returns the whole number of steps that covers a length given in passes or steps; exact decimals, so that 0.1
    passes of 60,000 batches are 6,000 steps."""
    return math.ceil(Fraction(str(epochs)) * batches) if steps is None else steps


def _length(schedule: LearningRateSchedule, steps: int, batches: int) -> int:
    """Returns the number of steps of the schedule itself; the value of its last one lasts from then on."""
    return steps if schedule.epochs is None else convert_to_steps(schedule.epochs, None, batches)


def _rate(learning_rate: float | LearningRateSchedule, step: int, steps: int, batches: int) -> float:
    """Returns the learning rate of a step, counted from 0."""
    if not isinstance(learning_rate, LearningRateSchedule):
        return float(learning_rate)
    return learning_rate.at(step, _length(learning_rate, steps, batches))
