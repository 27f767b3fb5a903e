"""One small run of each kind, for an environment that can only verify them: `python -m tests.light.releases FOLDER`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from dprecipe import api
from dprecipe.account.facts import new_facts
from dprecipe.account.opening import create_account
from dprecipe.cli.account import export
from dprecipe.cli.prior import make_prior
from dprecipe.nonprivate.plan import make_plan as make_public_plan
from dprecipe.privacy.adjacency import Neighbouring
from dprecipe.recipe.read import LoadedPublic, read_any
from dprecipe.training.run.nonprivate import train as train_public
from tests.languages import LETTERS, write_decoder
from tests.recipe_texts import DIGITS, DPSGD, PNSGD, SPLIT_DIGITS, STANDARDIZED, STEPS
from tests.release.test_no_model import lose

PUBLIC = DIGITS.replace("train}", "train, access: public}")
MODEL = "model: {kind: logistic_regression}\n"
CLIPPED = "  preprocess: [{clip_features: {norm: 4.0}}]\n"
ENCODED = """\
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 20}
  noise: {family: laplace, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 100}
budget: {epsilon: 8.0, delta: 1e-5}
"""
PATE = f"""\
{SPLIT_DIGITS}\
model: {{kind: logistic_regression}}
mechanism:
  kind: pate
  teachers: {{count: 25, model: {{kind: logistic_regression}}}}
  aggregator: {{kind: gnmax, noise: {{family: gaussian, multiplier: 8}}}}
  queries: {{max: 40}}
budget: {{epsilon: auto, delta: 1e-5, neighbouring: zero_out_one}}
training: {{steps: 20, batch_size: 16, optimizer: {{kind: adam, lr: 0.03}}}}
release: {{labels: true}}
"""
TUNING = """\
tuning:
  runs: {kind: negative_binomial, mean: 2, shape: 0.5}
  over: [{key: training.optimizer.lr, range: [0.1, 4.0], scale: log}]
  score: {metric: accuracy}
"""
PRIOR = """\
model:
  kind: mlp
  hidden: [12]
  init: prior.safetensors
  prior: {generator: mixed, images: 64, steps: 3, batch_size: 8}
"""
MESSAGES = f"""\
data:
  train: {{source: csv, path: messages.csv, columns: {{text: {{kind: text}}}}, label: next_token}}
  size: 40
  preprocess:
    - sequences:
        text: text
        tokenizer: {{path: base/tokenizer.json, vocabulary: {len(LETTERS)}}}
        end: 0
        max_length: 30
model: {{kind: causal_lm, init: base, lora: {{rank: 2, alpha: 4}}}}
"""
SMALL = f"{DIGITS}{CLIPPED}{MODEL}{DPSGD}{STEPS}"
RECIPES = {
    "dpsgd": SMALL,
    "module": SMALL,
    "encoded": f"{DIGITS}{CLIPPED}model: {{kind: mlp, hidden: [10]}}\n{ENCODED}{STEPS}",
    "pate": PATE,
    "pnsgd": f"{DIGITS}{CLIPPED}{PNSGD}",
    "tuned": SMALL + TUNING,
    "paid": f"{DIGITS}{STANDARDIZED % 0.1}{MODEL}{DPSGD}{STEPS}",
    "no_model": f"{DIGITS}{STANDARDIZED % 0.9}{MODEL}{DPSGD}{STEPS}",
    "charged": SMALL.replace("delta: 1e-5", "delta: 1e-5, account: digits.db"),
    "audited": SMALL + "audit: {program: true, canaries: 10, confidence: 0.9999}\n",  # not even ten hits refute
    "prior": f"{DIGITS}{PRIOR}{DPSGD}{STEPS}",
    "language": f"{MESSAGES}{DPSGD.replace('64', '10')}{STEPS}",
    "none": f"{PUBLIC}{MODEL}mechanism: {{kind: none}}\n{STEPS.replace('steps: 3', 'steps: 3, batch_size: 64')}",
}
"""By name; each is run once, into a folder of its name."""


def publish_releases(folder: Path) -> None:
    """Write each recipe as `NAME.yaml`, and its run as `NAME`; beside them `digits.db`, `statement.json` and
    `prior.safetensors`."""
    write_decoder(folder, "gpt2")
    facts = new_facts("digits", 30.0, 1e-3, "record", Neighbouring.ADD_OR_REMOVE_ONE, None)
    create_account(folder / "digits.db", facts).close()
    for name, text in RECIPES.items():
        (folder / f"{name}.yaml").write_text(f"recipe: dprecipe/v1\nname: {name}\n{text}", encoding="utf-8")
    make_prior(folder / "prior.yaml", None)
    for name in RECIPES:
        RUNS.get(name, _run)(folder / f"{name}.yaml", folder / name)
    export(str(folder / "digits.db"), folder / "statement.json", None, None)


def _run(recipe: Path, out: Path, **arguments: Any) -> None:
    api.run(api.plan(api.load(recipe)), out, data_root=recipe.parent, **arguments)


def _run_module(recipe: Path, out: Path) -> None:
    _run(recipe, out, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def _run_tuned(recipe: Path, out: Path) -> None:
    api.tune(api.plan(api.load(recipe)), out)


def _run_public(recipe: Path, out: Path) -> None:
    loaded = read_any(recipe)
    assert isinstance(loaded, LoadedPublic)
    train_public(make_public_plan(loaded), recipe.parent, out)


def _run_without_model(recipe: Path, out: Path) -> None:
    """The first attempt loses the result of its paid step, and the budget can't pay it again."""
    lose(api.plan(api.load(recipe)), out)
    _run(recipe, out, resume=True)


RUNS: dict[str, Callable[[Path, Path], None]] = {
    "module": _run_module,
    "tuned": _run_tuned,
    "none": _run_public,
    "no_model": _run_without_model,
}


if __name__ == "__main__":
    publish_releases(Path(sys.argv[1]))
