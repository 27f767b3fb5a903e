"""Small recipes in which the planted bugs show. An audit reads no data: paths name files that don't exist."""

from __future__ import annotations

from pathlib import Path

DIGITS = "train: {source: digits, split: train}\n  size: 1438\n  preprocess: [{clip_features: {norm: 1.0}}]"
TEXTS = """\
train:
    source: csv
    path: none.csv
    columns: {text: {kind: text}}
    label: {column: label, values: [ham, spam]}
  size: 1000
  preprocess: [{tokenize: {column: text, buckets: 64, length: 8}}]"""
IMAGES = """\
train:
    source: parquet
    path: none.parquet
    image: {column: img, shape: [8, 8, 1]}
    label: {column: label, classes: 10}
  size: 1000
  preprocess: [{flip: {}}]"""
TABLE = """\
train:
    source: csv
    path: none.csv
    columns:
      age: {kind: numeric, min: 0, max: 100}
      height: {kind: numeric, min: 0, max: 2}
      town: {kind: text}
    label: {column: label, values: [no, yes]}
  size: 1000"""
PATIENTS = """\
train:
    source: csv
    path: none.csv
    columns:
      age: {kind: numeric, min: 0, max: 100}
      height: {kind: numeric, min: 0, max: 2}
    label: {column: label, values: [no, yes]}
  size: 300
  unit: {column: patient, max_records: 6}"""
SUMS = """\
recipe: dprecipe/v1
name: planted
data:
  {data}
model: {model}
mechanism:
  kind: dpsgd
  clip: {clip}
  noise: {noise}
  sampling: {sampling}
{more}budget: {{epsilon: {epsilon}, delta: 1e-5, accountant: {accountant}, neighbouring: {neighbouring}}}
training: {{steps: {steps}, optimizer: {optimizer}}}
runtime: {{device: cpu, physical_batch: 64, processes: {processes}, sharding: {sharding}}}
"""
PNSGD = """\
recipe: dprecipe/v1
name: planted
data:
  train:
    source: csv
    path: none.csv
    columns:
      age: {kind: numeric, min: 0, max: 100}
      height: {kind: numeric, min: 0, max: 2}
      weight: {kind: numeric, min: 0, max: 200}
    label: {column: label, values: [no, yes]}
  size: 1010
  preprocess: [{clip_features: {norm: 1.0}}]
model: {kind: logistic_regression, l2: 0.2}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 1.0}
  learning_rate: 2.7
  noise: {family: gaussian, multiplier: auto}
  batch_size: 250
  order: permuted
budget: {epsilon: 3.0, delta: 1e-5, neighbouring: replace_one}
training: {epochs: 5}
"""
PATE = """\
recipe: dprecipe/v1
name: planted
data:
  train: {source: digits, split: train, records: [0, 1000]}
  public: {source: digits, split: train, records: [1000, 1438]}
  size: 1000
model: {kind: logistic_regression}
mechanism:
  kind: pate
  teachers:
    count: 20
    model: {kind: logistic_regression}
    training: {steps: 5, batch_size: 16, optimizer: {kind: adam, lr: 0.03}}
  aggregator:
    kind: confident_gnmax
    noise: {family: gaussian, multiplier: 4}
    selection: {threshold: 12, noise: {family: gaussian, multiplier: 12}}
  queries: {max: 60}
budget: {epsilon: auto, delta: 1e-5, neighbouring: zero_out_one}
training: {steps: 20, batch_size: 32, optimizer: {kind: adam, lr: 0.03}}
release: {labels: true}
runtime: {device: cpu}
"""
ENCODED = """\
recipe: dprecipe/v1
name: planted
data:
  train: {source: digits, split: train}
  size: 1438
  preprocess: [{clip_features: {norm: 1.0}}]
model: {kind: logistic_regression}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 5}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
budget: {epsilon: 3.0, delta: 1e-5}
training: {steps: 60, optimizer: {kind: sgd, lr: 1.0}}
runtime: {device: cpu}
"""

WITH_CANARIES = (Path(__file__).parents[2] / "recipes" / "quickstart.yaml").read_text("utf-8") + (
    "audit: {program: false, canaries: 1000}\nruntime: {device: cpu}\nrelease: {report: false}\n"
)
"""Full batches, and a weight for each canary: all three statements are made of its runs."""


def of_sums(
    data: str = DIGITS,
    model: str = "{kind: logistic_regression}",
    clip: str = "{norm: 1.0}",
    noise: str = "{family: gaussian, multiplier: auto}",
    sampling: str = "{scheme: poisson, batch_size: 64}",
    more: str = "",
    epsilon: float | str = 3.0,
    accountant: str = "pld",
    neighbouring: str = "add_or_remove_one",
    steps: int = 60,
    optimizer: str = "{kind: sgd, lr: 0.5, momentum: 0.9}",
    processes: int = 1,
    sharding: str = "none",
) -> str:
    """A recipe of DP-SGD."""
    return SUMS.format(**locals())


RECIPES = {
    "linear": of_sums(),
    "full_batch": of_sums(sampling="{scheme: full_batch}", steps=20, neighbouring="replace_one", accountant="rdp"),
    "large_batch": of_sums(model="{kind: mlp, hidden: [256]}", sampling="{scheme: poisson, batch_size: 700}", steps=8),
    "layers": of_sums(model="{kind: mlp, hidden: [16]}"),
    "per_layer": of_sums(model="{kind: mlp, hidden: [16]}", clip="{mode: per_layer, norm: 1.0}"),
    "adaptive": of_sums(clip="{mode: adaptive, norm: 1.0, count_noise: 2.5}"),
    "laplace": of_sums(noise="{family: laplace, multiplier: auto}"),
    "dealt": of_sums(sampling="{scheme: dealt, batch_size: 64}", steps=69),
    "dealt_with_a_limit": of_sums(sampling="{scheme: dealt, batch_size: 64, batch_limit: 64}", steps=69),
    "permuted": of_sums(sampling="{scheme: permuted, batch_size: 64}", steps=66),
    "truncated": of_sums(sampling="{scheme: truncated_poisson, batch_size: 64, max_batch_size: 64}"),
    "fixed_size": of_sums(sampling="{scheme: fixed_size, batch_size: 64}", neighbouring="replace_one"),
    "tokens": of_sums(TEXTS, "{kind: transformer, width: 8, layers: 1, heads: 2}"),
    "augmented": of_sums(IMAGES, "{kind: mlp, hidden: [8]}", more="  augmentations: 4\n"),
    "units": of_sums(PATIENTS),
    "two_processes": of_sums(processes=2),
    "two_shards": of_sums(processes=2, sharding="optimizer"),
    "two_gathered": of_sums(
        TEXTS, "{kind: transformer, width: 8, layers: 2, heads: 2}", processes=2, sharding="parameters"
    ),
    "count": of_sums("train: {source: digits, split: train}\n  size: 1438\n  preprocess: [{dp_count: {share: 0.2}}]"),
    "moments": of_sums(PATIENTS + "\n  preprocess: [{dp_standardize: {share: 0.2}}]"),
    "quantiles": of_sums(
        PATIENTS + "\n  preprocess: [{dp_quantiles: {columns: all, low: 0.05, high: 0.95, share: 0.2}}]"
    ),
    "projection": of_sums(PATIENTS + "\n  preprocess: [{dp_pca: {components: 1, share: 0.2}}]"),
    "categories": of_sums(
        TABLE + "\n  preprocess: [{dp_categories: {columns: [town], width: 4, leak: 1e-7, share: 0.2}}]"
    ),
    "correlated": of_sums(
        noise="{form: previous_step, multiplier: auto}", sampling="{scheme: fixed_order, batch_size: 64}", steps=69
    ).replace("kind: dpsgd", "kind: correlated"),
    "bands": of_sums(
        noise="{form: banded, bands: 4, multiplier: auto}",
        sampling="{scheme: cyclic_poisson, batch_size: 64}",
        steps=92,
    ).replace("kind: dpsgd", "kind: correlated"),
    "encoded": ENCODED,
    "slots": ENCODED.replace("  sampling:", "  microbatch: {size: 4}\n  sampling:").replace(
        "{scheme: poisson, batch_size: 64}", "{scheme: full_batch}"
    ),
    "pnsgd": PNSGD,
    "pate": PATE,
}
"""By name."""
