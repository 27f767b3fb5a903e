"""What executes a plan of DP-SGD."""

from dprecipe.mechanisms.dpsgd.train.program import build, sum_tests
from dprecipe.training.steps.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, sum_tests)
