"""Figures that the documents and the recipes' comments name are those that the program gives."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from dprecipe.contract.mechanism import Facts
from dprecipe.contract.plan import Plan
from dprecipe.mechanisms.dpsgd.phases import MAX_PHASES
from dprecipe.mechanisms.pate.commands.forecast import forecast_plan
from dprecipe.mechanisms.pate.commands.simulate import Agreement
from dprecipe.mechanisms.pate.schema import Pate
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read, read_text
from dprecipe.text.dump import dump

ROOT = Path(__file__).parents[2]
DPSGD = (ROOT / "docs" / "explanation" / "dpsgd.md").read_text("utf-8")


def compute_price(sampling: str, relation: str) -> float:
    """ε of the table's run: ten epochs of the digits in batches of 128, multiplier 3, δ = 1e-5."""
    length = "steps: 10" if "full_batch" in sampling else "epochs: 10"
    text = (
        "recipe: dprecipe/v1\nname: price\ndata: {train: {source: digits, split: train}, size: 1438}\n"
        "model: {kind: logistic_regression}\nmechanism:\n  kind: dpsgd\n  clip: {norm: 1.0}\n"
        f"  noise: {{family: gaussian, multiplier: 3}}\n  sampling: {sampling}\n"
        f"budget: {{epsilon: auto, delta: 1e-5, neighbouring: {relation}}}\n"
        f"training: {{{length}, optimizer: {{kind: sgd, lr: 0.1}}}}\n"
    )
    return plan(read_text(text)).guarantee.epsilon


ROWS = re.findall(r"^\| `(\{scheme: .*?\})`.*? \| (.*?) \| (.*?) \|$", DPSGD, re.MULTILINE)


def test_the_price_table_is_found() -> None:
    assert len(ROWS) == 9


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "one", "replace"), ROWS)
def test_the_price_of_a_sampling_scheme(sampling: str, one: str, replace: str) -> None:
    for printed, relation in ((one, "add_or_remove_one"), (replace, "replace_one")):
        if printed[0].isdecimal():
            digits = len(printed.partition(".")[2])
            assert math.ceil(compute_price(sampling, relation) * 10**digits) / 10**digits == float(printed)


def test_how_many_phases_a_schedule_has() -> None:
    assert f"at most {MAX_PHASES} phases, or {MAX_PHASES // 2} if" in " ".join(DPSGD.split())


def test_the_parameters_that_a_recipes_comment_counts() -> None:
    file = ROOT / "recipes" / "mnist-pnsgd.yaml"
    parameters = plan(read(file)).mechanism_plan.descent.proven.parameters
    assert f"{parameters:,} parameters" in file.read_text("utf-8").splitlines()[1]


def read_sanitising_block() -> str:
    """Returns the mechanism block of docs/explanation/pate.md that publishes a sanitised cost."""
    page = (ROOT / "docs" / "explanation" / "pate.md").read_text("utf-8")
    fences = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (block,) = (text for text in fences if "sanitize:" in text and text.startswith("mechanism:"))
    return str(block)


def read_block(block: str) -> tuple[Plan, Pate, Facts]:
    values = {
        "recipe": "dprecipe/v1",
        "name": "sanitised",
        "data": {
            "train": {"source": "npz", "path": "a.npz", "shape": [8, 8], "classes": 10},
            "public": {"source": "npz", "path": "b.npz", "shape": [8, 8], "records": [0, 1000]},
            "size": 60_000,
        },
        "model": {"kind": "mlp", "hidden": [8]},
        **yaml.safe_load(re.sub(r"1e-6", "1.0e-6", block)),
        "budget": {"epsilon": "auto", "delta": 1e-6},
        "training": {"epochs": 5, "optimizer": {"kind": "adam", "lr": 0.1}},
    }
    loaded = read_text(dump(values))
    spec = loaded.recipe.mechanism
    assert isinstance(spec, Pate)
    return plan(loaded), spec, Facts.of(loaded.recipe)


def test_sanitising_as_the_documents_show_it_pays() -> None:
    """What is published is smaller than what is claimed for everyone; the figures are those of the page."""
    values, spec, facts = read_block(read_sanitising_block())
    forecast = forecast_plan(values, spec, facts, Agreement(0.5, 1.0), 0, lambda what: None)
    assert forecast.sanitised is not None
    published = forecast.sanitised.epsilon
    assert published < forecast.unpublished < forecast.worst_case
    page = (ROOT / "docs" / "explanation" / "pate.md").read_text("utf-8")
    assert f"ε = {forecast.worst_case:.2f} for\neveryone" in page
    assert f"about {published:.2f} at" in page
