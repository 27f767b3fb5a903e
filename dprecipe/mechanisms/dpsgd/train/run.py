"""What carries out a plan of DP-SGD."""

from dprecipe.mechanisms.dpsgd.train.program import build, tests
from dprecipe.training.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, tests)
