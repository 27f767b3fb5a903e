"""Policies are read as strictly as recipes, and found above them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from dprecipe.faults import RecipeError
from dprecipe.policy.find import POLICY_FILE, find_policies, is_policy_file
from dprecipe.policy.read import PolicyRule, load_policies, read_policy, read_policy_text

GOOD = "policy: dprecipe/v1\nname: hospital\nrules:\n  - {name: all, max_epsilon: 3.0}\n"


def test_a_policy_has_the_digest_of_its_text(tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).write_text(GOOD, encoding="utf-8")
    record = read_policy(tmp_path / POLICY_FILE).record
    assert record.name == "hospital"
    assert record.digest == f"sha256:{hashlib.sha256(GOOD.encode()).hexdigest()}"


@pytest.mark.parametrize(
    ("old", "new", "code", "place", "words"),
    [
        ("dprecipe/v1", "dprecipe/v2", "R106", (1, 9), "dprecipe/v1"),
        ("max_epsilon", "max_epsilo", "R101", (4, 17), "did you mean `max_epsilon`"),
        ("max_epsilon: 3.0", "max_epsilon: '3'", "R103", (4, 30), "a number"),
        ("max_epsilon: 3.0", "max_epsilon: 0", "R107", (4, 30), "greater than 0"),
        ("max_epsilon: 3.0", "mechanisms: [dpsdg]", "R106", (4, 30), "did you mean `dpsgd`"),
        ("max_epsilon: 3.0", "signed_by: [office]", "R106", (4, 29), "`keys` is empty"),
        ("max_epsilon: 3.0", "accept: {P999: []}", "R106", (4, 26), "not known"),
        ("max_epsilon: 3.0", "signed: false", "R106", (4, 25), "true"),
        ("name: all, ", "", "R102", (4, 5), "add `name`"),
        ("name: hospital", "name: &a hospital", "Y107", (2, 7), "anchor"),
        ("name: hospital", "name: hospital\nkeys: {office: abc}", "R109", (3, 16), "64 hexadecimal"),
        ("rules:\n  - {name: all, max_epsilon: 3.0}", "rules: []", "R108", (3, 1), "at least 1"),
        ("name: hospital", "name: hospital\nname: b", "Y106", (3, 1), "already"),
    ],
)
def test_what_is_wrong_is_found_at_its_place(old: str, new: str, code: str, place: tuple[int, int], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_policy_text(GOOD.replace(old, new))
    (finding,) = caught.value.findings
    assert finding.place is not None
    assert (finding.code, (finding.place.line, finding.place.column)) == (code, place), finding
    assert words in f"{finding.message}; {finding.remedy}"
    assert finding.place.file == POLICY_FILE


@pytest.mark.parametrize("text", ["", "- a", "x", "policy: [\n", "\x00", "policy: dprecipe/v1\n" + "a: " * 400 + "1"])
def test_what_is_no_policy_is_a_finding(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        read_policy_text(text)
    assert caught.value.findings


def test_all_policies_above_a_recipe_apply_nearest_first(tmp_path: Path) -> None:
    inner = tmp_path / "team" / "recipes"
    inner.mkdir(parents=True)
    (tmp_path / POLICY_FILE).write_text(GOOD, encoding="utf-8")
    (tmp_path / "team" / POLICY_FILE).write_text(GOOD.replace("hospital", "team"), encoding="utf-8")
    other = tmp_path / "more.policy.yaml"
    other.write_text(GOOD.replace("hospital", "more"), encoding="utf-8")
    assert [path.parent.name for path in find_policies(inner / "a.yaml")][:2] == ["team", tmp_path.name]
    loaded = load_policies(inner / "a.yaml", other)
    assert [each.policy.name for each in loaded] == ["team", "hospital", "more"]
    assert len(load_policies(inner / "a.yaml", tmp_path / POLICY_FILE)) == 2


@pytest.mark.parametrize("linked", ["recipes", "recipes/a.yaml"])
def test_a_link_to_recipes_leads_to_their_policies(linked: str, tmp_path: Path) -> None:
    (tmp_path / "hospital" / "recipes").mkdir(parents=True)
    (tmp_path / "hospital" / "recipes" / "a.yaml").touch()
    (tmp_path / "hospital" / POLICY_FILE).write_text(GOOD, encoding="utf-8")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / POLICY_FILE).write_text(GOOD.replace("hospital", "home"), encoding="utf-8")
    (tmp_path / "home" / linked.split("/")[-1]).symlink_to(tmp_path / "hospital" / linked)
    recipe = tmp_path / "home" / ("recipes/a.yaml" if linked == "recipes" else "a.yaml")
    assert [each.policy.name for each in load_policies(recipe)] == ["home", "hospital"]
    assert len(load_policies(recipe, tmp_path / "home" / ".." / "home" / POLICY_FILE)) == 2


def test_a_policy_that_cannot_be_read_allows_nothing(tmp_path: Path) -> None:
    (tmp_path / POLICY_FILE).symlink_to(tmp_path / "gone")
    with pytest.raises(RecipeError, match="no such file"):
        load_policies(tmp_path / "a.yaml")


DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_are_right() -> None:
    page = (DOCS / "how-to" / "policy.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```yaml\n(policy:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    policy = read_policy_text(example).policy
    assert len(policy.rules) == 3
    table = page[page.index("| key |") : page.index("Who accepts a warning")]
    keys = {field.alias or name for name, field in PolicyRule.model_fields.items()} - {"name", "data", "except"}
    assert {key for key in keys if f"`{key}" not in table} == set()


def test_the_examples_of_the_findings_are_right() -> None:
    pages = sorted((DOCS / "reference" / "findings").glob("Q*.md"))
    assert len(pages) == 15
    for page in pages:
        (example,) = re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        assert read_policy_text(f"policy: dprecipe/v1\nname: example\n{example}").policy.rules


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
