"""Starter recipes: commented, and valid as they are."""

from __future__ import annotations

from dprecipe.mechanisms.pate import starter as pate_starters
from dprecipe.mechanisms.pnsgd import starter as pnsgd_starters

HEAD = """\
# yaml-language-server: $schema=schemas/recipe.schema.json
# (`dprecipe schema` writes that folder; editors then check and complete this file)
#
#   dprecipe validate {name}.yaml    check it; reads no data
#   dprecipe plan {name}.yaml        what it will spend
#   dprecipe run {name}.yaml         train, and write the model with its certificate

recipe: dprecipe/v1          # the version of the language
name: {name}

"""

DATA = {
    "digits": """\
data:
  # 1,797 real handwritten digits that come with dprecipe; every fifth is held out as `test`.
  train: {source: digits, split: train}
  test: {source: digits, split: test, access: public}    # public: its accuracy may be published
  size: 1438                 # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
""",
    "idx": """\
data:
  # Images and labels in the format of MNIST, plain or gzipped; paths are relative to --data-root.
  train: {source: idx, images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}
  test: {source: idx, images: t10k-images-idx3-ubyte.gz, labels: t10k-labels-idx1-ubyte.gz, access: public}
  size: 60000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - scale: {mean: 0.1307, std: 0.3081}     # constants that are public knowledge, never measured
""",
    "csv": """\
data:
  # A table with a header line; paths are relative to --data-root.
  # Ranges and categories are declared, never measured.
  train: &TRAIN
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # or {column: user_id, max_records: 8}: all records of a user
  preprocess:
    - one_hot: {}            # every category column to indicators
""",
    "parquet": """\
data:
  # A Parquet table; paths are relative to --data-root.
  # Ranges and categories are declared, never measured.
  train: &TRAIN
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # or {column: user_id, max_records: 8}: all records of a user
  preprocess:
    - one_hot: {}            # every category column to indicators
""",
    "npz": """\
data:
  # Arrays in a NumPy archive; the path is relative to --data-root.
  train: {source: npz, path: train.npz, shape: [20], classes: 2}
  test: {source: npz, path: test.npz, shape: [20], classes: 2, access: public}
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - clip_features: {norm: 1.0}    # shrink each record to at most this length
""",
}

MODEL = {
    "dpsgd": {
        "digits": "{kind: logistic_regression}",
        "idx": "{kind: cnn, preset: tempered-mnist}",
        "csv": "{kind: logistic_regression}",
        "parquet": "{kind: logistic_regression}",
        "npz": "{kind: mlp, hidden: [32], activation: tanh}",
    },
    # More than a thousand parameters: below, the step multiplier sees little but noise.
    "encoded": {
        "digits": "{kind: mlp, hidden: [32], activation: tanh}",
        "idx": "{kind: cnn, preset: tempered-mnist}",
        "csv": "{kind: mlp, hidden: [32, 32], activation: tanh}",
        "parquet": "{kind: mlp, hidden: [32, 32], activation: tanh}",
        "npz": "{kind: mlp, hidden: [32, 32], activation: tanh}",
    },
}

TABLE = """\

    source: {source}
    path: train.{source}
    columns:
      age: {{kind: numeric, min: 0, max: 120}}
      colour: {{kind: category, values: [red, green, blue]}}
    label: {{column: outcome, values: ["no", "yes"]}}"""

MECHANISM = {
    "dpsgd": """\

mechanism:
  kind: dpsgd                # clip each record's gradient, add noise to the sum, step
  clip: {norm: 1.0}          # the most one record can move the sum
  noise: {family: gaussian, multiplier: auto}    # auto: solved, so that the run just fits the budget
  sampling: {scheme: poisson, batch_size: 256}   # records of one step, on average

budget: {epsilon: 3.0, delta: 1e-6}    # the most that may be spent; delta far below 1 / data.size

training:
  epochs: 20                 # passes over the data; or `steps`
  optimizer: {kind: sgd, lr: 1.0, momentum: 0.9}

runtime: {device: auto, seed: 0}       # nothing here can change what is spent
release: {report: true}
""",
    "encoded": """\

mechanism:
  kind: encoded              # clip each record's gradient rank by rank, add noise to the sum, denoise, step
  # The shape a gradient is expected to have: sorted normal magnitudes, drawn from a public seed, so no secret.
  codebook: {source: gaussian, size: 1000, norm: 1.0, seed: 0}   # norm: the most one record can move the sum
  # Or laplace, student_t with a df, variance_gamma with a shape, sech. With more than a hundred parameters none is
  # noticeably better than gaussian: `dprecipe noise` compares them for this recipe.
  noise: {family: gaussian, multiplier: auto}    # auto: solved, so that the run just fits the budget
  denoise: kolmogorov_smirnov                    # steps are scaled by how far the noisy sum stands out; or `none`
  sampling: {scheme: poisson, batch_size: 256}   # records of one step, on average

budget: {epsilon: 3.0, delta: 1e-6}    # the most that may be spent; delta far below 1 / data.size

training:
  epochs: 20                 # passes over the data; or `steps`
  optimizer: {kind: sgd, lr: 10.0, momentum: 0.9}    # denoising makes steps small, so lr is large

runtime: {device: auto, seed: 0}       # nothing here can change what is spent
release: {report: true}
""",
}

SOURCES = tuple(DATA)
MECHANISMS = (*MECHANISM, "pate", "pnsgd")


def starter(mechanism: str, source: str, name: str) -> str:
    """A recipe for a mechanism of `MECHANISMS` and a source of `SOURCES`."""
    head = HEAD.format(name=name)
    if mechanism == "pate":
        return head + pate_starters.rest(source)
    data = DATA[source].replace(" &TRAIN", TABLE.format(source=source))
    if mechanism == "pnsgd":
        return head + pnsgd_starters.rest(source, data)
    return f"{head}{data}\nmodel: {MODEL[mechanism][source]}\n{MECHANISM[mechanism]}"
