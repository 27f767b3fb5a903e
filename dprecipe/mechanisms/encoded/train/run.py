"""The runner of gradient encoding's plans."""

from dprecipe.mechanisms.encoded.train.program import build, sum_tests
from dprecipe.training.steps.stepwise import StepwiseRunner

RUNNER = StepwiseRunner(build, sum_tests)
