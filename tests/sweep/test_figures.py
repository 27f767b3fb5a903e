"""The figures of a sweep: what is drawn of which values, and of runs without a score."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from dprecipe.sweep.figures import draw_sweep
from dprecipe.sweep.grid import read_grid
from dprecipe.sweep.results import PointRow


def draw(over: list[str], metric: str = "accuracy", lost: int = 0) -> str:
    grid = read_grid(over, 2, 0)
    points = grid.list_points()
    rows = [
        PointRow(point, 1.0, () if i < lost else (0.5 + i / 100, 0.6 + i / 100), 0) for i, point in enumerate(points)
    ]
    drawn = draw_sweep(grid, rows, metric)
    assert drawn is not None
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    return drawn


def titles(drawn: str) -> list[str]:
    return re.findall(r'font-weight="600"[^>]*>([^<]*)<', drawn)


def test_one_key_is_one_panel_and_two_have_a_heat_map() -> None:
    assert titles(draw(["a.lr=1,2,3"])) == ["accuracy against lr; bars span the seeds"]
    two = draw(["a.lr=1,2,3", "b.epsilon=1,8"])
    assert len(titles(two)) == 3
    assert titles(two)[-1] == "accuracy, stronger is larger"
    assert ">epsilon 8</text>" in two
    assert ">55.00%</text>" in two  # the mean of 0.5 and 0.6


def test_of_many_other_values_one_curve_is_drawn_over_all() -> None:
    drawn = draw(["a.lr=1,2", "b.x=1,2,3,4,5,6"])
    assert ">over all other values</text>" in drawn


def test_three_keys_have_a_map_of_each_two() -> None:
    assert len(titles(draw(["a.lr=1,2", "b.x=1,2", "c.y=1,2"]))) == 6


def test_the_smallest_loss_has_the_strongest_colour() -> None:
    shares = [float(share) for share in re.findall(r'fill-opacity="([0-9.]+)"', draw(["a.lr=1,2", "b.x=1,2"], "loss"))]
    assert shares[0] == max(shares)
    shares = [float(share) for share in re.findall(r'fill-opacity="([0-9.]+)"', draw(["a.lr=1,2", "b.x=1,2"]))]
    assert shares[0] == min(shares)


def test_runs_without_a_score_leave_a_gap_and_none_at_all_no_figure() -> None:
    assert "<path" in draw(["a.lr=1,2,3", "b.x=1,2"], lost=2)
    grid = read_grid(["a.lr=1,2"], 1, 0)
    assert draw_sweep(grid, [PointRow(point, None, (), 1) for point in grid.list_points()], "accuracy") is None


def test_a_value_of_a_recipe_is_no_markup() -> None:
    assert "<script" not in draw(["a.lr=<script>,2", "b.x=<b>,1"])
