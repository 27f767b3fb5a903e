"""The runner of DP-SGD's plans: clip, sum, add noise, step, in the phases of the plan."""

from __future__ import annotations

from dprecipe.training.steps.clipped_sums import build, sum_tests
from dprecipe.training.steps.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, sum_tests)
