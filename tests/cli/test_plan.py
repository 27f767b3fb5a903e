"""`dprecipe plan`: what a descent in many stages is told as, and what other accountants say."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

from dprecipe.cli import plan as command
from dprecipe.cli.plan import describe_canaries, plan_lines
from dprecipe.cli.schema import SCHEMAS
from dprecipe.contract.plan import Plan
from dprecipe.faults import UsageFault
from dprecipe.planning.make import plan
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import make_starter
from tests.recipe_texts import SMALL


def test_what_does_not_move_is_no_range() -> None:
    recipe = make_starter("pnsgd", "npz", "moving").replace(
        "learning_rate: 2.0", "learning_rate: {schedule: linear, from: 2.0, to: 0.5}"
    )
    result = plan(read_text(recipe))
    rows = {line.split()[0]: line for line in plan_lines(result) if line.startswith("  ")}
    assert "2 to 0.5 in 256 stages" in rows["learning"]
    assert "stages" not in rows["noise"]
    assert f"({result.mechanism_plan.noise_phases[0].multiplier:.6g} × L)" in rows["noise"]


def test_an_unknown_format_is_wrong_usage() -> None:
    with pytest.raises(UsageFault, match="unknown format xml"):
        command.plan(Path("recipes/quickstart.yaml"), output="xml")


def test_other_accountants_stand_beside_the_claim(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path("recipes/quickstart.yaml")
    command.plan(recipe)
    alone = capsys.readouterr().out
    command.plan(recipe, compare=True)
    compared = capsys.readouterr().out
    assert compared.startswith(alone)
    assert "other accountants" not in alone
    heading, *rows = compared.removeprefix(alone).splitlines()
    assert "the claim is ε = " in heading
    assert heading.endswith("and none of these")
    assert [row.split()[0] for row in rows][:3] == [
        "basic_composition",
        "strong_composition_as_printed",
        "strong_composition",
    ]
    assert "(no guarantee)" in rows[1]
    assert "(no guarantee)" not in "".join(rows[2:])


def test_other_accountants_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path("recipes/quickstart.yaml")
    command.plan(recipe, output="json")
    alone = json.loads(capsys.readouterr().out)
    command.plan(recipe, output="json", compare=True)
    compared = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMAS["plan.schema.json"]()).validate(compared)
    rows = compared.pop("comparison")
    assert compared == alone, "the plan and its digest know nothing of a comparison"
    assert {row["accountant"] for row in rows if not row["holds"]} == {"strong_composition_as_printed"}
    claim = next(row for row in rows if row["accountant"] == "pld")
    assert claim["epsilon"] == alone["guarantee"]["epsilon"]


def test_curves_are_drawn_and_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe, plot = Path("recipes/quickstart.yaml"), tmp_path / "curves.svg"
    command.plan(recipe, plot=plot)
    said = capsys.readouterr().out
    assert "no curve of ε over the batch size, at equal noise: the recipe has no batch size" in said
    assert said.endswith(f"wrote {plot}\n")
    drawn = plot.read_text(encoding="utf-8")
    assert ElementTree.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    for words in ("moments accountant", "(the claim)", "composition, no guarantee", "mechanism.noise.multiplier"):
        assert words in drawn
    assert "prefers-color-scheme:dark" in drawn
    command.plan(recipe, output="json", plot=plot)
    json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["curves.png", "absent/curves.svg"])
def test_a_plot_that_can_not_be_written_is_wrong_usage(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageFault):
        command.plan(Path("recipes/quickstart.yaml"), plot=tmp_path / name)


def test_a_physical_batch_that_is_measured_is_not_planned() -> None:
    recipe = make_starter("dpsgd", "npz", "measured")
    assert "physical batch" not in "\n".join(plan_lines(plan(read_text(recipe))))
    lines = plan_lines(plan(read_text(recipe.replace("seed: 0}", "seed: 0, physical_batch: auto}"))))
    assert any(line.split()[:3] == ["physical", "batch", "measured"] for line in lines)


def plan_of(text: str) -> Plan:
    return make_plan(read_text(text))


def test_a_plan_without_canaries_says_nothing_of_them() -> None:
    assert describe_canaries(plan_of(SMALL)) == []


@pytest.mark.parametrize("canary", ["gradient", "record"])
def test_a_plan_says_what_canaries_cost_and_show(canary: str) -> None:
    """1,437 records and 63 canaries in full batches; 650 weights, and μ = √20/z for 20 steps."""
    plan = plan_of(SMALL + f"audit: {{canaries: 63, canary: {canary}}}\n")
    rows = dict(describe_canaries(plan))
    assert (
        rows["canaries"]
        == f"63, each a {canary}, in the run by a secret coin: 31.5 of them in a batch of 1,500, as expected"
    )
    assert rows["they cost"].startswith("a batch has 4.20% fewer records")
    variance = 31.5 / (650 * plan.mechanism_plan.events[0].event.multipliers[0] ** 2)
    assert (f"about {variance:.2%} to the variance of the noise on a weight" in rows["they cost"]) is (
        canary == "gradient"
    )
    assert "at confidence 0.95" in rows["they show"]
    tested = "a sound one raises an alarm in 0.05 of runs" if canary == "gradient" else "not tested, for what a model"
    assert tested in rows["they test"]
    lines = "\n".join(plan_lines(plan))
    assert all(text in lines for text in rows.values())


def test_a_plan_names_both_sampling_rates() -> None:
    text = SMALL.replace("scheme: full_batch", "scheme: poisson, batch_size: 100")
    rows = dict(describe_canaries(plan_of(text + "audit: {canaries: 63}\n")))
    assert "the sampling rate is 0.0666667, and was 0.0695894 without" in rows["they cost"]
