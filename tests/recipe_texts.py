"""Parts of recipes that tests of several folders put together."""

DIGITS = """\
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
"""
DPSGD = """\
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
"""
FULL_BATCH = """\
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: full_batch}
budget: {epsilon: 2.0, delta: 1e-5}
"""
SMALL = (
    """\
recipe: dprecipe/v1
name: small
data: {train: {source: digits, split: train}, size: 1437}
"""
    + FULL_BATCH
    + "training: {steps: 20, optimizer: {kind: sgd, lr: 0.5}}\n"
)
"""A whole recipe, to plan and to publish without a run."""
