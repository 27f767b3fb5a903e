"""`dprecipe plan` as text: what a descent in many stages is told as."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli import plan as command
from dprecipe.cli.plan import plan_lines
from dprecipe.faults import UsageFault
from dprecipe.planning.make import plan
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import make_starter


def test_what_does_not_move_is_no_range() -> None:
    recipe = make_starter("pnsgd", "npz", "moving").replace(
        "learning_rate: 2.0", "learning_rate: {schedule: linear, from: 2.0, to: 0.5}"
    )
    result = plan(read_text(recipe))
    rows = {line.split()[0]: line for line in plan_lines(result) if line.startswith("  ")}
    assert "2 to 0.5 in 256 stages" in rows["learning"]
    assert "stages" not in rows["noise"]
    assert f"({result.room.noise_phases[0].multiplier:.6g} × L)" in rows["noise"]


def test_an_unknown_format_is_wrong_usage() -> None:
    with pytest.raises(UsageFault, match="unknown format xml"):
        command.plan(Path("recipes/quickstart.yaml"), output="xml")
