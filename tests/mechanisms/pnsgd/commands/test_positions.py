"""`dprecipe positions`: the table, the document, the lines, the plot, and what is refused."""

from __future__ import annotations

import csv
import functools
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from dprecipe.cli.main import app
from dprecipe.cli.schema import SCHEMAS
from tests.schemas import validator_of

RECIPE = """\
recipe: dprecipe/v1
name: figure
data:
  train: {source: npz, path: absent.npz, shape: [1], classes: 2}
  size: 40
  preprocess:
    - clip_features: {norm: 1.0}
model: {kind: huber_svm, width: 1.0, bias: false}
mechanism:
  kind: pnsgd
  constraint: {kind: ball, radius: 0.5}
  learning_rate: 0.5
  noise: {family: gaussian, multiplier: 2.0}
  order: sequential
training: {epochs: 1}
budget: {epsilon: auto, delta: 1e-3, neighbouring: replace_one}
"""
FIGURE_2 = {
    (1, 0.5): {"theorem_4": 1.24e-25, "proposition_1": 9.77e-3, "no_amplification": 0.2384, "iteration": 4.31e-5},
    (20, 1.0): {"theorem_4": 1.50e-19, "proposition_1": 7.44e-5, "no_amplification": 0.1269, "iteration": 1.65e-7},
    (39, 0.5): {"theorem_4": 5.68e-2, "proposition_1": 1.0, "iteration": 1.24e-1, "nonlinear": 1.86e-2},
    (39, 1.0): {"theorem_4": 1.61e-2, "proposition_1": 0.882, "iteration": 3.96e-2, "nonlinear": 4.98e-4},
}
"""What Asoodeh, Diaz & Calmon 2020 draw in Figure 2, and two bounds that it lacks, to three digits."""
DPSGD = """\
recipe: dprecipe/v1
name: other
data: {train: {source: digits, split: train}, size: 1437}
model: {kind: logistic_regression}
mechanism:
  kind: dpsgd
  clip: {norm: 1.0}
  noise: {family: gaussian, multiplier: auto}
  sampling: {scheme: poisson, batch_size: 64}
training: {steps: 10, optimizer: {kind: sgd, lr: 0.5}}
budget: {epsilon: 1.0, delta: 1e-5}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of data that are not there."""
    path = tmp_path_factory.mktemp("positions") / "figure.yaml"
    path.write_text(RECIPE)
    return str(path)


@functools.cache  # a command with the same arguments says the same: the plot test asks anew
def print_positions(*arguments: str) -> str:
    return run(*arguments)


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["positions", *arguments])
    assert result.exit_code == code, result.output
    return str(result.output)


def document(*arguments: str) -> dict[str, Any]:
    actual: dict[str, Any] = json.loads(print_positions(*arguments, "--format", "json"))
    validator_of(SCHEMAS["positions.schema.json"]).validate(actual)
    return actual


def test_figure_2_of_the_paper_comes_out(recipe: str) -> None:
    actual = document(recipe, "--epsilon", "0.5", "--epsilon", "1")
    assert [row["position"] for row in actual["positions"]] == list(range(1, 41))
    for (position, epsilon), curves in FIGURE_2.items():
        at = next(at for at in actual["positions"][position - 1]["at"] if at["epsilon"] == epsilon)
        for name, value in curves.items():
            assert (at["bounds"] | at["comparisons"])[name] == pytest.approx(value, rel=5e-3), (position, name)
        assert at["delta"] == min(at["bounds"].values())
        assert at["bounds"][at["bound"]] == at["delta"]


def test_the_table_names_bounds_comparisons_and_the_recipe_s_own(recipe: str) -> None:
    out = print_positions(recipe)
    lines = out.splitlines()
    head = next(line for line in lines if "position  " in line).split()
    assert head[1:] == [
        *("no_amplification", "contraction", "nonlinear", "iteration", "hybrid"),
        *("(proposition_1)", "(theorem_4)", "least", "ε"),
    ]
    assert sum(line.split()[0].isdigit() for line in lines if line.startswith("  ")) == 40
    assert "this recipe (sequential order, stop last)" in out
    assert "this recipe: ε = 3.13868 at δ = 0.001" in out
    assert "not the guarantee" in out
    assert "--all" not in out


def test_a_permuted_order_shows_the_places_of_the_file_s_and_its_own_guarantee(recipe: str) -> None:
    epsilons = ("--epsilon", "0.5", "--epsilon", "1")
    sequential = document(recipe, *epsilons)
    permuted = document(recipe, *epsilons, "--set", "mechanism.order=permuted")
    assert permuted["positions"] == sequential["positions"]
    assert permuted["own"]["order"] == "permuted"
    for index in range(2):
        mean = sum(row["at"][index]["delta"] for row in permuted["positions"]) / 40
        assert permuted["own"]["at"][index]["delta"] == pytest.approx(mean, rel=1e-4)
        worst = max(row["at"][index]["delta"] for row in sequential["positions"])
        assert sequential["own"]["at"][index]["delta"] == pytest.approx(worst, rel=1e-5)


@pytest.mark.slow
def test_many_positions_are_thinned_out_and_all_can_be_had(recipe: str) -> None:
    long = (recipe, "--set", "data.size=44", "--set", "budget.delta=1e-4")
    few, every = document(*long), document(*long, "--all")
    assert [row["position"] for row in every["positions"]] == list(range(1, 45))
    places = [row["position"] for row in few["positions"]]
    assert len(places) == 40
    assert {1, 44} <= set(places)
    assert [row for row in every["positions"] if row["position"] in places] == few["positions"]
    assert "40 of 44 positions are shown" in run(*long)


def test_the_lines_hold_what_the_document_holds(recipe: str) -> None:
    arguments = (recipe, "--epsilon", "0.5", "--epsilon", "1")
    actual = document(*arguments)
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "--format", "csv"))))
    assert len(rows) == 80
    flat = [(row, at) for row in actual["positions"] for at in row["at"]]
    for line, (row, at) in zip(rows, flat, strict=True):
        assert (int(line["position"]), float(line["epsilon"])) == (row["position"], at["epsilon"])
        for name, value in (at["bounds"] | at["comparisons"] | {"delta": at["delta"]}).items():
            assert float(line[name]) == value
        assert float(line["epsilon_at_budget_delta"]) == row["epsilon"]


def test_several_passes_have_no_curve_of_the_paper_s(recipe: str) -> None:
    actual = document(recipe, "--set", "training.epochs=2")
    assert all(at["comparisons"] == {} for row in actual["positions"] for at in row["at"])
    out = run(recipe, "--set", "training.epochs=2")
    assert "theorem_4" not in out
    assert "in brackets" not in out


@pytest.mark.slow
def test_the_plot_has_a_panel_for_each_epsilon_and_a_line_for_each_bound(recipe: str, tmp_path: Path) -> None:
    run(recipe, "--epsilon", "0.5", "--epsilon", "1", "--plot", str(tmp_path / "figure.svg"))
    content = (tmp_path / "figure.svg").read_bytes()
    texts = {element.text for element in ElementTree.fromstring(content).iter("{http://www.w3.org/2000/svg}text")}
    assert texts >= {"position, at ε = 0.5", "position, at ε = 1", "δ"}
    assert texts >= {"no amplification", "contraction", "nonlinear", "iteration", "hybrid", "theorem 4"}
    run(recipe, "--epsilon", "0.5", "--epsilon", "1", "--plot", str(tmp_path / "figure.svg"))
    assert (tmp_path / "figure.svg").read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "xml"), "unknown format xml"),
        (("--plot", "figure.pdf"), "a plot is an .svg"),
        (("--plot", "/nowhere/figure.svg"), "can't be written"),
        (("--epsilon", "-1"), "finite numbers >= 0"),
        (("--epsilon", "nan"), "finite numbers >= 0"),
    ],
)
def test_wrong_usage_is_told_with_a_remedy(arguments: tuple[str, ...], message: str, recipe: str) -> None:
    out = run(recipe, *arguments, code=2)
    assert message in out
    assert "  = " in out


def test_a_mechanism_without_positions_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(DPSGD)
    out = run(str(path), code=2)
    assert "mechanism dpsgd protects all records alike" in out
    assert "use mechanism pnsgd" in out


def test_a_recipe_that_is_refused_is_refused_here_too(recipe: str) -> None:
    assert "refused" in run(recipe, "--set", "budget.epsilon=0.1", code=3)


def test_the_table_is_of_the_descent_and_the_last_line_of_all_that_is_released(tmp_path: Path) -> None:
    paid = RECIPE.replace("shape: [1]", "shape: [2]").replace(
        "    - clip_features: {norm: 1.0}\n",
        "    - dp_pca: {components: 1, row_norm: 1.0, noise_multiplier: 3}\n    - clip_features: {norm: 1.0}\n",
    )
    (tmp_path / "paid.yaml").write_text(paid, encoding="utf-8")
    printed = CliRunner().invoke(app, ["positions", str(tmp_path / "paid.yaml")]).output
    assert "with its paid steps of preprocessing, which the table leaves out" in printed
