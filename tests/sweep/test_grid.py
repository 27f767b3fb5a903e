"""The grid of a sweep: its arguments, the names of its cells, and what is refused."""

from __future__ import annotations

import pytest

from dprecipe.faults import UsageFault
from dprecipe.sweep.grid import SweepCell, read_grid


def test_commas_in_brackets_and_quotes_divide_no_value() -> None:
    grid = read_grid(["model.hidden=[32, 64],[128]", 'name="a,b",c', "x.clip={norm: 1, mode: flat},{norm: 2}"], 1, 0)
    assert [each.values for each in grid.over] == [
        ("[32, 64]", "[128]"),
        ('"a,b"', "c"),
        ("{norm: 1, mode: flat}", "{norm: 2}"),
    ]


def test_a_cell_is_the_recipe_with_its_values_and_a_seed() -> None:
    grid = read_grid(["training.optimizer.lr=0.5,1", "budget.epsilon=1,3"], 2, 7)
    cells = grid.list_cells()
    assert len(cells) == 8
    assert cells[0].overrides == ("training.optimizer.lr=0.5", "budget.epsilon=1", "runtime.seed=7")
    assert cells[-1].overrides == ("training.optimizer.lr=1", "budget.epsilon=3", "runtime.seed=8")
    assert cells[0].name == "lr-0.5_epsilon-1_seed-7"
    assert len({cell.name for cell in cells}) == 8


@pytest.mark.parametrize("values", [("../../etc", "../../etd"), ("a" * 200 + "1", "a" * 200 + "2"), ("[1]", "{1}")])
def test_a_name_is_one_folder_whatever_the_value_and_different_for_different_values(values: tuple[str, str]) -> None:
    names = {SweepCell(("model.file",), (value,), 0).name for value in values}
    assert len(names) == 2
    for name in names:
        assert "/" not in name
        assert len(name) < 100


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ([], "needs a key"),
        (["training.epochs"], "no key with values"),
        (["=1,2"], "no key with values"),
        (["training.epochs=1,,2"], "no key with values"),
        (["training.epochs=1,1"], "a value is there twice"),
        (["training.epochs=1", "training.epochs=2"], "names a key twice"),
        (["runtime.seed=1,2"], "set by --seeds"),
        (["a.b=" + ",".join(map(str, range(50))), "a.c=" + ",".join(map(str, range(50)))], "too many"),
    ],
)
def test_what_is_no_grid_is_refused(over: list[str], says: str) -> None:
    with pytest.raises(UsageFault, match=says):
        read_grid(over, 1, 0)
