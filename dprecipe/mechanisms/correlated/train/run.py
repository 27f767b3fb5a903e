"""The runner of correlated noise: clip and sum in a fixed order. The gate takes the noise back that the event says."""

from __future__ import annotations

from dprecipe.training.steps.clipped_sums import build, sum_tests
from dprecipe.training.steps.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, sum_tests)
