from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dprecipe.data.copies import list_copies
from dprecipe.data.records import Records
from dprecipe.data.sources.tables import Csv
from dprecipe.planning.make import plan as make_plan
from dprecipe.recipe.read import read_text
from dprecipe.training.program.gather import gather_records
from dprecipe.training.publish.provenance import as_bytes, private_of
from tests.training.run.test_stages import RECIPE, write_table


def test_a_run_takes_its_records_from_prepared_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPRECIPE_PREPARED", raising=False)
    write_table(tmp_path / "people.csv", 300, 1)
    write_table(tmp_path / "test.csv", 40, 2)
    plans = [
        make_plan(read_text(RECIPE, str(tmp_path / "table.yaml"), overrides))
        for overrides in ((), ("runtime.prepared=kept",))
    ]
    assert plans[0].digest == plans[1].digest
    seen: list[str] = []
    read = Csv.read

    def counted(self: Any, *args: Any) -> Any:
        seen.append(self.path if isinstance(self.path, str) else self.path[0])
        return read(self, *args)

    monkeypatch.setattr(Csv, "read", counted)
    contents = []
    for plan in (plans[0], plans[1], plans[1]):
        gathered = gather_records(plan, tmp_path)
        train = gathered.prepared("train")
        assert isinstance(train, Records)
        contents.append([bytes(as_bytes(part)) for part in private_of(train) or []])
        contents[-1].append(repr(gathered.counts).encode())
    assert contents[0] == contents[1] == contents[2]
    assert seen == ["people.csv", "test.csv"] * 2
    assert [files for _, _, files in list_copies(tmp_path / "kept")] in (
        [("people.csv",), ("test.csv",)],
        [("test.csv",), ("people.csv",)],
    )
