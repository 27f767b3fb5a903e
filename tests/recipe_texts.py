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
