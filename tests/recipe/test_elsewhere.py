"""Mistakes of people who come from other tools: every remedy is followed, by its words, until the recipe validates.

On the way nothing gets weaker than what the person has written, and no remedy is a plain "remove it"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dprecipe.faults import Finding
from dprecipe.recipe.suggest import suggest_word
from dprecipe.text.load import parse
from dprecipe.text.tree import to_plain

from .follow import findings_of, follow, written

VISITS = """\
recipe: dprecipe/v1
name: visits
data:
  train:
    source: csv
    path: visits.csv
    columns:
      age: {kind: integer, min: 0, max: 110}
      ward: {kind: category, values: [surgery, cardiology, icu]}
    label: {column: returned, values: [no, yes]}
  test: {split: {by: unit, share: 0.2}}
  size: 1500
  unit: {column: patient, max_records: 4}
  preprocess: [{one_hot: {}}, {clip_features: {norm: 2.0}}]
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 256}
budget: {epsilon: 3.0, delta: 1e-6}
training: {epochs: 10, optimizer: {kind: sgd, lr: 2.0}}
"""
HEADS = {
    "": ("name: visits\n", "name: visits\n{}\n"),
    "data": ("  size: 1500", "  {}\n  size: 1500"),
    "train": ("    source: csv", "    source: csv\n    {}"),
    "label": ("label: {", "label: {{{}, "),
    "unit": ("unit: {", "unit: {{{}, "),
    "age": ("age: {", "age: {{{}, "),
    "ward": ("ward: {", "ward: {{{}, "),
    "model": ("model: {", "model: {{{}, "),
    "mechanism": ("  kind: dpsgd\n", "  kind: dpsgd\n  {}\n"),
    "clip": ("clip: {", "clip: {{{}, "),
    "noise": ("noise: {", "noise: {{{}, "),
    "sampling": ("sampling: {", "sampling: {{{}, "),
    "budget": ("budget: {", "budget: {{{}, "),
    "training": ("training: {", "training: {{{}, "),
    "optimizer": ("optimizer: {", "optimizer: {{{}, "),
}
"""Where a line is added to a block: what stands there, and what takes its place."""

ADDED = """\
training | fp16: true
training | bf16: true
training | lr_scheduler_type: cosine
training | warmup_ratio: 0.1
training | report_to: wandb
training | report_to: [tensorboard]
training | report_to: none
training | logging_steps: 10
training | save_strategy: epoch
training | save_total_limit: 2
training | eval_strategy: epoch
training | evaluation_strategy: epoch
training | load_best_model_at_end: true
training | output_dir: out
training | gradient_checkpointing: false
training | dataloader_num_workers: 4
training | per_device_train_batch_size: 8
training | gradient_accumulation_steps: 4
training | num_train_epochs: 3
training | learning_rate: 2.0e-5
training | weight_decay: 0.01
training | max_grad_norm: 0.5
training | max_grad_norm: 5.0
training | label_smoothing_factor: 0.1
training | seed: 42
training | resume_from_checkpoint: last
training | optim: adamw_torch
training | noise_multiplier: 1.1
training | epsilon: 1.0
training | epsilon: 8.0
training | class_weight: balanced
training | early_stopping: true
training | validation_split: 0.2
training | max_iter: 100
training | batch_size: 64
training | clip: 0.5
training | accelerator: gpu
training | gpus: 2
training | torch_compile: true
optimizer | betas: [0.9, 0.999]
optimizer | eps: 1e-8
optimizer | name: adam
optimizer | noise_multiplier: 20.0
optimizer | l2_norm_clip: 0.1
optimizer | num_microbatches: 8
mechanism | target_epsilon: 1.0
mechanism | target_delta: 1e-7
mechanism | target_delta: 1e-3
mechanism | max_grad_norm: 2.0
mechanism | secure_mode: false
mechanism | grad_sample_mode: ghost
mechanism | poisson_sampling: false
mechanism | batch_size: 64
mechanism | learning_rate: 0.1
mechanism | order: permuted
mechanism | codebook: {source: gaussian}
mechanism | accountant: prv
mechanism | sample_rate: 0.01
mechanism | type: dpsgd
mechanism | seed: 3
noise | sigma: 20.0
noise | stddev: 30.0
noise | seed: 3
noise | type: gaussian
noise | noise_multiplier: 0.5
clip | max_grad_norm: 0.2
clip | value: 3.0
clip | clipping_mode: per_layer
sampling | rate: 0.01
sampling | shuffle: true
sampling | seed: 1
budget | adjacency: substitute
budget | accountant: prv
budget | accounting: gdp
budget | orders: [2, 4, 8]
budget | noise_multiplier: 20.0
budget | unit: patient
budget | eps: 0.5
data | validation: {split: 0.2}
data | split: {type: random, probabilities: [0.7, 0.1, 0.2]}
data | access: public
data | random_state: 42
data | target: returned
data | max_seq_length: 512
data | batch_size: 32
data | dataset: alpaca
data | user_id: patient
train | sep: ','
train | encoding: utf8
train | target_col: returned
train | na_values: [NA]
train | dtype: {age: int}
train | access: none
train | unit: record
label | type: binary
label | positive: yes
label | num_classes: 2
unit | max_contributions: 9
unit | id: visit
age | na_values: [unknown]
age | fillna: 0
age | type: float
age | bounds: [0, 110]
ward | levels: [a, b]
ward | dtype: category
model | fit_intercept: true
model | dropout: 0.1
model | peft: {r: 8, lora_alpha: 16, target_modules: [c_attn]}
model | num_labels: 2
 | seed: 42
 | defaults: [base]
 | _target_: torch.optim.SGD
 | dry_run: true
 | config: base.yaml
 | wandb: {project: visits}
 | input_features: [{name: age, type: number}]
 | output_features: [{name: returned, type: binary}]
 | trainer: {epochs: 10, learning_rate: 0.1, batch_size: 64}
 | privacy: {epsilon: 0.5, noise_multiplier: 20.0, max_grad_norm: 0.1}
 | access: public
 | epsilon: 30.0
 | unit: record
 | license: mit
 | clip: {norm: 0.1}
 | budgte: {epsilon: 1.0, delta: 1e-7}
 | noise: {family: gaussian, multiplier: 30.0}
 | dp: {epsilon: 0.9, delta: 1e-3, clip: {norm: 0.1}, noise: {sigma: 22.0}}
 | random_state: 7
"""
CHANGED = [
    ("unit: {column: patient, max_records: 4}", "unit: patient"),
    ("unit: {column: patient, max_records: 4}", "user_id: patient"),
    ("unit: {column: patient, max_records: 4}", "unit: {column: patient, max_contributions: 4}"),
    ("label: {column: returned, values: [no, yes]}", "label: returned"),
    ("label: {column: returned, values: [no, yes]}", "target: returned"),
    ("label: {column: returned, values: [no, yes]}", "label_column: returned"),
    ("age: {kind: integer, min: 0, max: 110}", "age: {type: float, range: [0, 110]}"),
    ("age: {kind: integer, min: 0, max: 110}", "age: {dtype: int64, lower: 0, upper: 110}"),
    ("age: {kind: integer, min: 0, max: 110}", "age: {kind: number, minimum: 0, maximum: 110}"),
    ("values: [surgery, cardiology, icu]", "values: [3.10, 3.9, 1e3, true, ~]"),
    ("values: [surgery, cardiology, icu]", "levels: [surgery, cardiology, icu]"),
    ("values: [surgery, cardiology, icu]", "values: 3.10"),
    ("test: {split: {by: unit, share: 0.2}}", "test: 0.2"),
    ("test: {split: {by: unit, share: 0.2}}", "test: {split: 0.2}"),
    ("test: {split: {by: unit, share: 0.2}}", "validation: {split: 0.2}"),
    ("test: {split: {by: unit, share: 0.2}}", "split: {type: random, probabilities: [0.7, 0.1, 0.2]}"),
    ("test: {split: {by: unit, share: 0.2}}", "test_size: 0.25"),
    ("clip: {norm: 1.0}", "clip: 1.0"),
    ("clip: {norm: 1.0}", "max_grad_norm: 1.0"),
    ("clip: {norm: 1.0}", "clip: {max_grad_norm: 1.0}"),
    ("clip: {norm: 1.0}", "l2_norm_clip: 1.0"),
    ("noise: {family: gaussian, multiplier: auto}", "noise: 20.5"),
    ("noise: {family: gaussian, multiplier: auto}", "noise: {type: gaussian, sigma: 20.5}"),
    ("noise: {family: gaussian, multiplier: auto}", "noise: {family: normal, multiplier: auto}"),
    ("sampling: {scheme: poisson, batch_size: 256}", "sampling: {type: poisson, lot_size: 256}"),
    ("epsilon: 3.0, delta: 1e-6", "target_epsilon: 3.0, target_delta: 1e-6"),
    ("epsilon: 3.0, delta: 1e-6", "epsilon: '3.0', delta: 1e-6"),
    ("epsilon: 3.0, delta: 1e-6", "epsilon: 3.0, delta: 1e-6, neighbouring: substitute"),
    ("epsilon: 3.0, delta: 1e-6", "eps: 3.0, delta: 1e-6"),
    ("kind: sgd, lr: 2.0", "type: adamw, learning_rate: 0.1"),
    ("epochs: 10, ", "num_updates: 50, "),
    ("epochs: 10, ", "max_epochs: 10, "),
    ("optimizer: {kind: sgd, lr: 2.0}", "optimizer: {kind: sgd, learning_rate: 2.0}"),
    ("kind: dpsgd", "kind: DP-SGD"),
    ("kind: logistic_regression", "type: LogisticRegression"),
    ("size: 1500", "nrows: 1500"),
]


def add_line(place: str, line: str) -> str:
    old, new = HEADS[place]
    assert old in VISITS
    return VISITS.replace(old, new.format(line), 1)


CASES = {line.strip(): add_line(*(part.strip() for part in line.split("|"))) for line in ADDED.splitlines()}
CASES |= {f"{new} for {old}": VISITS.replace(old, new, 1) for old, new in CHANGED}
EPSILON = {"epsilon", "eps", "target_epsilon"}
DELTA = {"delta", "target_delta"}
NORM = {"max_grad_norm", "l2_norm_clip", "clip"}
NOISE = {"noise_multiplier", "sigma", "noise", "multiplier"}
PLAIN = re.compile(r"remove it(; the block can also have .*)?$")
STEPS = 12


def test_there_are_a_hundred() -> None:
    assert findings_of(VISITS) == ()
    assert len(CASES) >= 100


NAMES = [
    pytest.param(name, marks=pytest.mark.slow if index % 3 == 2 and index < len(ADDED.splitlines()) else ())
    for index, name in enumerate(CASES)
]


@pytest.mark.parametrize("name", NAMES)
def test_remedies_lead_to_a_recipe_that_is_no_weaker(name: str) -> None:
    text, errors = follow_all(CASES[name])
    assert errors == [], errors
    check_protection(read_values(CASES[name]), read_values(text))


def follow_all(text: str) -> tuple[str, list[Finding]]:
    """Follows one remedy after the other; returns the recipe, and what is still wrong with it."""
    errors: list[Finding] = []
    for _ in range(STEPS):
        errors = [finding for finding in findings_of(text) if finding.is_error]
        if not errors:
            break
        assert not PLAIN.match(errors[0].remedy), errors[0]
        text = written(follow(text, errors[0]))
    return text, errors


def read_values(text: str) -> Any:
    tree, _ = parse(text, "a.yaml")
    assert tree is not None
    return to_plain(tree)


def check_protection(before: Any, after: Any) -> None:
    """Nothing protects less than what was written, wherever it was written."""
    said = list(numbers({**before, "training": without_optimizer(before.get("training"))}))
    assert after["budget"]["epsilon"] <= min([value for key, value in said if key in EPSILON], default=3.0)
    assert after["budget"]["delta"] <= min([value for key, value in said if key in DELTA], default=1e-6)
    norms = [value for key, value in said if key in NORM]
    norms += [value for key, value in numbers(before["mechanism"].get("clip")) if key in ("norm", "value")]
    assert after["mechanism"]["clip"]["norm"] <= min(norms, default=1.0)
    noise = [value for key, value in said if key in NOISE]
    multiplier = after["mechanism"]["noise"]["multiplier"]
    assert multiplier == "auto" if not noise else multiplier >= max(noise)
    assert after["mechanism"]["kind"] == "dpsgd"
    assert after["mechanism"]["noise"]["family"] == "gaussian"
    assert after["mechanism"]["sampling"]["scheme"] == "poisson"
    assert after["data"]["unit"]["column"] == "patient"
    assert after["data"]["train"].get("access", "private_internal") == "private_internal"
    assert after["data"]["test"].get("access", "private_internal") == "private_internal"
    stated = [
        suggest_word(str(value), RELATIONS) for key, value in words(before) if key in ("adjacency", "neighbouring")
    ]
    assert [after["budget"].get("neighbouring")] == (stated or [None])
    assert "insecure" not in after.get("runtime", {})
    assert "accept" not in after


def without_optimizer(training: Any) -> Any:
    """`eps` of an optimizer is no ε."""
    if not isinstance(training, dict) or "eps" not in (optimizer := training.get("optimizer", {})):
        return training
    return {**training, "optimizer": {key: value for key, value in optimizer.items() if key != "eps"}}


RELATIONS = ("add_or_remove_one", "replace_one", "zero_out_one")


def numbers(node: Any) -> Iterator[tuple[str, float]]:
    for key, value in words(node):
        number = float(value) if key in EPSILON and value == "3.0" else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            yield key, number


def words(node: Any) -> Iterator[tuple[str, Any]]:
    """Every single value, with its key."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from [(key, value)] if not isinstance(value, dict | list) else words(value)
    for item in node if isinstance(node, list) else []:
        yield from words(item)


def test_categories_keep_their_digits() -> None:
    text = VISITS.replace("[surgery, cardiology, icu]", "[3.10, 3.9, 1e3, true, ~, 0.50]")
    remedies = [finding.remedy for finding in findings_of(text)]
    assert remedies == ['write them in quotes: ["3.10", "3.9", "1e3", "true", "~", "0.50"]']
    one = VISITS.replace("[surgery, cardiology, icu]", "[3.10, cardiology, icu]")
    assert [finding.remedy for finding in findings_of(one)] == ['write it in quotes: "3.10"']


def first_finding(text: str) -> Finding:
    return findings_of(text)[0]


@pytest.mark.parametrize(
    ("place", "line", "remedy"),
    [
        ("budget", "epsilom: 1.0", "set budget.epsilon to 1.0, the stricter of the two, and remove it here"),
        ("budget", "epsilom: 5.0", "remove it: budget.epsilon is 3.0, the stricter of the two"),
        ("", "epsilon: 1.50", "set budget.epsilon to 1.50, the stricter of the two, and remove it here"),
        ("optimizer", "clip_norm: 1.0", "remove it: mechanism.clip.norm says the same"),
        ("", "unit: record", "remove it: data.unit says who is protected"),
        ("mechanism", "order: permuted", "remove it: this is `kind: dpsgd`"),
        ("", "version: 2", "move it to meta.version, where anything may stand"),
        ("budget", "alpha: 2", "remove it: this recipe has no place for it"),
    ],
)
def test_a_remedy_says_which_value_stays(place: str, line: str, remedy: str) -> None:
    assert first_finding(add_line(place, line)).remedy == remedy


@pytest.mark.parametrize(
    ("step", "key"),
    [("patches: {filter: 64}", "filters"), ("whiten: {image: 100}", "images"), ("scattering: {scale: 2}", "scales")],
)
def test_a_key_whose_plural_stands_here_is_not_looked_for_elsewhere(step: str, key: str) -> None:
    assert first_finding(VISITS.replace("one_hot: {}", step)).remedy == f"write `{key}`"


@pytest.mark.parametrize("kind", ["noise", "off", "no", "nothing"])
def test_no_kind_of_mechanism_is_guessed_to_be_none(kind: str) -> None:
    finding = first_finding(VISITS.replace("kind: dpsgd", f"kind: {kind}"))
    assert finding.code == "R104"
    assert finding.remedy == "choose one of `dpsgd`, `encoded`, `pate`, `pnsgd`, `correlated`"


OTHER_TOOLS = sorted((Path(__file__).parents[1] / "golden" / "other_tools").glob("*.yaml"))


@pytest.mark.parametrize("path", OTHER_TOOLS, ids=lambda path: path.stem)
def test_recipes_of_people_from_other_tools(path: Path) -> None:
    text = path.read_text("utf-8")
    check_protection(read_values(text), read_values(follow_all(text)[0]))


@pytest.mark.parametrize("name", ["patient_record", "user_record", "case_record", "medical_record", "record_id"])
def test_a_unit_of_people_is_never_taken_for_the_record(name: str) -> None:
    text = VISITS.replace("unit: {column: patient, max_records: 4}", f"unit: {name}")
    assert [finding for finding in findings_of(text) if "write `record`" in finding.remedy] == []


@pytest.mark.parametrize("line", ["runtime: {secure: true}", "runtime: {insecure_seed: 3}", "runtime: {secur: true}"])
def test_fixed_randomness_is_never_proposed(line: str) -> None:
    assert [finding for finding in findings_of(f"{VISITS}{line}\n") if "write `insecure`" in finding.remedy] == []
