from __future__ import annotations

import random

import pytest

from dprecipe.data.token_patterns import MAX_STEPS, count_steps


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("abc", 3),
        ("a|bc", 3),
        ("(?:a|b){3}c", 2 * (1 + 2 + 4 + 8) + 8),  # each of 2³ ways is tried before c fails
        ("a?b?c", 1 + 2 * 1 + 4),
        ("ab?", 1 + 1 + 1),  # what is optional at the end fails nothing: a is found, then b
        ("a(?i)b|c", 3),  # the options hold to the end: a, then b or c
        ("a{2}{3}", 6),
        ("(?=a|b)", 2),
    ],
)
def test_the_steps_of_a_pattern(pattern: str, steps: float) -> None:
    assert steps <= count_steps(pattern) <= 2 * steps  # the last part that may fail counts twice


@pytest.mark.parametrize("seed", range(4))
def test_what_the_library_does_is_within_the_bound(seed: int) -> None:
    """Random patterns that are taken never reach the library's own limit of retries (10⁷ at a letter)."""
    library = pytest.importorskip("tokenizers")
    draw, taken = random.Random(seed), 0
    for _ in range(300):
        pattern = draw_pattern(draw, 3)
        if count_steps(pattern) > MAX_STEPS:
            continue
        try:
            split = library.pre_tokenizers.Split(library.Regex(pattern), "isolated")
        except Exception:  # the library refuses what no expression is
            continue
        taken += 1
        for text in ("a" * 300, "ab" * 150, "ab" * 100 + "c"):
            split.pre_tokenize_str(text)  # a panic at the library's limit
    assert taken > 50


def draw_pattern(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(7 if depth else 2)
    inner = [draw_pattern(draw, depth - 1) for _ in range(draw.randint(1, 3))] if depth else []
    match kind:
        case 0 | 1:
            return draw.choice(["a", "b", "[ab]", ".", "[^c]"])
        case 2:
            return "".join(inner)
        case 3:
            return f"(?:{'|'.join(inner)})"
        case 4 | 5:
            return f"(?:{inner[0]}){draw.choice(['*', '+', '?', '{2}', '{0,3}', '{5,9}', '+?', '{20}'])}"
        case _:
            return f"({draw.choice(['?=', '?!', '?>'])}{inner[0]})"
