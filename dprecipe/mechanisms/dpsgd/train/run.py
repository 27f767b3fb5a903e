"""The executor of a DP-SGD plan."""

from dprecipe.mechanisms.dpsgd.train.program import build, sum_tests
from dprecipe.training.steps.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, sum_tests)
