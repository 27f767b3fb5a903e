"""What lies beside weights without privacy: names of a recipe and its files can't pass for the program's own words."""

from __future__ import annotations

import re

import pytest

from dprecipe.models.public_record import PublicRecord
from dprecipe.nonprivate.documents import render_readme, render_report

DIGEST = f"sha256:{'0' * 64}"


def record_of(file: str) -> PublicRecord:
    used = {"role": "train", "source": "csv", "part": "", "files": {file: DIGEST}, "count": 9, "digest": DIGEST}
    content = {
        "schema": "dprecipe.public-weights/v1",
        "recipe": {"name": "plain", "digest": DIGEST},
        "data": (used,),
        "steps": 1,
        "seed": 0,
        "weights": DIGEST,
        "versions": {"dprecipe": "0.1.0"},
        "device": "cpu",
    }
    return PublicRecord.model_validate(content)


@pytest.mark.parametrize(
    "name",
    [
        "<img src=x onerror=alert(1)>.csv",
        "a.csv | x |\n\n# Privacy\n\n(ε = 0.1)",
        "[verified](javascript:alert(1)).csv",
        "![x](y).csv",
        "`a`**b**.csv",
        "a\u202eb.csv",
    ],
)
def test_a_file_name_is_no_markup(name: str) -> None:
    readme = render_readme(record_of(name), DIGEST, None, "loss").decode()
    (row,) = [line for line in readme.splitlines() if line.startswith("| file ")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert not re.search(r"(?<!\\)[<>\[\]`*!]", row)
    assert row.isprintable()
    page = render_report(record_of(name), DIGEST, None, "loss", "").decode()
    assert "<img" not in page
