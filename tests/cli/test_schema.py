"""`dprecipe schema`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.cli.schema import schema
from dprecipe.faults import UsageFault
from dprecipe.schemas import SCHEMAS


def test_written_schemas_are_current_and_drift_is_noticed(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "schemas"
    assert schema(out, check=True) == 1
    assert schema(out) == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(SCHEMAS)
    assert schema(out, check=True) == 0
    with (out / "recipe.schema.json").open("a") as file:
        file.write(" ")
    assert schema(out, check=True) == 1


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageFault):
        schema(tmp_path / "file")
