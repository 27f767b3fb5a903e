"""Mutations of good recipes: each is read or refused with findings, and nothing else ever happens."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dprecipe.faults import CODES, RecipeError
from dprecipe.recipe.read import read_text
from dprecipe.recipe.starters import MECHANISMS, SOURCES, make_starter
from tests.text.reading import show

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
SEEDS = [make_starter(mechanism, source, "s") for mechanism in MECHANISMS for source in SOURCES]
SEEDS += [path.read_text("utf-8") for path in sorted(GOLDEN.glob("*.yaml")) if path.stem != "y103-not-utf8"]
JUNK = [
    *(
        "null",
        "true",
        "-1",
        "0",
        "1e308",
        "1e999",
        ".nan",
        "[]",
        "{}",
        "[[]]",
        "{a: {b: [1]}}",
        "''",
        '"\\ud800"',
        "*x",
    ),
    *("&y 1", "!!str 1", "auto", "gaussian", "kind: cnn", "word", "number", "block", "1_000", "é", "\u202e", "\x00"),
    *("- ", "  ", "\t", "{", "}", "[", "]", ":", "#", "|", ">", "?", "---", "...", "%", "@", "`", "<<: {}", "'", '"'),
    *("extends: x.yaml", "source: csv", "family: t", "scheme: dealt", "0", "9223372036854775808", "1.0", "yes"),
]


def mutate(text: str, random: random.Random) -> str:
    lines = text.split("\n")
    at = random.randrange(len(lines))
    match random.randrange(10):
        case 0:
            del lines[at]
        case 1:
            lines.insert(random.randrange(len(lines)), lines[at])
        case 2:
            other = random.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            key, colon, _ = lines[at].partition(":")
            lines[at] = f"{key}{colon} {random.choice(JUNK)}"
        case 4:
            words = lines[at].replace("{", " { ").replace("}", " } ").replace(",", " , ").split(" ")
            words[random.randrange(len(words))] = random.choice(JUNK)
            lines[at] = " ".join(words)
        case 5:
            lines[at] = " " * random.randrange(6) + lines[at].lstrip()
        case 6:
            lines.insert(at, " " * random.randrange(8) + random.choice(JUNK))
        case 7:
            position = random.randrange(len(lines[at]) + 1)
            lines[at] = (
                lines[at][:position]
                + chr(random.choice([random.randrange(128), random.randrange(0x11000)]))
                + (lines[at][position + random.randrange(2) :])
            )
        case 8:
            words = lines[at].split(" ")
            random.shuffle(words)
            lines[at] = " ".join(words)
        case _:
            return text[: random.randrange(len(text) + 1)]
    return "\n".join(lines)


def read_or_refuse(text: str, overrides: tuple[str, ...]) -> bool:
    """Whether the text was read. Anything but a well-formed refusal is an error of the test."""
    refusal: RecipeError | None = None
    try:
        loaded = read_text(text, "fuzz.yaml", overrides)
    except RecipeError as error:
        refusal = error
    if refusal is None:
        assert loaded.recipe.name
        return True
    assert refusal.findings
    for finding in refusal.findings:
        assert finding.code in CODES
        assert finding.place is not None
        assert finding.message
        assert finding.remedy
    shown = show(refusal.findings, refusal.texts)
    assert "pydantic" not in shown
    assert "Input should" not in shown
    assert all(c.isprintable() or c in "\n\t" for c in shown)
    return False


def fuzz(count: int, seed: int) -> tuple[int, int]:
    chance = random.Random(seed)
    read = 0
    for _ in range(count):
        text = chance.choice(SEEDS)
        for _ in range(chance.choice([1, 1, 1, 2, 3, 6])):
            text = mutate(text, chance)
        override = (
            f"{chance.choice(['data.size', 'model', 'a.b', 'data.preprocess.0', 'meta.x'])}={chance.choice(JUNK)}"
        )
        read += read_or_refuse(text, (override,) if chance.random() < 0.1 else ())
    return read, count


@pytest.mark.slow
def test_a_thousand_mutations() -> None:
    read, count = fuzz(1_000, seed=1)
    assert 0 < read < count  # the mutations are neither all harmless nor all fatal


@pytest.mark.slow
def test_five_thousand_mutations() -> None:
    for seed in range(10, 15):
        read, count = fuzz(1_000, seed)
        assert 0 < read < count


def test_random_bytes_as_text() -> None:
    chance = random.Random(3)
    for _ in range(300):
        text = chance.randbytes(chance.randrange(200)).decode("utf-8", "replace")
        assert not read_or_refuse(text, ())
