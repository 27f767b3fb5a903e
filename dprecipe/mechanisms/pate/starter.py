"""The starter recipes of PATE: all but the name, for each source."""

from __future__ import annotations

from pathlib import Path

from dprecipe.contract.starter import Task
from dprecipe.mechanisms.pate.schema import VotesFile
from dprecipe.text.dump import dump_inline

_DATA = {
    "digits": """\
data:
  # 1,797 real handwritten digits that come with dprecipe; every fifth is in `test`, the others are split here.
  # They are enough for 25 teachers, too few to hide a vote well: this ε is for a demonstration and protects little.
  train: {source: digits, split: train, records: [0, 1000]}       # private: divided among the teachers
  public: {source: digits, split: train, records: [1000, 1438]}   # the teachers vote on these; no label is read
  test: {source: digits, split: test, access: public}             # public: its accuracy may be published
  size: 1000                 # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
""",
    "idx": """\
data:
  # Images and labels in the format of MNIST, plain or gzipped; paths are relative to --data-root.
  train: {source: idx, images: train-images-idx3-ubyte.gz, labels: train-labels-idx1-ubyte.gz}    # private
  # The teachers vote on these, and the student learns from them; no label is read.
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
    - scale: {mean: 0.1307, std: 0.3081}     # public constants, never measured
""",
    "npz": """\
data:
  # Arrays in NumPy archives; paths are relative to --data-root.
  train: {source: npz, path: train.npz, shape: [20], classes: 2}    # private: divided among the teachers
  public: {source: npz, path: public.npz, shape: [20]}    # the teachers vote on these; no label is read
  test: {source: npz, path: test.npz, shape: [20], classes: 2, access: public}
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # who is protected: one record
  preprocess:
    - clip_features: {norm: 1.0}    # shorten each record's features to at most this norm
""",
}

_TABLE = """\
data:
  # Tables; paths are relative to --data-root. Ranges and categories are declared, never measured.
  train:                     # private: divided among the teachers
    source: &SOURCE
    path: train.&SOURCE
    columns:
      age: {kind: numeric, min: 0, max: 120}
      colour: {kind: category, values: [red, green, blue]}
    label: {column: outcome, values: ["no", "yes"]}
  public:                    # the teachers vote on these, and the student learns from them; no label is read
    source: &SOURCE
    path: public.&SOURCE     # columns are those of train
  size: 10000                # number of training records; declared, and treated as public
  unit: record               # or {column: user_id, max_records: 8}: all records of a user
  preprocess:
    - one_hot: {}            # turns every category column into indicators
"""

_FOREST = "{kind: random_forest, trees: 50}"
_NETWORK = """\
{kind: cnn, preset: lenet}
    training: {epochs: 30, batch_size: 24, optimizer: {kind: adam, lr: 0.001}}"""

_GNMAX = """\
    kind: gnmax              # answers every query; confident_gnmax only those on which the teachers agree
    noise: {family: gaussian, multiplier: auto}    # in votes; auto: solved so that all answers fit the budget
"""

_CONFIDENT = """\
    kind: confident_gnmax    # answers only if the teachers agree; gnmax and lnmax answer every query
    noise: {{family: gaussian, multiplier: auto}}    # in votes; auto: solved so that all queries fit the budget
    selection:
      threshold: {threshold}         # noisy votes for one class that a query needs
      noise: {{family: gaussian, multiplier: {noise}}}
"""

_STUDENT = """
training:                    # of the student, on public records and answers only: costs no privacy
  steps: {steps}
  batch_size: 32
  optimizer: {{kind: adam, lr: {lr}}}
  semi_supervised: {{kind: vat, radius: {radius}}}    # also uses public records without an answer
"""

_TABLE_CHOICES = ("{kind: random_forest}", 250, _FOREST, _CONFIDENT.format(threshold=180, noise=100), 500, 3.0, "")

_CHOICES = {
    # student, number of teachers, their model, aggregator, queries, ε, the student's training
    "digits": (
        "{kind: mlp, hidden: [64], activation: relu}",
        25,
        "{kind: logistic_regression}",
        _GNMAX,
        40,
        8.0,
        _STUDENT.format(steps=400, lr=0.005, radius=1.0),
    ),
    "idx": (
        "{kind: cnn, preset: lenet}",
        250,
        _NETWORK,
        _CONFIDENT.format(threshold=200, noise=150),
        500,
        3.0,
        _STUDENT.format(steps=5000, lr=0.001, radius=2.0),
    ),
    "csv": _TABLE_CHOICES,
    "parquet": _TABLE_CHOICES,
    "json_lines": _TABLE_CHOICES,
    "npz": (
        "{kind: mlp, hidden: [32], activation: tanh}",
        250,
        _FOREST,
        _CONFIDENT.format(threshold=180, noise=100),
        500,
        3.0,
        _STUDENT.format(steps=1000, lr=0.001, radius=0.5),
    ),
}


def starter_text(source: str, _: str, task: Task) -> str:
    """Returns a recipe without its name. It has a data block of its own, because PATE also needs public records."""
    data = _DATA.get(source) or _TABLE.replace("&SOURCE", source)
    student, count, model, aggregator, queries, epsilon, training = _CHOICES[source]
    # A range takes records by position, so the guarantee must compare data sets in which no position moves.
    relation = ", neighbouring: zero_out_one" if "split: train, records:" in data else ""
    return f"""\
{data}
model: {student}    # the student: the model that is released

mechanism:
  kind: pate                 # teachers vote on public records; a student learns from their noisy votes
  teachers:
    count: {count:<18}# each record goes to one of them at random; each learns only from its own records
    model: {model}
  aggregator:
{aggregator}\
  queries: {{max: {queries}}}{"":<{11 - len(str(queries))}}# public records that the teachers vote on

budget: {{epsilon: {task.choose_epsilon(epsilon)}, delta: {task.delta}{relation}}}    # delta far below 1 / data.size
{training}
runtime: {{device: auto, seed: 0}}       # nothing here changes the privacy cost
release: {{report: true, labels: false}}    # labels: true also publishes the answers
"""


_LABELS = """\
# Votes in, labels out. A row is taken for a query, a column for a class: it holds counts. If a column is a teacher, who
# votes for a class, write their number as `count`, and that of the classes as `classes`. If a row is one, swap rows
# and columns of the file.
data: {{train: {{source: elsewhere, {classes}}}}}    # the records stay where they are
model: {{kind: none}}           # no student: the labels are the release

mechanism:
  kind: pate                 # noise is added to the teachers' votes
  teachers:
    count: {blank}           # number of teachers; each record was seen by one of them
    votes: {votes}
  aggregator: {{kind: gnmax, noise: {{family: gaussian, multiplier: auto}}}}    # in votes; auto: what the budget allows
  queries: {{max: {blank}}}    # number of rows that are answered, from the first on

budget: {{epsilon: 3.0, delta: 1e-6}}    # delta far below 1 / number of records
release: {{labels: true}}
"""


def draft_votes(file: Path, path: str, blank: str) -> str:
    """Returns a recipe without its name for a private file of votes, with blanks: only names of columns are read.

    `path`: the name of the file in the recipe.

    Raises:
        DataFault: the file can't be read, or has no array `votes`.
    """
    from dprecipe.mechanisms.pate.votes_file import is_numbered, read_columns

    columns = read_columns(VotesFile(path=path), file)
    unnamed = is_numbered(columns)
    classes = f"classes: {len(columns)}" if unnamed else f"values: {dump_inline(columns)}"
    return _LABELS.format(classes=classes, blank=blank, votes=dump_inline({"path": path}))
