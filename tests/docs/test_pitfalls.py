"""docs/project/pitfalls.md lists every trap of DP-SGD, each with a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAPS = {1, 2, 3, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 19, 21, 22, 24, 25}
NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_trap_is_listed_once_with_tests() -> None:
    text = (ROOT / "docs" / "project" / "pitfalls.md").read_text(encoding="utf-8")
    parts = re.split(r"^### T(\d+): ", text, flags=re.MULTILINE)[1:]
    numbers = [int(number) for number in parts[::2]]
    assert sorted(numbers) == sorted(TRAPS)
    for number, body in zip(numbers, parts[1::2], strict=True):
        named = [name for _, name in NAMED.findall(body) if name]
        assert named, f"T{number} names no test"
