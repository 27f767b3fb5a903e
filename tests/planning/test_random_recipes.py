"""Random recipes: what is solved spends nearly the whole budget, or a finding says why not."""

from __future__ import annotations

import random

import pytest

from dprecipe.contract.plan import Plan
from dprecipe.faults import PlanRefused
from dprecipe.planning.make import plan
from dprecipe.privacy import accountants, rounding
from dprecipe.privacy.events import Charge
from dprecipe.recipe.read import read_text

RECIPES, QUICK = 110, 4
NEARLY = 0.999
"""Share of the budget that a solved noise multiplier spends at least."""
REFUSALS = {"P106", "P107", "P126"}
"""The findings that such a recipe may have: the budget is too small, too large, or spent on paid steps."""


def draw_number(draw: random.Random, low: float, high: float) -> float:
    """On a logarithmic scale, of three digits."""
    return float(f"{low * (high / low) ** draw.random():.3g}")


def draw_recipe(draw: random.Random) -> str:
    """A recipe of any mechanism, with one value to be solved."""
    kind = draw.choice(
        ["noise", "noise", "length", "phases", "layers", "paid", "encoded", "pate", "pate queries", "pnsgd"]
    )
    size = int(draw_number(draw, 200, 1e7))
    batch = max(1, int(size * draw_number(draw, 1e-4, 1)))
    steps = int(draw_number(draw, 1, 1e5))
    epsilon = draw_number(draw, 0.05, 9)
    delta = min(draw_number(draw, 1e-12, 1e-2), float(f"{0.09 / size:.3g}"))
    relation = draw.choice(["add_or_remove_one", "zero_out_one", "replace_one"])
    scheme = draw.choice(["poisson", "poisson", "poisson", "full_batch", "dealt"])
    sampling = "{scheme: full_batch}" if scheme == "full_batch" else f"{{scheme: {scheme}, batch_size: {batch}}}"
    noise, clip, preprocess, length = "{family: gaussian, multiplier: auto}", "{norm: 1.0}", "", f"steps: {steps}"
    model, optimizer = "{kind: mlp, hidden: [8]}", "{kind: sgd, lr: 0.5}"
    head = f"kind: dpsgd\n  clip: {clip}"
    match kind:
        case "length":
            noise, length = f"{{family: gaussian, multiplier: {draw_number(draw, 0.5, 300)}}}", "epochs: auto"
        case "phases":
            first = max(1, steps // 3)
            noise = f"[{{family: gaussian, multiplier: {draw_number(draw, 50, 500)}, steps: {first}}}, {noise}]"
            length = f"steps: {first + steps}"
        case "layers":
            head = "kind: dpsgd\n  clip: {mode: per_layer, norms: [1.0, 0.5], noise: [1.0, 3.0]}"
            sampling = sampling if scheme != "dealt" else f"{{scheme: poisson, batch_size: {batch}}}"
        case "paid":
            preprocess = "\n  preprocess: [{dp_standardize: {bounds: [-1, 1], share: 0.1}}]"
        case "encoded":
            head = "kind: encoded\n  codebook: {source: gaussian, size: 16}"
            sampling = f"{{scheme: poisson, batch_size: {batch}}}"
    mechanism = f"{head}\n  noise: {noise}\n  sampling: {sampling}"
    training = f"{{{length}, optimizer: {optimizer}}}"
    public = ""
    if kind.startswith("pate"):
        queries = "auto" if kind == "pate queries" else steps
        multiplier = "auto" if kind == "pate" else draw_number(draw, 20, 3000)
        aggregator = draw.choice(["gnmax", "lnmax"])
        family = "gaussian" if aggregator == "gnmax" else "laplace"
        public = "\n  public: {source: npz, path: p.npz, features: x, shape: [4]}"
        mechanism = (
            f"kind: pate\n  teachers: {{count: {min(size, 100)}, model: {{kind: logistic_regression}}}}\n"
            f"  aggregator: {{kind: {aggregator}, noise: {{family: {family}, multiplier: {multiplier}}}}}\n"
            f"  queries: {{max: {queries}}}"
        )
        training = "{steps: 10, batch_size: 8, optimizer: {kind: sgd, lr: 0.5}}"
    elif kind == "pnsgd":
        relation, model = "replace_one", "{kind: logistic_regression}"
        preprocess = "\n  preprocess: [{clip_features: {norm: 1.0}}]"
        mechanism = (
            "kind: pnsgd\n  constraint: {kind: ball, radius: 5.0}\n  learning_rate: 0.2\n"
            f"  noise: {{family: gaussian, multiplier: auto}}\n  batch_size: {max(1, size // 50)}"
        )
        training = f"{{epochs: {draw.randint(1, 5)}}}"
    return f"""recipe: dprecipe/v1
name: random
data:
  train: {{source: npz, path: x.npz, features: x, labels: y, shape: [4], classes: 2}}
  size: {size}{preprocess}{public}
model: {model}
mechanism:
  {mechanism}
budget: {{epsilon: {epsilon}, delta: {delta}, neighbouring: {relation}}}
training: {training}
"""


def costs_more(planned: Plan) -> bool:
    """Returns True if one event more would exceed the budget (two in 10⁵, of very many)."""
    *others, last = planned.events
    longer = Charge(last.event, last.count + max(1, last.count // 40_000))
    budget = planned.budget
    cost = accountants.epsilon([*others, longer], budget.delta, budget.neighbouring, budget.accountant)
    return rounding.round_up(cost) > budget.epsilon


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.slow) for seed in range(RECIPES)]
)
def test_what_is_solved_spends_nearly_the_whole_budget(seed: int) -> None:
    text = draw_recipe(random.Random(seed))
    try:
        planned = plan(read_text(text, "random.yaml"))
    except PlanRefused as refused:
        codes = {finding.code for finding in refused.findings if finding.is_error}
    else:
        codes = set[str]()
        assert planned.guarantee.epsilon <= planned.budget.epsilon, text
        assert planned.guarantee.epsilon >= NEARLY * planned.budget.epsilon or costs_more(planned), text
    assert codes <= REFUSALS, text
