"""Globs are compared as what they stand for: held against every short path, one by one."""

from __future__ import annotations

import itertools
import random
from fnmatch import fnmatchcase

import pytest

from dprecipe.policy.globs import clean, fold, is_within, may_meet

LETTERS = "ab/"
PATHS = [
    path
    for length in range(1, 7)
    for path in map("".join, itertools.product(LETTERS, repeat=length))
    if "//" not in path and not path.startswith("/") and not path.endswith("/")
]


def has_recipe(parts: list[str], glob: list[str]) -> bool:
    """Returns True if a recipe's glob has a file: part by part, `**` any number of them, and one at the end."""
    if not glob or glob == ["**"]:
        return bool(parts) is bool(glob)
    if glob[0] == "**":
        return any(has_recipe(parts[count:], glob[1:]) for count in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], glob[0]) and has_recipe(parts[1:], glob[1:])


def has_rule(path: str, glob: str) -> bool:
    parts = path.split("/")
    return any(fnmatchcase("/".join(parts[count:]), glob) for count in range(len(parts)))


def draw_globs(seed: int, letters: str, count: int) -> list[str]:
    chance = random.Random(seed)
    drawn = {"".join(chance.choices(letters, k=chance.randint(1, 4))) for _ in range(count)}
    return sorted(glob for glob in drawn if "//" not in glob and not glob.startswith("/") and not glob.endswith("/"))


RECIPES = sorted({*draw_globs(1, "ab/*?", 150), "**/a", "**/ab", "a/**/b", "a/**", "**", "**/a*", "**/b/?"})
RULES = sorted({*draw_globs(2, "ab/*?", 120), "[a]*", "[!a]", "b[ab]", "[a-b]/a", "*[b]"})


@pytest.mark.parametrize("recipe", RECIPES)
def test_globs_meet_exactly_where_a_path_has_both(recipe: str) -> None:
    own = [path for path in PATHS if has_recipe(path.split("/"), recipe.split("/"))]
    for rule in RULES:
        if "[" not in rule and "?" not in rule:
            assert may_meet(recipe, rule) is any(has_rule(path, rule) for path in own), rule
        elif any(has_rule(path, rule) for path in own):
            assert may_meet(recipe, rule), rule
        if is_within(recipe, rule):
            assert all(fnmatchcase(path, rule) or fnmatchcase(path.rpartition("/")[2], rule) for path in own), rule


@pytest.mark.parametrize("path", PATHS[::7])
def test_a_path_is_within_what_fnmatch_says(path: str) -> None:
    for rule in RULES:
        last = path.rpartition("/")[2] if "/" not in rule else path
        assert is_within(path, rule) is (fnmatchcase(path, rule) or fnmatchcase(last, rule)), rule


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [
        ("./a//b/", "a/b"),
        ("a/../b", "b"),
        ("../../a", "../../a"),
        ("a/../../b", "../b"),
        ("/../a", "/a"),
        ("//a", "/a"),
        (".", ""),
    ],
)
def test_detours_are_taken_out(path: str, cleaned: str) -> None:
    assert clean(path) == cleaned


def test_letters_are_folded_one_by_one() -> None:
    assert fold("ÄB\\ſß") == fold("a\u0308b/sß")
    assert len(fold("ŉ")) == 1


def test_hostile_globs_meet_in_time() -> None:
    assert may_meet("a" * 5000, "*a" * 2000 + "b") is False  # letters that are missing are seen at once
    assert may_meet("*a" * 2000, "*a" * 2000)
    assert may_meet("?" * 3000, "*a*b" * 1000)
    assert is_within("a" * 3000, "*a" * 1000 + "*")
    assert not is_within("a" * 3000, "*a" * 1000 + "*b")


def test_a_path_of_marks_is_no_pattern() -> None:
    assert is_within("\ue000", "*")
    assert not is_within("\ue000", "?")
    assert not is_within("*", "\ue000")
