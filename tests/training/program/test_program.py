from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import dprecipe
from dprecipe.training.program.program import records_at_once

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


@pytest.mark.parametrize("sizes", [(16, 512), (512, 16)], ids=["growing", "shrinking"])
def test_the_probe_knows_the_largest_batch_of_all_phases(tmp_path: Path, sizes: tuple[int, int]) -> None:
    text = QUICKSTART.read_text(encoding="utf-8").replace("steps: 75", "steps: 6")
    schedule = f"{{schedule: linear, from: {sizes[0]}, to: {sizes[1]}}}"
    changed = text.replace("{scheme: full_batch}", f"{{scheme: poisson, batch_size: {schedule}}}")
    assert changed != text
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(changed, encoding="utf-8")
    plan = dprecipe.plan(dprecipe.load(recipe))
    assert plan.mechanism_plan.largest_expected_batch > 16 * plan.mechanism_plan.expected_batch or sizes[0] == 512
    assert records_at_once(plan) >= 512
