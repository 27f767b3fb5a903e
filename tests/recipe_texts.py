"""Parts of recipes that tests of several folders put together."""

DIGITS = """\
data:
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}
  size: 1438
"""
SPLIT_DIGITS = """\
data:
  train: {source: digits, split: train, records: [0, 1000]}
  public: {source: digits, split: train, records: [1000, 1438]}
  test: {source: digits, split: test, access: public}
  size: 1000
"""
"""For an ensemble: some of the training records are public."""
STANDARDIZED = (
    "  preprocess: [{flatten: {}}, {dp_standardize: {bounds: [0, 1], share: %s}}, {clip_features: {norm: 4.0}}]\n"
)
"""The preprocessing of `DIGITS` with a paid step of this share of the budget."""
DPSGD = """\
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
"""
STEPS = "training: {steps: 3, optimizer: {kind: sgd, lr: 0.5}}\n"
PNSGD = """\
model: {kind: softmax_regression, l2: 0.01}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 2.0}
  learning_rate: 0.1
  noise: {family: gaussian, multiplier: auto}
  batch_size: 719
budget: {epsilon: 2.0, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 4}
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
