"""`dprecipe noise`: the table, the document, the plot, and the words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from dprecipe.cli import files
from dprecipe.cli.schema import SCHEMAS
from dprecipe.faults import PlanRefused, UsageFault
from dprecipe.mechanisms.encoded.commands import noise as compare
from dprecipe.mechanisms.encoded.commands.noise import as_encoding, compare_noise
from dprecipe.noise.distributions import Distribution
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read
from tests.schemas import validator_of

RECIPE = """\
recipe: dprecipe/v1
name: small
data:
  train: {source: npz, path: absent.npz, shape: [4], classes: 2}
  size: 10000
model: {kind: logistic_regression}
mechanism:
  kind: encoded
  codebook: {source: gaussian, size: 3, norm: 0.5}
  noise: {family: gaussian, multiplier: auto}
  denoise: none
  sampling: {scheme: poisson, batch_size: 100}
budget: {epsilon: 3.0, delta: 1e-6}
training:
  steps: 100
  optimizer: {kind: sgd, lr: 1.0}
"""
DPSGD = "mechanism={kind: dpsgd, clip: {norm: 2}, noise: {family: gaussian, multiplier: auto}, " \
    "sampling: {scheme: poisson, batch_size: 100}}"  # fmt: skip
MANY = ["model={kind: mlp, hidden: [100]}", "budget.accountant=rdp"]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose data are not there, and few distributions to compare."""
    monkeypatch.setattr(
        compare, "DISTRIBUTIONS", (compare.GAUSSIAN, Distribution("student_t", 9.0), Distribution("cauchy"))
    )
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_the_table_and_what_follows_in_few_coordinates(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_noise(recipe, ["mechanism.noise={family: student_t, df: 9, multiplier: auto}"])
    out = capsys.readouterr().out
    assert out.startswith("small: noise at ε = 3, δ = 1e-06 (pld), 100 steps, 10 coordinates, codewords of norm 0.5\n")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith("  ")}
    assert list(rows) == ["noise", "student_t(9)", "gaussian", "cauchy"]
    assert rows["student_t(9)"][1] == "*"
    assert rows["cauchy"].count("infinite") == 4
    assert "Smallest L1 error: student_t(9)" in out
    assert "Smallest L2 error: student_t(9)" in out
    assert "The choice matters here" in out
    assert "dpsgd" not in out


def test_what_follows_in_many_coordinates(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare_noise(recipe, [*MANY, "mechanism.codebook.size=1000"])
    out = capsys.readouterr().out
    assert "Smallest L1 error: gaussian. Smallest L2 error: gaussian." in out
    assert "hardly matters: over 702 coordinates" in out
    assert "more than 0.79%" in out
    assert "for the envelope of 1,000 codewords" in out
    compare_noise(recipe, [*MANY, "mechanism.codebook.size=1"])
    assert "envelope" not in capsys.readouterr().out


@pytest.mark.slow
def test_what_lies_in_the_bounds_and_not_in_the_distributions_is_told(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_noise(recipe, MANY)
    plain = capsys.readouterr().out
    assert "looser bounds" not in plain
    assert "removing one unit and adding another" not in plain
    compare_noise(recipe, [*MANY, "budget.neighbouring=replace_one", "mechanism.microbatch=2"])
    printed = capsys.readouterr().out
    assert "looser bounds" in printed
    assert "removing one unit and adding another" in printed


def test_the_document_fits_its_schema_and_is_what_is_written(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "noise"
    compare_noise(recipe, output="json", out=out)
    written = capsys.readouterr().out
    document = json.loads(written)
    validator_of(SCHEMAS["noise.schema.json"]).validate(document)
    assert (out / "noise.json").read_text("utf-8") == written
    assert sorted(path.name for path in out.iterdir()) == ["noise.json", "noise.svg"]
    assert document["recipe"] == {"name": "small", "digest": read(recipe).source.digest}
    assert document["distributions"][-1]["family"] == "cauchy"
    assert document["distributions"][-1]["l1"] is document["distributions"][-1]["l2_ratio"] is None
    assert document["matters"] is True
    assert document["verdict"].startswith("Smallest L1 error")
    compare_noise(recipe, ["budget.epsilon=2"], out=out)
    assert json.loads((out / "noise.json").read_text("utf-8"))["budget"]["epsilon"] == 2  # replaced


def test_the_plot_shows_every_distribution_and_figure_inside_its_frame(recipe: Path, tmp_path: Path) -> None:
    compare_noise(recipe, ["mechanism.noise={family: student_t, df: 2.1, multiplier: auto}"], out=tmp_path)
    document = json.loads((tmp_path / "noise.json").read_text("utf-8"))
    svg = ElementTree.parse(tmp_path / "noise.svg").getroot()
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("gaussian", "student_t(9)", "student_t(2.1)", "cauchy"):
        assert name in texts
    figures = [distribution[key] for distribution in document["distributions"] for key in ("l1_ratio", "l2_ratio")]
    assert texts.count("infinite") == 2
    assert all(f"{figure:.3f}" in texts for figure in figures if figure is not None)
    assert any(figure > 2 for figure in figures if figure is not None)  # beyond the axis: an arrow at its edge
    width, height = float(svg.attrib["width"]), float(svg.attrib["height"])
    for element in svg.iter():
        for names, most in ((("x", "x1", "x2", "cx"), width), (("y", "y1", "y2", "cy"), height)):
            assert all(0 <= float(element.attrib[name]) <= most for name in names if name in element.attrib)


def test_dpsgd_is_compared_as_encoding_with_one_codeword(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compare_noise(recipe, [DPSGD], out=tmp_path)
    assert "dpsgd can be accounted with gaussian noise only" in capsys.readouterr().out
    document = json.loads((tmp_path / "noise.json").read_text("utf-8"))
    assert (document["mechanism"], document["compared_as"]) == ("dpsgd", "encoded")
    assert document["codebook"]["words"] == 1
    (gaussian,) = (distribution for distribution in document["distributions"] if distribution["family"] == "gaussian")
    result = plan(read(recipe, [DPSGD]))
    assert gaussian["multiplier"] == result.solved["mechanism.noise.multiplier"]
    assert gaussian["scale"] == result.mechanism_plan.noise_scale(result.mechanism_plan.phases[-1])
    assert gaussian["epsilon"] == result.guarantee.epsilon


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        ([DPSGD.replace("poisson", "dealt")], "P131"),
        ([DPSGD.replace("gaussian", "sech")], "P101"),
        (["mechanism.noise.multiplier=0.68"], "P102"),
        (["mechanism.codebook={source: gradients}"], "P130"),
        (["budget.epsilon=1e6"], "P107"),
    ],
)
def test_a_recipe_that_can_not_be_planned_is_refused_at_its_place(
    recipe: Path, overrides: list[str], code: str
) -> None:
    with pytest.raises(PlanRefused) as refused:
        compare_noise(recipe, overrides)
    assert [finding.code for finding in refused.value.findings if finding.is_error] == [code]
    assert all(finding.place is not None for finding in refused.value.findings)


def test_wrong_use(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageFault, match="unknown format"):
        compare_noise(recipe, output="xml")
    (tmp_path / "file").touch()
    with pytest.raises(UsageFault, match="can't be written"):
        compare_noise(recipe, MANY, out=tmp_path / "file")
    loaded = read(recipe)
    other: Any = SimpleNamespace(kind="another")
    with pytest.raises(UsageFault, match="another has no choice of noise"):
        as_encoding(replace(loaded, recipe=loaded.recipe.model_copy(update={"mechanism": other})))


def test_notes_on_progress_come_after_some_time(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 2.5, 2.5, 3.0])
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    compare_noise(recipe, MANY)
    assert capsys.readouterr().err == "1 of 3 distributions compared; now student_t(9)\n"
