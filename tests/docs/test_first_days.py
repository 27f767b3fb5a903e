"""The commands of docs/tutorials/first-days.md are typed again: each one of a transcript, on synthetic data."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from dprecipe.cli.main import app

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DAYS = {
    "A hospital": "hospital",
    "A bank": "transactions",
    "A folder of images": "images",
    "A data set of the hub": "reviews",
}
ROWS = {"transactions": 20_000}
"""Fewer than the page has, where reading is not what is shown: the recipe's own `size` is of accounts."""


def load_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("first_days_make", ROOT / "examples" / "first_days" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_section(page: str, title: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def type_again(section: str) -> str:
    """Run every `$ dprecipe …` of a section's transcripts here, beside its recipes; returns what was said."""
    said, typed = "", 0
    for language, block in FENCE.findall(section):
        if language == "yaml" and block.startswith("recipe:"):
            Path(f"{yaml.safe_load(block)['name']}.yaml").write_text(block, encoding="utf-8")
        if language != "console":
            continue
        for line in re.findall(r"^\$ dprecipe (.*)$", block, re.MULTILINE):
            done = CliRunner().invoke(app, shlex.split(line))
            assert done.exit_code == 0, (line, done.output)
            said, typed = said + done.output, typed + 1
    assert typed >= 3
    return said


@pytest.mark.slow
@pytest.mark.parametrize("title", DAYS)
def test_a_first_day(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DPRECIPE_DATA", raising=False)
    name = DAYS[title]
    load_maker().MAKERS[name](tmp_path, **({"rows": ROWS[name]} if name in ROWS else {}))
    section = read_section("docs/tutorials/first-days.md", title)
    if name in ROWS:  # made of fewer rows, not every account has one
        accounts = count_accounts(tmp_path / "transactions")
        section = section.replace("size: 20000", f"size: {accounts}").replace("batch_size: 1024", "batch_size: 256")
    said = type_again(section)
    assert "1 recipe: no findings" in said
    assert "\nverified\n" in f"\n{said}"


def count_accounts(folder: Path) -> int:
    import pyarrow.parquet as pq

    columns = [pq.read_table(path, columns=["account"])["account"].to_numpy() for path in sorted(folder.iterdir())]
    return len(np.unique(np.concatenate(columns)))


def test_each_day_of_the_page_is_typed_again() -> None:
    titles = re.findall(r"^## (.*)$", (ROOT / "docs" / "tutorials" / "first-days.md").read_text("utf-8"), re.MULTILINE)
    # docs/tutorials/own-data.md, which runs itself
    assert [title for title in titles if title not in DAYS] == ["A DataFrame"]
