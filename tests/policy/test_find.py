"""Where policies are found; `test_read.py` has what is above a recipe, and links."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprecipe.policy.find import POLICY_FILE, find_policies, is_policy_file


@pytest.mark.parametrize(
    ("name", "expected"), [(POLICY_FILE, True), ("a.policy.yaml", True), ("policy.yaml", False), ("a.yaml", False)]
)
def test_a_policy_is_known_by_its_name(name: str, expected: bool) -> None:
    assert is_policy_file(Path("folder") / name) is expected


def test_a_policy_that_is_named_counts_once_and_even_where_it_is_missing(tmp_path: Path) -> None:
    recipe = tmp_path / "inner" / "a.yaml"
    assert find_policies(recipe, tmp_path / "gone.policy.yaml")[-1] == tmp_path / "gone.policy.yaml"
    (tmp_path / POLICY_FILE).touch()
    found = find_policies(recipe, tmp_path / "inner" / ".." / POLICY_FILE)
    assert found[0] == tmp_path / POLICY_FILE
    assert len(found) == len(find_policies(recipe))
