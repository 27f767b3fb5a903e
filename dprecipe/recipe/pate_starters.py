"""The starter recipes of PATE: what follows the name, for each source."""

from __future__ import annotations

_DATA = {
    "digits": """\
data:
  # 1,797 real handwritten digits that come with dprecipe; every fifth is in `test`. Here those are split once more.
  train: {source: digits, split: train}                        # private: dealt to the teachers
  public: {source: digits, split: test, records: [0, 250]}     # what the teachers are asked about; no label is read
  test: {source: digits, split: test, records: [250, 359], access: public}    # public: its accuracy may be published
  size: 1438                 # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
""",
    "idx": """\
data:
  # Images and labels in the format of MNIST, plain or gzipped; paths are relative to --data-root.
  train: {source: idx, images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}    # private
  # What the teachers are asked about, and the student learns from; no label is read.
  public: {source: idx, images: t10k-images-idx3-ubyte.gz, records: [0, 9000]}
  test:
    source: idx
    images: t10k-images-idx3-ubyte.gz
    labels: t10k-labels-idx1-ubyte.gz
    records: [9000, 10000]
    access: public           # its accuracy may be published
  size: 60000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - scale: {mean: 0.1307, std: 0.3081}     # constants that are public knowledge, never measured
""",
    "npz": """\
data:
  # Arrays in NumPy archives; paths are relative to --data-root.
  train: {source: npz, path: train.npz, shape: [20], classes: 2}    # private: dealt to the teachers
  public: {source: npz, path: public.npz, shape: [20]}    # what the teachers are asked about; no label is read
  test: {source: npz, path: test.npz, shape: [20], classes: 2, access: public}
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - clip_features: {norm: 1.0}    # shrink each record to at most this length
""",
}

_TABLE = """\
data:
  # Tables; paths are relative to --data-root. Ranges and categories are declared, never measured.
  train:                     # private: dealt to the teachers
    source: &SOURCE
    path: train.&SOURCE
    columns:
      age: {kind: numeric, min: 0, max: 120}
      colour: {kind: category, values: [red, green, blue]}
    label: {column: outcome, values: ["no", "yes"]}
  public:                    # what the teachers are asked about, and the student learns from; no label is read
    source: &SOURCE
    path: public.&SOURCE
    columns:
      age: {kind: numeric, min: 0, max: 120}
      colour: {kind: category, values: [red, green, blue]}
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # or {column: user_id, max_records: 8}: all records of a user
  preprocess:
    - one_hot: {}            # every category column to indicators
"""

_FOREST = """\
    model: {kind: random_forest, trees: 50}    # each learns from its own part alone
"""

_NETWORK = """\
    model: {kind: cnn, preset: lenet}          # each learns from its own part alone
    training: {epochs: 30, batch_size: 24, optimizer: {kind: adam, lr: 0.001}}
"""

_STUDENT = """
training:                    # the student's: it learns from public records and answers alone, and spends nothing
  epochs: 50                 # passes over the public records
  batch_size: 64
  optimizer: {kind: adam, lr: 0.001}
  semi_supervised: {kind: vat}    # learns from public records without an answer, too
"""

_CHOICES = {
    # student, teachers, their number, threshold, noise of checks, queries, the student's training
    "digits": ("{kind: logistic_regression}", _FOREST, 100, 50, 40, 100, ""),
    "idx": ("{kind: cnn, preset: lenet}", _NETWORK, 250, 200, 150, 500, _STUDENT),
    "csv": ("{kind: random_forest}", _FOREST, 250, 180, 100, 500, ""),
    "parquet": ("{kind: random_forest}", _FOREST, 250, 180, 100, 500, ""),
    "npz": ("{kind: mlp, hidden: [32], activation: tanh}", _FOREST, 250, 180, 100, 500, _STUDENT),
}


def rest(source: str) -> str:
    """A PATE recipe for a source, after its name."""
    data = _DATA.get(source) or _TABLE.replace("&SOURCE", source)
    student, model, count, threshold, checks, queries, training = _CHOICES[source]
    return f"""\
{data}
model: {student}    # the student's: what is released

mechanism:
  kind: pate                 # teachers vote on public records; a student learns from their noisy votes
  teachers:
    count: {count:<18}# each record is dealt to one of them by chance
{model}\
  aggregator:
    kind: confident_gnmax    # answers where the teachers agree; gnmax and lnmax answer every query
    noise: {{family: gaussian, multiplier: auto}}    # in votes; auto: solved, so that all queries just fit the budget
    selection:
      threshold: {threshold:<12}# votes for one class that a query needs, after noise
      noise: {{family: gaussian, multiplier: {checks}}}
  queries: {{max: {queries}}}        # public records that the teachers are asked about

budget: {{epsilon: 3.0, delta: 1e-6}}    # the most that may be spent; delta far below 1 / data.size
{training}
runtime: {{device: auto, seed: 0}}       # nothing here can change what is spent
release: {{report: true, labels: false}}    # labels: publish the answers, too
"""
